// What was written, opened by the reader before it is published, and compared with its source.
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ckpt/archive_builder.h>
#include <ckpt/convert.h>
#include <ckpt/error.h>
#include <ckpt/inventory.h>
#include <ckpt/plain_target.h>
#include <ckpt/write_target.h>

#include "base/byte_reader.h"
#include "base/text.h"
#include "codec/pickle.h"
#include "format/values/nesting.h"
#include "format/values/typed_key.h"
#include "read/payload_reader.h"
#include "targets/archive_writer.h"
#include "targets/plain_state.h"
#include "targets/plain_target.h"

namespace ckpt {
namespace {

[[noreturn]] void differs(const std::string& key, std::string_view how) {
  throw std::logic_error("the result differs from the source: '" + escaped(key) +
                         "': " + std::string(how) + "; nothing was published");
}

std::string_view explanation(DifferenceKind kind) {
  switch (kind) {
    case DifferenceKind::OnlyInA: return "is missing";
    case DifferenceKind::OnlyInB: return "is not in the source";
    case DifferenceKind::DType: return "has a different element type";
    case DifferenceKind::Shape: return "has a different shape";
    case DifferenceKind::Key: return "has a key of a different type";
    case DifferenceKind::Value: break;
  }
  return "has a different value";
}

// The object as a reader finds it in an archive that holds it alone.
ObjectTree as_written(const ObjectTree& object) {
  ArchiveBuilder builder;
  const Value root = object.document->tree.value(object.root);
  auto document =
      std::make_shared<Document>(builder.finish_document(builder.carry(root, *object.document)));
  const std::string bytes = pickle::write(document->tree, kArchivePickleProtocol);
  ByteReader reader(std::as_bytes(std::span(bytes)));
  document->tree = pickle::read(reader);
  ObjectTree written = object;
  written.root = document->tree.root().id();
  written.document = std::move(document);
  return written;
}

class ContentCheck {
 public:
  ContentCheck(const DiffSide& source, const DiffSide& written, const ResultCheck& check)
      : source_(source), written_(written), check_(check) {
    for (const NotCarried& listed : check.not_carried) {
      if (listed.missing_key) listed_.insert(*listed.missing_key);
    }
  }

  void run() const {
    DiffOptions names;
    names.keys_only = true;
    require(diff(source_, written_, names));
    require_same_objects();
    if (check_.values) require_same_values();
  }

 private:
  // A value has more than one pickle: what differs is compared again as the source's is written.
  void require_same_objects() const {
    Inventory a{{}, source_.inventory.objects}, b{{}, written_.inventory.objects};
    std::set<std::string, std::less<>> other_values;
    for (const ObjectDifference& object : diff_of(a, b).objects) {
      if (object.kind != DifferenceKind::Value) require(object.kind, object.key);
      other_values.insert(object.key);
    }
    const auto is_equal = [&](const ObjectTree& object) {
      return !other_values.contains(object.key);
    };
    std::erase_if(a.objects, is_equal);
    std::erase_if(b.objects, is_equal);
    for (ObjectTree& object : a.objects) object = as_written(object);
    require(diff_of(a, b));
  }

  // By value; points into the two.
  Differences diff_of(const Inventory& a, const Inventory& b) const {
    DiffOptions options;
    options.details_max = 0;
    options.execution = check_.execute;
    return diff({a, source_.source}, {b, written_.source}, options);
  }

  void require(const Differences& found) const {
    for (const TensorDifference& tensor : found.tensors) require(tensor.kind, tensor.key);
    for (const ObjectDifference& object : found.objects) require(object.kind, object.key);
  }

  void require(DifferenceKind kind, const std::string& key) const {
    const bool is_listed = kind == DifferenceKind::OnlyInA && listed_.contains(key);
    if (!is_listed) differs(key, explanation(kind));
  }

  // Of tensors that both have: those whose checksums do not say that they are equal are read.
  void require_same_values() const {
    Inventory a, b;
    std::map<std::string_view, const TensorEntry*> by_key;
    for (const TensorEntry& tensor : written_.inventory.tensors)
      by_key.emplace(tensor.key, &tensor);
    for (const TensorEntry& tensor : source_.inventory.tensors) {
      const auto found = by_key.find(tensor.key);
      if (found == by_key.end()) continue;
      const auto stated = stated_checksum(tensor, source_.source);
      if (stated && stated == stated_checksum(*found->second, written_.source)) continue;
      a.tensors.push_back(tensor);
      b.tensors.push_back(*found->second);
    }
    require(diff_of(a, b));
  }

