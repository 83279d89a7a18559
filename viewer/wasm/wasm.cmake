# The WebAssembly module of the page: offline/, alloc/ and the ledger driver, compiled by clang with wasi-libc. Sets
# wasm_file to the module, or to nothing where it cannot be built. cmake/viewer.cmake includes this file.
set(WEIR_BUILD_WASM AUTO CACHE STRING "Build the page's WebAssembly module: ON, OFF, or AUTO for where clang and wasi-libc are found")
find_program(WEIR_WASM_CLANG NAMES clang clang-19 clang-18 clang-17 clang-16 clang-15 clang-14)
mark_as_advanced(WEIR_WASM_CLANG)
set(wasm_file)
set(wasm_dir ${PROJECT_BINARY_DIR}/viewer)
set(wasm_result 1)
if(WEIR_BUILD_WASM AND WEIR_WASM_CLANG)
  # clang needs its runtime library for wasm32, wasi-libc and wasm-ld, which may be installed later.
  file(WRITE ${wasm_dir}/probe.c "int main(void) { return 0; }\n")
  execute_process(COMMAND ${WEIR_WASM_CLANG} --target=wasm32-wasi -o ${wasm_dir}/probe.wasm ${wasm_dir}/probe.c
                  RESULT_VARIABLE wasm_result OUTPUT_QUIET ERROR_QUIET)
endif()
if(NOT wasm_result EQUAL 0)
  if(WEIR_BUILD_WASM STREQUAL "ON")
    message(FATAL_ERROR "The WebAssembly module needs clang, lld, wasi-libc and clang's runtime library for wasm32 (Debian: apt-get "
                        "install clang lld wasi-libc libclang-rt-14-dev-wasm32); -DWEIR_BUILD_WASM=OFF builds without it")
  endif()
  message(STATUS "weir view: what-if in the page is left out: there is no clang with wasi-libc")
  return()
endif()

set(wasm_flags
    --target=wasm32-wasi
    -std=c11
    -D_GNU_SOURCE
    -DNDEBUG
    -ffile-prefix-map=${PROJECT_SOURCE_DIR}=.
    -I${PROJECT_SOURCE_DIR}/include
    -I${PROJECT_SOURCE_DIR}/src
    -O2
    -fvisibility=hidden
    -Wall
    -Wextra
    -Wshorten-64-to-32)
file(
  GLOB
  wasm_sources
  CONFIGURE_DEPENDS
  ${PROJECT_SOURCE_DIR}/src/base/*.c
  ${PROJECT_SOURCE_DIR}/src/pattern/*.c
  ${PROJECT_SOURCE_DIR}/src/record/*.c
  ${PROJECT_SOURCE_DIR}/src/driver/model/*.c
  ${PROJECT_SOURCE_DIR}/src/driver/ledger/*.c
  ${PROJECT_SOURCE_DIR}/src/alloc/*.c
  ${PROJECT_SOURCE_DIR}/src/alloc/*/*.c
  ${PROJECT_SOURCE_DIR}/src/inspect/*.c
  ${PROJECT_SOURCE_DIR}/src/offline/*/*.c
  ${PROJECT_SOURCE_DIR}/viewer/wasm/*.c)
foreach(name call client driver nvml visible)
  list(APPEND wasm_sources ${PROJECT_SOURCE_DIR}/src/driver/${name}.c)
endforeach()
# What needs the runtime or the system, and what the page does not use.
set(wasm_unused
    alloc/default
    alloc/host/host
    alloc/host/memory
    alloc/host/uses
    alloc/memory/pages_valid
    alloc/peers
    alloc/pools/checkpoint
    alloc/pools/graphs
    alloc/valid
    base/status_client
    inspect/checkpoint
    inspect/history
    inspect/outside
    inspect/publish
    inspect/record_env
    inspect/stack_frames
    inspect/stat_names
    inspect/summary
    offline/analyse/behaviour
    offline/analyse/message
    offline/analyse/redact
    offline/analyse/sha256
    offline/analyse/tune
    offline/analyse/versions
    offline/read/message
    offline/read/message_text
    offline/render/export
    offline/render/export_flame
    offline/render/export_perfetto
    offline/render/export_sqlite
    offline/render/message_report
    offline/render/output_file
    offline/render/plot
    offline/render/plot_fragmentation
    offline/render/plot_memory
    offline/render/plot_segments
    offline/render/plot_svg
    offline/render/plot_trace
    offline/render/redact_file
    record/live_page
    record/unwind)
foreach(name IN LISTS wasm_unused)
  list(REMOVE_ITEM wasm_sources ${PROJECT_SOURCE_DIR}/src/${name}.c)
endforeach()

set(wasm_objects)
foreach(source IN LISTS wasm_sources)
  file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR} ${source})
  string(REPLACE "/" "_" name ${name})
  set(object ${wasm_dir}/wasm/${name}.o)
  add_custom_command(
    OUTPUT ${object}
    COMMAND ${WEIR_WASM_CLANG} ${wasm_flags} -MD -MF ${object}.d -c ${source} -o ${object}
    DEPENDS ${source}
    DEPFILE ${object}.d
    COMMENT "Building ${name} for WebAssembly"
    VERBATIM)
  list(APPEND wasm_objects ${object})
endforeach()
file(MAKE_DIRECTORY ${wasm_dir}/wasm)

# A library without an entry point. The stack is below the data, so that an overflow is a trap.
set(wasm_file ${wasm_dir}/weir.wasm)
add_custom_command(
  OUTPUT ${wasm_file}
  COMMAND ${WEIR_WASM_CLANG} --target=wasm32-wasi -mexec-model=reactor -Wl,--gc-sections,--strip-all,--stack-first
          -Wl,-z,stack-size=1048576,--max-memory=4294967296 -o ${wasm_file} ${wasm_objects}
  DEPENDS ${wasm_objects}
  COMMENT "Linking the page's WebAssembly module"
  VERBATIM)
add_custom_target(weir_wasm DEPENDS ${wasm_file})
