# Flags that make errors in memory hard to exploit, and builds that do not depend on where and when they are made.
include(CheckCCompilerFlag)
include(CheckCSourceCompiles)
include(CheckPIESupported)
option(WEIR_HARDEN "Compile and link with flags that make errors in memory hard to exploit" ON)

# Paths of the build and of the sources appear in debug information and in __FILE__ as relative ones.
check_c_compiler_flag(-ffile-prefix-map=/a=b WEIR_HAS_FILE_PREFIX_MAP)
set(WEIR_PREFIX_MAP)
if(WEIR_HAS_FILE_PREFIX_MAP AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
  set(WEIR_PREFIX_MAP -ffile-prefix-map=${PROJECT_BINARY_DIR}=build -ffile-prefix-map=${PROJECT_SOURCE_DIR}=.)
endif()
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)
if(CMAKE_AR MATCHES "ar$") # without times and owners
  set(CMAKE_C_ARCHIVE_CREATE "<CMAKE_AR> qcD <TARGET> <LINK_FLAGS> <OBJECTS>")
  set(CMAKE_C_ARCHIVE_APPEND "<CMAKE_AR> qD <TARGET> <LINK_FLAGS> <OBJECTS>")
  set(CMAKE_C_ARCHIVE_FINISH "<CMAKE_RANLIB> -D <TARGET>")
endif()

# weir_hardened is for code that reads what others have written. The allocator's fast path does without: each of these
# flags would add instructions to it.
check_pie_supported(LANGUAGES C)
add_library(weir_hardened INTERFACE)
if(WEIR_HARDEN AND NOT WEIR_SANITIZE)
  foreach(flag -fstack-protector-strong -fstack-clash-protection -fcf-protection -Wformat-security)
    string(MAKE_C_IDENTIFIER "WEIR_HAS${flag}" has)
    check_c_compiler_flag(${flag} ${has})
    if(${has})
      target_compile_options(weir_hardened INTERFACE ${flag})
    endif()
  endforeach()
  # Level 3 needs a recent compiler and C library, and all levels need optimization.
  if(NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
    set(CMAKE_REQUIRED_FLAGS "-O2 -Werror -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3")
    check_c_source_compiles("#include <string.h>\nint main(void) { return (int)strlen(\"\"); }" WEIR_HAS_FORTIFY_3)
    unset(CMAKE_REQUIRED_FLAGS)
    set(level 2)
    if(WEIR_HAS_FORTIFY_3)
      set(level 3)
    endif()
    target_compile_options(weir_hardened INTERFACE -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=${level})
  endif()
  # Relocated data is read-only, functions of other libraries are bound at the start, and the stack is not executable.
  add_link_options(-Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack)
endif()
