# Finds the LibTorch that lives inside a PyPI torch wheel WITHOUT TorchConfig.cmake
# (TorchConfig insists on a CUDA toolkit for a +cuXXX wheel, even for CPU-only use).
#   TorchWheel::cpu   libtorch_cpu + libc10 + headers     (no CUDA toolkit needed)
#   TorchWheel::cuda  libtorch_cuda + libc10_cuda         (only if those libs' deps exist)
# Input: TORCH_WHEEL_DIR (…/site-packages/torch) or Python3_EXECUTABLE / a venv on PATH
if(NOT TORCH_WHEEL_DIR)
  if(NOT TORCH_WHEEL_PYTHON)
    find_program(TORCH_WHEEL_PYTHON NAMES python3 python)
  endif()
  execute_process(COMMAND "${TORCH_WHEEL_PYTHON}" -c
    "import importlib.util as u; s=u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
    OUTPUT_VARIABLE _tw OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(TORCH_WHEEL_DIR "${_tw}" CACHE PATH "site-packages/torch" FORCE)
endif()
set(TorchWheel_VERSION "")
if(EXISTS "${TORCH_WHEEL_DIR}/include/torch/headeronly/version.h")
  file(READ "${TORCH_WHEEL_DIR}/include/torch/headeronly/version.h" _v)
  foreach(_k MAJOR MINOR PATCH)
    string(REGEX MATCH "TORCH_VERSION_${_k} ([0-9]+)" _ "${_v}")
    set(_n${_k} "${CMAKE_MATCH_1}")
  endforeach()
  set(TorchWheel_VERSION "${_nMAJOR}.${_nMINOR}.${_nPATCH}")
endif()
find_library(TorchWheel_CPU_LIB torch_cpu PATHS "${TORCH_WHEEL_DIR}/lib" NO_DEFAULT_PATH)
find_library(TorchWheel_C10_LIB c10       PATHS "${TORCH_WHEEL_DIR}/lib" NO_DEFAULT_PATH)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(TorchWheel REQUIRED_VARS TORCH_WHEEL_DIR TorchWheel_CPU_LIB TorchWheel_C10_LIB
                                  VERSION_VAR TorchWheel_VERSION)
if(TorchWheel_FOUND AND NOT TARGET TorchWheel::cpu)
  get_filename_component(_site "${TORCH_WHEEL_DIR}" DIRECTORY)
  add_library(TorchWheel::c10 SHARED IMPORTED)
  set_target_properties(TorchWheel::c10 PROPERTIES IMPORTED_LOCATION "${TorchWheel_C10_LIB}"
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${TORCH_WHEEL_DIR}/include;${TORCH_WHEEL_DIR}/include/torch/csrc/api/include"
    INTERFACE_INCLUDE_DIRECTORIES "${TORCH_WHEEL_DIR}/include;${TORCH_WHEEL_DIR}/include/torch/csrc/api/include")
  add_library(TorchWheel::cpu SHARED IMPORTED)
  set_target_properties(TorchWheel::cpu PROPERTIES IMPORTED_LOCATION "${TorchWheel_CPU_LIB}"
    INTERFACE_LINK_LIBRARIES TorchWheel::c10
    INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED;USE_C10D_GLOO"
    INTERFACE_LINK_OPTIONS "LINKER:-rpath-link,${_site}/nvidia/cu13/lib:${TORCH_WHEEL_DIR}/lib")
  find_library(TorchWheel_CUDA_LIB torch_cuda PATHS "${TORCH_WHEEL_DIR}/lib" NO_DEFAULT_PATH)
  find_library(TorchWheel_C10_CUDA_LIB c10_cuda PATHS "${TORCH_WHEEL_DIR}/lib" NO_DEFAULT_PATH)
  if(TorchWheel_CUDA_LIB AND EXISTS "${_site}/nvidia/nccl/lib")
    set(TorchWheel_HAS_CUDA TRUE)
    add_library(TorchWheel::cuda SHARED IMPORTED)
    set_target_properties(TorchWheel::cuda PROPERTIES IMPORTED_LOCATION "${TorchWheel_CUDA_LIB}"
      INTERFACE_LINK_LIBRARIES "TorchWheel::cpu;${TorchWheel_C10_CUDA_LIB}"
      INTERFACE_COMPILE_DEFINITIONS "USE_CUDA;USE_C10D_NCCL"
      INTERFACE_LINK_OPTIONS "LINKER:-rpath-link,${_site}/nvidia/cu13/lib:${_site}/nvidia/cudnn/lib:${_site}/nvidia/nccl/lib:${_site}/nvidia/cusparselt/lib:${_site}/nvidia/nvshmem/lib")
    set(TorchWheel_NVIDIA_DIR "${_site}/nvidia")
  endif()
endif()
