#include "codec/pickle.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include <ckpt/error.h>
#include <ckpt/value.h>

#include "base/text.h"
#include "codec/pickle_opcodes.h"
#include "codec/python_text.h"
#include "codec/python_values.h"

namespace ckpt::pickle {
namespace {

// What PUT stored, by index. Indices come in order from every real writer; one that jumps costs a
// map entry, not memory up to it.
class Memo {
 public:
  uint64_t size() const { return dense_.size() + sparse_.size(); }

  void store(uint64_t index, NodeId id) {
    if (index < dense_.size()) {
      dense_[index] = id;
    } else if (index == dense_.size() && sparse_.empty()) {
      dense_.push_back(id);
    } else {
      sparse_[index] = id;
    }
  }

  std::optional<NodeId> find(uint64_t index) const {
    if (index < dense_.size()) return dense_[index];
    const auto found = sparse_.find(index);
    return found == sparse_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  std::vector<NodeId> dense_;
  std::unordered_map<uint64_t, NodeId> sparse_;
};

constexpr int kProtocolMax = 5;

// The stack machine of pickle. Every opcode checks the kinds that it works on, so that none can be
// applied to a value of another kind (CVE-2026-24747).
class Machine {
 public:
  Machine(ByteReader& reader, const Limits& limits) : reader_(reader), limits_(limits) {}

  ValueTree run() {
    for (;;) {
      opcode_position_ = reader_.position();
      if (reader_.at_end()) fail("the pickle ends without STOP");
      const Op op = static_cast<Op>(reader_.u8());
      if (op == Op::Stop) break;
      step(op);
      if (tree_.node_count() > limits_.pickle_nodes_max) fail("the pickle holds too many values");
    }
    tree_.set_root(pop());
    if (!stack_.empty() || !marks_.empty()) fail("STOP with values left on the stack");
    tree_.merge_equal_keys();
    return std::move(tree_);
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    reader_.fail_at(opcode_position_, problem);
  }

  void step(Op op) {
    if (!step_scalar(op) && !step_text(op) && !step_container(op) && !step_object(op) &&
        !step_memo(op)) {
      fail("unknown pickle opcode 0x" + hex(static_cast<uint8_t>(op)));
    }
  }

  // --- stack ---

  void push(NodeId id) { stack_.push_back(id); }

  NodeId pop() {
    if (stack_.size() <= stack_floor()) fail("the pickle pops a value from an empty stack");
    const NodeId id = stack_.back();
    stack_.pop_back();
    return id;
  }

  NodeId top() const {
    if (stack_.size() <= stack_floor()) fail("the pickle reads the top of an empty stack");
    return stack_.back();
  }

  size_t stack_floor() const { return marks_.empty() ? 0 : marks_.back(); }

