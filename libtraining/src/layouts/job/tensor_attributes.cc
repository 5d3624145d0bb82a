// Attributes of the tensors of torch files, from the pickle to what a target loses of them.
#include "layouts/job/tensor_attributes.h"

#include <algorithm>
#include <map>

#include "state/words.h"

namespace optim {
namespace {

// Other than torch.Tensor; `tree` is that of the tensor.
std::optional<std::string> other_class(const ValueTree& tree, const ckpt::TensorView& tensor) {
  if (tensor.is_parameter) return "torch.nn.Parameter";
  if (!tensor.subclass) return std::nullopt;
  const Value type = tree.value(*tensor.subclass);
  return ckpt::escaped(type.module()) + "." + ckpt::escaped(type.name());
}

bool is_equal(const Value& value, const Attribute& attribute) {
  if (const bool* flag = std::get_if<bool>(&attribute.second)) {
    return value.is(Kind::Bool) && value.as_bool() == *flag;
  }
  return value.is(Kind::Int) && value.as_int() == std::get<int64_t>(attribute.second);
}

// Names of what `stated` holds beside `given`, or otherwise; nullopt for what is not a dict.
std::optional<std::vector<std::string>> names_beside(const Value& stated,
                                                     const std::vector<Attribute>& given) {
  if (!stated.is(Kind::Dict)) return std::nullopt;
  std::vector<std::string> names;
  for (size_t i = 0; i < stated.item_count(); ++i) {
    const Value key = stated.item(i).first, value = stated.item(i).second;
    const std::string name = ckpt::key_text(key);
    const bool is_given = std::ranges::any_of(given, [&](const Attribute& attribute) {
      return key.is(Kind::Str) && attribute.first == name && is_equal(value, attribute);
    });
    if (!is_given) names.push_back(name);
  }
  return names;
}

// ": a, b"; empty where no name is known.
std::string listed(const std::optional<std::vector<std::string>>& names) {
  std::string list;
  for (const std::string& name : names.value_or(std::vector<std::string>())) {
    list += (list.empty() ? ": " : ", ") + ckpt::escaped(name);
  }
  return list;
}

// The class and requires_grad, which no target holds.
void note_kind(const FoundTensor& tensor, const ckpt::TensorView& stated, TrainingState& state) {
  const std::string& key = tensor.key;
  if (const auto type = other_class(tensor.document.tree, stated)) {
    state.not_carried.push_back({"class of " + key, *type + " becomes a plain tensor"});
  }
  if (stated.requires_grad) {
    state.not_carried.push_back({"requires_grad of " + key, "tensors are written without it"});
  }
}

std::map<std::string, const TrainedParam*> params_by_master(const TrainingState& state) {
  std::map<std::string, const TrainedParam*> params;
  for (const TrainedParam& param : state.params) {
    if (param.master) params.emplace(param.master->key, &param);
  }
  return params;
}

}  // namespace

void note_attributes(const FoundTensor& tensor, CommonBuilder& common, TrainingState& state) {
  const auto& [key, value, document] = tensor;
  const auto stated = ckpt::as_tensor(value);
  if (!stated) return;
  if (stated->attributes) {
    state.attributes[key] = common.carry(document.tree.value(*stated->attributes), document);
  }
  note_kind(tensor, *stated, state);
}

void note_what_a_step_loses(const FoundTensor& step, TrainingState& state) {
  const auto stated = ckpt::as_tensor(step.value);
  if (!stated) return;
  note_kind(step, *stated, state);
  if (!stated->attributes) return;
  const auto names = names_beside(step.document.tree.value(*stated->attributes), {});
  if (names && names->empty()) return;
  state.not_carried.push_back(
      {"attributes of " + step.key, "a step count is written as a plain number" + listed(names)});
}

std::vector<Attribute> master_attributes(const TrainedParam& param) {
  const ParamAttributes& known = param.info.attributes;
  if (!known.tensor_model_parallel) return {};
  std::vector<Attribute> attributes;
  if (known.is_qkv) attributes.emplace_back("is_qkv", true);
  attributes.emplace_back("tensor_model_parallel", true);
  attributes.emplace_back("partition_dim", int64_t{known.partition_dim});
  const bool has_halves = param.sharing.is_split() && param.sharing.split->sections.size() == 2;
  attributes.emplace_back("partition_stride", int64_t{has_halves ? 2 : 1});
  return attributes;
}

std::vector<ckpt::NotCarried> lost_attributes(const TrainingState& state) {
  std::vector<ckpt::NotCarried> lost;
  if (state.attributes.empty()) return lost;
  const auto params = params_by_master(state);
  for (const auto& [key, node] : state.attributes) {
    const auto param = params.find(key);
    const auto given =
        param == params.end() ? std::vector<Attribute>() : master_attributes(*param->second);
    const auto names = names_beside(state.common.tree.value(node), given);
    if (names && names->empty()) continue;
    lost.push_back(
        {"attributes of " + key, "only torch files can hold tensor attributes" + listed(names)});
  }
  return lost;
}

}  // namespace optim
