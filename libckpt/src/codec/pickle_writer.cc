#include "codec/pickle_writer.h"

#include <bit>
#include <map>
#include <tuple>
#include <unordered_map>
#include <vector>

#include <ckpt/error.h>

#include "codec/big_integer.h"
#include "codec/pickle_opcodes.h"
#include "codec/python_text.h"

namespace ckpt::pickle {
namespace {

constexpr size_t kBatchItems = 1000;  // as Python: bounds the reader's stack

// Calls visit(child) for everything that a node refers to, in the order in which it is written.
template <class Visit>
void for_each_child(const Value& value, Visit visit) {
  switch (value.kind()) {
    case Kind::List:
    case Kind::Tuple:
    case Kind::Set:
    case Kind::FrozenSet:
      for (size_t i = 0; i < value.size(); ++i) visit(value[i]);
      break;
    case Kind::PersistentId: visit(value.persistent_id()); break;
    case Kind::Object:
      visit(value.callable());
      visit(value.args());
      if (const auto kwargs = value.kwargs()) visit(*kwargs);
      for (size_t i = 0; i < value.size(); ++i) visit(value[i]);
      [[fallthrough]];
    case Kind::Dict:
      for (size_t i = 0; i < value.item_count(); ++i) {
        visit(value.item(i).first);
        visit(value.item(i).second);
      }
      if (value.kind() == Kind::Object && value.state()) visit(*value.state());
      break;
    default: break;
  }
}

bool is_text(Kind kind) { return kind == Kind::Str || kind == Kind::Global; }

// What text and classes are remembered by: they are equal when they look equal. Ordered: see
// base/text_map.h. It points into the tree.
using TextKey = std::tuple<Kind, std::string_view, std::string_view>;

TextKey text_key(const Value& value) {
  if (value.kind() == Kind::Str) return {Kind::Str, {}, value.text()};
  return {Kind::Global, value.module(), value.name()};
}

class Writer {
 public:
  Writer(const ValueTree& tree, int protocol) : tree_(tree), protocol_(protocol) {}

  std::string run() {
    count_uses();
    put(Op::Proto);
    out_ += static_cast<char>(protocol_);
    jobs_.push_back({Job::Save, tree_.root().id(), 0});
    while (!jobs_.empty()) {
      const Job job = jobs_.back();
      jobs_.pop_back();
      run_job(job);
    }
    put(Op::Stop);
    return std::move(out_);
  }

 private:
  // The steps that are still to do, the next one last: what a recursive writer keeps on its stack.
  struct Job {
    enum What : uint8_t { Save, Emit, Remember, Elements, Items } what;
    NodeId id;    // the value; of Emit: the opcode
    size_t next;  // Elements, Items: the first that is not written
  };

  void count_uses() {
    std::vector<NodeId> open{tree_.root().id()};
    use(open.back());
    while (!open.empty()) {
      const Value value = tree_.value(open.back());
      open.pop_back();
      for_each_child(value, [&](const Value& child) {
        if (use(child.id()) == 1 && !is_text(child.kind())) open.push_back(child.id());
      });
    }
  }

  uint32_t use(NodeId id) {
    const Value value = tree_.value(id);
    return is_text(value.kind()) ? ++texts_[text_key(value)].uses : ++uses_[id];
  }

  void run_job(const Job& job) {
    switch (job.what) {
      case Job::Save: save(tree_.value(job.id)); break;
      case Job::Emit: put(static_cast<Op>(job.id)); break;
      case Job::Remember: remember(job.id); break;
      case Job::Elements: write_elements(tree_.value(job.id), job.next); break;
      case Job::Items: write_items(tree_.value(job.id), job.next); break;
    }
  }

  void later(Job::What what, NodeId id, size_t next = 0) { jobs_.push_back({what, id, next}); }
  void later(Op op) { later(Job::Emit, static_cast<NodeId>(op)); }

  void save(const Value& value) {
    switch (value.kind()) {
      case Kind::None: return put(Op::None);
      case Kind::Bool: return put(value.as_bool() ? Op::NewTrue : Op::NewFalse);
      case Kind::Int: return put_int(value.as_int());
      case Kind::BigInt: return put_long(little_endian_bytes(value.text()));
      case Kind::Float: return put_float(value.as_float());
      case Kind::Str:
      case Kind::Global: return save_text(value);
      default: break;
    }
    if (const auto found = memo_.find(value.id()); found != memo_.end()) {
      return get(found->second);
    }
    switch (value.kind()) {
      case Kind::Bytes:
      case Kind::ByteArray: return save_bytes(value);
      case Kind::Tuple: return save_tuple(value);
      case Kind::List: return save_mutable(value, Op::EmptyList, Job::Elements);
      case Kind::Dict: return save_mutable(value, Op::EmptyDict, Job::Items);
      case Kind::Set:
      case Kind::FrozenSet: return save_set(value);
      case Kind::PersistentId: return save_persistent_id(value);
      default: return save_object(value);
    }
  }

