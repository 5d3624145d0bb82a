#include "step/device/device_ops.h"

#include <ATen/ops/empty.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <link.h>

#include <filesystem>
#include <optional>

#include "rules/refuse_key.h"

namespace optim {
namespace {

[[noreturn]] void refuse(const std::string& problem) {
  throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = "device"}, problem,
                    "the CPU can do the same");
}

// Of the library that holds this code, or of those beside the program that does.
std::optional<std::filesystem::path> folder_of_libraries() {
  Dl_info self = {};
  link_map* object = nullptr;
  const auto* const code = reinterpret_cast<const void*>(&function_of_module);
  if (dladdr1(code, &self, reinterpret_cast<void**>(&object), RTLD_DL_LINKMAP) == 0) return {};
  if (object->l_name[0] != '\0') return std::filesystem::path(object->l_name).parent_path();
  std::error_code problem;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", problem);
  if (problem) return {};
  return program.parent_path() / PROGRAMS_TO_LIBRARIES;
}

constexpr const char* kModule = "liboptim_cuda.so";
constexpr const char* kEntry = "shardwise_device_api";
using Entry = const kernels::DeviceApi& (*)();

// What loading the module gave. It stays loaded: graphs and tables of its own may outlive callers.
struct Module {
  const kernels::DeviceApi* api = nullptr;
  std::string problem;
};

Module load_module() {
  Module module;
  const auto entry = reinterpret_cast<Entry>(function_of_module(kModule, kEntry, module.problem));
  if (entry == nullptr) return module;
  const kernels::DeviceApi& api = entry();
  if (const char* const problem = api.problem()) return {nullptr, problem};
  module.api = &api;
  return module;
}

const Module& cuda_module() {
  static const Module module = load_module();
  return module;
}

}  // namespace

const char* cuda_problem() {
  const Module& module = cuda_module();
  return module.api == nullptr ? module.problem.c_str() : nullptr;
}

const kernels::DeviceApi& device_api(const at::Device& device) {
  if (!device.is_cuda()) refuse("there are no kernels for the device '" + device.str() + "'");
  if (const char* const problem = cuda_problem()) refuse(problem);
  return *cuda_module().api;
}

at::Device use_cuda() {
  if (const char* const problem = cuda_problem()) refuse(problem);
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    refuse(std::string("LibTorch's CUDA part, which needs all that the torch wheel depends on, "
                       "does not load: ") +
           dlerror());
  }
  return {at::kCUDA, c10::impl::VirtualGuardImpl(at::kCUDA).getDevice().index()};
}

kernels::DeviceStream current_stream(const at::Device& device) {
  if (device.is_cpu()) return nullptr;
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

void check_device(kernels::DeviceStatus status, const kernels::DeviceApi& api, const char* action) {
  if (status == 0) return;
  refuse_key("device", std::string(action) + ": " + api.status_text(status),
             ckpt::ErrorCode::IoFailure);
}

at::Tensor device_memory(uint64_t bytes, const at::Device& device) {
  constexpr uint64_t kAlignment = 256;
  try {
    const at::Tensor memory = at::empty({static_cast<int64_t>(bytes + kAlignment)},
                                        at::TensorOptions(at::kByte).device(device));
    const auto place = reinterpret_cast<uintptr_t>(memory.mutable_data_ptr());
    const auto skip = static_cast<int64_t>((kAlignment - place % kAlignment) % kAlignment);
    return memory.narrow(0, skip, static_cast<int64_t>(bytes));
  } catch (const c10::Error&) {  // OutOfMemoryError on a GPU, others on the CPU
    refuse_key("device",
               "out of memory: a step needs " + std::to_string(bytes) +
                   " bytes in addition to parameters, gradients and states",
               ckpt::ErrorCode::IoFailure);
  }
}

void* function_of_module(const char* module_name, const char* function, std::string& problem) {
  const auto folder = folder_of_libraries();
  if (!folder) {
    problem = "the folder of the library cannot be determined";
    return nullptr;
  }
  const std::filesystem::path file = *folder / module_name;
  if (!std::filesystem::exists(file)) {
    problem = std::string("this installation does not include ") + module_name;
    return nullptr;
  }
  void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    problem = dlerror();
    return nullptr;
  }
  void* const found = dlsym(handle, function);
  if (found == nullptr)
    problem = std::string(module_name) + " is from another version of Shardwise";
  return found;
}

}  // namespace optim
