#include "format/joined/deepspeed_state.h"

#include <set>

#include <ckpt/cast.h>

#include "format/torch/torch_save.h"
#include "format/values/nesting.h"
#include "format/values/torch_values.h"

namespace ckpt {
namespace {

using std::string_view;

bool names_deepspeed(const Value& value) {
  ValueTree copy;
  copy.set_root(copy.copy(value));
  for (NodeId node = 0; node < copy.node_count(); ++node) {
    const Value one = copy.value(node);
    if (one.is(Kind::Global) && one.module().starts_with("deepspeed")) return true;
  }
  return false;
}

}  // namespace

void DeepSpeedState::put(NodeId dict, const std::string& name, TensorEntry entry) {
  const bool is_lost = files_.lacks_something() && !JoinedState::is_whole(entry);
  tree().put(dict, name, is_lost ? tree().none() : state_.add(std::move(entry)));
}

TensorEntry DeepSpeedState::entry_of(const Value& value, const RankDocument& file,
                                     const std::string& key) const {
  const auto view = as_tensor(value);
  if (!view) files_.refuse(file.name, key, "is not a tensor");
  return make_tensor_entry(*file.document, {key, value.id(), *view}, file.name);
}

TensorEntry DeepSpeedState::in_fp32(TensorEntry entry) {
  const bool is_half = entry.dtype == DType::BFloat16 || entry.dtype == DType::Float16;
  return is_half ? with_cast(std::move(entry), DType::Float32, {}) : entry;
}

void DeepSpeedState::add_buffers(const RankDocument& model) {
  const auto names = files_.in_model(model, "buffer_names");
  const auto module = files_.in_model(model, "module");
  const auto mapping = module ? as_mapping(*module) : std::nullopt;
  std::set<std::string> buffers;
  for (size_t i = 0; names && names->is(Kind::List) && i < names->size(); ++i) {
    buffers.insert(key_text((*names)[i]));
  }
  for (const auto& [key, value] : items_of(mapping)) {
    const std::string name = key_text(key);
    if (!buffers.contains(name)) continue;
    TensorEntry entry = entry_of(value, model, name);
    put(root_, name, in_fp32(std::move(entry)));
  }
}

void DeepSpeedState::add_shared(const RankDocument& model) {
  const auto shared = files_.in_model(model, "shared_params");
  const auto mapping = shared ? as_mapping(*shared) : std::nullopt;
  for (const auto& [key, of] : items_of(mapping)) {
    const auto known = tree().value(root_).find(key_text(of));
    if (known) tree().put(root_, key_text(key), known->id());
  }
}

void DeepSpeedState::add_groups(NodeId optimizer, const std::optional<Value>& groups,
                                const RankDocument& file, const RankDocument& model) {
  if (!groups || !groups->is(Kind::List)) return;
  const auto numbers_of = [](const Value& group) {
    const auto numbers = group.is(Kind::Dict) ? group.find("params") : std::nullopt;
    return numbers && numbers->is(Kind::List) ? numbers->size() : 0;
  };
  size_t flat_count = 0;
  for (size_t i = 0; i < groups->size(); ++i) flat_count += numbers_of((*groups)[i]);
  const NodeId list = tree().list();
  const auto shapes = files_.shapes(model, nullptr);
  size_t flat = 0;
  for (size_t i = 0; i < groups->size(); ++i) {
    const NodeId group = carry((*groups)[i], file);
    tree().append(list, group);
    if (shapes.size() != flat_count) continue;
    const NodeId names = tree().list();
    for (const size_t end = flat + numbers_of((*groups)[i]); flat < end; ++flat) {
      for (const NamedShape& named : shapes[flat]) tree().append(names, tree().str(named.name));
    }
    tree().put(group, "params", names);
  }
  tree().put(optimizer, "param_groups", list);
}

void DeepSpeedState::add_rest(const RankDocument& model, const RankDocument* optimizer) {
  constexpr string_view kRead =
      " module param_shapes frozen_param_shapes frozen_param_fragments shared_params "
      "buffer_names optimizer ";
  const NodeId rest = tree().dict();
  for (const auto& [key, value] : items_of(model.root())) {
    const std::string name = key_text(key);
    if (kRead.find(" " + name + " ") == kRead.npos) tree().put(rest, name, plain(value, model));
  }
  for (const char* name : {"loss_scaler", "dynamic_loss_scale", "overflow", "clip_grad"}) {
    const auto value = optimizer ? files_.optimizer_state(*optimizer).find(name) : std::nullopt;
    if (value) tree().put(rest, name, plain(*value, *optimizer));
  }
  tree().put(root_, "deepspeed", rest);
}

// Of an object of DeepSpeed's own, which nothing else could load, its attributes, or its name.
NodeId DeepSpeedState::plain(const Value& value, const RankDocument& file) {
  if (!names_deepspeed(value)) return carry(value, file);
  const auto attributes = value.is(Kind::Object) ? value.state() : std::nullopt;
  if (attributes && !names_deepspeed(*attributes)) return carry(*attributes, file);
  return tree().str("an object of " + class_name_of(value));
}

}  // namespace ckpt
