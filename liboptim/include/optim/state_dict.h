#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <optim/layout_export.h>
#include <optim/sharded_tensor.h>

namespace optim {

// State dicts of megatron.core.dist_checkpointing: a tree of maps, lists and leaves.

class StateValue;
using StateKey = std::variant<std::string, int64_t>;
using StateList = std::vector<StateValue>;
using StateDict = std::vector<std::pair<StateKey, StateValue>>;  // in order, keys unique

// Builds the ShardedTensors of a transformed parameter (SwiGLU halves) and merges them back. What
// is built may depend on the arguments only: the optimizer calls it with its own.
using FactoryBuildFn = std::function<StateValue(const std::string& key, const TensorHandle& data,
                                                const ReplicaId& replica_id,
                                                const std::optional<FlattenedRange>& range)>;
using FactoryMergeFn = std::function<TensorHandle(const StateValue& built)>;
struct ShardedTensorFactory {
  std::string key = {};
  std::optional<TensorHandle> data = {};
  FactoryBuildFn build_fn = nullptr;
  FactoryMergeFn merge_fn = nullptr;
  ReplicaId replica_id = int64_t{0};
  std::optional<FlattenedRange> flattened_range = {};
};

// A value that is saved whole, one per cell of a global grid of objects.
struct OPTIM_LAYOUT_EXPORT ShardedObject {
  std::string key = {};
  std::shared_ptr<const StateValue> data = nullptr;
  Shape global_shape = {};  // in shards
  Shape global_offset = {};
  ReplicaId replica_id = int64_t{0};
  void validate_metadata_integrity() const;
  std::string unique_key() const;  // "rng_state/shard_0.0_1.1"
  ShardedObject without_data() const;
  // Throws Error(InvalidArgument) for text that unique_key() does not write.
  static ShardedObject empty_from_unique_key(std::string_view unique_key,
                                             ReplicaId replica_id = {});
};

// Never saved; on loading the local value takes its place.
struct LocalNonpersistentObject {
  std::shared_ptr<const StateValue> obj;
  const StateValue& unwrap() const { return *obj; }
};

struct Bytes {
  std::string content;
  bool operator==(const Bytes&) const = default;
};

// A node of a state dict.
class StateValue {
 public:
  using Variant = std::variant<std::monostate, bool, int64_t, double, std::string, Bytes, StateList,
                               StateDict, TensorHandle, ShardedTensor, ShardedTensorFactory,
                               ShardedObject, LocalNonpersistentObject>;
  StateValue() = default;
  template <typename T>
  requires(!std::is_same_v<std::remove_cvref_t<T>, StateValue>) StateValue(T&& content)
      : content_(std::forward<T>(content)) {}

  const Variant& content() const { return content_; }
  Variant& content() { return content_; }
  template <typename T>
  const T* get_if() const {
    return std::get_if<T>(&content_);
  }
  template <typename T>
  T* get_if() {
    return std::get_if<T>(&content_);
  }

 private:
  Variant content_;
};

OPTIM_LAYOUT_EXPORT StateValue* find(StateDict& dict, const StateKey& key);
OPTIM_LAYOUT_EXPORT const StateValue* find(const StateDict& dict, const StateKey& key);
OPTIM_LAYOUT_EXPORT void put(StateDict& dict, StateKey key, StateValue value);  // replaces or adds

}  // namespace optim
