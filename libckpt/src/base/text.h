#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include <ckpt/folder.h>
#include <ckpt/text.h>

namespace ckpt {

// By texts that come from files. Ordered, because whoever makes a file can choose texts that share
// a std::hash: looking one up would then take as long as there are texts.
template <class T>
using TextMap = std::map<std::string, T, std::less<>>;
using TextSet = std::set<std::string, std::less<>>;

// The bytes of a number, least significant first.
template <class Number>
void append_little_endian(std::string& text, Number number) {
  for (size_t i = 0; i < sizeof(number); ++i) text += static_cast<char>(number >> (8 * i));
}

// The first bytes of a file: all of them, where there are no more.
std::string head_of(const RandomAccess& file, uint64_t count_bytes_max);
// All of them. Throws Unsupported where there are more than `count_bytes_max`.
std::string all_of(const RandomAccess& file, uint64_t count_bytes_max);

}  // namespace ckpt
