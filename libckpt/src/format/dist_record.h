#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/forward_reader.h"
#include "format/dist_assembler.h"
#include "format/kept_memo.h"

namespace ckpt {

// Reads the fields of one object of a .metadata in one go: nearly all of the file are chunks,
// indices and places whose fields are recalled names with recalled or small values.
class DistRecordReader {
 public:
  DistRecordReader(ForwardReader& reader, KeptMemo& memo, DistAssembler& assembler)
      : reader_(reader), memo_(memo), assembler_(assembler) {}

  enum class Outcome : uint8_t {
    Built,    // `object` is what its fields mean; BUILD was taken
    Unusual,  // pairs() were taken, and what follows is for the general steps
    Refused,
  };
  // The cursor is behind the MARK of the fields.
  Outcome read(DistItem& object);

  std::span<const DistItem> pairs() const { return std::span(pairs_).first(count_); }
  uint64_t made() const { return made_; }  // values, as the machine counts them

 private:
  static constexpr size_t kFieldsMax = 5;
  struct KnownName {
    uint64_t memo_index = ~uint64_t{0};
    DistItem name;
  };
  using KnownNames = std::array<KnownName, kFieldsMax>;

  const std::byte* read_name(const std::byte* at, KnownName& known);
  const std::byte* read_value(const std::byte* at, DistItem& value);
  const std::byte* read_recalled(const DistItem& recalled, const std::byte* at, DistItem& value);
  const std::byte* read_size(const std::byte* at, DistItem& value);
  const std::byte* read_text(const std::byte* at, DistItem& value);
  ForwardReader& reader_;
  KeptMemo& memo_;
  DistAssembler& assembler_;
  std::array<DistItem, 2 * kFieldsMax> pairs_{};
  size_t count_ = 0;
  uint64_t made_ = 0;
  // Of the object before of each class: the next one's come from the same places of the memo.
  std::array<KnownNames, kDistClasses> names_{};
};

}  // namespace ckpt
