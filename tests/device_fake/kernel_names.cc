// Names of kernels, which are local symbols: read from this program's own symbol table.
#include <cxxabi.h>
#include <elf.h>
#include <link.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>

#include "fake_cuda.h"

namespace {

using Names = std::map<uintptr_t, std::string>;  // by address in the file

std::string demangled(const char* symbol) {
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(symbol, nullptr, nullptr, nullptr), &std::free);
  return text ? text.get() : symbol;
}

// "void kernels::(anonymous namespace)::name<arguments>(parameters)": name.
std::string without_surroundings(std::string name) {
  for (const std::string space : {"(anonymous namespace)::", "kernels::"}) {
    for (size_t at = name.find(space); at != std::string::npos; at = name.find(space)) {
      name.erase(at, space.size());
    }
  }
  name = name.substr(0, name.find_first_of("<("));
  return name.substr(name.rfind(' ') + 1);
}

Names functions_of_this_program() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto* const header = reinterpret_cast<const Elf64_Ehdr*>(bytes.data());
  const auto* const sections = reinterpret_cast<const Elf64_Shdr*>(bytes.data() + header->e_shoff);
  Names names;
  for (int i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const char* const texts = bytes.data() + sections[sections[i].sh_link].sh_offset;
    const auto* const symbols =
        reinterpret_cast<const Elf64_Sym*>(bytes.data() + sections[i].sh_offset);
    for (uint64_t s = 0; s < sections[i].sh_size / sizeof(Elf64_Sym); ++s) {
      if (ELF64_ST_TYPE(symbols[s].st_info) == STT_FUNC) {
        names[symbols[s].st_value] = texts + symbols[s].st_name;
      }
    }
  }
  return names;
}

// What the loader added to the addresses in the file.
uintptr_t load_bias() {
  uintptr_t bias = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* found) {
        *static_cast<uintptr_t*>(found) = info->dlpi_addr;
        return 1;  // the first is the program
      },
      &bias);
  return bias;
}

}  // namespace

namespace fake_cuda {

std::string name_of_kernel(const void* function) {
  static const Names names = functions_of_this_program();
  static const uintptr_t bias = load_bias();
  const auto found = names.find(reinterpret_cast<uintptr_t>(function) - bias);
  return found == names.end() ? "unknown" : without_surroundings(demangled(found->second.c_str()));
}

}  // namespace fake_cuda
