#pragma once

#include <string>

namespace optim {

// A function of a module that lies beside this library, which stays loaded. Null and one line in
// `problem` where the module is missing, does not load or has no such function.
void* function_of_module(const char* module_name, const char* function, std::string& problem);

}  // namespace optim
