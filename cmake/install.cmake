# The files that `cmake --install` copies. None contains the prefix, so an installed tree can be moved.
include(CMakePackageConfigHelpers)

install(TARGETS weir_shared weir_static weir_offline_shared EXPORT weir)
if(WEIR_BUILD_CLI)
  install(TARGETS weir_program)
  if(TARGET weir_manual)
    install(DIRECTORY ${manual_dir}/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 FILES_MATCHING PATTERN "*.1")
    install(DIRECTORY ${manual_dir}/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man7 FILES_MATCHING PATTERN "*.7")
    install(FILES ${manual_dir}/completion.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
            RENAME weir)
  endif()
endif()
install(DIRECTORY include/weir TYPE INCLUDE FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
install(FILES LICENSE NOTICE README.md CHANGELOG.md TYPE DOC)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/weir)
install(EXPORT weir NAMESPACE weir:: FILE weir-config.cmake DESTINATION ${package_dir})
write_basic_package_version_file(weir-config-version.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/weir-config-version.cmake DESTINATION ${package_dir})

foreach(package weir weir-static weir-offline)
  weir_install_pkgconfig(${PROJECT_SOURCE_DIR}/cmake/${package}.pc.in)
endforeach()
