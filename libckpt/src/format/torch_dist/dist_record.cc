#include "format/torch_dist/dist_record.h"

#include "codec/python_text.h"
#include "format/torch_dist/dist_bytes.h"

namespace ckpt {
namespace {

using pickle::Op;
using Tag = DistItem::Tag;
using Hole = DistShape::Hole;

// A field is a BINGET or LONG_BINGET and a value: the longest is a SHORT_BINUNICODE with MEMOIZE.
constexpr size_t kFieldBytesMax = 5 + 2 + 255 + 1;
// EMPTY_TUPLE, NEWOBJ, MEMOIZE, EMPTY_DICT, MEMOIZE, MARK: an object begins.
constexpr std::string_view kBegin = ")\x81\x94}\x94(";
// SETITEMS, BUILD: it ends.
constexpr std::string_view kEnd = "ub";
// MEMOIZE, TUPLE1, MEMOIZE, REDUCE, MEMOIZE.
constexpr std::string_view kSizeEnd = "\x94\x85\x94R\x94";

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

}  // namespace

DistRecordReader::Outcome DistRecordReader::read(DistItem& object) {
  made_ = count_ = 0;
  Before& before = before_[object.id];  // an Instance
  before.shape.begin();
  before.shape.add_literal(bytes_of(kBegin));
  for (;;) {
    const std::byte* at = reader_.peek(kFieldBytesMax);
    if (at == nullptr) return Outcome::Unusual;
    if (op_at(at) == Op::SetItems && op_at(at + 1) == Op::Build) break;
    if (count_ == pairs_.size()) return Outcome::Unusual;
    KnownName& known = before.names[count_ / 2];
    const std::byte* behind_name = read_name(at, known);
    if (behind_name == nullptr) return Outcome::Unusual;
    before.shape.add_literal({at, behind_name});
    DistItem value;
    const std::byte* end = read_value(behind_name, value, before.shape);
    if (end == nullptr) return Outcome::Unusual;
    pairs_[count_++] = known.name;
    pairs_[count_++] = value;
    reader_.skip(static_cast<size_t>(end - at));
  }
  reader_.skip(kEnd.size());
  before.shape.add_literal(bytes_of(kEnd));
  const auto order = DistAssembler::field_order(static_cast<DistClass>(object.id), pairs());
  if (!order || !assembler_.build_from(object, DistAssembler::in_order(pairs(), *order))) {
    return Outcome::Refused;
  }
  before.order = *order;
  before.fields = {};
  before.shape.end();
  return Outcome::Built;
}

// What the memo holds never changes: an index that was found once needs no second look.
const std::byte* DistRecordReader::read_name(const std::byte* at, KnownName& known) {
  uint64_t index = 0;
  const std::byte* end = read_get(at, index);
  if (end == nullptr || known.memo_index == index) return end;
  if (!memo_.find(index, known.name)) return nullptr;
  known.memo_index = index;
  return end;
}

// Returns where the value ends; nullptr where it is unusual, and then nothing was done.
const std::byte* DistRecordReader::read_value(const std::byte* at, DistItem& value,
                                              DistShape& shape) {
  uint64_t index = 0;
  if (const std::byte* end = read_get(at, index)) {
    if (!memo_.find(index, value)) return nullptr;
    if (assembler_.values().known_class(value) == DistClass::Size) {
      shape.add_literal({at, end});
      return read_size(end, value, shape);
    }
    shape.add_hole(Hole::Recalled);
    return end;
  }
  if (op_at(at) == Op::ShortBinUnicode) {
    shape.add_hole(Hole::Text);
    return read_text(at, value);
  }
  int64_t number = 0;
  const bool is_none = op_at(at) == Op::None;
  const std::byte* end = is_none ? at + 1 : read_int(at, number);
  if (end == nullptr) return nullptr;
  shape.add_hole(is_none ? Hole::None : Hole::Number);
  value = {is_none ? Tag::None : Tag::Int, 0, static_cast<uint64_t>(number)};
  ++made_;
  return end;
}

// The arguments of torch.Size and its call.
const std::byte* DistRecordReader::read_size(const std::byte* at, DistItem& value,
                                             DistShape& shape) {
  std::array<uint64_t, DistShape::kNumbersMax> numbers{};
  size_t count = 0;
  int64_t number = 0;
  while (const std::byte* end = read_int(at, number)) {
    if (number < 0 || count == numbers.size()) return nullptr;
    numbers[count++] = static_cast<uint64_t>(number);
    at = end;
  }
  const auto tuple = static_cast<Op>(static_cast<uint8_t>(Op::Tuple1) + count - 1);
  if (count == 0 || op_at(at) != tuple) return nullptr;
  if (std::memcmp(at + 1, kSizeEnd.data(), kSizeEnd.size()) != 0) return nullptr;
  const std::byte* end = at + 1 + kSizeEnd.size();
  if (!take_size(std::span(numbers).first(count), value)) return nullptr;
  shape.add_hole(Hole::Numbers, count);
  shape.add_literal({at, end});
  return end;
}

const std::byte* DistRecordReader::read_text(const std::byte* at, DistItem& value) {
  std::string_view text;
  const std::byte* end = read_short_text(at, text);
  return end != nullptr && take_text(text, value) ? end : nullptr;
}

// --- as the object before ---

DistRecordReader::Outcome DistRecordReader::read_as_before(DistClass known, DistItem& object) {
  Before& before = before_[static_cast<size_t>(known)];
  if (!before.shape.is_known()) return Outcome::Unusual;
  const std::byte* at = reader_.peek_padded(DistShape::kObjectBytesMax);
  const std::byte* end = before.shape.match(at, values_);
  if (end == nullptr || !recall_values(before)) return Outcome::Unusual;
  memo_.skip(2);
  made_ = 3;  // the empty tuple, the object and its dict
  for (size_t i = 0; i < before.shape.holes(); ++i) {
    if (values_[i].hole == Hole::Recalled) continue;
    if (!take_value(values_[i], before.fields[before.order[i]])) return Outcome::Refused;
  }
  reader_.skip(static_cast<size_t>(end - at));
  object = {Tag::Instance, static_cast<uint32_t>(known)};
  return assembler_.build_from(object, before.fields) ? Outcome::Built : Outcome::Refused;
}

// Puts what is recalled into its fields; false where the memo does not have it.
bool DistRecordReader::recall_values(Before& before) {
  for (size_t i = 0; i < before.shape.holes(); ++i) {
    if (values_[i].hole != Hole::Recalled) continue;
    if (!memo_.find(values_[i].numbers[0], before.fields[before.order[i]])) return false;
  }
  return true;
}

bool DistRecordReader::take_value(const DistShape::Value& value, DistItem& item) {
  if (value.hole == Hole::Text) return take_text(value.text, item);
  if (value.hole == Hole::Numbers) {
    return take_size(std::span(value.numbers).first(value.count), item);
  }
  ++made_;
  item.tag = value.hole == Hole::None ? Tag::None : Tag::Int;
  item.number = value.numbers[0];
  return true;
}

bool DistRecordReader::take_size(std::span<const uint64_t> numbers, DistItem& item) {
  item.tag = Tag::Size;
  item.id = assembler_.values().extents.intern(numbers);
  if (!KeptMemo::can_hold(item.id)) return false;
  memo_.skip(2);
  memo_.keep(item);
  made_ += numbers.size() + 3;  // the tuple, the tuple around it and the object
  return true;
}

bool DistRecordReader::take_text(std::string_view text, DistItem& item) {
  const auto id = assembler_.values().texts.intern(text, pickle::is_python_str);
  if (!id || !KeptMemo::can_hold(*id)) return false;
  item.tag = Tag::Text;
  item.id = *id;
  memo_.keep(item);
  ++made_;
  return true;
}

}  // namespace ckpt
