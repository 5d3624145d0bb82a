# Toolchain of scripts/package: zig's clang, and the libraries that it made in SHARDWISE_DEPS.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES SHARDWISE_DEPS CMAKE_SYSTEM_PROCESSOR)
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_CXX_COMPILER "${SHARDWISE_DEPS}/bin/clang++")
set(CMAKE_AR "${SHARDWISE_DEPS}/bin/ar")
set(CMAKE_RANLIB "${SHARDWISE_DEPS}/bin/ranlib")
set(CMAKE_CXX_FLAGS_INIT
    "-ffunction-sections -fdata-sections -ffile-prefix-map=${CMAKE_SOURCE_DIR}=.")
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,--gc-sections -s")
# zig's __cpu_model says that a processor has nothing; this is LLVM's. Versions of a function need
# the flag, or its linker lacks them.
if(CMAKE_SYSTEM_PROCESSOR STREQUAL x86_64)
  string(APPEND CMAKE_EXE_LINKER_FLAGS_INIT " ${SHARDWISE_DEPS}/lib/x86.c.o")
  string(APPEND CMAKE_CXX_FLAGS_INIT " -Xclang -mno-constructor-aliases")
endif()
set(CMAKE_MODULE_LINKER_FLAGS_INIT "${CMAKE_EXE_LINKER_FLAGS_INIT}")
set(CMAKE_SKIP_RPATH ON)
# zig knows no --push-state.
set(CMAKE_CXX_LINK_LIBRARY_USING_WHOLE_ARCHIVE_SUPPORTED TRUE)
set(CMAKE_CXX_LINK_LIBRARY_USING_WHOLE_ARCHIVE
    "-Wl,--whole-archive" "<LINK_ITEM>" "-Wl,--no-whole-archive")
set(CMAKE_FIND_ROOT_PATH "${SHARDWISE_DEPS}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_LIBDIR} "${SHARDWISE_DEPS}/lib/pkgconfig")
