# find_package(weir-compute): the targets weir::compute and weir::compute_static.
include(CMakeFindDependencyMacro)
find_dependency(weir)
include(${CMAKE_CURRENT_LIST_DIR}/weir-compute-targets.cmake)
