# What `cmake --install` copies. Nothing in it knows the prefix: an installed tree can be moved.
include(CMakePackageConfigHelpers)

install(TARGETS weir_shared weir_static weir_offline_shared EXPORT weir)
if(WEIR_BUILD_CLI)
  install(TARGETS weir_program)
endif()
install(DIRECTORY include/weir TYPE INCLUDE FILES_MATCHING PATTERN "*.h")
install(FILES LICENSE README.md CHANGELOG.md TYPE DOC)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/weir)
install(EXPORT weir NAMESPACE weir:: FILE weir-config.cmake DESTINATION ${package_dir})
write_basic_package_version_file(weir-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/weir-config-version.cmake DESTINATION ${package_dir})

set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH pkgconfig_to_prefix /prefix/${pkgconfig_dir} /prefix)
string(REGEX REPLACE "/$" "" pkgconfig_to_prefix ${pkgconfig_to_prefix})
list(TRANSFORM system_libraries PREPEND -l OUTPUT_VARIABLE pkgconfig_system_libraries)
list(JOIN pkgconfig_system_libraries " " pkgconfig_system_libraries)
foreach(package weir weir-static weir-offline)
  configure_file(cmake/${package}.pc.in ${package}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${package}.pc DESTINATION ${pkgconfig_dir})
endforeach()