  const DiffSide& source_;
  const DiffSide& written_;
  const ResultCheck& check_;
  std::set<std::string, std::less<>> listed_;
};

// What keys and mappings of a plain state dict are, beside the names that inventories compare.
struct NestedState {
  const PlainState& state;
  Inventory& inventory;
};

constexpr const char* kNesting = "nesting";  // no file: sets these objects apart from entries

class NestingObjects {
 public:
  explicit NestingObjects(const NestedState& of) : state_(of.state), inventory_(of.inventory) {}

  // Down to the first that a DCP folder cannot hold, where `all` are not wanted.
  void add_keys(const PlainEntry& entry, bool all) {
    std::string place;
    for (const PathStep& step : entry.path) {
      if (!all && step.key && !TypedPaths::can_hold(*step.key)) return;
      MappingTypes::enter(place, step);
      if (step.key && seen_.insert(place).second) add("the key " + place, *step.key);
    }
  }

  void add_mappings() {
    for (const auto& [place, mapping] : MappingTypes(state_.entries).objects()) {
      const bool is_called_with_items =
          mapping.args().size() == 1 && mapping.args()[0].is(Kind::Dict);
      add("the class of the mapping " + place, mapping.callable());
      if (!is_called_with_items) add("the arguments of the mapping " + place, mapping.args());
      if (mapping.state()) add("the attributes of the mapping " + place, *mapping.state());
    }
  }

 private:
  void add(std::string name, const Value& value) {
    const bool is_of_source = state_.keys && &value.tree() == &state_.keys->tree;
    if (!is_of_source && !renamed_) {
      renamed_ = std::make_shared<const Document>(Document{*state_.renamed_keys, {}});
    }
    inventory_.objects.push_back(
        {kNesting, std::move(name), is_of_source ? state_.keys : renamed_, value.id(), false});
  }