  // --- memo ---

  // A value that holds others and is not remembered before they are written must not contain
  // itself.
  void enter(const Value& value) {
    if (!entered_.emplace(value.id(), true).second) {
      throw Error(ErrorCode::Unsupported, {},
                  "a tuple or an object's arguments contain themselves");
    }
  }

  void remember(NodeId id) {
    entered_.erase(id);
    if (uses_[id] < 2) return;
    const auto index = static_cast<uint32_t>(memo_count_);
    put_memo();
    memo_[id] = index;
  }

  void put_memo() {
    const auto index = static_cast<uint32_t>(memo_count_++);
    if (protocol_ >= 4) return put(Op::Memoize);
    if (index < 256) {
      put(Op::BinPut);
      out_ += static_cast<char>(index);
    } else {
      put(Op::LongBinPut);
      put_u32(index);
    }
  }

  void get(uint32_t index) {
    if (index < 256) {
      put(Op::BinGet);
      out_ += static_cast<char>(index);
    } else {
      put(Op::LongBinGet);
      put_u32(index);
    }
  }

  // --- leaves ---

  void put(Op op) { out_ += static_cast<char>(op); }

  template <size_t kBytes>
  void put_little_endian(uint64_t value) {
    for (size_t i = 0; i < kBytes; ++i) out_ += static_cast<char>(value >> (8 * i));
  }
  void put_u32(uint64_t value) { put_little_endian<4>(value); }

  void put_int(int64_t value) {
    if (value >= 0 && value < 256) {
      put(Op::BinInt1);
      out_ += static_cast<char>(value);
    } else if (value >= 0 && value < 65536) {
      put(Op::BinInt2);
      put_little_endian<2>(static_cast<uint64_t>(value));
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
      put(Op::BinInt);
      put_u32(static_cast<uint32_t>(value));
    } else {
      put_long(little_endian_bytes(std::to_string(value)));
    }
  }

  void put_long(const std::string& little_endian) {
    if (little_endian.size() < 256) {
      put(Op::Long1);
      out_ += static_cast<char>(little_endian.size());
    } else {
      put(Op::Long4);
      put_u32(little_endian.size());
    }
    out_ += little_endian;
  }

  void put_float(double value) {
    put(Op::BinFloat);
    const auto bits = std::bit_cast<uint64_t>(value);
    for (int shift = 56; shift >= 0; shift -= 8) out_ += static_cast<char>(bits >> shift);
  }

  void put_unicode(std::string_view text) {
    if (protocol_ >= 4 && text.size() < 256) {
      put(Op::ShortBinUnicode);
      out_ += static_cast<char>(text.size());
    } else {
      put(Op::BinUnicode);
      put_u32(text.size());
    }
    out_ += text;
  }

  void save_text(const Value& value) {
    TextUse& text = texts_[text_key(value)];
    if (text.memo_index) return get(*text.memo_index);
    if (value.kind() == Kind::Str) {
      put_unicode(value.text());
    } else {
      put_global(value.module(), value.name());
    }
    if (text.uses < 2) return;
    text.memo_index = static_cast<uint32_t>(memo_count_);
    put_memo();
  }

  void put_global(std::string_view module, std::string_view name) {
    if (protocol_ >= 4) {
      put_unicode(module);
      put_unicode(name);
      return put(Op::StackGlobal);
    }
    if (name.find_first_of(".\n") != name.npos || module.find('\n') != module.npos) {
      throw Error(ErrorCode::Unsupported, {.file = {}, .key = std::string(name)},
                  "pickle protocol 2 has no such class name");
    }
    put(Op::Global);
    out_.append(module).append("\n").append(name).append("\n");
  }

  // Protocol 2 has no bytes: Python writes _codecs.encode(latin-1 text, 'latin1').
  void save_bytes(const Value& value) {
    const std::string_view content = value.text();
    if (protocol_ >= 4 && value.kind() == Kind::Bytes) {
      put(content.size() < 256 ? Op::ShortBinBytes : Op::BinBytes);
      if (content.size() < 256)
        out_ += static_cast<char>(content.size());
      else
        put_u32(content.size());
      out_ += content;
    } else {
      put_encoded(content, value.kind() == Kind::ByteArray);
    }
    remember(value.id());
  }

