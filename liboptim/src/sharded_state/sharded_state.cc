// State dicts, sharded tensors, and the mapping of an optimizer's state to them.
#include <optim/sharded_state.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>
#include <utility>

#include <optim/rule_table.h>
#include <optim/sharded_tensor.h>

#include "rules/refuse_key.h"

namespace optim {
namespace {

std::string text(const StateKey& key) {
  if (const auto* name = std::get_if<std::string>(&key)) return *name;
  return std::to_string(std::get<int64_t>(key));
}

// The leaves of a tree of dicts and lists in order, without recursion: a state dict's depth is its
// maker's choice. What is inside other leaves (LocalNonpersistentObject) is not visited.
class Leaves {
 public:
  explicit Leaves(const StateDict& root) { push(root); }

  const StateValue* next() {
    while (!stack_.empty()) {
      const StateValue* value = stack_.back();
      stack_.pop_back();
      if (const auto* dict = value->get_if<StateDict>())
        push(*dict);
      else if (const auto* list = value->get_if<StateList>())
        push(*list);
      else
        return value;
    }
    return nullptr;
  }

 private:
  void push(const StateDict& dict) {
    for (auto at = dict.rbegin(); at != dict.rend(); ++at) stack_.push_back(&at->second);
  }
  void push(const StateList& list) {
    for (auto at = list.rbegin(); at != list.rend(); ++at) stack_.push_back(&*at);
  }

