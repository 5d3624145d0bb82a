#include "targets/plain_state.h"

#include <algorithm>
#include <stdexcept>

#include <ckpt/error.h>

#include "format/format.h"
#include "format/values/nesting.h"
#include "format/values/typed_key.h"

namespace ckpt {
namespace {

constexpr const char* kWhatWorks = "ckpt-inspect ls, show, tree, hash, diff and verify work on it";
constexpr size_t kDepthMax = 1000;  // nesting of a state dict; Python's own recursion limit

// A part of the checkpoint, not owned: it lives as long as the checkpoint.
template <typename Part>
std::shared_ptr<const Part> borrow(const Part& part) {
  return {std::shared_ptr<const Part>(), &part};
}

// Of a torch.save file.
class Flattener {
 public:
  Flattener(const Checkpoint& source, PlainTargetWords target)
      : source_(source), target_(target), file_(source.shown_path()), document_(*source.state()) {}

  PlainState run() {
    const Value root = document_.tree.root();
    if (!as_mapping(root)) refuse("", "holds no state dict; expected a dict at its root");
    state_.keys = borrow(document_);
    enter_mapping(root, "");
    note_what_mappings_lose(root, "");
    check_all_are_met();
    return std::move(state_);
  }

 private:
  void enter_mapping(const Value& holder, const std::string& pointer) {
    const Value mapping = *as_mapping(holder);
    TextSet texts;
    for (const auto& [key, value] : items_of(mapping)) {
      const std::string text = key_text(key);
      if (!texts.insert(text).second) {
        refuse(pointer + pointer_step(text),
               target_.keeps_keys
                   ? "two keys of one mapping are this as text, which names neither"
                   : "two keys of one mapping are this as text; as strings they would be one");
      }
      PathStep step{.text = text, .holder = holder};
      if (!key.is(Kind::Str)) step.key = key;
      path_.push_back(step);
      if (step.key) note("key " + pointer + pointer_step(text), "becomes a string in ");
      path_.pop_back();
      enter(value, std::move(step), pointer + pointer_step(text));
    }
  }

  void note_what_mappings_lose(const Value& mapping, const std::string& pointer) {
    if (!mapping.is(Kind::Object)) return;
    note(pointer.empty() ? "/" : pointer,
         std::string(mapping.callable().name()) + " becomes a dict in ",
         mapping.state() ? ", and its attributes are lost" : "");
    const auto attributes = mapping.state();
    if (!attributes) return;
    for (const auto& [key, value] : items_of(*attributes)) {
      places_.insert(pointer_of(path_) + pointer_step("@" + key_text(key)));
    }
  }

  void enter(const Value& value, PathStep step, const std::string& pointer) {
    if (path_.size() >= kDepthMax) refuse(pointer, "nested too deeply");
    path_.push_back(std::move(step));
    if (const auto mapping = as_mapping(value)) {
      enter_inner(value, mapping->item_count() == 0, pointer);
    } else if (value.is(Kind::List) && nesting_.is_entered(value)) {
      for (size_t i = 0; i < value.size(); ++i) {
        enter(value[i], {std::to_string(i), true}, pointer + "/" + std::to_string(i));
      }
    } else if (const auto view = as_tensor(value)) {
      PlainEntry& entry = add();
      entry.tensor = borrow(next_tensor());
      entry.requires_grad = view->requires_grad;
      entry.besides = besides_of(*view);
      if (!entry.besides.empty()) set_value(entry, value);
    } else {
      set_value(add(), value);
    }
    path_.pop_back();
  }

  // An empty mapping has no entries that would say where it is: it is one itself.
  void enter_inner(const Value& value, bool is_empty, const std::string& pointer) {
    if (is_empty) {
      set_value(add(), value);
      state_.entries.back().is_empty_mapping = true;
      return;
    }
    note_what_mappings_lose(value, pointer);
    enter_mapping(value, pointer);
  }

  void set_value(PlainEntry& entry, const Value& value) {
    entry.document = borrow(document_);
    entry.node = value.id();
  }

  std::string besides_of(const TensorView& view) const {
    std::string text;
    const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
    if (view.is_parameter) add("the class torch.nn.Parameter");
    for (const TensorAttribute& attribute : attributes_of(document_.tree, view)) {
      const bool is_class = attribute.name == "__class__" && view.subclass;
      const Value& value = attribute.value;
      add(is_class ? "the class " + escaped(value.module()) + "." + escaped(value.name())
                   : "its " + escaped(attribute.name));
    }
    return text;
  }

