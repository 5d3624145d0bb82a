#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace ckpt {

// How the last object of a class was written: the bytes between its values. They name places of
// the memo, which never change, so that the same bytes mean the same in the next object.
class DistShape {
 public:
  enum class Hole : uint8_t {
    None,
    Number,    // numbers[0]: as int64_t
    Recalled,  // numbers[0]: index of the memo
    Text,      // text, memoized
    Numbers,   // numbers: counts, of which there are `count`
  };
  static constexpr size_t kHolesMax = 5;
  static constexpr size_t kNumbersMax = 3;
  static constexpr size_t kLiteralMax = 24;  // the end of a torch.Size, and two names
  static constexpr size_t kObjectBytesMax = kHolesMax * (kLiteralMax + 2 + 255 + 1) + kLiteralMax;
  struct Value {
    Hole hole;
    uint8_t count;
    std::array<uint64_t, kNumbersMax> numbers;
    std::string_view text;
  };

  // Learning: what the object is made of, in its order; from begin() to end() there is no shape.
  void begin() { *this = {}; }
  void add_literal(std::span<const std::byte> bytes);
  void add_hole(Hole hole, size_t count = 1);
  void end() { is_known_ = !is_too_long_; }

  bool is_known() const { return is_known_; }
  size_t holes() const { return holes_; }
  // The values of the object that starts at `at`, kObjectBytesMax of which can be looked at.
  // Returns where it ends; nullptr where it is written in another way. An object ends in a literal
  // that is not zero: it never reaches into zeros that were put behind the end of a file.
  const std::byte* match(const std::byte* at, std::span<Value, kHolesMax> values) const;

 private:
  struct Literal {
    std::array<uint64_t, kLiteralMax / 8> words{}, masks{};
    uint32_t count_bytes = 0;
    bool is_at(const std::byte* at) const;
  };

  std::array<Literal, kHolesMax + 1> literals_;  // before each hole, and behind the last
  std::array<Hole, kHolesMax> kinds_{};
  std::array<uint8_t, kHolesMax> counts_{};
  size_t holes_ = 0;
  bool is_known_ = false;
  bool is_too_long_ = false;
};

}  // namespace ckpt
