// What was written of a plain state dict, compared with the source entry by entry.
#include <ckpt/convert.h>
#include <ckpt/plain_target.h>
#include <ckpt/write_target.h>

#include <set>
#include <string>

#include "base/text.h"
#include "base/text_map.h"
#include "compare/nesting_check.h"
#include "format/values/nesting.h"
#include "format/values/typed_key.h"
#include "targets/plain_target.h"

namespace ckpt {
namespace {

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
    for (size_t i = 0; i < mapping->item_count(); ++i) {
      const auto [key, child] = mapping->item(i);
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
  const std::shared_ptr<const Document> document(
      std::shared_ptr<const Document>(), result.document(result.catalog().files.at(0).path));
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
    places.insert(pointer_of(entry));
    folded.push_back({entry.key, std::move(path), nullptr, false, document, value->id()});
  }
  if (folded.empty()) return false;
  std::erase_if(found.entries,
                [&](const PlainEntry& entry) { return touches(pointer_of(entry), places); });
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

Carried check_plain_result(const Checkpoint& source, const TargetSpec& spec,
                           const std::filesystem::path& written, const ResultCheck& check) {
  const PlainTargetWords words = target_row_of(spec.format).words();
  PlainState state = read_plain_state(source, words);
  apply(spec.keys, state);
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
