#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/byte_reader.h"
#include "format/torch_dist/dist_assembler.h"
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

// Reads one object of a .metadata in one go: nearly all of the file are chunks, indices and places
// that are written like one before. Of each class it knows the bytes between the values of a few
// objects. They name places of the memo, which never change, so that the same bytes mean the same
// in the next object.
class DistRecordReader {
 public:
  DistRecordReader(ForwardReader& reader, KeptMemo& memo, DistAssembler& assembler)
      : reader_(reader), memo_(memo), assembler_(assembler) {}

  enum class Outcome : uint8_t {
    Built,    // `object` is what its fields mean, and was taken up to its BUILD
    Unusual,  // nothing was taken: the opcodes say what it is
    Refused,
  };
  // The cursor is behind the class.
  Outcome read(DistClass known, DistItem& object);
  uint64_t made() const { return made_; }  // values of the object, as a tree holds them

 private:
  static constexpr size_t kFieldsMax = std::tuple_size_v<DistAssembler::Fields>;
  static constexpr size_t kNumbersMax = 6;   // chunks of experts have four
  static constexpr size_t kLiteralMax = 24;  // the end of a torch.Size, and two names
  static constexpr size_t kObjectBytesMax = kFieldsMax * (kLiteralMax + 2 + 255 + 1) + kLiteralMax;
  static constexpr size_t kShapesMax = 6;  // of a class: tensors differ in their dimensions

  enum class Hole : uint8_t {
    None,
    Number,    // numbers[0]: as int64_t
    Recalled,  // numbers[0]: index of the memo
    Text,      // text, memoized
    Numbers,   // numbers: counts
  };
  struct Value {
    std::array<uint64_t, kNumbersMax> numbers;
    std::string_view text;
  };
  struct Literal {
    std::array<uint64_t, kLiteralMax / 8> words{}, masks{};
    uint32_t count_bytes = 0;
    bool set(const std::byte* from, const std::byte* to);  // false where that is too long
    bool is_at(const std::byte* at) const;
  };
  struct Field {
    Literal before;
    Hole hole = Hole::None;
    uint8_t count = 1;           // of numbers
    uint8_t place = 0;           // in DistAssembler::Fields
    uint8_t memoized_count = 0;  // of the tuples that became a torch.Size
    bool is_memoized = true;     // the torch.Size, or text
  };
  // How an object is written.
  struct Shape {
    std::array<Field, kFieldsMax> fields{};
    size_t count = 0;            // of fields; 0: not known
    uint8_t memoized_count = 0;  // of the object and its dict
    Literal end;
    uint64_t made = 0;
    DistAssembler::Fields values{};  // of the object that was read last
  };

  static const std::byte* read_value(const std::byte* at, const Field& field, Value& value);
  const std::byte* match(Shape& shape, const std::byte* at);
  Outcome build(DistClass known, Shape& shape, DistItem& object);
  bool learn(DistClass known, const std::byte* at, Shape& shape);
  const std::byte* learn_name(DistClass known, const std::byte* at, Field& field);
  const std::byte* behind_size_class(const std::byte* at);
  static const std::byte* learn_numbers(const std::byte* at, Field& field);
  static const std::byte* behind_size(const std::byte* at, bool is_marked, Field& field);
  static const std::byte* learn_simple(const std::byte* at, Field& field);
  bool take_value(const Field& field, const Value& value, DistItem& item);

  ForwardReader& reader_;
  KeptMemo& memo_;
  DistAssembler& assembler_;
  uint64_t made_ = 0;
  std::array<std::array<Shape, kShapesMax>, kDistClasses> shapes_{};
  std::array<size_t, kDistClasses> learned_{};
  std::array<Value, kFieldsMax> values_{};
};

}  // namespace ckpt