  void put_encoded(std::string_view content, bool as_bytearray) {
    std::string latin1;
    for (const char c : content) append_utf8(latin1, static_cast<uint8_t>(c));
    if (as_bytearray) put_global(protocol_ >= 4 ? "builtins" : "__builtin__", "bytearray");
    put_global("_codecs", "encode");
    put_unicode(latin1);
    put_unicode("latin1");
    put(Op::Tuple2);
    put(Op::Reduce);
    if (as_bytearray) {
      put(Op::Tuple1);
      put(Op::Reduce);
    }
  }

  // --- values that hold values ---

  void save_tuple(const Value& value) {
    const size_t size = value.size();
    if (size == 0) return put(Op::EmptyTuple);
    enter(value);
    later(Job::Remember, value.id());
    later(size > 3 ? Op::Tuple : size == 3 ? Op::Tuple3 : size == 2 ? Op::Tuple2 : Op::Tuple1);
    for (size_t i = size; i-- > 0;) later(Job::Save, value[i].id());
    if (size > 3) put(Op::Mark);
  }

  void save_mutable(const Value& value, Op empty, Job::What content) {
    put(empty);
    remember(value.id());
    later(content, value.id());
  }

  // Protocol 2 has no sets: Python writes set([...]).
  void save_set(const Value& value) {
    enter(value);
    later(Job::Remember, value.id());
    const bool frozen = value.kind() == Kind::FrozenSet;
    if (protocol_ >= 4 && frozen) {
      later(Op::FrozenSet);
      put(Op::Mark);
    } else if (protocol_ >= 4) {
      put(Op::EmptySet);
      later(Op::AddItems);
      put(Op::Mark);
    } else {
      put_global("__builtin__", frozen ? "frozenset" : "set");
      later(Op::Reduce);
      later(Op::Tuple1);
      later(Op::Appends);
      put(Op::EmptyList);
      put(Op::Mark);
    }
    for (size_t i = value.size(); i-- > 0;) later(Job::Save, value[i].id());
  }

  void save_persistent_id(const Value& value) {
    enter(value);
    later(Job::Remember, value.id());
    later(Op::BinPersId);
    later(Job::Save, value.persistent_id().id());
  }

  void save_object(const Value& value) {
    enter(value);
    if (const auto state = value.state()) {
      later(Op::Build);
      later(Job::Save, state->id());
    }
    if (value.item_count() > 0) later(Job::Items, value.id());
    if (value.size() > 0) later(Job::Elements, value.id());
    later(Job::Remember, value.id());
    switch (value.construction()) {
      case Construction::Reduce: later(Op::Reduce); break;
      case Construction::NewObj: later(Op::NewObj); break;
      case Construction::NewObjEx: later(Op::NewObjEx); break;
    }
    if (const auto kwargs = value.kwargs()) later(Job::Save, kwargs->id());
    later(Job::Save, value.args().id());
    later(Job::Save, value.callable().id());
  }

  void write_elements(const Value& value, size_t next) {
    const size_t end = std::min(value.size(), next + kBatchItems);
    if (next == end) return;
    if (end < value.size()) later(Job::Elements, value.id(), end);
    later(Op::Appends);
    for (size_t i = end; i-- > next;) later(Job::Save, value[i].id());
    put(Op::Mark);
  }

  void write_items(const Value& value, size_t next) {
    const size_t end = std::min(value.item_count(), next + kBatchItems);
    if (next == end) return;
    if (end < value.item_count()) later(Job::Items, value.id(), end);
    later(Op::SetItems);
    for (size_t i = end; i-- > next;) {
      later(Job::Save, value.item(i).second.id());
      later(Job::Save, value.item(i).first.id());
    }
    put(Op::Mark);
  }

  const ValueTree& tree_;
  int protocol_;
  std::string out_;
  std::vector<Job> jobs_;
  std::unordered_map<NodeId, uint32_t> uses_, memo_;
  struct TextUse {
    uint32_t uses = 0;
    std::optional<uint32_t> memo_index;
  };
  std::map<TextKey, TextUse> texts_;
  std::unordered_map<NodeId, bool> entered_;
  size_t memo_count_ = 0;
};

}  // namespace

std::string write(const ValueTree& tree, int protocol) { return Writer(tree, protocol).run(); }

}  // namespace ckpt::pickle
