# Finds the LibTorch inside a torch wheel without TorchConfig.cmake, which insists on a CUDA toolkit
# for the wheel that PyPI serves, even for CPU-only use.
#   input   TORCH_WHEEL_DIR (.../site-packages/torch), or
#           TORCH_WHEEL_PYTHON: a python whose site-packages hold the wheel
#   output  TorchWheel::cpu: libtorch_cpu, libc10 and their headers, as SYSTEM
#           TorchWheel::openmp: the OpenMP runtime that libtorch_cpu computes with
if(TORCH_WHEEL_DIR)
  set(_torch_dir "${TORCH_WHEEL_DIR}")
else()
  if(NOT TORCH_WHEEL_PYTHON)
    find_program(TORCH_WHEEL_PYTHON NAMES python3)
  endif()
  execute_process(
    COMMAND "${TORCH_WHEEL_PYTHON}" -c
      "import importlib.util, os
spec = importlib.util.find_spec('torch')
print(os.path.dirname(spec.origin) if spec else '')"
    OUTPUT_VARIABLE _torch_dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()

set(TorchWheel_VERSION "")
set(TorchWheel_DIR "")
set(_torch_version_header "${_torch_dir}/include/torch/headeronly/version.h")
if(EXISTS "${_torch_dir}/lib/libtorch_cpu.so" AND EXISTS "${_torch_version_header}")
  set(TorchWheel_DIR "${_torch_dir}")
  file(STRINGS "${_torch_version_header}" _torch_lines
       REGEX "TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
  string(REGEX MATCHALL "[0-9]+" _torch_numbers "${_torch_lines}")
  list(JOIN _torch_numbers "." TorchWheel_VERSION)
endif()
file(GLOB TorchWheel_OPENMP
  "${_torch_dir}/lib/libgomp*.so*" "${_torch_dir}/../torch.libs/libgomp*.so*")

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(TorchWheel
  REQUIRED_VARS TorchWheel_DIR TorchWheel_OPENMP VERSION_VAR TorchWheel_VERSION
  REASON_FAILURE_MESSAGE "no torch wheel at '${TORCH_WHEEL_PYTHON}': run scripts/setup, \
or set TORCH_WHEEL_PYTHON or TORCH_WHEEL_DIR")

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
