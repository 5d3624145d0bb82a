#include "format/interned.h"

#include <algorithm>

namespace ckpt {

namespace {

constexpr size_t kSlotsMin = 1024;
constexpr size_t kProbesMax = 32;  // lists chosen to share a hash cost no more than this

uint64_t hash_of(std::span<const uint64_t> numbers) {
  uint64_t hash = numbers.size() + 1;
  for (const uint64_t number : numbers) {
    hash = (hash ^ number) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace

uint32_t InternedTexts::intern(std::string_view text) {
  return *intern(text, [](std::string_view) { return true; });
}

std::optional<uint32_t> InternedTexts::intern(std::string_view text,
                                              bool (*is_valid)(std::string_view)) {
  const auto found = index_.find(text);
  if (found != index_.end()) return found->second;
  if (!is_valid(text)) return std::nullopt;
  const auto id = static_cast<uint32_t>(texts_.size());
  index_.emplace(texts_.emplace_back(text), id);
  return id;
}

uint32_t InternedExtents::intern(std::span<const uint64_t> numbers) {
  if (used_ * 2 >= slots_.size()) rehash();
  const size_t mask = slots_.size() - 1;
  size_t slot = hash_of(numbers) & mask;
  for (size_t probe = 0; probe < kProbesMax; ++probe, slot = (slot + 1) & mask) {
    if (slots_[slot] == 0) {
      const uint32_t id = add(numbers);
      slots_[slot] = id + 1;
      ++used_;
      return id;
    }
    const uint32_t id = slots_[slot] - 1;
    if (std::ranges::equal((*this)[id], numbers)) return id;
  }
  return add(numbers);
}

bool InternedExtents::equal(uint32_t a, uint32_t b) const {
  return a == b || std::ranges::equal((*this)[a], (*this)[b]);
}

uint32_t InternedExtents::add(std::span<const uint64_t> numbers) {
  numbers_.insert(numbers_.end(), numbers.begin(), numbers.end());
  starts_.push_back(static_cast<uint32_t>(numbers_.size()));
  return static_cast<uint32_t>(starts_.size() - 2);
}

void InternedExtents::rehash() {
  slots_.assign(std::max(kSlotsMin, slots_.size() * 2), 0);
  const size_t mask = slots_.size() - 1;
  used_ = 0;
  for (uint32_t id = 0; id + 1 < starts_.size(); ++id) {
    size_t slot = hash_of((*this)[id]) & mask;
    size_t probe = 0;
    while (slots_[slot] != 0 && ++probe < kProbesMax) slot = (slot + 1) & mask;
    if (slots_[slot] != 0) continue;
    slots_[slot] = id + 1;
    ++used_;
  }
}

}  // namespace ckpt
