#include "format/torch_dist/interned.h"

#include <algorithm>
#include <cstring>

namespace ckpt {

namespace {

constexpr size_t kSlotsMin = 1024;
constexpr size_t kTextProbesMax = 1024;  // of half empty slots: chance never needs as many
constexpr size_t kProbesMax = 32;        // lists chosen to share a hash cost no more than this

uint64_t mixed(uint64_t hash, uint64_t number) {
  hash = (hash ^ number) * 0x9e3779b97f4a7c15;
  return hash ^ hash >> 32;
}

template <class Numbers>
uint64_t hash_of_numbers(const Numbers& numbers) {
  uint64_t hash = numbers.size() + 1;
  for (const uint64_t number : numbers) hash = mixed(hash, number);
  return hash;
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

}  // namespace

std::optional<uint32_t> InternedTexts::intern(std::string_view text,
                                              bool (*is_valid)(std::string_view)) {
  if (texts_.size() * 2 >= slots_.size() && !grow()) return std::nullopt;
  const uint32_t hash = hash_of(text);
  Slot* slot = slot_of(text, hash);
  if (slot == nullptr) return std::nullopt;
  if (slot->id_plus_one != 0) return slot->id_plus_one - 1;
  if (!is_valid(text)) return std::nullopt;
  texts_.emplace_back(text);
  *slot = {static_cast<uint32_t>(texts_.size()), hash};
  return slot->id_plus_one - 1;
}

InternedTexts::Slot* InternedTexts::slot_of(std::string_view text, uint32_t hash) {
  const size_t mask = slots_.size() - 1;
  for (size_t probe = 0; probe < kTextProbesMax; ++probe) {
    Slot& slot = slots_[(hash + probe) & mask];
    if (slot.id_plus_one == 0) return &slot;
    if (slot.hash == hash && texts_[slot.id_plus_one - 1] == text) return &slot;
  }
  return nullptr;
}

bool InternedTexts::grow() {
  const std::vector<Slot> before = std::move(slots_);
  slots_.assign(std::max(kSlotsMin, before.size() * 2), {});
  for (const Slot& slot : before) {
    if (slot.id_plus_one == 0) continue;
    Slot* place = slot_of(texts_[slot.id_plus_one - 1], slot.hash);
    if (place == nullptr) return false;
    *place = slot;
  }
  return true;
}

uint32_t InternedExtents::intern(std::span<const uint64_t> numbers) {
  if (used_ * 2 >= slots_.size()) rehash();
  const size_t mask = slots_.size() - 1;
  size_t slot = hash_of_numbers(numbers) & mask;
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

uint32_t InternedExtents::add(std::span<const uint64_t> numbers) {
  lists_.emplace_back(numbers.begin(), numbers.end());
  return static_cast<uint32_t>(lists_.size() - 1);
}

void InternedExtents::rehash() {
  slots_.assign(std::max(kSlotsMin, slots_.size() * 2), 0);
  const size_t mask = slots_.size() - 1;
  used_ = 0;
  for (uint32_t id = 0; id < lists_.size(); ++id) {
    size_t slot = hash_of_numbers((*this)[id]) & mask;
    size_t probe = 0;
    while (slots_[slot] != 0 && ++probe < kProbesMax) slot = (slot + 1) & mask;
    if (slots_[slot] != 0) continue;
    slots_[slot] = id + 1;
    ++used_;
  }
}

}  // namespace ckpt