  std::vector<const StateValue*> stack_;
};

std::optional<ShardedParam> as_sharded_param(const StateValue& value) {
  if (const auto* tensor = value.get_if<ShardedTensor>()) return *tensor;
  if (const auto* factory = value.get_if<ShardedTensorFactory>()) return *factory;
  return std::nullopt;
}

const void* identity_of(const ShardedParam& param) {
  return std::visit([](const auto& p) { return p.data ? p.data->identity : nullptr; }, param);
}

template <typename T>
const T& member(const StateDict& dict, std::string_view key, std::string_view expected) {
  const StateValue* value = find(dict, StateKey(std::string(key)));
  if (value == nullptr) refuse_key(key, "is missing from the optimizer's state dict");
  const T* content = value->get_if<T>();
  if (content == nullptr) refuse_key(key, "is not " + std::string(expected));
  return *content;
}

struct Mapping {
  const std::map<int64_t, ShardedParam>& id_to_sharded_param;
  const std::set<std::string>& exclude_keys;
};

// A state with a shape of its own (SOAP's factors): whole, in one chunk of each layer that the
// global tensor is stacked over. The reference cannot save it.
ShardedTensor with_own_shape(const ShardedTensor& model_param, const TensorHandle& state,
                             std::string key) {
  const auto stacked = static_cast<std::ptrdiff_t>(model_param.prepend_axis_num);
  const Shape& whole = model_param.global_shape;
  const bool is_split = !std::equal(whole.begin() + stacked, whole.end(),
                                    model_param.local_shape.begin(), model_param.local_shape.end());
  if (is_split) {
    refuse_key(key, "has a shape of its own, which tensor-parallel ranks cannot share");
  }
  ShardedTensor result = model_param;
  result.key = std::move(key);
  result.data = state;
  result.dtype = state.dtype;
  result.local_shape = state.shape;
  const auto behind_stack = [&](Shape& shape, auto&& value) {
    shape.resize(static_cast<size_t>(stacked));
    for (const int64_t size : state.shape) shape.push_back(value(size));
  };
  behind_stack(result.global_shape, [](int64_t size) { return size; });
  behind_stack(result.global_offset, [](int64_t) { return int64_t{0}; });
  if (result.axis_fragmentations) {
    behind_stack(*result.axis_fragmentations, [](int64_t) { return int64_t{1}; });
  }
  result.validate_metadata_integrity();
  return result;
}

ShardedParam sharded_state(const ShardedParam& model_param, const TensorHandle& state,
                           const std::string& name) {
  const auto known = std::ranges::find(all_states(), name, &StateSpec::name);
  const auto* const tensor = std::get_if<ShardedTensor>(&model_param);
  const bool is_own = known != all_states().end() && known->own_shape;
  const std::string prefix = "optimizer.state." + name;
  if (!is_own || (tensor != nullptr && state.shape == tensor->local_shape)) {
    return make_sharded_optimizer_tensor(model_param, state, prefix);
  }
  if (tensor != nullptr) return with_own_shape(*tensor, state, prefix + "." + tensor->key);
  refuse_key(prefix + "." + std::get<ShardedTensorFactory>(model_param).key,
             "has a shape of its own, which the parameter's factory cannot build");
}

// The states of one parameter.
StateDict shard_param_state(int64_t param_id, const StateDict& param_state,
                            const Mapping& mapping) {
  StateDict sharded;
  for (const auto& [state_key, value] : param_state) {
    const std::string name = text(state_key);
    if (mapping.exclude_keys.contains(name)) continue;
    const auto model_param = mapping.id_to_sharded_param.find(param_id);
    if (model_param == mapping.id_to_sharded_param.end()) {
      refuse_key("state." + std::to_string(param_id),
                 "the parameter does not match any sharded parameter of the model." +
                     std::string(KEEP_VARS_HINT));
    }
    const auto* tensor = value.get_if<TensorHandle>();
    if (tensor == nullptr) {
      refuse_key("state." + std::to_string(param_id) + "." + name, "is not a tensor");
    }
    ShardedParam state = sharded_state(model_param->second, *tensor, name);
    sharded.emplace_back(state_key,
                         std::visit([](auto& s) { return StateValue(std::move(s)); }, state));
  }
  return sharded;
}

StateDict shard_state(const StateDict& state, const Mapping& mapping) {
  StateDict sharded;
  for (const auto& [id, param_state] : state) {
    const auto* number = std::get_if<int64_t>(&id);
    const auto* states = param_state.get_if<StateDict>();
    if (number == nullptr || states == nullptr) {
      refuse_key("state." + text(id), "is not a dict of states under an integer id");
    }
    sharded.emplace_back(id, shard_param_state(*number, *states, mapping));
  }
  return sharded;
}

StateList with_local_params(StateList groups) {
  for (StateValue& value : groups) {
    auto* group = value.get_if<StateDict>();
    StateValue* params = group ? find(*group, StateKey("params")) : nullptr;
    if (params == nullptr) refuse_key("param_groups", "a group is not a dict with 'params'");
    *params = LocalNonpersistentObject{std::make_shared<const StateValue>(std::move(*params))};
  }
  return groups;
}

void require(bool right, const ShardedTensor& tensor, std::string_view problem) {
  if (!right) refuse_key(tensor.key, std::string(problem));
}

int64_t product(std::string_view key, int64_t a, int64_t b) {
  int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) refuse_key(key, "a global size exceeds 63 bits");
  return result;
}

// Axes of the local tensor within the global one start here.
size_t first_local_axis(const ShardedTensor& tensor) {
  const size_t axes = tensor.global_shape.size();
  require(tensor.global_offset.size() == axes, tensor,
          "the global offset and the global shape differ in their number of dimensions");
  require(
      tensor.prepend_axis_num >= 0 && static_cast<size_t>(tensor.prepend_axis_num) <= axes &&
          tensor.local_shape.size() == axes - static_cast<size_t>(tensor.prepend_axis_num),
      tensor,
      "the local shape and the prepended axes do not add up to the dimensions of the global shape");
  return axes - tensor.local_shape.size();
}

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

std::unordered_map<const void*, int64_t> get_optim_param_to_id_map(
    std::span<const TensorHandle> optim_params) {
  std::unordered_map<const void*, int64_t> ids;
  for (size_t i = 0; i < optim_params.size(); ++i) {
    ids.emplace(optim_params[i].identity, static_cast<int64_t>(i));
  }
  return ids;
}

IdToShardedParamMap get_param_id_to_sharded_param_map(const StateDict& model_sharded_state_dict,
                                                      std::span<const TensorHandle> optim_params) {
  const std::unordered_map<const void*, int64_t> ids = get_optim_param_to_id_map(optim_params);
  IdToShardedParamMap map;
  Leaves leaves(model_sharded_state_dict);
  while (const StateValue* leaf = leaves.next()) {
    std::optional<ShardedParam> param = as_sharded_param(*leaf);
    const void* identity = param ? identity_of(*param) : nullptr;
    if (identity == nullptr) continue;
    const auto at = ids.find(identity);
    if (at != ids.end()) map.params.insert_or_assign(at->second, std::move(*param));
  }
  if (map.params.empty()) {
    map.warnings.push_back("no tensor of the model's state dict is a parameter of the optimizer." +
                           std::string(KEEP_VARS_HINT));
  }
  return map;
}

ShardedParam make_sharded_optimizer_tensor(const ShardedParam& model_param,
                                           const TensorHandle& optim_param,
                                           std::string_view prefix) {
  ShardedParam result = model_param;
  std::visit(
      [&](auto& param) {
        param.key = std::string(prefix) + "." + param.key;
        param.data = optim_param;
      },
      result);
  if (auto* tensor = std::get_if<ShardedTensor>(&result)) {
    if (optim_param.shape != tensor->local_shape) {
      refuse_key(tensor->key, "the optimizer's tensor and the model's have different shapes");
    }
    tensor->dtype = optim_param.dtype;
    tensor->validate_metadata_integrity();
  }
  return result;
}

void optim_state_to_sharding_state(StateDict& optim_state_dict,
                                   const std::map<int64_t, ShardedParam>& id_to_sharded_param_map,
                                   const std::set<std::string>& exclude_keys) {
  const Mapping mapping{id_to_sharded_param_map, exclude_keys};
  StateDict state = shard_state(member<StateDict>(optim_state_dict, "state", "a dict"), mapping);
  StateList groups =
      with_local_params(member<StateList>(optim_state_dict, "param_groups", "a list"));
  put(optim_state_dict, "state", std::move(state));
  put(optim_state_dict, "param_groups", std::move(groups));
}

bool is_main_replica(const ReplicaId& replica_id) {
  if (const auto* number = std::get_if<int64_t>(&replica_id)) return *number == 0;
  return std::ranges::all_of(std::get<Shape>(replica_id), [](int64_t part) { return part == 0; });
}

void ShardedTensor::validate_metadata_integrity() const {
  if (data) {
    require(data->dtype == dtype, *this, "the dtype of the data differs from the declared one");
    require(flattened_range || data->shape == local_shape, *this,
            "the shape of the data differs from the local shape");
  }
  const size_t first = first_local_axis(*this);
  for (size_t axis = 0; axis_fragmentations && axis < local_shape.size(); ++axis) {
    const int64_t size = local_shape[axis];
    require(size == 0 || global_offset[first + axis] % size == 0, *this,
            "on a regular grid a global offset must be a multiple of the local size");
  }
  if (!flattened_range) return;
  refuse_key(key, "flattened_range is not supported, as in Megatron-Core since 0.14",
             ckpt::ErrorCode::Unsupported);
}

ShardedTensor ShardedTensor::without_data() const {
  ShardedTensor copy = *this;
  copy.data.reset();
  return copy;
}

Shape ShardedTensor::local_chunk_offset_in_global() const {
  const size_t first = first_local_axis(*this);
  Shape offset(global_offset.begin(), global_offset.begin() + static_cast<ptrdiff_t>(first));
  for (size_t axis = 0; axis < local_shape.size(); ++axis) {
    const int64_t size = local_shape[axis];
    require(size > 0 && global_offset[first + axis] % size == 0, *this,
            "the tensor does not lie on a regular grid");
    offset.push_back(global_offset[first + axis] / size);
  }
  return offset;
}

Shape ShardedTensor::max_allowed_chunks() const {
  require(axis_fragmentations && axis_fragmentations->size() == global_shape.size(), *this,
          "needs the fragmentation of every axis");
  Shape chunks;
  for (size_t axis = 0; axis < global_shape.size(); ++axis) {
    const int64_t fragments = (*axis_fragmentations)[axis];
    require(fragments > 0 && (allow_shape_mismatch || global_shape[axis] % fragments == 0), *this,
            "the size of an axis is not divisible by its fragmentation");
    chunks.push_back(global_shape[axis] / fragments);
  }
  return chunks;
}

ShardedTensor sharded_tensor_from_rank_offsets(std::string key, TensorHandle data,
                                               std::span<const RankOffset> rank_offsets,
                                               const RankOffsetOptions& options) {
  if (options.prepend_axis_num < 0) refuse_key(key, "prepend_axis_num is negative");
  const auto first = static_cast<size_t>(options.prepend_axis_num);
  const size_t axes = first + data.shape.size();
  ShardedTensor tensor{.key = std::move(key),
                       .dtype = data.dtype,
                       .local_shape = data.shape,
                       .global_shape = Shape(first, 1),
                       .global_offset = Shape(axes, 0),
                       .axis_fragmentations = Shape(axes, 1),
                       .replica_id = options.replica_id,
                       .prepend_axis_num = options.prepend_axis_num,
                       .allow_shape_mismatch = options.allow_shape_mismatch};
  tensor.global_shape.insert(tensor.global_shape.end(), data.shape.begin(), data.shape.end());
  tensor.data = std::move(data);
  for (const RankOffset& offset : rank_offsets) {
    const bool exists = offset.axis >= 0 && static_cast<size_t>(offset.axis) < axes;
    require(exists && offset.rank >= 0 && offset.rank < offset.fragments, tensor,
            "a rank offset names an axis or a rank that does not exist");
    const auto axis = static_cast<size_t>(offset.axis);
    const int64_t size = axis < first ? 1 : tensor.local_shape[axis - first];
    tensor.global_shape[axis] = product(tensor.key, offset.fragments, size);
    tensor.global_offset[axis] = product(tensor.key, offset.rank, size);
    (*tensor.axis_fragmentations)[axis] = offset.fragments;
  }
  tensor.validate_metadata_integrity();
  return tensor;
}

void ShardedObject::validate_metadata_integrity() const {
  if (global_shape.size() == global_offset.size()) return;
  refuse_key(key, "the global offset and the global shape differ in their number of dimensions");
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
  if (middle == std::string_view::npos) refuse_key(unique_key, "is not a key of a sharded object");
  const std::optional<Shape> offset = read_dotted(grid.substr(0, middle));
  std::optional<Shape> shape = read_dotted(grid.substr(middle + 1));
  if (!offset || !shape) refuse_key(unique_key, "is not a key of a sharded object");
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
