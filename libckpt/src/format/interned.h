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
  uint32_t intern(std::string_view text);
  // nullopt where the text is new and not valid.
  std::optional<uint32_t> intern(std::string_view text, bool (*is_valid)(std::string_view));
  std::string_view operator[](uint32_t id) const { return texts_[id]; }
  size_t size() const { return texts_.size(); }

 private:
  struct Slot {
    uint32_t id_plus_one = 0;  // 0: free
    uint32_t hash = 0;
  };
  // Where the text is, or the free place for it.
  Slot& slot_of(std::string_view text, uint32_t hash);
  void grow();

  std::deque<std::string> texts_;
  std::vector<Slot> slots_;
};

// Short lists of numbers, equal ones mostly kept once: 10^6 chunks have few different sizes. Two
// lists of different number may still be equal.
class InternedExtents {
 public:
  uint32_t intern(std::span<const uint64_t> numbers);
  std::span<const uint64_t> operator[](uint32_t id) const {
    return std::span(numbers_).subspan(starts_[id], starts_[id + 1] - starts_[id]);
  }
  Extents extents(uint32_t id) const {
    const auto numbers = (*this)[id];
    return {numbers.begin(), numbers.end()};
  }
  bool equal(uint32_t a, uint32_t b) const;

 private:
  uint32_t add(std::span<const uint64_t> numbers);
  void rehash();

  std::vector<uint64_t> numbers_;
  std::vector<uint32_t> starts_{0};  // [id], and the end
  std::vector<uint32_t> slots_;      // id + 1, by hash; 0: free
  size_t used_ = 0;
};

}  // namespace ckpt
