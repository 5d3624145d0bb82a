#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/extents.h>

namespace ckpt {

// Texts that occur often, each kept once, by number.
class InternedTexts {
 public:
  // nullopt where the text is new and not valid, or where too many texts share its place: that is
  // for the general reader, so that nobody can choose names whose search takes long.
  std::optional<uint32_t> intern(std::string_view text, bool (*is_valid)(std::string_view));
  const std::string& operator[](uint32_t id) const { return texts_[id]; }
  size_t size() const { return texts_.size(); }

 private:
  struct Slot {
    uint32_t id_plus_one = 0;  // 0: free
    uint32_t hash = 0;
  };
  // Where the text is, or the free place for it; null: neither is near.
  Slot* slot_of(std::string_view text, uint32_t hash);
  bool grow();

  std::deque<std::string> texts_;
  std::vector<Slot> slots_;
};

// Short lists of numbers, equal ones mostly kept once: 10^6 chunks have few different sizes. Two
// lists of different number may still be equal.
class InternedExtents {
 public:
  uint32_t intern(std::span<const uint64_t> numbers);
  const Extents& operator[](uint32_t id) const { return lists_[id]; }

 private:
  uint32_t add(std::span<const uint64_t> numbers);
  void rehash();

  std::deque<Extents> lists_;
  std::vector<uint32_t> slots_;  // id + 1, by hash; 0: free
  size_t used_ = 0;
};

}  // namespace ckpt
