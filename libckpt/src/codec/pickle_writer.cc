// A value tree as one pickle: opcodes of protocols 2 and 4, and the memo.
#include <algorithm>
#include <bit>
#include <vector>

#include <ckpt/error.h>

#include "codec/pickle.h"
#include "codec/pickle_emitter.h"
#include "codec/python_text.h"
#include "codec/value_nodes.h"

namespace ckpt::pickle {
namespace {

bool is_text(Kind kind) { return kind == Kind::Str || kind == Kind::Global; }

class Writer {
 public:
  Writer(const ValueTree& tree, int protocol)
      : tree_(tree),
        out_(protocol),
        uses_(tree.node_count()),
        memo_(tree.node_count(), kNotRemembered),
        entered_(tree.node_count()),
        texts_(tree.node_count()) {}

  std::string run() {
    count_uses();
    out_.start();
    jobs_.push_back({Job::Save, tree_.root().id(), 0});
    while (!jobs_.empty()) {
      const Job job = jobs_.back();
      jobs_.pop_back();
      run_job(job);
    }
    put(Op::Stop);
    return out_.take();
  }

 private:
  static constexpr uint32_t kNotRemembered = ~uint32_t{0};

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
    if (is_text(value.kind())) out_.put_text(text_of(value));
    return ++uses_[id];
  }

  // Found once for each node.
  Emitter::Text& text_of(const Value& value) {
    Emitter::Text*& text = texts_[value.id()];
    if (text == nullptr) {
      text = value.kind() == Kind::Str ? &out_.text(value.text())
                                       : &out_.global(value.module(), value.name());
    }
    return *text;
  }

  void run_job(const Job& job) {
    switch (job.what) {
      case Job::Save: save(tree_.value(job.id)); break;
      case Job::Emit: put(static_cast<Op>(job.id)); break;
      case Job::Remember: remember(job.id); break;
      case Job::Elements:
      case Job::Items: write_batch(job); break;
    }
  }

  void later(Job::What what, NodeId id, size_t next = 0) { jobs_.push_back({what, id, next}); }
  void later(Op op) { later(Job::Emit, static_cast<NodeId>(op)); }

  void save(const Value& value) {
    switch (value.kind()) {
      case Kind::None: return put(Op::None);
      case Kind::Bool: return put(value.as_bool() ? Op::NewTrue : Op::NewFalse);
      case Kind::Int: return out_.put_int(value.as_int());
      case Kind::BigInt: return out_.put_big_int(value.text());
      case Kind::Float: return out_.put_float(value.as_float());
      case Kind::Str:
      case Kind::Global: return out_.put_text(text_of(value));
      default: break;
    }
    if (memo_[value.id()] != kNotRemembered) return out_.get(memo_[value.id()]);
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
    if (entered_[value.id()]) {
      throw Error(ErrorCode::Unsupported, {},
                  "a tuple or an object's arguments contain themselves");
    }
    entered_[value.id()] = true;
  }

  void remember(NodeId id) {
    entered_[id] = false;
    if (uses_[id] >= 2) memo_[id] = out_.remember();
  }

  // --- leaves ---

  void put(Op op) { out_.put(op); }

