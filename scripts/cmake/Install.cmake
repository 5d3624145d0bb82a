# cmake --install: programs, libraries, headers, the CMake package `shardwise` with a component per
# library, and pkg-config files. The tree may be moved: nothing in it names the prefix it was
# installed to. docs/install.md describes it.
include(CMakePackageConfigHelpers)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/shardwise")
if(SHARDWISE_TORCH)
  include(InstallTorch)
endif()

string(REGEX REPLACE "[^/]+" ".." PC_UP "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

# shardwise_install_library(TARGET REQUIRES DESCRIPTION [VARIABLES CFLAGS LIBS]): all but TARGET is
# for pkg-config.
function(shardwise_install_library target requires description)
  get_target_property(type ${target} TYPE)
  set(PC_LIBRARY "")
  if(type STREQUAL "SHARED_LIBRARY")
    set(PC_LIBRARY "-L\${libdir} -l${target}")
    set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN"
                                               INSTALL_RPATH_USE_LINK_PATH ON)
  endif()
  set(PC_TARGET ${target})
  set(PC_REQUIRES "${requires}")
  set(PC_DESCRIPTION "${description}")
  set(PC_VARIABLES "${ARGV3}")
  set(PC_CFLAGS "${ARGV4}")
  set(PC_LIBS "${ARGV5}")
  install(TARGETS ${target} EXPORT shardwise-${target} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT shardwise-${target} NAMESPACE shardwise:: DESTINATION ${package_dir})
  set(name shardwise-${target}.pc)
  configure_file("${PROJECT_SOURCE_DIR}/scripts/cmake/library.pc.in" ${name} @ONLY)
  install(FILES "${CMAKE_CURRENT_BINARY_DIR}/${name}"
          DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()

shardwise_install_library(ckpt "" "Readers and writers of training checkpoints")
shardwise_install_library(optim_layout shardwise-ckpt
  "Grouping and ownership of distributed optimizer state, without LibTorch")
shardwise_install_library(training shardwise-optim_layout
  "What a training run would go on with, out of any checkpoint")
install(DIRECTORY libckpt/include/ libtraining/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES "${PROJECT_BINARY_DIR}/libckpt/include/ckpt/export.h"
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ckpt)
install(FILES ${optim_layout_headers} "${PROJECT_BINARY_DIR}/liboptim/include/optim/layout_export.h"
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/optim)
install(FILES "${PROJECT_BINARY_DIR}/libtraining/include/training/export.h"
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/training)

if(SHARDWISE_TORCH)
  shardwise_install_library(optim shardwise-optim_layout
    "Distributed optimizers on LibTorch" "torch=${TorchWheel_DIR}"
    "-I\${torch}/include -I\${torch}/include/torch/csrc/api/include"
    "-L\${torch}/lib -Wl,-rpath,\${torch}/lib -ltorch_cpu -lc10")
  install(FILES ${optim_headers} "${PROJECT_BINARY_DIR}/liboptim/include/optim/export.h"
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/optim)
  shardwise_install_library(replay "shardwise-optim shardwise-training"
    "Recorded steps of a training run again, and what differs")
  install(DIRECTORY libreplay/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(FILES "${PROJECT_BINARY_DIR}/libreplay/include/replay/export.h"
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/replay)
  install(FILES scripts/cmake/FindTorchWheel.cmake DESTINATION ${package_dir})
  shardwise_find_torch(optim "$ORIGIN")
  shardwise_find_torch(replay "$ORIGIN")
  shardwise_find_torch(step-replay "$ORIGIN/${programs_to_libraries}")
endif()

foreach(module optim_cuda optim_nccl)  # beside liboptim, which looks for them there
  if(TARGET ${module} AND TARGET optim)
    shardwise_find_torch(${module} "$ORIGIN")
    set_target_properties(${module} PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
    install(TARGETS ${module} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
endforeach()

configure_package_config_file(scripts/cmake/shardwiseConfig.cmake.in shardwiseConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(shardwiseConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/shardwiseConfig.cmake"
              "${CMAKE_CURRENT_BINARY_DIR}/shardwiseConfigVersion.cmake"
        DESTINATION ${package_dir})

# The two programs with everyday names are installed under a longer one as well.
foreach(program reshard step-replay)
  if(program STREQUAL "reshard" OR TARGET ${program})
    set(link "${PROJECT_BINARY_DIR}/other_names/ckpt-${program}")
    file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/other_names")
    file(CREATE_LINK ${program} "${link}" SYMBOLIC)
    install(FILES "${link}" DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endforeach()
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs/schema DESTINATION ${CMAKE_INSTALL_DOCDIR})

# `cpack` in a build without LibTorch, which is no Debian package: all of it as one .deb.
if(NOT SHARDWISE_TORCH)
  set(CPACK_GENERATOR DEB)
  set(CPACK_PACKAGE_CONTACT "Shardwise <shardwise@example.invalid>")
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_SECTION science)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}")
  set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
  set(CPACK_STRIP_FILES ON)
  include(CPack)
endif()
