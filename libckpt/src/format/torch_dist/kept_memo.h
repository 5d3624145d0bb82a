#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "format/torch_dist/dist_items.h"

namespace ckpt {

// A pickle's memo whose indices come in order, of which only what may be asked for again is kept:
// a bit for each index, four bytes for each that was kept: tag and id of an item without a number.
class KeptMemo {
 public:
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

  // False where the index was never stored, or not kept. Sets tag and id one by one: copies of
  // whole items that were written so have to wait for them.
  bool find(uint64_t index, DistItem& item) {
    Recent& recent = recent_[index % recent_.size()];
    if (recent.index != index && !look_up(index, recent)) return false;
    item.tag = static_cast<DistItem::Tag>(recent.value & ((1u << kTagBits) - 1));
    item.id = recent.value >> kTagBits;
    return true;
  }

 private:
  static constexpr uint32_t kTagBits = 5;

  struct Word {
    uint64_t bits;
    uint32_t before;  // kept values of all words before
  };
  struct Recent {
    uint64_t index = ~uint64_t{0};
    uint32_t value = 0;
  };

  bool look_up(uint64_t index, Recent& recent) {
    if (index >= size_) return false;
    const Word& word = words_[index / 64];
    const uint64_t bit = uint64_t{1} << (index % 64);
    if ((word.bits & bit) == 0) return false;
    recent = {index,
              values_[word.before + static_cast<uint32_t>(std::popcount(word.bits & (bit - 1)))]};
    return true;
  }

  uint64_t size_ = 0;
  std::vector<Word> words_;
  std::vector<uint32_t> values_;
  std::array<Recent, 256> recent_;  // what was found last: names of classes and fields, mostly
};

}  // namespace ckpt
