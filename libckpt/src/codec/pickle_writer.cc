#include "codec/pickle.h"

#include <vector>

#include <ckpt/error.h>

#include "codec/pickle_emitter.h"
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

}  // namespace

std::string write(const ValueTree& tree, int protocol) { return Writer(tree, protocol).run(); }

}  // namespace ckpt::pickle
