# Where an installed step-replay and liboptim find LibTorch: first in
# LIBDIR/shardwise, to which `cmake --install BUILD --component torch` copies it, then in the wheel
# that they were built with.

# A consumer needs the minor version that liboptim was built with: LibTorch has no stable ABI.
string(REGEX MATCH "^([0-9]+)\\.([0-9]+)" SHARDWISE_TORCH_RANGE "${TorchWheel_VERSION}")
math(EXPR next_minor "${CMAKE_MATCH_2} + 1")
string(APPEND SHARDWISE_TORCH_RANGE "...<${CMAKE_MATCH_1}.${next_minor}")

# The copies lie as in site-packages, so that the paths from $ORIGIN in LibTorch itself hold.
get_filename_component(torch_site "${TorchWheel_DIR}" REALPATH)
get_filename_component(torch_site "${torch_site}" DIRECTORY)
set(torch_copies "${CMAKE_INSTALL_LIBDIR}/shardwise")
set(torch_folders "")  # in site-packages: of LibTorch and of its OpenMP runtime
foreach(library "${TorchWheel_DIR}/lib/libtorch_cpu.so" "${TorchWheel_OPENMP}")
  get_filename_component(library "${library}" REALPATH)
  file(RELATIVE_PATH library "${torch_site}" "${library}")
  get_filename_component(folder "${library}" DIRECTORY)
  list(APPEND torch_folders "${folder}")
endforeach()
list(REMOVE_DUPLICATES torch_folders)

# shardwise_find_torch(TARGET LIBRARIES): LIBRARIES is where ours lie, from $ORIGIN on. Each path is
# named: INSTALL_RPATH_USE_LINK_PATH leaves out a wheel inside the checkout, as .venv-run is.
function(shardwise_find_torch target libraries)
  foreach(place "${libraries}/shardwise" "${torch_site}")
    foreach(folder IN LISTS torch_folders)
      set_property(TARGET ${target} APPEND PROPERTY INSTALL_RPATH "${place}/${folder}")
    endforeach()
  endforeach()
endfunction()

configure_file("${PROJECT_SOURCE_DIR}/scripts/cmake/copy_torch.cmake.in" copy_torch.cmake @ONLY)
install(SCRIPT "${CMAKE_CURRENT_BINARY_DIR}/copy_torch.cmake" COMPONENT torch EXCLUDE_FROM_ALL)
