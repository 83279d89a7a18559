# Cmocka::Cmocka, from the system or from WEIR_CMOCKA_ROOT.
if(WEIR_CMOCKA_ROOT)
  set(only_root PATHS ${WEIR_CMOCKA_ROOT} NO_DEFAULT_PATH)
endif()
find_path(Cmocka_INCLUDE_DIR cmocka.h ${only_root} PATH_SUFFIXES include)
find_library(Cmocka_LIBRARY cmocka ${only_root} PATH_SUFFIXES lib)
mark_as_advanced(Cmocka_INCLUDE_DIR Cmocka_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  Cmocka
  REQUIRED_VARS Cmocka_LIBRARY Cmocka_INCLUDE_DIR
  REASON_FAILURE_MESSAGE
    "install libcmocka-dev, set WEIR_CMOCKA_ROOT to its folder, or build without tests (WEIR_BUILD_TESTS=OFF)"
)

if(Cmocka_FOUND AND NOT TARGET Cmocka::Cmocka)
  add_library(Cmocka::Cmocka UNKNOWN IMPORTED)
  set_target_properties(Cmocka::Cmocka PROPERTIES IMPORTED_LOCATION "${Cmocka_LIBRARY}"
                                                  INTERFACE_INCLUDE_DIRECTORIES "${Cmocka_INCLUDE_DIR}")
endif()
