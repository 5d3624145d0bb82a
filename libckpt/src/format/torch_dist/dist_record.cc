#include "format/torch_dist/dist_record.h"

#include <cstring>
#include <span>

#include "codec/pickle_opcodes.h"
#include "codec/python_text.h"

namespace ckpt {
namespace {

using pickle::Op;
using Tag = DistItem::Tag;

// SETITEMS, BUILD: it ends. It never ends in zeros that were put behind the end of a file.
constexpr std::string_view kEnd = "ub";

// What lies at a place of a pickle, of which enough bytes were looked at before.

Op op_at(const std::byte* at) { return static_cast<Op>(*at); }
uint8_t byte_at(const std::byte* at) { return static_cast<uint8_t>(*at); }

template <class Number>
Number number_at(const std::byte* at) {  // pickles are little-endian, and so are we
  Number number;
  std::memcpy(&number, at, sizeof(number));
  return number;
}

// LONG1: what Python writes from 2^31 on, in no more bytes than the number needs.
const std::byte* read_long(const std::byte* at, int64_t& value) {
  const size_t count_bytes = byte_at(at + 1);
  if (count_bytes > sizeof(value)) return nullptr;
  const auto small = pickle::small_integer({at + 2, count_bytes});
  if (!small) return nullptr;
  value = *small;
  return at + 2 + count_bytes;
}

// BININT1, BININT2, BININT, LONG1: returns where it ends; nullptr for anything else.
const std::byte* read_int(const std::byte* at, int64_t& value) {
  switch (op_at(at)) {
    case Op::BinInt1: value = byte_at(at + 1); return at + 2;
    case Op::BinInt2: value = number_at<uint16_t>(at + 1); return at + 3;
    case Op::BinInt: value = number_at<int32_t>(at + 1); return at + 5;
    case Op::Long1: return read_long(at, value);
    default: return nullptr;
  }
}

// BINGET, LONG_BINGET: the same with an index of the memo.
const std::byte* read_get(const std::byte* at, uint64_t& index) {
  switch (op_at(at)) {
    case Op::BinGet: index = byte_at(at + 1); return at + 2;
    case Op::LongBinGet: index = number_at<uint32_t>(at + 1); return at + 5;
    default: return nullptr;
  }
}

// SHORT_BINUNICODE and MEMOIZE.
const std::byte* read_short_text(const std::byte* at, std::string_view& text) {
  if (op_at(at) != Op::ShortBinUnicode) return nullptr;
  text = {reinterpret_cast<const char*>(at + 2), byte_at(at + 1)};
  const std::byte* end = at + 2 + text.size();
  return op_at(end) == Op::Memoize ? end + 1 : nullptr;
}

bool are_at(const std::byte* at, std::string_view bytes) {
  return std::memcmp(at, bytes.data(), bytes.size()) == 0;
}

// Behind an opcode and, if there is one, the MEMOIZE of what it makes: Python's pickler memoizes
// all objects, others only what they recall. nullptr: it is another opcode, or `at` was nullptr.
const std::byte* behind_made(const std::byte* at, Op op, uint8_t& memoized_count) {
  if (at == nullptr || op_at(at) != op) return nullptr;
  const bool is_memoized = op_at(at + 1) == Op::Memoize;
  memoized_count += is_memoized;
  return at + 1 + is_memoized;
}

}  // namespace

DistRecordReader::Outcome DistRecordReader::read(DistClass known, DistItem& object) {
  const std::byte* at = reader_.peek_padded(kObjectBytesMax);
  auto& shapes = shapes_[static_cast<size_t>(known)];
  for (Shape& shape : shapes) {
    if (shape.count == 0) break;
    const std::byte* end = match(shape, at);
    if (end == nullptr) continue;
    reader_.skip(static_cast<size_t>(end - at));
    return build(known, shape, object);
  }
  size_t& learned = learned_[static_cast<size_t>(known)];
  Shape shape;
  if (learn(known, at, shape)) shapes[learned++ % kShapesMax] = shape;
  return Outcome::Unusual;
}

// --- as one before ---

bool DistRecordReader::Literal::is_at(const std::byte* at) const {
  uint64_t difference = 0;
  for (size_t i = 0; i < words.size(); ++i) {
    difference |= (number_at<uint64_t>(at + 8 * i) ^ words[i]) & masks[i];
  }
  return difference == 0;
}

// Returns where the value ends; nullptr where it is another.
const std::byte* DistRecordReader::read_value(const std::byte* at, const Field& field,
                                              Value& value) {
  int64_t number = 0;
  switch (field.hole) {
    case Hole::None: return op_at(at) == Op::None ? at + 1 : nullptr;
    case Hole::Recalled: return read_get(at, value.numbers[0]);
    case Hole::Text: return read_short_text(at, value.text);
    case Hole::Number:
      at = read_int(at, number);
      value.numbers[0] = static_cast<uint64_t>(number);
      return at;
    case Hole::Numbers: break;
  }
  for (size_t i = 0; i < field.count; ++i) {
    at = read_int(at, number);
    if (at == nullptr || number < 0) return nullptr;
    value.numbers[i] = static_cast<uint64_t>(number);
  }
  return at;
}

// Returns where the object ends; nullptr where it is written in another way, and then nothing was
// done that counts. What is recalled is in its field already.
const std::byte* DistRecordReader::match(Shape& shape, const std::byte* at) {
  for (size_t i = 0; i < shape.count; ++i) {
    const Field& field = shape.fields[i];
    if (!field.before.is_at(at)) return nullptr;
    at = read_value(at + field.before.count_bytes, field, values_[i]);
    if (at == nullptr) return nullptr;
    if (field.hole != Hole::Recalled) continue;
    if (!memo_.find(values_[i].numbers[0], shape.values[field.place])) return nullptr;
  }
  return shape.end.is_at(at) ? at + shape.end.count_bytes : nullptr;
}

DistRecordReader::Outcome DistRecordReader::build(DistClass known, Shape& shape, DistItem& object) {
  memo_.skip(shape.memoized_count);
  made_ = shape.made;
  for (size_t i = 0; i < shape.count; ++i) {
    const Field& field = shape.fields[i];
    if (!take_value(field, values_[i], shape.values[field.place])) return Outcome::Refused;
  }
  object = {Tag::Instance, static_cast<uint32_t>(known)};
  return assembler_.build_from(object, shape.values) ? Outcome::Built : Outcome::Refused;
}

bool DistRecordReader::take_value(const Field& field, const Value& value, DistItem& item) {
  DistValues& values = assembler_.values();
  if (field.hole == Hole::Recalled) return true;
  std::optional<uint32_t> id;
  if (field.hole == Hole::Text) {
    id = values.texts.intern(value.text, pickle::is_python_str);
    item.tag = Tag::Text;
  } else if (field.hole == Hole::Numbers) {
    // `item` still has the field's value in the object before.
    id = values.extents.intern_behind(item.id, std::span(value.numbers).first(field.count));
    item.tag = Tag::Size;
    memo_.skip(field.memoized_count);
  } else {
    item.tag = field.hole == Hole::None ? Tag::None : Tag::Int;
    item.number = value.numbers[0];
    return true;
  }
  if (!id || !KeptMemo::can_hold(*id)) return false;
  item.id = *id;
  if (field.is_memoized) memo_.keep(item);
  return true;
}

// --- what is new ---

bool DistRecordReader::Literal::set(const std::byte* from, const std::byte* to) {
  count_bytes = static_cast<uint32_t>(to - from);
  if (count_bytes > kLiteralMax) return false;
  std::memcpy(words.data(), from, count_bytes);
  std::memset(masks.data(), 0xff, count_bytes);
  return true;
}

// The shape of an object that opcodes are going to read; false where another might not be read
// like it.
bool DistRecordReader::learn(DistClass known, const std::byte* at, Shape& shape) {
  const std::byte* literal = at;
  uint32_t seen = 0;
  shape.made = 3;  // the empty tuple, the object and its dict
  if (op_at(at) != Op::EmptyTuple) return false;
  at = behind_made(at + 1, Op::NewObj, shape.memoized_count);
  at = behind_made(at, Op::EmptyDict, shape.memoized_count);
  if (at == nullptr || op_at(at) != Op::Mark) return false;
  for (++at; !are_at(at, kEnd);) {
    if (shape.count == kFieldsMax) return false;
    Field& field = shape.fields[shape.count++];
    at = learn_name(known, at, field);
    if (at == nullptr || (seen >> field.place & 1) != 0) return false;
    seen |= 1u << field.place;
    const std::byte* numbers = behind_size_class(at);
    const bool is_marked = numbers != nullptr && op_at(numbers) == Op::Mark;
    if (is_marked) ++numbers;
    if (!field.before.set(literal, numbers == nullptr ? at : numbers)) return false;
    const bool is_size = numbers != nullptr;  // which is a tuple, a tuple around it and an object
    literal = is_size ? learn_numbers(numbers, field) : learn_simple(at, field);
    at = is_size ? behind_size(literal, is_marked, field) : literal;
    if (at == nullptr) return false;
    shape.made += is_size ? field.count + 3u : field.hole == Hole::Recalled ? 0 : 1;
  }
  return shape.count > 0 && shape.end.set(literal, at + kEnd.size());
}

const std::byte* DistRecordReader::learn_name(DistClass known, const std::byte* at, Field& field) {
  DistItem name;
  uint64_t index = 0;
  const std::byte* end = read_get(at, index);
  if (end == nullptr || !memo_.find(index, name)) return nullptr;
  const auto place = DistAssembler::place_of(known, name);
  if (!place) return nullptr;
  field.place = *place;
  return end;
}

// nullptr where torch.Size is not what is recalled.
const std::byte* DistRecordReader::behind_size_class(const std::byte* at) {
  DistItem recalled;
  uint64_t index = 0;
  const std::byte* end = read_get(at, index);
  const bool is_size = end != nullptr && memo_.find(index, recalled) &&
                       assembler_.values().known_class(recalled) == DistClass::Size;
  return is_size ? end : nullptr;
}

// The arguments of torch.Size: returns where they end.
const std::byte* DistRecordReader::learn_numbers(const std::byte* at, Field& field) {
  int64_t number = 0;
  field.hole = Hole::Numbers;
  field.count = 0;
  while (const std::byte* end = read_int(at, number)) {
    if (field.count++ == kNumbersMax) return nullptr;
    at = end;
  }
  return field.count > 0 ? at : nullptr;
}

// They become a tuple, of more than three from a mark on; it is the only argument of torch.Size.
const std::byte* DistRecordReader::behind_size(const std::byte* at, bool is_marked, Field& field) {
  constexpr std::array<Op, 4> kTuples = {Op::EmptyTuple, Op::Tuple1, Op::Tuple2, Op::Tuple3};
  if (!is_marked && field.count >= kTuples.size()) return nullptr;
  at = behind_made(at, is_marked ? Op::Tuple : kTuples[field.count], field.memoized_count);
  at = behind_made(at, Op::Tuple1, field.memoized_count);
  uint8_t memoized_count = 0;
  at = behind_made(at, Op::Reduce, memoized_count);
  field.is_memoized = memoized_count > 0;
  return at;
}

const std::byte* DistRecordReader::learn_simple(const std::byte* at, Field& field) {
  Value value;
  for (const Hole hole : {Hole::None, Hole::Number, Hole::Recalled, Hole::Text}) {
    field.hole = hole;
    if (const std::byte* end = read_value(at, field, value)) return end;
  }
  return nullptr;
}

}  // namespace ckpt
