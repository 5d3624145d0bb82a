#include "compare/nesting_check.h"

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ckpt/error.h>

#include "format/values/typed_key.h"
#include "targets/mapping_types.h"
#include "targets/plain_target.h"

namespace ckpt {
namespace {

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

}  // namespace

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

void require_same_order(const PlainState& source, const PlainState& result) {
  const KeysOfMappings wanted = keys_of_mappings(source), found = keys_of_mappings(result);
  for (const auto& [place, keys] : wanted) {
    const auto other = found.find(place);
    if (other != found.end() && other->second == keys) continue;
    throw std::logic_error("the result differs from the source: the mapping '" + escaped(place) +
                           "' has other keys, or in another order; nothing was published");
  }
}

}  // namespace ckpt