  const PlainState& state_;
  Inventory& inventory_;
  TextSet seen_;
  std::shared_ptr<const Document> renamed_;  // the keys that apply() made
};

using KeysOfMappings = TextMap<std::vector<std::string>>;

KeysOfMappings keys_of_mappings(const PlainState& state) {
  KeysOfMappings keys;
  TextSet seen;
  for (const PlainEntry& entry : state.entries) {
    std::string place;
    for (const PathStep& step : entry.path) {
      const std::string parent = place;
      MappingTypes::enter(place, step);
      if (!step.is_index && seen.insert(place).second) keys[parent].push_back(typed_step(step));
    }
  }
  return keys;
}

// Adds the keys that are not strings to both inventories, so that comparing these compares types
// and values of the keys; of a format that keeps mappings, too, their classes, arguments and
// attributes.
void add_nesting(const NestedState& source, const NestedState& result, Format format) {
  const bool keeps_keys = target_row_of(format).keeps_keys;
  if (!keeps_keys && format != Format::TorchDist) return;
  for (const NestedState* side : {&source, &result}) {
    NestingObjects nesting(*side);
    for (const PlainEntry& entry : side->state.entries) {
      if (keeps_keys || !entry.is_empty_mapping) nesting.add_keys(entry, keeps_keys);
    }
    if (keeps_keys) nesting.add_mappings();
  }
}

// std::logic_error where mappings of the result have their keys in another order.
void require_same_order(const PlainState& source, const PlainState& result) {
  const KeysOfMappings wanted = keys_of_mappings(source), found = keys_of_mappings(result);
  for (const auto& [place, keys] : wanted) {
    const auto other = found.find(place);
    if (other != found.end() && other->second == keys) continue;
    throw std::logic_error("the result differs from the source: the mapping '" + escaped(place) +
                           "' has other keys, or in another order; nothing was published");
  }
}

// A plain state dict under flattened keys.
Inventory inventory_of(const PlainState& state) {
  Inventory inventory;
  for (const PlainEntry& entry : state.entries) {
    if (entry.tensor) {
      inventory.tensors.push_back(*entry.tensor);
      TensorEntry& tensor = inventory.tensors.back();
      tensor.file.clear();
      tensor.key = entry.key;
      tensor.key_kind = Kind::Str;
    } else {
      inventory.objects.push_back({"", entry.key, entry.document, entry.node, false});
    }
  }
  return inventory;
}

// What a step leads to; nullopt where nothing does. The step gets the key and the mapping that are
// there.
std::optional<Value> child_at(const Value& value, PathStep& step) {
  if (const auto mapping = as_mapping(value)) {
    step.holder = value;
    if (!step.key) return mapping->find(step.text);
    const std::string text = typed_key_text(*step.key);
    for (const auto& [key, child] : items_of(*mapping)) {
      if (key.is(Kind::Str) || typed_key_text(key) != text) continue;
      step.key = key;
      return child;
    }
    return std::nullopt;
  }
  const auto index = number_in<size_t>(step.text);
  if (!value.is(Kind::List) || !index || *index >= value.size()) return std::nullopt;
  return value[*index];
}

// What lies at the end of a path; nullopt where nothing does.
std::optional<Value> value_at(const Value& root, std::vector<PathStep>& path) {
  std::optional<Value> value = root;
  for (size_t i = 0; value && i < path.size(); ++i) value = child_at(*value, path[i]);
  return value;
}

// Whether a pointer leads to one of some places, into one, or to what one lies in.
bool touches(const std::string& pointer, const TextSet& places) {
  const auto below = places.lower_bound(pointer + '/');
  if (below != places.end() && below->starts_with(pointer + '/')) return true;
  for (size_t end = 0; end != pointer.npos;) {
    end = pointer.find('/', end + 1);
    if (places.contains(std::string_view(pointer).substr(0, end))) return true;
  }
  return false;
}

// In a torch.save file a mapping that was an object of its own is entered, and a list that was
// entered may be an object: objects are taken from where they must be.
// Returns whether it took any.
bool fold_objects(const PlainState& wanted, const Checkpoint& result, PlainState& found) {
  const std::shared_ptr<const Document> document(std::shared_ptr<const Document>(), result.state());
  std::set<std::string> found_keys;
  for (const PlainEntry& entry : found.entries) {
    if (!entry.tensor) found_keys.insert(entry.key);
  }
  TextSet places;
  std::vector<PlainEntry> folded;
  for (const PlainEntry& entry : wanted.entries) {
    if (entry.tensor || found_keys.contains(entry.key)) continue;
    std::vector<PathStep> path = entry.path;
    const auto value = value_at(document->tree.root(), path);
    if (!value) continue;
    places.insert(pointer_of(entry.path));
    folded.push_back({entry.key, std::move(path), nullptr, false, document, value->id()});
  }
  if (folded.empty()) return false;
  std::erase_if(found.entries,
                [&](const PlainEntry& entry) { return touches(pointer_of(entry.path), places); });
  found.entries.insert(found.entries.end(), folded.begin(), folded.end());
  return true;
}

// Elements of lists that have no entry are None where lists are whole again.
void leave_out_holes(const Inventory& wanted, Inventory& found) {
  std::set<std::string_view> keys;
  for (const ObjectTree& object : wanted.objects) keys.insert(object.key);
  std::erase_if(found.objects, [&](const ObjectTree& object) {
    return object.document->tree.value(object.root).is_none() && !keys.contains(object.key);
  });
}

}  // namespace

void require_same_content(const DiffSide& source, const DiffSide& written,
                          const ResultCheck& check) {
  ContentCheck(source, written, check).run();
}

Carried count_carried(const Checkpoint& result) {
  return {result.catalog().tensors.size(), result.catalog().objects.size()};
}

Checkpoint open_result(const WrittenResult& written, OpenOptions options) {
  options.source = written.source;
  try {
    return Checkpoint::open(written.path, std::move(options));
  } catch (const Error& error) {
    refuse_unreadable(error);
  }
}

void refuse_unreadable(const Error& error) {
  if (error.code() == ErrorCode::IoFailure) throw error;
  throw Error(ErrorCode::Unsupported, {.file = {}, .key = error.where().key},
              "the result could not be read back: " + error.problem(), error.hint());
}

void refuse_damage(const Findings& findings) {
  for (const Finding& finding : findings.findings) {
    if (finding.severity != Severity::Damage) continue;
    throw Error(ErrorCode::Corrupt,
                {finding.where.file, finding.where.offset_bytes, finding.where.key},
                "the result would not pass verify: " + finding.problem,
                "if ckpt-inspect verify reports the same for the source, it is carried unchanged "
                "without --verify");
  }
}

Carried check_plain_result(const Checkpoint& source, const TargetSpec& spec,
                           const WrittenResult& written, const ResultCheck& check) {
  const PlainTargetWords words = target_row_of(spec.format).words();
  PlainState state = read_plain_state(source, words);
  apply(spec, state);
  const Checkpoint result = open_result(written, {std::nullopt, source.limits()});
  PlainState result_state = read_plain_state(result, words);
  if (words.keeps_keys && !fold_objects(state, result, result_state)) {
    require_same_order(state, result_state);
  }
  Inventory wanted = inventory_of(state);
  Inventory found = inventory_of(result_state);
  leave_out_holes(wanted, found);
  add_nesting({state, wanted}, {result_state, found}, spec.format);
  require_same_content({wanted, source}, {found, result}, check);
  return count_carried(result);
}

}  // namespace ckpt
