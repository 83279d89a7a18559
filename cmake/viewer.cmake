# The page of `weir view`: built from viewer/ by esbuild, and compiled into the program by cli/view_page.c.
set(WEIR_BUILD_VIEWER AUTO CACHE STRING "Build the page of `weir view`: ON, OFF, or AUTO for where esbuild is found")
find_program(WEIR_ESBUILD esbuild)
mark_as_advanced(WEIR_ESBUILD)
set(viewer_dir ${PROJECT_SOURCE_DIR}/viewer)
if(WEIR_BUILD_VIEWER STREQUAL "ON" AND NOT WEIR_ESBUILD)
  message(FATAL_ERROR "The page of weir view needs esbuild (Debian: apt-get install esbuild); -DWEIR_BUILD_VIEWER=OFF builds "
                      "without it")
endif()
if(NOT WEIR_BUILD_VIEWER OR NOT WEIR_ESBUILD)
  message(STATUS "weir view: the page is left out: esbuild was not found, or WEIR_BUILD_VIEWER is OFF")
endif()
if(WEIR_BUILD_VIEWER AND WEIR_ESBUILD AND EXISTS ${viewer_dir}/build.sh)
  set(viewer_page ${PROJECT_BINARY_DIR}/viewer/page.html)
  get_filename_component(esbuild_dir ${WEIR_ESBUILD} DIRECTORY)
  file(GLOB_RECURSE viewer_sources CONFIGURE_DEPENDS ${viewer_dir}/src/* ${viewer_dir}/index.html ${viewer_dir}/build.sh
       ${viewer_dir}/node_modules/fzstd/package.json)
  add_custom_command(
    OUTPUT ${viewer_page}
    COMMAND ${CMAKE_COMMAND} -E env "PATH=${esbuild_dir}:$ENV{PATH}" sh ${viewer_dir}/build.sh ${viewer_page}
    DEPENDS ${viewer_sources}
    COMMENT "Building the page of weir view"
    VERBATIM)
  set_property(SOURCE cli/view_page.c APPEND PROPERTY COMPILE_DEFINITIONS WEIR_PAGE_FILE="${viewer_page}")
  set_property(SOURCE cli/view_page.c APPEND PROPERTY OBJECT_DEPENDS ${viewer_page})
  include(${viewer_dir}/wasm/wasm.cmake)
  if(wasm_file)
    set_property(SOURCE cli/view_page.c APPEND PROPERTY COMPILE_DEFINITIONS WEIR_WASM_FILE="${wasm_file}")
    set_property(SOURCE cli/view_page.c APPEND PROPERTY OBJECT_DEPENDS ${wasm_file})
  endif()
endif()
