# Finds LibTorch, as a torch wheel or PyTorch's zip file holds it, without TorchConfig.cmake, which
# insists on a CUDA toolkit for the wheel that PyPI serves, even for CPU-only use.
#   input   the first of these that is set says where; docs/install.md has an example of each:
#           TORCH_WHEEL_DIR (.../site-packages/torch, or an unpacked .../libtorch),
#           TORCH_WHEEL_PYTHON (a python that can import torch),
#           Torch_DIR (.../share/cmake/Torch).
#           Without them: CMAKE_PREFIX_PATH, then TORCH_WHEEL_DEFAULT_DIR (what an installed
#           Shardwise was built with), then the python3 of PATH.
#   output  TorchWheel::cpu: libtorch_cpu, libc10 and their headers, as SYSTEM
#           TorchWheel::openmp: the OpenMP runtime that libtorch_cpu computes with
set(_torch_version_header "include/torch/headeronly/version.h")

function(_torch_is_in folder result)
  set(${result} FALSE PARENT_SCOPE)
  if(EXISTS "${folder}/lib/libtorch_cpu.so" AND EXISTS "${folder}/${_torch_version_header}")
    set(${result} TRUE PARENT_SCOPE)
  endif()
endfunction()

# The folder of the package torch that a python imports; empty where it has none.
function(_torch_of_python python result)
  execute_process(
    COMMAND "${python}" -c
      "import importlib.util, os
spec = importlib.util.find_spec('torch')
print(os.path.dirname(spec.origin) if spec else '')"
    OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(${result} "${folder}" PARENT_SCOPE)
endfunction()

# The first LibTorch among prefixes such as an unpacked libtorch, or torch.utils.cmake_prefix_path,
# which is .../torch/share/cmake.
function(_torch_under_prefixes result)
  string(REPLACE ":" ";" from_environment "$ENV{CMAKE_PREFIX_PATH}")
  foreach(prefix IN LISTS CMAKE_PREFIX_PATH from_environment)
    foreach(folder "${prefix}" "${prefix}/../..")
      _torch_is_in("${folder}" is_there)
      if(is_there)
        get_filename_component(folder "${folder}" ABSOLUTE)
        set(${result} "${folder}" PARENT_SCOPE)
        return()
      endif()
    endforeach()
  endforeach()
endfunction()

set(_torch_dir "")
if(TORCH_WHEEL_DIR)
  set(_torch_dir "${TORCH_WHEEL_DIR}")
  set(_torch_asked "TORCH_WHEEL_DIR, '${TORCH_WHEEL_DIR}'")
elseif(TORCH_WHEEL_PYTHON)
  _torch_of_python("${TORCH_WHEEL_PYTHON}" _torch_dir)
  set(_torch_asked "the python TORCH_WHEEL_PYTHON, '${TORCH_WHEEL_PYTHON}'")
elseif(Torch_DIR)
  get_filename_component(_torch_dir "${Torch_DIR}/../../.." ABSOLUTE)
  set(_torch_asked "Torch_DIR, '${Torch_DIR}'")
else()
  _torch_under_prefixes(_torch_dir)
  if(NOT _torch_dir AND TORCH_WHEEL_DEFAULT_DIR)
    _torch_is_in("${TORCH_WHEEL_DEFAULT_DIR}" _torch_is_there)
    if(_torch_is_there)
      set(_torch_dir "${TORCH_WHEEL_DEFAULT_DIR}")
    endif()
  endif()
  if(NOT _torch_dir)
    find_program(_torch_python3 NAMES python3 NO_CACHE)
    if(_torch_python3)
      _torch_of_python("${_torch_python3}" _torch_dir)
    endif()
  endif()
  set(_torch_asked "CMAKE_PREFIX_PATH or the python3 of PATH")
endif()

set(TorchWheel_VERSION "")
set(TorchWheel_DIR "")
_torch_is_in("${_torch_dir}" _torch_is_there)
if(_torch_is_there)
  set(TorchWheel_DIR "${_torch_dir}")
  file(STRINGS "${_torch_dir}/${_torch_version_header}" _torch_lines
       REGEX "TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
  string(REGEX MATCHALL "[0-9]+" _torch_numbers "${_torch_lines}")
  list(JOIN _torch_numbers "." TorchWheel_VERSION)
endif()
file(GLOB TorchWheel_OPENMP
  "${_torch_dir}/lib/libgomp*.so*" "${_torch_dir}/../torch.libs/libgomp*.so*")

# Without semicolons, which would split it.
set(_torch_wanted "torch ${TorchWheel_FIND_VERSION_MAJOR}.${TorchWheel_FIND_VERSION_MINOR}")
if(TorchWheel_DIR)
  set(_torch_problem "LibTorch ${TorchWheel_VERSION} in '${TorchWheel_DIR}' does not fit: \
it has no stable ABI")
else()
  set(_torch_problem "no LibTorch in ${_torch_asked}")
endif()
set(_torch_advice "${_torch_problem}. Set TORCH_WHEEL_PYTHON (a python with ${_torch_wanted}, \
which pip installs), Torch_DIR (.../torch/share/cmake/Torch) or TORCH_WHEEL_DIR \
(.../site-packages/torch), or add LibTorch to CMAKE_PREFIX_PATH")
if(EXISTS "${CMAKE_CURRENT_LIST_DIR}/../setup")  # in a checkout
  string(APPEND _torch_advice ". In a checkout of Shardwise, scripts/setup installs it")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(TorchWheel
  REQUIRED_VARS TorchWheel_DIR TorchWheel_OPENMP VERSION_VAR TorchWheel_VERSION
  HANDLE_VERSION_RANGE REASON_FAILURE_MESSAGE "${_torch_advice}")

if(TorchWheel_FOUND AND NOT TARGET TorchWheel::cpu)
  set(_torch_includes "${TorchWheel_DIR}/include"
                      "${TorchWheel_DIR}/include/torch/csrc/api/include")
  get_filename_component(_torch_site "${TorchWheel_DIR}" DIRECTORY)
  add_library(TorchWheel::c10 SHARED IMPORTED)
  set_target_properties(TorchWheel::c10 PROPERTIES
    IMPORTED_LOCATION "${TorchWheel_DIR}/lib/libc10.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_torch_includes}"
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${_torch_includes}")
  add_library(TorchWheel::openmp SHARED IMPORTED)
  set_target_properties(TorchWheel::openmp PROPERTIES IMPORTED_LOCATION "${TorchWheel_OPENMP}")
  add_library(TorchWheel::cpu SHARED IMPORTED)
  # libtorch_cpu.so of this wheel needs libcudart and libcupti, which lie in sibling wheels.
  set_target_properties(TorchWheel::cpu PROPERTIES
    IMPORTED_LOCATION "${TorchWheel_DIR}/lib/libtorch_cpu.so"
    INTERFACE_LINK_LIBRARIES TorchWheel::c10
    INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED;USE_C10D_GLOO"
    INTERFACE_LINK_OPTIONS
      "LINKER:-rpath-link,${_torch_site}/nvidia/cu13/lib:${TorchWheel_DIR}/lib")
endif()