  void save_bytes(const Value& value) {
    out_.put_bytes(value.text(), value.kind() == Kind::ByteArray);
    remember(value.id());
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
    if (out_.protocol() >= 4 && frozen) {
      later(Op::FrozenSet);
      put(Op::Mark);
    } else if (out_.protocol() >= 4) {
      put(Op::EmptySet);
      later(Op::AddItems);
      put(Op::Mark);
    } else {
      out_.put_global("__builtin__", frozen ? "frozenset" : "set");
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

  // APPENDS of an object's or list's elements, SETITEMS of keys and values.
  void write_batch(const Job& job) {
    const Value value = tree_.value(job.id);
    const bool are_items = job.what == Job::Items;
    const size_t count = are_items ? value.item_count() : value.size();
    const size_t end = std::min(count, job.next + kBatchItems);
    if (job.next == end) return;
    if (end < count) later(job.what, job.id, end);
    later(are_items ? Op::SetItems : Op::Appends);
    for (size_t i = end; i-- > job.next;) {
      later(Job::Save, are_items ? value.item(i).second.id() : value[i].id());
      if (are_items) later(Job::Save, value.item(i).first.id());
    }
    put(Op::Mark);
  }

  const ValueTree& tree_;
  Emitter out_;
  std::vector<Job> jobs_;
  std::vector<uint32_t> uses_, memo_;  // [node]
  std::vector<bool> entered_;          // [node]
  std::vector<Emitter::Text*> texts_;  // [node]
};

constexpr uint32_t kMemoIndexMax = ~uint32_t{0};
constexpr char kMostRemembered[5] = {};  // an opcode and an index
constexpr uint64_t kStartBytes = 2;
constexpr size_t kBlockBytes = 4 << 10, kWrittenBytes = 64 << 10;

}  // namespace

std::string write(const ValueTree& tree, int protocol) { return Writer(tree, protocol).run(); }

void Emitter::start() {
  const uint64_t counted_bytes = count_bytes_ + count_in_block();
  is_counting_ = false;
  memo_count_ = 0;
  block_.clear();
  block_.reserve(counted_bytes + kStartBytes);
  next_ = end_ = block_.data();
  put(Op::Proto);
  put_byte(static_cast<uint8_t>(protocol_));
}

std::string Emitter::take() {
  block_.resize(count_in_block());
  return std::move(block_);
}

// What was counted is more than there will be, so that memory is touched as it is written.
void Emitter::make_room(size_t count_bytes) {
  const uint64_t kept_bytes = is_counting_ ? 0 : count_in_block();
  if (is_counting_) count_bytes_ += count_in_block();
  const uint64_t needed_bytes = kept_bytes + count_bytes;
  const uint64_t wanted_bytes =
      is_counting_ ? kBlockBytes : std::min(kept_bytes + kWrittenBytes, block_.capacity());
  block_.resize(std::max({block_.size(), needed_bytes, wanted_bytes}));
  next_ = block_.data() + kept_bytes;
  end_ = block_.data() + block_.size();
}

void Emitter::put_text(Text& text) {
  auto& [uses, memo_index] = text.second;
  if (is_counting_ && ++uses > 1) return get(kMemoIndexMax);
  if (memo_index) return get(*memo_index);
  const auto& [kind, module, name] = text.first;
  kind == Kind::Str ? put_unicode(name) : put_global(module, name);
  if (is_counting_) return put_raw({kMostRemembered, sizeof(kMostRemembered)});
  if (uses >= 2) memo_index = remember();
}

uint32_t Emitter::remember() {
  const uint32_t index = memo_count_++;
  if (protocol_ >= 4) {
    put(Op::Memoize);
  } else {
    put_number(Op::BinPut, Op::LongBinPut, index);
  }
  return index;
}

void Emitter::get(uint32_t memo_index) { put_number(Op::BinGet, Op::LongBinGet, memo_index); }

void Emitter::put_int(int64_t value) {
  const auto bits = static_cast<uint64_t>(value);
  if (value >= 0 && value < 256) return put_little_endian<1>(Op::BinInt1, bits);
  if (value >= 0 && value < 65536) return put_little_endian<2>(Op::BinInt2, bits);
  if (value >= INT32_MIN && value <= INT32_MAX) return put_little_endian<4>(Op::BinInt, bits);
  uint64_t bytes = 8;  // as few as hold it with its sign
  const auto sign_behind = [&] { return value >> (8 * bytes - 9); };
  while (sign_behind() == 0 || sign_behind() == -1) --bytes;
  put_little_endian<1>(Op::Long1, bytes);
  for (uint64_t i = 0; i < bytes; ++i) put_byte(static_cast<uint8_t>(bits >> (8 * i)));
}

void Emitter::put_big_int(std::string_view decimal) {
  const std::string little_endian = little_endian_bytes(decimal);
  put_number(Op::Long1, Op::Long4, little_endian.size());
  put_raw(little_endian);
}

void Emitter::put_float(double value) {
  put(Op::BinFloat);
  const auto bits = std::bit_cast<uint64_t>(value);
  for (int shift = 56; shift >= 0; shift -= 8) put_byte(static_cast<uint8_t>(bits >> shift));
}

void Emitter::put_unicode(std::string_view text) {
  if (protocol_ >= 4) {
    put_number(Op::ShortBinUnicode, Op::BinUnicode, text.size());
  } else {
    put_little_endian<4>(Op::BinUnicode, text.size());
  }
  put_raw(text);
}

void Emitter::put_global(std::string_view module, std::string_view name) {
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
  put_raw(module);
  put_raw("\n");
  put_raw(name);
  put_raw("\n");
}

// Protocol 2 has no bytes: Python writes _codecs.encode(latin-1 text, 'latin1').
void Emitter::put_bytes(std::string_view content, bool as_bytearray) {
  if (protocol_ < 4 || as_bytearray) return put_encoded(content, as_bytearray);
  put_number(Op::ShortBinBytes, Op::BinBytes, content.size());
  put_raw(content);
}

void Emitter::put_encoded(std::string_view content, bool as_bytearray) {
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

}  // namespace ckpt::pickle
