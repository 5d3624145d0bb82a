// A pickle machine for .metadata (dist_metadata.cc has its grammar) that builds no tree: the
// objects of a chunk are taken apart as soon as they are complete. It rests on what holds for every
// pickle that Python writes since protocol 4: memo indices come in order, and a list, a dict or an
// object is recalled from the memo only while it is shared, which those of a .metadata are not.
#include "format/torch_dist/dist_metadata.h"

#include <algorithm>

#include "base/byte_reader.h"
#include "codec/pickle_opcodes.h"
#include "codec/python_text.h"
#include "format/torch_dist/dist_assembler.h"
#include "format/torch_dist/dist_record.h"

namespace ckpt {
namespace {

using pickle::Op;
using Tag = DistItem::Tag;

constexpr uint64_t kStreamedBytesMax = uint64_t{4} << 30;  // ids of numbers fit 32 bits below this
constexpr int kProtocolMax = 5;

class Machine {
 public:
  Machine(const RandomAccess& file, const Limits& limits) : reader_(file), limits_(limits) {}

  std::optional<DistMetadata> run() {
    return read() ? assembler_.finish(stack_.back()) : std::nullopt;
  }

 private:
  bool read() {
    for (;;) {
      const std::byte* code = reader_.take(1);
      if (code == nullptr) return false;
      const auto op = static_cast<Op>(*code);
      if (op == Op::Stop) break;
      if (!step(op) || made_ > limits_.pickle_nodes_max) return false;
    }
    return stack_.size() == 1 && marks_.empty() && reader_.left_bytes() == 0;
  }

  bool step(Op op) {
    switch (op) {
      case Op::Memoize: return memoize();
      case Op::BinGet: return with_number<1>([&](uint64_t index) { return recall(index); });
      case Op::LongBinGet: return with_number<4>([&](uint64_t index) { return recall(index); });
      case Op::BinInt1: return with_number<1>([&](uint64_t value) { return push_int(value); });
      case Op::BinInt2: return with_number<2>([&](uint64_t value) { return push_int(value); });
      case Op::BinInt:
        return with_number<4>([&](uint64_t value) {
          return push_int(static_cast<uint64_t>(int64_t{static_cast<int32_t>(value)}));
        });
      case Op::Long1: return with_number<1>([&](uint64_t length) { return push_long(length); });
      case Op::None: return push({Tag::None});
      case Op::NewTrue: return push({Tag::Bool, 0, 1});
      case Op::NewFalse: return push({Tag::Bool, 0, 0});
      case Op::ShortBinUnicode: return with_number<1>([&](uint64_t n) { return push_text(n); });
      case Op::BinUnicode: return with_number<4>([&](uint64_t n) { return push_text(n); });
      case Op::Mark: marks_.push_back(stack_.size()); return true;
      case Op::EmptyTuple: return push({Tag::Numbers, assembler_.empty_tuple()});
      case Op::EmptyDict: return push({Tag::Dict});
      case Op::EmptyList: return push({Tag::List});
      case Op::Tuple1: return push_tuple(1);
      case Op::Tuple2: return push_tuple(2);
      case Op::Tuple3: return push_tuple(3);
      default: return step_object(op);
    }
  }

  bool step_object(Op op) {
    switch (op) {
      case Op::Tuple: return at_mark(0) && push_tuple(stack_.size() - popped_mark_);
      case Op::SetItems: return at_mark(1) && set_items(popped_mark_);
      case Op::SetItem: return above_floor(3) && set_items(stack_.size() - 2);
      case Op::Appends: return at_mark(1) && append(popped_mark_);
      case Op::Append: return above_floor(2) && append(stack_.size() - 1);
      case Op::StackGlobal: return push_stack_global();
      case Op::NewObj: return push_object(Construction::NewObj);
      case Op::Reduce: return push_object(Construction::Reduce);
      case Op::Build: return build();
      case Op::Proto: return with_number<1>([](uint64_t n) { return n <= kProtocolMax; });
      case Op::Frame:
        return with_number<8>([&](uint64_t length) { return length <= reader_.left_bytes(); });
      default: return false;
    }
  }

  // --- input ---

  template <size_t kBytes, class Then>
  bool with_number(Then then) {
    const std::byte* bytes = reader_.take(kBytes);
    if (bytes == nullptr) return false;
    uint64_t number = 0;
    for (size_t i = 0; i < kBytes; ++i) number |= static_cast<uint64_t>(bytes[i]) << (8 * i);
    return then(number);
  }

