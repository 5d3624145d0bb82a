#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

#include "format/dist_items.h"

namespace ckpt {

// A pickle's memo whose indices come in order, of which only what may be asked for again is kept:
// a bit for each index, four bytes for each that was kept: tag and id of an item without a number.
class KeptMemo {
 public:
  uint64_t size() const { return size_; }

  static bool can_hold(uint32_t id) { return id < 1u << (32 - kTagBits); }

  void keep(const DistItem& item) {  // can_hold(item.id)
    skip();
    words_.back().bits |= uint64_t{1} << ((size_ - 1) % 64);
    values_.push_back(item.id << kTagBits | static_cast<uint32_t>(item.tag));
  }

  void skip(uint64_t count = 1) {
    size_ += count;
    while (words_.size() * 64 < size_) {
      words_.push_back({0, static_cast<uint32_t>(values_.size())});
    }
  }

  // nullopt where the index was never stored, or not kept.
  std::optional<DistItem> find(uint64_t index) {
    Recent& recent = recent_[index % recent_.size()];
    if (recent.index == index) return item_of(recent.value);
    if (index >= size_) return std::nullopt;
    const Word& word = words_[index / 64];
    const uint64_t bit = uint64_t{1} << (index % 64);
    if ((word.bits & bit) == 0) return std::nullopt;
    recent = {index,
              values_[word.before + static_cast<uint32_t>(std::popcount(word.bits & (bit - 1)))]};
    return item_of(recent.value);
  }

 private:
  static constexpr uint32_t kTagBits = 5;

  static DistItem item_of(uint32_t value) {
    return {static_cast<DistItem::Tag>(value & ((1u << kTagBits) - 1)), value >> kTagBits};
  }

  struct Word {
    uint64_t bits;
    uint32_t before;  // kept values of all words before
  };
  struct Recent {
    uint64_t index = ~uint64_t{0};
    uint32_t value = 0;
  };

  uint64_t size_ = 0;
  std::vector<Word> words_;
  std::vector<uint32_t> values_;
  std::array<Recent, 256> recent_;  // what was found last: names of classes and fields, mostly
};

}  // namespace ckpt
