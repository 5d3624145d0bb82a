#include "target/plain_state.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

#include <ckpt/error.h>

#include "base/text_map.h"
#include "format/format.h"
#include "format/values/flat_name.h"
#include "format/values/json_pointer.h"
#include "format/values/nesting.h"

namespace ckpt {
namespace {

constexpr const char* kWhatWorks = "ckpt-inspect ls, show, tree, hash, diff and verify work on it";
constexpr size_t kDepthMax = 1000;  // nesting of a state dict; Python's own recursion limit

std::string joined(const std::vector<PathStep>& path) {
  FlatName name;
  for (const PathStep& step : path) name.enter(step.text);
  return name.take();
}

// A part of the checkpoint, not owned: it lives as long as the checkpoint.
template <typename Part>
std::shared_ptr<const Part> borrow(const Part& part) {
  return {std::shared_ptr<const Part>(), &part};
}

// --- a torch.save file
// -------------------------------------------------------------------------------

class Flattener {
 public:
  Flattener(const Checkpoint& source, std::string_view target)
      : source_(source),
        target_(target),
        file_(source.catalog().files.at(0).path),
        document_(*source.document(file_)) {}

  PlainState run() {
    const Value root = document_.tree.root();
    if (!as_mapping(root)) {
      throw Error(ErrorCode::Unsupported, {.file = file_, .key = {}},
                  "holds no state dict; expected a dict at its root", kWhatWorks);
    }
    enter_mapping(*as_mapping(root), "");
    note_what_mappings_lose(root, "");
    check_all_are_met();
    return std::move(state_);
  }

 private:
  void enter_mapping(const Value& mapping, const std::string& pointer) {
    TextSet texts;
    for (size_t i = 0; i < mapping.item_count(); ++i) {
      const auto [key, value] = mapping.item(i);
      const std::string text = key_text(key);
      if (!texts.insert(text).second) {
        throw Error(ErrorCode::Unsupported, {.file = file_, .key = pointer + pointer_step(text)},
                    "two keys of one mapping are this as text; as strings they would be one",
                    kWhatWorks);
      }
      if (!key.is(Kind::Str)) {
        path_.push_back({text, false});
        note("key " + pointer + pointer_step(text), "becomes a string in ");
        path_.pop_back();
      }
      enter(value, {text, false}, pointer + pointer_step(text));
    }
  }

  void note_what_mappings_lose(const Value& mapping, const std::string& pointer) {
    if (!mapping.is(Kind::Object)) return;
    note(pointer.empty() ? "/" : pointer,
         std::string(mapping.callable().name()) + " becomes a dict in ",
         mapping.state() ? ", and its attributes are lost" : "");
    if (mapping.state()) add_places_of(*mapping.state());
  }

  void add_places_of(const Value& attributes) {
    for (size_t i = 0; i < attributes.item_count(); ++i) {
      places_.insert(pointer_of_path() + pointer_step("@" + key_text(attributes.item(i).first)));
    }
  }