  // Every tensor of the file is an entry, inside one, or in attributes that are listed.
  void check_all_are_met() const {
    for (const TensorEntry& tensor : source_.catalog().tensors) {
      std::string_view place = tensor.key;
      while (!places_.contains(place)) {
        if (place.empty()) throw std::logic_error("tensor " + escaped(tensor.key) + " is lost");
        place = place.substr(0, place.rfind('/'));
      }
    }
  }

  PlainEntry& add() {
    places_.insert(pointer_of(path_));
    PlainEntry& entry = state_.entries.emplace_back();
    entry.key = joined(path_);
    entry.path = path_;
    entry.has_typed_path = true;
    if (!keys_.insert(entry.key).second) {
      refuse(entry.key, "two values have this key once their paths are joined by '.'");
    }
    return entry;
  }

  [[noreturn]] void refuse(const std::string& key, const char* problem) const {
    throw Error(ErrorCode::Unsupported, {.file = file_, .key = key}, problem, kWhatWorks);
  }

  // The catalog lists the file's tensors in the order in which this class meets them, but also
  // those inside objects, which are skipped.
  const TensorEntry& next_tensor() {
    const auto& tensors = source_.catalog().tensors;
    const std::string pointer = pointer_of(path_);
    while (next_tensor_ < tensors.size() && tensors[next_tensor_].key != pointer) ++next_tensor_;
    if (next_tensor_ == tensors.size()) {
      throw Error(ErrorCode::Corrupt, {.file = file_, .key = pointer}, "is not in the catalog");
    }
    return tensors[next_tensor_++];
  }

  // `more`: what is lost, beside what is only changed.
  void note(std::string what, std::string reason, const std::string& more = {}) {
    if (target_.keeps_keys) return;
    reason.append(target_.called).append(more);
    state_.mapping_losses.push_back(
        {pointer_of(path_), {std::move(what), std::move(reason), std::nullopt, more.empty()}});
  }

