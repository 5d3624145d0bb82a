#include "format/dist_record.h"

#include <cstring>

#include "codec/pickle_opcodes.h"
#include "codec/python_text.h"

namespace ckpt {
namespace {

using pickle::Op;
using Tag = DistItem::Tag;

// A field is a BINGET or LONG_BINGET and a value: the longest is a SHORT_BINUNICODE with MEMOIZE.
constexpr size_t kFieldBytesMax = 5 + 2 + 255 + 1;
// MEMOIZE, TUPLE1, MEMOIZE, REDUCE, MEMOIZE.
constexpr std::string_view kSizeEnd = "\x94\x85\x94R\x94";
constexpr size_t kSizeNumbersMax = 3;

Op op_at(const std::byte* at) { return static_cast<Op>(*at); }
uint8_t byte_at(const std::byte* at) { return static_cast<uint8_t>(*at); }

template <class Number>
Number number_at(const std::byte* at) {  // pickles are little-endian, and so are we
  Number number;
  std::memcpy(&number, at, sizeof(number));
  return number;
}

// BININT1, BININT2, BININT; nullptr for anything else.
const std::byte* read_int(const std::byte* at, int64_t& value) {
  switch (op_at(at)) {
    case Op::BinInt1: value = byte_at(at + 1); return at + 2;
    case Op::BinInt2: value = number_at<uint16_t>(at + 1); return at + 3;
    case Op::BinInt: value = number_at<int32_t>(at + 1); return at + 5;
    default: return nullptr;
  }
}

}  // namespace

DistRecordReader::Outcome DistRecordReader::read(DistItem& object) {
  made_ = count_ = 0;
  KnownNames& names = names_[object.id];  // an Instance
  for (;;) {
    const std::byte* at = reader_.peek(kFieldBytesMax);
    if (at == nullptr) return Outcome::Unusual;
    if (op_at(at) == Op::SetItems && op_at(at + 1) == Op::Build) {
      reader_.skip(2);
      return assembler_.build_from(object, pairs()) ? Outcome::Built : Outcome::Refused;
    }
    if (count_ == pairs_.size()) return Outcome::Unusual;
    KnownName& known = names[count_ / 2];
    const std::byte* behind_name = read_name(at, known);
    if (behind_name == nullptr) return Outcome::Unusual;
    DistItem value;
    const std::byte* end = read_value(behind_name, value);
    if (end == nullptr) return Outcome::Unusual;
    pairs_[count_++] = known.name;
    pairs_[count_++] = value;
    reader_.skip(static_cast<size_t>(end - at));
  }
}

// What the memo holds never changes: an index that was found once needs no second look.
const std::byte* DistRecordReader::read_name(const std::byte* at, KnownName& known) {
  const bool is_short = op_at(at) == Op::BinGet;
  if (!is_short && op_at(at) != Op::LongBinGet) return nullptr;
  const uint64_t index = is_short ? byte_at(at + 1) : number_at<uint32_t>(at + 1);
  if (known.memo_index != index) {
    const auto found = memo_.find(index);
    if (!found) return nullptr;
    known = {index, *found};
  }
  return at + (is_short ? 2 : 5);
}

// Returns where the value ends; nullptr where it is unusual, and then nothing was done.
const std::byte* DistRecordReader::read_value(const std::byte* at, DistItem& value) {
  switch (op_at(at)) {
    case Op::BinGet: {
      const auto recalled = memo_.find(byte_at(at + 1));
      return recalled ? read_recalled(*recalled, at + 2, value) : nullptr;
    }
    case Op::LongBinGet: {
      const auto recalled = memo_.find(number_at<uint32_t>(at + 1));
      return recalled ? read_recalled(*recalled, at + 5, value) : nullptr;
    }
    case Op::ShortBinUnicode: return read_text(at, value);
    case Op::None:
      value = {Tag::None};
      ++made_;
      return at + 1;
    default: {
      int64_t number = 0;
      const std::byte* end = read_int(at, number);
      if (end == nullptr) return nullptr;
      value = {Tag::Int, 0, static_cast<uint64_t>(number)};
      ++made_;
      return end;
    }
  }
}

const std::byte* DistRecordReader::read_recalled(const DistItem& recalled, const std::byte* at,
                                                 DistItem& value) {
  if (assembler_.values().known_class(recalled) == DistClass::Size) return read_size(at, value);
  value = recalled;
  return at;
}

// The arguments of torch.Size and its call.
const std::byte* DistRecordReader::read_size(const std::byte* at, DistItem& value) {
  uint64_t numbers[kSizeNumbersMax];
  size_t count = 0;
  int64_t number = 0;
  while (const std::byte* end = read_int(at, number)) {
    if (number < 0 || count == kSizeNumbersMax) return nullptr;
    numbers[count++] = static_cast<uint64_t>(number);
    at = end;
  }
  const auto tuple = static_cast<Op>(static_cast<uint8_t>(Op::Tuple1) + count - 1);
  if (count == 0 || op_at(at) != tuple) return nullptr;
  if (std::memcmp(at + 1, kSizeEnd.data(), kSizeEnd.size()) != 0) return nullptr;
  const uint32_t id = assembler_.values().extents.intern(std::span(numbers, count));
  if (!KeptMemo::can_hold(id)) return nullptr;
  value = {Tag::Size, id};
  memo_.skip();
  memo_.skip();
  memo_.keep(value);
  made_ += count + 3;  // the tuple, the tuple around it and the object
  return at + 1 + kSizeEnd.size();
}

const std::byte* DistRecordReader::read_text(const std::byte* at, DistItem& value) {
  const size_t length = byte_at(at + 1);
  const std::byte* end = at + 2 + length;
  if (op_at(end) != Op::Memoize) return nullptr;
  const std::string_view text(reinterpret_cast<const char*>(at + 2), length);
  const auto id = assembler_.values().texts.intern(text, pickle::is_python_str);
  if (!id || !KeptMemo::can_hold(*id)) return nullptr;
  value = {Tag::Text, *id};
  memo_.keep(value);
  ++made_;
  return end + 1;
}

}  // namespace ckpt