  void enter(const Value& value, PathStep step, const std::string& pointer) {
    if (path_.size() >= kDepthMax) {
      throw Error(ErrorCode::Unsupported, {.file = file_, .key = pointer}, "nested too deeply",
                  kWhatWorks);
    }
    path_.push_back(std::move(step));
    if (const auto mapping = as_mapping(value)) {
      enter_inner(value, *mapping, pointer);
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
  void enter_inner(const Value& value, const Value& mapping, const std::string& pointer) {
    if (mapping.item_count() == 0) {
      set_value(add(), value);
      state_.entries.back().is_empty_mapping = true;
      return;
    }
    note_what_mappings_lose(value, pointer);
    enter_mapping(mapping, pointer);
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
      add(is_class ? "the class " + class_text(attribute.value) : "its " + escaped(attribute.name));
    }
    return text;
  }

  static std::string class_text(const Value& type) {
    return escaped(type.module()) + "." + escaped(type.name());
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
    places_.insert(pointer_of_path());
    state_.entries.push_back({joined(path_), path_, nullptr, false, nullptr, 0});
    if (!keys_.insert(state_.entries.back().key).second) {
      throw Error(ErrorCode::Unsupported, {.file = file_, .key = state_.entries.back().key},
                  "two values have this key once their paths are joined by '.'", kWhatWorks);
    }
    return state_.entries.back();
  }

  std::string pointer_of_path() const {
    std::string pointer;
    for (const PathStep& step : path_) pointer += pointer_step(step.text);
    return pointer;
  }

  // The catalog lists the file's tensors in the order in which this class meets them, but also
  // those inside objects, which are skipped.
  const TensorEntry& next_tensor() {
    const auto& tensors = source_.catalog().tensors;
    const std::string pointer = pointer_of_path();
    while (next_tensor_ < tensors.size() && tensors[next_tensor_].key != pointer) ++next_tensor_;
    if (next_tensor_ == tensors.size()) {
      throw Error(ErrorCode::Corrupt, {.file = file_, .key = pointer}, "is not in the catalog");
    }
    return tensors[next_tensor_++];
  }

  // `more`: what is lost, beside what is only changed.
  void note(std::string what, std::string reason, const std::string& more = {}) {
    state_.mapping_losses.push_back(
        {pointer_of_path(),
         {std::move(what), std::move(reason) + target_ + more, std::nullopt, more.empty()}});
  }

  const Checkpoint& source_;
  std::string target_;
  const std::string& file_;
  const Document& document_;
  std::vector<PathStep> path_;
  Nesting nesting_;
  TextSet keys_;
  TextSet places_;  // pointers of entries, and of attributes that are lost and listed
  size_t next_tensor_ = 0;
  PlainState state_;
};

// --- a DCP folder
// ------------------------------------------------------------------------------------

[[noreturn]] void corrupt(const std::string& key, std::string problem) {
  throw Error(ErrorCode::Corrupt, {.file = ".metadata", .key = key}, std::move(problem));
}

std::vector<PathStep> path_of(const std::string& key, const Value& path) {
  if (!path.is(Kind::Tuple) || path.size() == 0)
    corrupt(key, "its path in planner_data is not a tuple of at least one step");
  std::vector<PathStep> steps;
  for (size_t i = 0; i < path.size(); ++i) {
    steps.push_back({key_text(path[i]), path[i].is(Kind::Int)});
    if (!path[i].is(Kind::Int) && !path[i].is(Kind::Str)) {
      corrupt(key, "a step of its path in planner_data is neither a number nor a string");
    }
  }
  if (joined(steps) != key)
    corrupt(key, "its path in planner_data spells another key, " + joined(steps));
  return steps;
}

PlainState read_dist_state(const Checkpoint& source) {
  const Value metadata = *source.dist_metadata()->root().state();
  const auto planner = metadata.find("planner_data");
  const bool has_paths = planner && planner->is(Kind::Dict);  // None: the keys are not nested
  std::map<std::string, Value, std::less<>> paths;
  for (size_t i = 0; has_paths && i < planner->item_count(); ++i) {
    const auto [key, path] = planner->item(i);
    if (key.is(Kind::Str)) paths.emplace(key.text(), path);
  }
  const Value keys = metadata.at("state_dict_metadata");
  if (keys.item_count() != source.catalog().tensors.size() + source.catalog().objects.size()) {
    throw Error(ErrorCode::Unsupported, {.file = source.shown_path(), .key = {}},
                "ranks that saved without talking to each other know different keys; expected the "
                "same keys of all ranks",
                kWhatWorks);
  }
  PlainState state;
  for (size_t i = 0; i < keys.item_count(); ++i) {
    PlainEntry entry;
    entry.key = keys.item(i).first.text();
    const auto path = paths.find(entry.key);
    if (path == paths.end() && !paths.empty())
      corrupt(entry.key, "planner_data has no path for it");
    entry.path =
        path == paths.end() ? std::vector<PathStep>{{entry.key}} : path_of(entry.key, path->second);
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

// Takes `count` leading characters of the joined path away. Where that ends inside a step, the rest
// of the step stays one, without a separator in front.
std::vector<PathStep> without_front(const std::vector<PathStep>& path, size_t count) {
  std::vector<PathStep> rest;
  for (const PathStep& step : path) {
    if (count == 0) {
      rest.push_back(step);
    } else if (count < step.text.size()) {
      const bool at_separator = step.text[count] == '.' || step.text[count] == '/';
      const std::string left = step.text.substr(count + (at_separator ? 1 : 0));
      if (!left.empty()) rest.push_back({left, false});
      count = 0;
    } else {
      count -= std::min(count, step.text.size() + 1);  // with the dot behind it
    }
  }
  return rest;
}

// A flat key stays one.
void rename(const KeyRename& rename, const std::string& renamed, PlainEntry& entry) {
  if (entry.path.size() == 1) {
    entry.key = renamed;
    entry.path = {{renamed}};
    return;
  }
  std::vector<PathStep> path;
  for (const std::string& step : rename.to()) path.push_back({step});
  for (PathStep& step : without_front(entry.path, *rename.front_bytes(entry.key))) {
    path.push_back(std::move(step));
  }
  entry.key = joined(path);
  entry.path = std::move(path);
}

void rename(const KeyRules& rules, PlainEntry& entry) {
  for (const KeyRename& rule : rules.renames) {
    const auto renamed = rule.renamed(entry.key);
    if (renamed && *renamed != entry.key) return rename(rule, *renamed, entry);
  }
}

}  // namespace

std::string pointer_of(const PlainEntry& entry) {
  std::string pointer;
  for (const PathStep& step : entry.path) pointer += pointer_step(step.text);
  return pointer;
}

PlainState read_plain_state(const Checkpoint& source, std::string_view target) {
  switch (row_of(source.catalog().format).keys) {
    case KeyStyle::Planned: return read_dist_state(source);
    case KeyStyle::Flat: return read_flat_state(source);
    case KeyStyle::Places: break;
  }
  return Flattener(source, target).run();
}

namespace {

// The pointers of the mappings and lists around entries, and their own.
TextSet places_around(const std::vector<PlainEntry>& entries) {
  TextSet places;
  for (const PlainEntry& entry : entries) {
    std::string pointer;
    for (const PathStep& step : entry.path) {
      pointer += pointer_step(step.text);
      places.insert(pointer);
    }
  }
  return places;
}

void list_mapping_losses(const KeyRules& rules, PlainState& state) {
  const bool takes_all = rules.selection.is_everything();
  const TextSet kept = takes_all ? TextSet() : places_around(state.entries);
  std::vector<NotCarried> listed;
  for (MappingLoss& loss : state.mapping_losses) {
    const bool is_kept = takes_all || loss.place.empty() || kept.contains(loss.place);
    if (is_kept) listed.push_back(std::move(loss.lost));
  }
  state.mapping_losses.clear();
  std::ranges::move(state.not_carried, std::back_inserter(listed));
  state.not_carried = std::move(listed);
}

}  // namespace

uint64_t apply(KeyRules rules, PlainState& state) {
  std::vector<KeyName> names;
  for (const PlainEntry& entry : state.entries) names.push_back({{}, entry.key});
  rules.resolve(names);
  std::erase_if(state.entries, [&](const PlainEntry& entry) { return !rules.accepts(entry.key); });
  list_mapping_losses(rules, state);
  TextSet keys;
  for (PlainEntry& entry : state.entries) {
    rename(rules, entry);
    if (keys.insert(entry.key).second && !entry.key.empty()) continue;
    if (rules.renames.empty()) continue;
    throw Error(ErrorCode::InvalidArgument, {.file = {}, .key = entry.key},
                entry.key.empty() ? "--rename leaves a key without a name"
                                  : "--rename gives this name to two keys");
  }
  return rules.left_out_count();
}

}  // namespace ckpt
