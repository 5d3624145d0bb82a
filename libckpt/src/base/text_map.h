#pragma once

#include <map>
#include <set>
#include <string>

namespace ckpt {

// By texts that come from files. Ordered, because whoever makes a file can choose texts that share
// a std::hash: looking one up would then take as long as there are texts.
template <class T>
using TextMap = std::map<std::string, T, std::less<>>;
using TextSet = std::set<std::string, std::less<>>;

}  // namespace ckpt
