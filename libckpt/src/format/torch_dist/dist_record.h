#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/forward_reader.h"
#include "format/torch_dist/dist_assembler.h"
#include "format/torch_dist/dist_shape.h"
#include "format/torch_dist/kept_memo.h"

namespace ckpt {

// Reads one object of a .metadata in one go: nearly all of the file are chunks, indices and places
// whose fields are recalled names with recalled or small values.
class DistRecordReader {
 public:
  DistRecordReader(ForwardReader& reader, KeptMemo& memo, DistAssembler& assembler)
      : reader_(reader), memo_(memo), assembler_(assembler) {}

  enum class Outcome : uint8_t {
    Built,    // `object` is what its fields mean; BUILD was taken
    Unusual,  // pairs() were taken, and what follows is for the general steps
    Refused,
  };
  // The fields; the cursor is behind their MARK.
  Outcome read(DistItem& object);
  // An object of this class that is written like the one before; the cursor is behind the class.
  // Unusual: nothing was taken.
  Outcome read_as_before(DistClass known, DistItem& object);

  std::span<const DistItem> pairs() const { return std::span(pairs_).first(count_); }
  uint64_t made() const { return made_; }  // values, as the machine counts them

 private:
  static constexpr size_t kFieldsMax = DistShape::kHolesMax;
  struct KnownName {
    uint64_t memo_index = ~uint64_t{0};
    DistItem name;
  };
  // Of the object before: the next one's names come from the same places of the memo.
  struct Before {
    DistShape shape;
    std::array<KnownName, kFieldsMax> names{};
    DistAssembler::FieldOrder order{};
    DistAssembler::Fields fields{};
  };
  using Values = std::array<DistShape::Value, kFieldsMax>;

  const std::byte* read_name(const std::byte* at, KnownName& known);
  const std::byte* read_value(const std::byte* at, DistItem& value, DistShape& shape);
  const std::byte* read_size(const std::byte* at, DistItem& value, DistShape& shape);
  const std::byte* read_text(const std::byte* at, DistItem& value);
  bool recall_values(Before& before);
  bool take_value(const DistShape::Value& value, DistItem& item);
  bool take_size(std::span<const uint64_t> numbers, DistItem& item);
  bool take_text(std::string_view text, DistItem& item);

  ForwardReader& reader_;
  KeptMemo& memo_;
  DistAssembler& assembler_;
  std::array<DistItem, 2 * kFieldsMax> pairs_{};
  size_t count_ = 0;
  uint64_t made_ = 0;
  std::array<Before, kDistClasses> before_{};
  Values values_{};
};

}  // namespace ckpt
