#include "step/tensors/state_fields.h"

#include <ckpt/error.h>
#include <optim/checkpoint_bridge.h>

namespace optim {

void refuse_state(std::string_view path, const std::string& problem) {
  throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {.file = {}, .key = std::string(path)},
                    problem);
}

const StateDict& as_dict(const StateValue& value, std::string_view path) {
  if (const auto* dict = unwrapped(value).get_if<StateDict>()) return *dict;
  refuse_state(path, "is not a dict");
}

const StateList& as_list(const StateValue& value, std::string_view path) {
  if (const auto* list = unwrapped(value).get_if<StateList>()) return *list;
  refuse_state(path, "is not a list");
}

const StateValue& at(const StateDict& dict, const StateKey& key, std::string_view path) {
  if (const StateValue* const value = find(dict, key)) return *value;
  const auto* const text = std::get_if<std::string>(&key);
  refuse_state(path, "has no '" + (text ? *text : std::to_string(std::get<int64_t>(key))) + "'");
}

double number(const StateValue& value, std::string_view path) {
  if (const auto* flag = value.get_if<bool>()) return *flag ? 1 : 0;
  if (const auto* whole = value.get_if<int64_t>()) return static_cast<double>(*whole);
  if (const auto* real = value.get_if<double>()) return *real;
  refuse_state(path, "is not a number");
}

at::Tensor tensor(const StateValue& value, std::string_view path) {
  if (const auto* handle = value.get_if<TensorHandle>()) return tensor_of(*handle);
  refuse_state(path, "is not a tensor");
}

const StateValue& unwrapped(const StateValue& value) {
  const auto* const local = value.get_if<LocalNonpersistentObject>();
  return local != nullptr ? local->unwrap() : value;
}

}  // namespace optim
