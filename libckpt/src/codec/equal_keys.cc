// Keys that are equal to Python: 1, 1.0 and True; (1, 2) and (True, 2.0); never 1 and "1".
#include <ckpt/value_tree.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <string>
#include <unordered_map>

#include "codec/python_mapping.h"
#include "codec/value_nodes.h"

namespace ckpt {
namespace {

// 2^63 and beyond, exactly: such a float is an integer.
std::string decimal_of(double integral) {
  char buffer[400];
  const int length = std::snprintf(buffer, sizeof buffer, "%.0f", integral);
  return {buffer, static_cast<size_t>(length)};
}

std::string number_identity(std::string_view decimal) {
  const bool is_negative = decimal.starts_with('-');
  if (is_negative) decimal.remove_prefix(1);
  while (decimal.size() > 1 && decimal.front() == '0') decimal.remove_prefix(1);
  const bool is_zero = decimal == "0";
  return (is_negative && !is_zero ? "I-" : "I") + std::string(decimal);
}

std::string self(const Value& key) { return "#" + std::to_string(key.id()); }

std::string float_identity(const Value& key) {
  const double value = key.as_float();
  if (std::isnan(value)) return self(key);
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  if (std::trunc(value) == value) return number_identity(decimal_of(value));
  return "D" + std::to_string(std::bit_cast<uint64_t>(value));
}

// Text that two keys share if they are equal. Keys that only code could compare (other objects),
// NaN, and tuples of too many values to look into, are equal to themselves alone.
class KeyIdentity {
 public:
  std::string of(const Value& key) {
    switch (key.kind()) {
      case Kind::None: return "N";
      case Kind::Bool:
      case Kind::Int: return number_identity(std::to_string(key.as_int()));
      case Kind::BigInt: return number_identity(key.text());
      case Kind::Float: return float_identity(key);
      case Kind::Str: return "S" + std::string(key.text());
      case Kind::Bytes: return "B" + std::string(key.text());
      case Kind::Global: return "G" + std::string(key.module()) + '\0' + std::string(key.name());
      case Kind::Tuple:
      case Kind::FrozenSet: return of_elements(key);
      default: return self(key);
    }
  }

 private:
  std::string of_elements(const Value& key) {
    if (key.size() > values_left_) return self(key);
    values_left_ -= key.size();
    std::vector<std::string> elements;
    for (size_t i = 0; i < key.size(); ++i) elements.push_back(of(key[i]));
    const bool is_set = key.is(Kind::FrozenSet);
    if (is_set) {
      std::ranges::sort(elements);
      elements.erase(std::unique(elements.begin(), elements.end()), elements.end());
    }
    std::string text = is_set ? "Z" : "T";
    for (const std::string& element : elements) {
      text += std::to_string(element.size()) + ':' + element;
    }
    return text;
  }

  size_t values_left_ = 64;
};

void merge(const ValueTree& tree, std::vector<NodeId>& items) {
  if (items.size() <= 2) return;
  std::unordered_map<std::string, size_t> place_of;
  place_of.reserve(items.size() / 2);
  size_t kept = 0;
  for (size_t i = 0; i < items.size(); i += 2) {
    const auto [known, is_new] = place_of.emplace(KeyIdentity().of(tree.value(items[i])), kept);
    if (is_new) {
      items[kept] = items[i];
      kept += 2;
    }
    items[known->second + 1] = items[i + 1];
  }
  items.resize(kept);
}

}  // namespace

void ValueTree::merge_equal_keys() {
  for (NodeId id = 0; id < node_count(); ++id) {
    if (pickle::as_mapping(value(id))) merge(*this, nodes_->items_to_change(id));
  }
}

}  // namespace ckpt