  const Checkpoint& source_;
  PlainTargetWords target_;
  const std::string file_;
  const Document& document_;
  std::vector<PathStep> path_;
  Nesting nesting_;
  TextSet keys_;
  TextSet places_;  // pointers of entries, and of attributes that are lost and listed
  size_t next_tensor_ = 0;
  PlainState state_;
};

// --- a DCP folder ---

[[noreturn]] void corrupt(const std::string& key, std::string problem) {
  throw Error(ErrorCode::Corrupt, {.file = ".metadata", .key = key}, std::move(problem));
}

// The steps of planner_data, with the types that typed paths give them.
void set_path(const Value& path, const TypedPaths& typed_paths, PlainEntry& entry) {
  const std::string& key = entry.key;
  if (!path.is(Kind::Tuple) || path.size() == 0)
    corrupt(key, "its path in planner_data is not a tuple of at least one step");
  for (size_t i = 0; i < path.size(); ++i) {
    entry.path.push_back({key_text(path[i]), path[i].is(Kind::Int)});
    if (!path[i].is(Kind::Int) && !path[i].is(Kind::Str)) {
      corrupt(key, "a step of its path in planner_data is neither a number nor a string");
    }
  }
  if (joined(entry.path) != key)
    corrupt(key, "its path in planner_data spells another key, " + joined(entry.path));
  const auto typed = typed_paths.find(key, path);
  entry.has_typed_path = typed.has_value();
  for (size_t i = 0; typed && i < path.size(); ++i) {
    const Value step = (*typed)[i];
    if (!entry.path[i].is_index && !step.is(Kind::Str)) entry.path[i].key = step;
  }
}

PlainState read_dist_state(const Checkpoint& source) {
  const Value metadata = *source.dist_metadata()->root().state();
  const auto planner = metadata.find("planner_data");
  const bool has_paths = planner && planner->is(Kind::Dict);  // None: the keys are not nested
  std::map<std::string, Value, std::less<>> paths;
  for (const auto& [key, path] : items_of(has_paths ? planner : std::nullopt)) {
    if (key.is(Kind::Str)) paths.emplace(key.text(), path);
  }
  const Value keys = metadata.at("state_dict_metadata");
  if (keys.item_count() != source.catalog().tensors.size() + source.catalog().objects.size()) {
    throw Error(ErrorCode::Unsupported, {.file = source.shown_path(), .key = {}},
                "ranks that saved without talking to each other know different keys; expected the "
                "same keys of all ranks",
                kWhatWorks);
  }
  const TypedPaths typed_paths(*source.dist_metadata());
  PlainState state;
  state.keys = typed_paths.document();
  for (size_t i = 0; i < keys.item_count(); ++i) {
    PlainEntry entry;
    entry.key = keys.item(i).first.text();
    const auto path = paths.find(entry.key);
    if (path == paths.end() && !paths.empty())
      corrupt(entry.key, "planner_data has no path for it");
    if (path == paths.end()) {
      entry.path = {{entry.key}};
    } else {
      set_path(path->second, typed_paths, entry);
    }
    if (const TensorEntry* tensor = source.catalog().find_tensor(entry.key)) {
      entry.tensor = borrow(*tensor);
      entry.requires_grad = tensor->requires_grad;
    } else {
      auto object = source.read_object(*source.catalog().find_object(entry.key));
      entry.document = std::make_shared<const Document>(std::move(object));
      entry.node = entry.document->tree.root().id();
    }
    state.entries.push_back(std::move(entry));
  }
  return state;
}

PlainState read_flat_state(const Checkpoint& source) {
  PlainState state;
  state.header_metadata = source.header_metadata();
  for (const TensorEntry& tensor : source.catalog().tensors) {
    state.entries.push_back({tensor.key, {{tensor.key}}, borrow(tensor), false, nullptr, 0});
  }
  return state;
}

bool is_same_global(const Value& a, const Value& b) {
  return a.is(Kind::Global) && b.is(Kind::Global) && a.is_global(b.module(), b.name());
}

// The factory of a defaultdict. What a Counter is called with are its items.
bool has_same_arguments(const Value& a, const Value& b) {
  if (a.args().size() != b.args().size()) return false;
  return a.args().size() == 0 || a.args()[0].is(Kind::Dict) ||
         is_same_global(a.args()[0], b.args()[0]);
}

bool has_same_type(const Value& a, const Value& b) {
  if (&a.tree() == &b.tree() && a.id() == b.id()) return true;
  if (a.kind() != b.kind()) return false;
  if (a.is(Kind::Dict)) return true;
  return is_same_global(a.callable(), b.callable()) && has_same_arguments(a, b) && !a.state() &&
         !b.state();
}

}  // namespace

std::string joined(const std::vector<PathStep>& path) {
  FlatName name;
  for (const PathStep& step : path) name.enter(step.text);
  return name.take();
}

std::string pointer_of(const std::vector<PathStep>& path) {
  std::string pointer;
  for (const PathStep& step : path) pointer += pointer_step(step.text);
  return pointer;
}

std::string typed_step(const PathStep& step) {
  const char tag = step.is_index ? '#' : step.key ? ':' : '\'';
  return tag + (step.key ? typed_key_text(*step.key) : step.text);
}

PlainState read_plain_state(const Checkpoint& source, PlainTargetWords target) {
  switch (row_of(source.catalog().format).keys) {
    case KeyStyle::Planned: return read_dist_state(source);
    case KeyStyle::Flat: return read_flat_state(source);
    case KeyStyle::Places: break;
  }
  return Flattener(source, target).run();
}

MappingTypes::MappingTypes(const std::vector<PlainEntry>& entries) {
  for (const PlainEntry& entry : entries) {
    std::string place, pointer;
    for (const PathStep& step : entry.path) {
      if (step.holder) add(place, pointer, *step.holder);
      enter(place, step);
      pointer += pointer_step(step.text);
    }
  }
}

std::optional<Value> MappingTypes::at(const std::string& place) const {
  const auto found = types_.find(place);
  return found == types_.end() || mixed_.contains(place) ? std::nullopt
                                                         : std::optional(found->second);
}

TextMap<Value> MappingTypes::objects() const {
  TextMap<Value> objects;
  for (const auto& [place, mapping] : types_) {
    if (mapping.is(Kind::Object) && !mixed_.contains(place)) objects.emplace(place, mapping);
  }
  return objects;
}

void MappingTypes::enter(std::string& place, const PathStep& step) {
  const std::string text = typed_step(step);
  place += std::to_string(text.size()) + ":" + text;
}

void MappingTypes::add(const std::string& place, const std::string& pointer, const Value& holder) {
  const auto [known, is_new] = types_.try_emplace(place, holder);
  if (is_new || has_same_type(known->second, holder)) return;
  if (mixed_.insert(place).second) lose(pointer, known->second);
  lose(pointer, holder);
}

void MappingTypes::lose(const std::string& pointer, const Value& mapping) {
  if (!mapping.is(Kind::Object)) return;
  const bool has_attributes = mapping.state().has_value();
  NotCarried lost{pointer.empty() ? "/" : pointer,
                  std::string(mapping.callable().name()) + " becomes a dict in a new file" +
                      (has_attributes ? ", and its attributes are lost" : ""),
                  std::nullopt, !has_attributes};
  const auto is_listed = [&](const NotCarried& other) {
    return other.what == lost.what && other.reason == lost.reason;
  };
  if (std::ranges::none_of(losses_, is_listed)) losses_.push_back(std::move(lost));
}

}  // namespace ckpt