  bool push_long(uint64_t length) {
    const std::byte* bytes = reader_.take(length);
    if (bytes == nullptr) return false;
    const auto value = pickle::small_integer({bytes, static_cast<size_t>(length)});
    return value && push_int(static_cast<uint64_t>(*value));
  }

  bool push_text(uint64_t length) {
    const std::byte* bytes = reader_.take(length);
    if (bytes == nullptr) return false;
    const std::string_view text(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
    const auto id = assembler_.values().texts.intern(text, pickle::is_python_str);
    return id && push({Tag::Text, *id});
  }

  // --- stack ---

  bool push(DistItem item) {
    stack_.push_back(item);
    ++made_;
    return true;
  }

  bool push_int(uint64_t value) { return push({Tag::Int, 0, value}); }

  bool above_floor(size_t count) const {
    return stack_.size() >= (marks_.empty() ? 0 : marks_.back()) + count;
  }

  // Takes the last mark off; true if there is one, and at least `below` values under it that belong
  // to the same container.
  bool at_mark(size_t below) {
    if (marks_.empty()) return false;
    popped_mark_ = marks_.back();
    marks_.pop_back();
    return popped_mark_ >= (marks_.empty() ? 0 : marks_.back()) + below;
  }

  std::span<const DistItem> from(size_t height) const { return std::span(stack_).subspan(height); }

  // Replaces the last `count` values by one; false where that is unknown.
  bool replace(size_t count, std::optional<DistItem> item) {
    if (!item) return false;
    stack_.resize(stack_.size() - count);
    return push(*item);
  }

  // --- containers and objects ---

  bool push_tuple(size_t count) {
    return above_floor(count) && replace(count, assembler_.tuple(from(stack_.size() - count)));
  }

  bool set_items(size_t height) {
    if (!assembler_.set_items(stack_[height - 1], std::span(stack_).subspan(height))) return false;
    stack_.resize(height);
    return true;
  }

  bool append(size_t height) {
    if (!assembler_.append(stack_[height - 1], from(height))) return false;
    stack_.resize(height);
    return true;
  }

  bool push_stack_global() {
    if (!above_floor(2)) return false;
    const DistItem name = stack_.back(), module = stack_[stack_.size() - 2];
    if (!name.is(Tag::Text) || !module.is(Tag::Text)) return false;
    made_ += 2;  // the tree holds the two names, too
    return replace(2, DistItem{Tag::Class, assembler_.values().add_class(module.id, name.id)});
  }

  bool push_object(Construction construction) {
    if (!above_floor(2)) return false;
    const DistItem args = stack_.back(), callable = stack_[stack_.size() - 2];
    return replace(2, assembler_.object(construction, callable, args));
  }

  bool build() {
    if (!above_floor(2)) return false;
    const DistItem state = stack_.back();
    stack_.pop_back();
    return assembler_.build(stack_.back(), state);
  }

  // --- memo ---

  // Kept is what never changes and real writers recall.
  bool memoize() {
    if (!above_floor(1)) return false;
    const DistItem& top = stack_.back();
    const bool keeps =
        top.is(Tag::Text) || top.is(Tag::Class) || top.is(Tag::Size) || top.is(Tag::Node);
    if (keeps && KeptMemo::can_hold(top.id)) {
      memo_.keep(top);
    } else {
      memo_.skip();
    }
    return true;
  }

  bool recall(uint64_t index) {
    DistItem& item = stack_.emplace_back();
    if (!memo_.find(index, item)) return false;
    if (!item.is(Tag::Class)) return true;
    const auto outcome = records_.read(assembler_.values().known_class(item), item);
    if (outcome == DistRecordReader::Outcome::Built) made_ += records_.made();
    return outcome != DistRecordReader::Outcome::Refused;
  }

  ForwardReader reader_;
  const Limits& limits_;
  DistAssembler assembler_;
  std::vector<DistItem> stack_;
  std::vector<size_t> marks_;  // heights of stack_
  size_t popped_mark_ = 0;
  KeptMemo memo_;
  DistRecordReader records_{reader_, memo_, assembler_};
  uint64_t made_ = 0;  // values
};

}  // namespace

std::optional<DistMetadata> stream_dist_metadata(const RandomAccess& file, const Limits& limits) {
  const uint64_t bytes_max = std::min(kStreamedBytesMax, limits.pickle_bytes_max);
  if (file.size_bytes() > bytes_max) return std::nullopt;
  return Machine(file, limits).run();
}

}  // namespace ckpt
