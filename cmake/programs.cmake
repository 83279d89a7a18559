# weir_add_example(SOURCE LIBRARY...): a program in C or C++. Examples are linked to the shared libraries: they see what
# a user of them sees.
function(weir_add_example source)
  get_filename_component(name ${source} NAME_WE)
  set(flags weir_flags)
  if(source MATCHES "\\.cpp$")
    set(name ${name}_cpp)
    set(flags weir_cpp_flags)
  endif()
  add_executable(example_${name} ${source})
  set_target_properties(example_${name} PROPERTIES OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/examples)
  if(source MATCHES "\\.cpp$")
    set_target_properties(example_${name} PROPERTIES WEIR_LABEL unit)
  endif()
  target_link_libraries(example_${name} PRIVATE ${flags} ${ARGN})
  set_property(GLOBAL APPEND PROPERTY WEIR_EXAMPLES ${name}) # for the tests
endfunction()

# weir_add_bench(SOURCE LIBRARY...): `cmake --build . --target bench` runs them all, one after the other.
function(weir_add_bench source)
  get_filename_component(name ${source} NAME_WE)
  add_executable(bench_${name} ${source})
  set_target_properties(bench_${name} PROPERTIES OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
  target_link_libraries(bench_${name} PRIVATE ${ARGN} weir_flags weir_offline weir_static pthread)
  target_include_directories(bench_${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  weir_run_in_turn(run_bench_${name} bench_${name})
endfunction()

# weir_run_in_turn(NAME COMMAND...): one more part of the target `bench`, after the last one.
function(weir_run_in_turn name)
  add_custom_target(${name} COMMAND ${ARGN} USES_TERMINAL)
  get_property(previous GLOBAL PROPERTY WEIR_BENCHES)
  if(previous)
    list(GET previous -1 previous)
    add_dependencies(${name} ${previous})
  endif()
  add_dependencies(bench ${name})
  set_property(GLOBAL APPEND PROPERTY WEIR_BENCHES ${name})
endfunction()

if(WEIR_BUILD_BENCH OR WEIR_BUILD_TESTS)
  add_custom_target(bench)
endif()
