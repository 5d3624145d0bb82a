#include "semantic/layer_wise_mutations.h"

#include <set>

#include <ckpt/document.h>

namespace semantic {
namespace {

using ckpt::NodeId;
using ckpt::Value;
using test::Random;

// A key of a mapping, which is text.
struct Entry {
  NodeId mapping;
  std::string key;
  std::string pointer;
};

void collect(const Value& value, const std::string& pointer, std::set<NodeId>& seen,
             std::vector<Entry>& entries) {
  if (!seen.insert(value.id()).second || as_tensor(value)) return;
  if (value.is(ckpt::Kind::List)) {
    for (size_t i = 0; i < value.size(); ++i) {
      collect(value[i], pointer + "/" + std::to_string(i), seen, entries);
    }
  }
  if (value.is(ckpt::Kind::Object) && value.state()) {
    collect(*value.state(), pointer + "/@", seen, entries);
  }
  if (!value.is(ckpt::Kind::Dict) && !value.is(ckpt::Kind::Object)) return;
  for (const auto& [key, item] : ckpt::items_of(value)) {
    const std::string below = pointer + "/" + ckpt::key_text(key);
    if (key.is(ckpt::Kind::Str)) entries.push_back({value.id(), std::string(key.text()), below});
    collect(item, below, seen, entries);
  }
}

std::vector<Entry> entries_of(ChangingFile& file) {
  std::set<NodeId> seen;
  std::vector<Entry> entries;
  collect(file.value(), file.path, seen, entries);
  return entries;
}

class Mutation {
 public:
  Mutation(Random& random, std::vector<ChangingFile>& files) : random_(random), files_(files) {}

  std::string run() {
    switch (random_() % 8) {
      case 0: return add_key();
      case 1: return change_states();
      case 2: return change_states();
      default: return change_entry();
    }
  }

 private:
  size_t rank_count() const { return files_.size() - 1; }
  bool one_in(unsigned count) { return random_() % count == 0; }

  static NodeId junk(ckpt::ArchiveBuilder& archive, Random& random) {
    ckpt::ValueTree& tree = archive.tree();
    switch (random() % 8) {
      case 0: return tree.none();
      case 1: return tree.integer(static_cast<int64_t>(random() % 4) - 1);
      case 2: return tree.real(0.5);
      case 3: return tree.str("x");
      case 4: return tree.dict();
      case 5: return tree.list();
      case 6: return tree.boolean(true);
      default: return archive.add_tensor(ckpt::DType::Float32, {2}, std::string(8, '\x3f'));
    }
  }

  // One entry anywhere goes, becomes something else, or gets another one's value.
  std::string change_entry() {
    ChangingFile& file = files_[random_() % files_.size()];
    const std::vector<Entry> entries = entries_of(file);
    const Entry& entry = entries[random_() % entries.size()];
    ckpt::ValueTree& tree = file.archive.tree();
    switch (random_() % 4) {
      case 0: tree.erase(entry.mapping, entry.key); return "without " + entry.pointer;
      case 1:
        tree.put(entry.mapping, entry.key, junk(file.archive, random_));
        return "junk at " + entry.pointer;
      case 2:
        tree.put(entry.mapping, "zz_new", junk(file.archive, random_));
        return "new beside " + entry.pointer;
      default: break;
    }
    const Entry& other = entries[random_() % entries.size()];
    const NodeId first = tree.value(entry.mapping).at(entry.key).id();
    const NodeId second = tree.value(other.mapping).at(other.key).id();
    tree.put(entry.mapping, entry.key, second);
    tree.put(other.mapping, other.key, first);
    return "swap " + entry.pointer + " and " + other.pointer;
  }

  // An unknown key in an optimizer or beside it, on all ranks or some, with one value or several.
  std::string add_key() {
    const bool inner = one_in(2), all = one_in(2), equal = one_in(2);
    const size_t optimizer = random_() % 2, only = random_() % rank_count();
    const uint32_t seed = static_cast<uint32_t>(random_());
    for (size_t rank = 0; rank < rank_count(); ++rank) {
      if (!all && rank != only) continue;
      ChangingFile& file = files_[rank];
      Value whole = file.value()[optimizer];
      if (inner) {
        const auto found = mapping_in(whole, "optimizer");
        if (!found) continue;
        whole = *found;
      }
      Random same(seed);
      const NodeId value = junk(file.archive, same);
      ckpt::ValueTree& tree = file.archive.tree();
      const auto number = tree.integer(static_cast<int64_t>(equal ? 0 : rank));
      tree.put(whole.id(), "zz_new", tree.list({value, number}));
    }
    return std::string(inner ? "inner" : "outer") + " key zz_new on " +
           (all ? "all ranks" : "one") + (equal ? ", equal" : ", different");
  }

  // The tensors of one name, of one parameter or of every one of an optimizer.
  std::string change_states() {
    const size_t optimizer = random_() % 2, form = random_() % 4;
    const bool all = one_in(3);
    const size_t only = random_() % rank_count(), chosen = random_();
    std::string said;
    for (size_t rank = 0; rank < rank_count(); ++rank) {
      if (!all && rank != only) continue;
      const auto inner = mapping_in(files_[rank].value()[optimizer], "optimizer");
      const auto states = inner ? mapping_in(*inner, "state") : std::nullopt;
      if (!states) continue;
      for (size_t i = 0; i < states->item_count(); ++i) {
        const Value state = states->item(i).second;
        if (!is_mapping_of_names(state)) continue;
        if (all || i == chosen % states->item_count()) {
          said = change_state(files_[rank], state, form);
        }
      }
    }
    return (all ? "all: " : "one: ") + said;
  }

  // What a first mutation changed may be gone, or something else.
  static std::optional<Value> mapping_in(const Value& holder, std::string_view name) {
    const auto found = holder.find(name);
    return found && found->is(ckpt::Kind::Dict) ? found : std::nullopt;
  }

  static bool is_mapping_of_names(const Value& state) {
    return state.is(ckpt::Kind::Dict) && state.item_count() > 0 &&
           state.item(state.item_count() - 1).first.is(ckpt::Kind::Str);
  }

  static std::string change_state(ChangingFile& file, Value state, size_t form) {
    const auto [key, value] = state.item(state.item_count() - 1);
    const std::string name(key.text());
    const auto view = as_tensor(value);
    ckpt::ValueTree& tree = file.archive.tree();
    if (form == 0 || !view) {
      tree.erase(state.id(), name);
      return "no " + name;
    }
    if (form == 1) {
      const NodeId more = value.id();
      tree.put(state.id(), "zz_state", more);
      return "one state more";
    }
    const ckpt::DType dtype = form == 2 ? ckpt::DType::Float64 : ckpt::DType::BFloat16;
    const uint64_t count = ckpt::element_count(view->shape) * ckpt::bytes_per_element(dtype);
    const NodeId other = file.archive.add_tensor(dtype, view->shape, std::string(count, '\x3e'));
    tree.put(state.id(), name, other);
    return name + " as " + std::string(ckpt::name(dtype));
  }

  Random& random_;
  std::vector<ChangingFile>& files_;
};

}  // namespace

std::string mutate(Random& random, std::vector<ChangingFile>& files) {
  std::string said = Mutation(random, files).run();
  if (random() % 4 == 0) said += "; " + Mutation(random, files).run();
  return said;
}

}  // namespace semantic