  // The values above the last mark, taken off with it.
  std::vector<NodeId> pop_to_mark() {
    if (marks_.empty()) fail("the pickle uses a mark that was never set");
    std::vector<NodeId> values(stack_.begin() + static_cast<ptrdiff_t>(marks_.back()),
                               stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return values;
  }

  Kind kind_of(NodeId id) const { return tree_.value(id).kind(); }

  void require_kind(NodeId id, std::initializer_list<Kind> kinds, const char* what) const {
    if (std::ranges::find(kinds, kind_of(id)) == kinds.end()) fail(what);
  }

  // --- numbers ---

  bool step_scalar(Op op) {
    switch (op) {
      case Op::None: push(tree_.none()); return true;
      case Op::NewTrue: push(tree_.boolean(true)); return true;
      case Op::NewFalse: push(tree_.boolean(false)); return true;
      case Op::BinInt: push(tree_.integer(reader_.i32())); return true;
      case Op::BinInt1: push(tree_.integer(reader_.u8())); return true;
      case Op::BinInt2: push(tree_.integer(reader_.u16())); return true;
      case Op::BinFloat: push(tree_.real(reader_.f64_be())); return true;
      case Op::Long1: push_long(reader_.bytes(reader_.u8())); return true;
      case Op::Long4: push_long(reader_.bytes(length_i32())); return true;
      case Op::Int: push_int_line(); return true;
      case Op::Long: push_decimal(reader_.line()); return true;
      case Op::Float: push_float_line(); return true;
      default: return false;
    }
  }

  uint64_t length_i32() {
    const int32_t length = reader_.i32();
    if (length < 0) fail("the length is negative");
    return static_cast<uint64_t>(length);
  }

  void push_long(std::span<const std::byte> little_endian) {
    if (auto value = small_integer(little_endian)) return push(tree_.integer(*value));
    auto decimal = decimal_text(little_endian);
    if (!decimal) fail("an integer longer than " + std::to_string(kBigIntegerBytesMax) + " bytes");
    push(tree_.big_integer(std::move(*decimal)));
  }

  void push_int_line() {
    const std::string_view line = reader_.line();
    if (line == "00") return push(tree_.boolean(false));
    if (line == "01") return push(tree_.boolean(true));
    push_decimal(line);
  }

  void push_decimal(std::string_view line) {
    if (line.ends_with('L')) line.remove_suffix(1);
    if (const auto value = number_in<int64_t>(line)) return push(tree_.integer(*value));
    if (!is_decimal(line)) fail("the integer is not a decimal number");
    push(tree_.big_integer(std::string(line)));
  }

  void push_float_line() {
    const auto value = number_in<double>(reader_.line());
    if (!value) fail("the float is not a number");
    push(tree_.real(*value));
  }

  // --- strings ---

  bool step_text(Op op) {
    switch (op) {
      case Op::BinUnicode: push_unicode(reader_.u32()); return true;
      case Op::ShortBinUnicode: push_unicode(reader_.u8()); return true;
      case Op::BinUnicode8: push_unicode(reader_.u64()); return true;
      case Op::BinBytes: push_bytes(reader_.u32(), Kind::Bytes); return true;
      case Op::ShortBinBytes: push_bytes(reader_.u8(), Kind::Bytes); return true;
      case Op::BinBytes8: push_bytes(reader_.u64(), Kind::Bytes); return true;
      case Op::ByteArray8: push_bytes(reader_.u64(), Kind::ByteArray); return true;
      case Op::BinString: push_python2(reader_.text(length_i32())); return true;
      case Op::ShortBinString: push_python2(reader_.text(reader_.u8())); return true;
      case Op::String: push_quoted(reader_.line()); return true;
      case Op::Unicode: push_raw_unicode(reader_.line()); return true;
      default: return false;
    }
  }

  void push_unicode(uint64_t length) {
    const std::string_view text = reader_.text(length);
    if (!is_python_str(text)) fail("the string is not valid UTF-8");
    push(tree_.str(text));
  }

  void push_bytes(uint64_t length, Kind kind) { push(tree_.bytes(reader_.text(length), kind)); }

  // A Python 2 str has no encoding: text where it is UTF-8, else bytes.
  void push_python2(std::string_view text) {
    push(is_utf8(text) ? tree_.str(text) : tree_.bytes(text));
  }

  void push_quoted(std::string_view line) {
    const auto text = unquoted(line);
    if (!text) fail("the string has no closing quote");
    push_python2(*text);
  }

  void push_raw_unicode(std::string_view line) {
    const auto text = raw_unicode_unescaped(line);
    if (!text) fail("the string is not valid raw-unicode-escape");
    push(tree_.str(*text));
  }

  // --- containers ---

  bool step_container(Op op) {
    switch (op) {
      case Op::Mark: marks_.push_back(stack_.size()); return true;
      case Op::Pop: pop_value_or_mark(); return true;
      case Op::PopMark: pop_to_mark(); return true;
      case Op::Dup: push(top()); return true;
      case Op::EmptyTuple: push(tree_.tuple()); return true;
      case Op::EmptyList: push(tree_.list()); return true;
      case Op::EmptyDict: push(tree_.dict()); return true;
      case Op::EmptySet: push(tree_.sequence(Kind::Set, {})); return true;
      case Op::Tuple: push(tree_.sequence(Kind::Tuple, pop_to_mark())); return true;
      case Op::List: push(tree_.sequence(Kind::List, pop_to_mark())); return true;
      case Op::FrozenSet: push(tree_.sequence(Kind::FrozenSet, pop_to_mark())); return true;
      case Op::Tuple1: push_tuple<1>(); return true;
      case Op::Tuple2: push_tuple<2>(); return true;
      case Op::Tuple3: push_tuple<3>(); return true;
      case Op::Dict: push_dict(); return true;
      case Op::Append: append_one(); return true;
      case Op::Appends: append_all(pop_to_mark(), {Kind::List, Kind::Object}); return true;
      case Op::AddItems: append_all(pop_to_mark(), {Kind::Set, Kind::Object}); return true;
      case Op::SetItem: set_one(); return true;
      case Op::SetItems: set_items(pop_to_mark()); return true;
      default: return false;
    }
  }

  void pop_value_or_mark() {
    if (marks_.empty() || stack_.size() != marks_.back()) return void(pop());
    marks_.pop_back();
  }

  template <size_t kCount>
  void push_tuple() {
    NodeId elements[kCount];
    for (size_t i = kCount; i-- > 0;) elements[i] = pop();
    push(tree_.sequence(Kind::Tuple, elements));
  }

  void push_dict() {
    const auto pairs = pop_to_mark();
    push(tree_.dict());
    set_items(pairs);
  }

  void append_one() {
    const NodeId element = pop();
    append_all({&element, 1}, {Kind::List, Kind::Object});
  }

  void append_all(std::span<const NodeId> elements, std::initializer_list<Kind> kinds) {
    const NodeId holder = top();
    require_kind(holder, kinds, "the pickle adds elements to a value that cannot hold any");
    if (is_mapping_object(tree_.value(holder))) fail("the pickle appends elements to a mapping");
    for (const NodeId element : elements) tree_.append(holder, element);
  }

  void set_one() {
    const NodeId value = pop();
    const NodeId pair[] = {pop(), value};
    set_items(pair);
  }

  void set_items(std::span<const NodeId> pairs) {
    if (pairs.size() % 2 != 0) fail("the pickle sets a key without a value");
    require_kind(top(), {Kind::Dict, Kind::Object}, "a key is set on a value that is not a dict");
    const NodeId holder = holder_of_items(tree_.value(top()));
    for (size_t i = 0; i < pairs.size(); i += 2) {
      if (!is_hashable(tree_.value(pairs[i]))) fail("a key that Python cannot hash");
      tree_.set_item(holder, pairs[i], pairs[i + 1]);
    }
  }

  // --- classes and objects ---

  bool step_object(Op op) {
    switch (op) {
      case Op::Global: push_global(); return true;
      case Op::StackGlobal: push_stack_global(); return true;
      case Op::Reduce: push_object(Construction::Reduce); return true;
      case Op::NewObj: push_object(Construction::NewObj); return true;
      case Op::NewObjEx: push_object(Construction::NewObjEx); return true;
      case Op::Inst: push_inst(); return true;
      case Op::Obj: push_obj(); return true;
      case Op::Build: build(); return true;
      case Op::PersId: push(tree_.persistent_id(tree_.str(reader_.line()))); return true;
      case Op::BinPersId: push(tree_.persistent_id(pop())); return true;
      case Op::Ext1:
      case Op::Ext2:
      case Op::Ext4: unsupported("a class by its code in the extension registry");
      case Op::NextBuffer:
      case Op::ReadonlyBuffer: unsupported("a buffer outside the pickle");
      default: return false;
    }
  }

  [[noreturn]] void unsupported(const std::string& what) const {
    throw Error(ErrorCode::Unsupported, {reader_.file(), reader_.file_offset_bytes() - 1, {}},
                "the pickle refers to " + what);
  }

  void push_global() {
    const std::string_view module = reader_.line();
    const std::string_view name = reader_.line();
    if (!is_utf8(module) || !is_utf8(name)) fail("the name of a class is not valid UTF-8");
    push(tree_.global(module, name));
  }

  void push_stack_global() {
    const NodeId name = pop();
    const NodeId module = pop();
    require_kind(name, {Kind::Str}, "the name of a class is not a string");
    require_kind(module, {Kind::Str}, "the module of a class is not a string");
    push(tree_.global(module, name));
  }

  void push_object(Construction construction) {
    const NodeId kwargs = construction == Construction::NewObjEx ? pop() : kNoNode;
    const NodeId args = pop();
    const NodeId callable = pop();
    require_kind(args, {Kind::Tuple}, "an object's arguments are not a tuple");
    if (kwargs != kNoNode) require_kind(kwargs, {Kind::Dict}, "keyword arguments are not a dict");
    push(made({construction, callable, args, kwargs}));
  }

  NodeId made(const Call& call) {
    try {
      return make_object(tree_, call);
    } catch (Error& error) {
      throw error.within({reader_.file(), reader_.file_offset_bytes() - 1, {}});
    }
  }

  void push_inst() {
    push_global();
    const NodeId callable = pop();
    push(made({Construction::Reduce, callable, tree_.sequence(Kind::Tuple, pop_to_mark())}));
  }

  void push_obj() {
    const auto values = pop_to_mark();
    if (values.empty()) fail("the pickle builds an object without a class");
    const NodeId args = tree_.sequence(Kind::Tuple, std::span(values).subspan(1));
    push(made({Construction::Reduce, values[0], args}));
  }

  void build() {
    const NodeId state = pop();
    require_kind(top(), {Kind::Object}, "a state is set on a value that is not an object");
    if (tree_.value(top()).state()) unsupported("an object whose state is set twice");
    if (is_mapping_object(tree_.value(top())) && !tree_.value(state).is(Kind::Dict)) {
      unsupported("a mapping whose attributes are not given as a dict");
    }
    tree_.set_state(top(), state);
  }

  // --- memo and framing ---

  bool step_memo(Op op) {
    switch (op) {
      case Op::Get: push(recall(memo_line())); return true;
      case Op::BinGet: push(recall(reader_.u8())); return true;
      case Op::LongBinGet: push(recall(reader_.u32())); return true;
      case Op::Put: memo_.store(memo_line(), top()); return true;
      case Op::BinPut: memo_.store(reader_.u8(), top()); return true;
      case Op::LongBinPut: memo_.store(reader_.u32(), top()); return true;
      case Op::Memoize: memo_.store(memo_.size(), top()); return true;
      case Op::Proto: check_protocol(reader_.u8()); return true;
      case Op::Frame: check_frame(reader_.u64()); return true;
      default: return false;
    }
  }

  uint64_t memo_line() {
    const auto index = number_in<uint64_t>(reader_.line());
    if (!index) fail("the memo index is not a number");
    return *index;
  }

  NodeId recall(uint64_t index) const {
    if (const auto id = memo_.find(index)) return *id;
    fail("memo index " + std::to_string(index) + " was never stored");
  }

  void check_protocol(int protocol) const {
    if (protocol > kProtocolMax) fail("unknown pickle protocol " + std::to_string(protocol));
  }

  void check_frame(uint64_t length) const {
    if (!reader_.has(length)) fail("the frame extends beyond the end of the pickle");
  }

  ByteReader& reader_;
  const Limits& limits_;
  ValueTree tree_;
  std::vector<NodeId> stack_;
  std::vector<size_t> marks_;  // heights of stack_
  Memo memo_;
  size_t opcode_position_ = 0;
};

}  // namespace

ValueTree read(ByteReader& reader, const Limits& limits) {
  if (reader.left_bytes() > limits.pickle_bytes_max) {
    throw Error(ErrorCode::Unsupported, {reader.file(), reader.file_offset_bytes(), {}},
                "a pickle of " + std::to_string(reader.left_bytes()) + " bytes, the limit is " +
                    std::to_string(limits.pickle_bytes_max));
  }
  return Machine(reader, limits).run();
}

}  // namespace ckpt::pickle
