#pragma once

#include <ATen/core/Tensor.h>

#include <kernels/device_step.h>
#include <string>

#include <optim/export.h>

namespace optim {

// The kernels for tensors of `device`: those of the module liboptim_cuda.so beside this library,
// loaded when they are first asked for. Throws Error(Unsupported) that says in one line why there
// are none: a build without CUDA, no driver, an old driver, no GPU, an unknown architecture.
const kernels::DeviceApi& device_api(const at::Device& device);

// Null where CUDA tensors can be stepped, else the reason.
const char* cuda_problem();

// Makes CUDA tensors possible in a program that linked LibTorch's CPU part only, and returns the
// current GPU. Throws Error(Unsupported) as device_api() does.
OPTIM_EXPORT at::Device use_cuda();

// The calling thread's current stream on `device`; null on the CPU.
kernels::DeviceStream current_stream(const at::Device& device);

// Throws Error(IoFailure) for a status that is not 0: the device said no.
void check_device(kernels::DeviceStatus status, const kernels::DeviceApi& api, const char* action);

// `bytes` of memory on `device`, at a multiple of 256. Throws Error(IoFailure) where it has none.
at::Tensor device_memory(uint64_t bytes, const at::Device& device);

// A function of a module that lies beside this library, which stays loaded. Null and one line in
// `problem` where the module is missing, does not load or has no such function.
void* function_of_module(const char* module_name, const char* function, std::string& problem);

}  // namespace optim
