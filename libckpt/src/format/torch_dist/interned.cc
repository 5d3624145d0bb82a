#include "format/torch_dist/interned.h"

#include <algorithm>
#include <cstring>

namespace ckpt {

namespace {

uint64_t mixed(uint64_t hash, uint64_t number) {
  hash = (hash ^ number) * 0x9e3779b97f4a7c15;
  return hash ^ hash >> 32;
}

}  // namespace

uint32_t hash_of(std::span<const uint64_t> numbers) {
  uint64_t hash = numbers.size() + 1;
  for (const uint64_t number : numbers) hash = mixed(hash, number);
  return static_cast<uint32_t>(hash);
}

uint32_t hash_of(std::string_view text) {
  uint64_t hash = text.size() + 1, word = 0;
  const size_t last = text.size() - std::min(text.size(), sizeof(word));
  for (size_t at = 0; at < last; at += sizeof(word)) {
    std::memcpy(&word, text.data() + at, sizeof(word));
    hash = mixed(hash, word);
  }
  word = 0;
  if (text.size() >= sizeof(word)) {  // the last ones overlap those before
    std::memcpy(&word, text.data() + last, sizeof(word));
  } else {
    std::ranges::for_each(text, [&](char c) { word = word << 8 | static_cast<uint8_t>(c); });
  }
  return static_cast<uint32_t>(mixed(hash, word));
}

}  // namespace ckpt
