#include <optim/state_dict.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include <ckpt/error.h>

#include "sharded_state/refuse.h"

namespace optim {
namespace {

std::string dotted(const Shape& numbers) {
  std::string text;
  for (const int64_t number : numbers) {
    if (!text.empty()) text += '.';
    text += std::to_string(number);
  }
  return text;
}

// "0.3" -> {0, 3}; nullopt for anything else.
std::optional<Shape> read_dotted(std::string_view text) {
  Shape numbers;
  while (true) {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{}) return std::nullopt;
    numbers.push_back(number);
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    if (text.empty()) return numbers;
    if (text.front() != '.') return std::nullopt;
    text.remove_prefix(1);
  }
}

template <typename Dict>
auto find_in(Dict& dict, const StateKey& key) -> decltype(&dict.front().second) {
  const auto at = std::ranges::find(dict, key, &StateDict::value_type::first);
  return at == dict.end() ? nullptr : &at->second;
}

}  // namespace

void ShardedObject::validate_metadata_integrity() const {
  if (global_shape.size() == global_offset.size()) return;
  refuse(key, "the global offset and the global shape differ in their number of dimensions");
}

std::string ShardedObject::unique_key() const {
  return key + "/shard_" + dotted(global_offset) + "_" + dotted(global_shape);
}

ShardedObject ShardedObject::without_data() const {
  ShardedObject copy = *this;
  copy.data = nullptr;
  return copy;
}

ShardedObject ShardedObject::empty_from_unique_key(std::string_view unique_key,
                                                   ReplicaId replica_id) {
  constexpr std::string_view kMark = "/shard_";
  const size_t mark = unique_key.rfind(kMark);
  const std::string_view grid =
      mark == std::string_view::npos ? std::string_view() : unique_key.substr(mark + kMark.size());
  const size_t middle = grid.find('_');
  if (middle == std::string_view::npos) refuse(unique_key, "is not a key of a sharded object");
  const std::optional<Shape> offset = read_dotted(grid.substr(0, middle));
  std::optional<Shape> shape = read_dotted(grid.substr(middle + 1));
  if (!offset || !shape) refuse(unique_key, "is not a key of a sharded object");
  // Keys of old checkpoints lack the last size: unknown.
  if (shape->size() + 1 == offset->size()) shape->push_back(-1);
  ShardedObject object{.key = std::string(unique_key.substr(0, mark)),
                       .global_shape = std::move(*shape),
                       .global_offset = *offset,
                       .replica_id = std::move(replica_id)};
  object.validate_metadata_integrity();
  return object;
}

StateValue* find(StateDict& dict, const StateKey& key) { return find_in(dict, key); }
const StateValue* find(const StateDict& dict, const StateKey& key) { return find_in(dict, key); }

void put(StateDict& dict, StateKey key, StateValue value) {
  if (StateValue* present = find(dict, key)) {
    *present = std::move(value);
  } else {
    dict.emplace_back(std::move(key), std::move(value));
  }
}

}  // namespace optim
