#include "step/device/module_file.h"

#include <dlfcn.h>

#include <filesystem>

namespace optim {

void* function_of_module(const char* module_name, const char* function, std::string& problem) {
  Dl_info self = {};
  if (dladdr(reinterpret_cast<const void*>(&function_of_module), &self) == 0) {
    problem = "the folder of the library cannot be determined";
    return nullptr;
  }
  const std::filesystem::path file =
      std::filesystem::path(self.dli_fname).parent_path() / module_name;
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
