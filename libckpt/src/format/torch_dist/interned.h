#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ckpt/extents.h>

namespace ckpt {

uint32_t hash_of(std::string_view text);
uint32_t hash_of(std::span<const uint64_t> numbers);
inline bool are_equal(std::string_view a, std::string_view b) { return a == b; }
inline bool are_equal(std::span<const uint64_t> a, std::span<const uint64_t> b) {
  return std::ranges::equal(a, b);
}

// Values that occur often, each kept once, by number: names, and short lists of numbers, of which
// 10^6 chunks have few different ones.
template <class Value, class View>
class Interned {
 public:
  // nullopt where the value is new and not valid, or where too many share its place: that is for
  // the general reader, so that nobody can choose values whose search takes long.
  template <class IsValid>
  std::optional<uint32_t> intern(View value, IsValid is_valid) {
    if (values_.size() * 2 >= slots_.size() && !grow()) return std::nullopt;
    const uint32_t hash = hash_of(value);
    Slot* slot = slot_of(value, hash);
    if (slot == nullptr) return std::nullopt;
    if (slot->id_plus_one == 0) {
      if (!is_valid(value)) return std::nullopt;
      values_.emplace_back(value.begin(), value.end());
      *slot = {static_cast<uint32_t>(values_.size()), hash};
    }
    return slot->id_plus_one - 1;
  }
  std::optional<uint32_t> intern(View value) {
    return intern(value, [](View) { return true; });
  }

  // Of a value that came behind the one called `before`: rows of values come again, as chunks of
  // every state of a model, and are found where they were without a search.
  std::optional<uint32_t> intern_behind(uint32_t before, View value) {
    if (before < next_.size() && are_equal(values_[next_[before]], value)) return next_[before];
    const std::optional<uint32_t> id = intern(value);
    if (!id) return id;
    if (before >= next_.size()) next_.resize(values_.size());
    if (before < next_.size()) next_[before] = *id;
    return id;
  }

  const Value& operator[](uint32_t id) const { return values_[id]; }
  size_t size() const { return values_.size(); }

 private:
  static constexpr size_t kSlotsMin = 1024;
  static constexpr size_t kProbesMax = 1024;  // of half empty slots: chance never needs as many

  struct Slot {
    uint32_t id_plus_one = 0;  // 0: free
    uint32_t hash = 0;
  };

  // Where the value is, or the free place for it; null: neither is near.
  Slot* slot_of(View value, uint32_t hash) {
    const size_t mask = slots_.size() - 1;
    for (size_t probe = 0; probe < kProbesMax; ++probe) {
      Slot& slot = slots_[(hash + probe) & mask];
      if (slot.id_plus_one == 0) return &slot;
      if (slot.hash == hash && are_equal(values_[slot.id_plus_one - 1], value)) return &slot;
    }
    return nullptr;
  }

  bool grow() {
    const std::vector<Slot> before = std::move(slots_);
    slots_.assign(std::max(kSlotsMin, before.size() * 2), {});
    for (const Slot& slot : before) {
      if (slot.id_plus_one == 0) continue;
      Slot* place = slot_of(values_[slot.id_plus_one - 1], slot.hash);
      if (place == nullptr) return false;
      *place = slot;
    }
    return true;
  }

  std::deque<Value> values_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> next_;  // [id] what came behind it last
};

using InternedTexts = Interned<std::string, std::string_view>;
using InternedExtents = Interned<Extents, std::span<const uint64_t>>;

}  // namespace ckpt
