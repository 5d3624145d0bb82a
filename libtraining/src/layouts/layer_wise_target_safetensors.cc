// The canonical view as safetensors: every tensor under its canonical name, and a list of the rest.
#include <set>

#include <ckpt/error.h>
#include <ckpt/plain_target.h>
#include <ckpt/safetensors_target.h>

#include "layouts/job/layer_wise_target.h"
#include "layouts/job/tensor_attributes.h"

namespace optim {
namespace {

using ckpt::Error;
using ckpt::ErrorCode;

constexpr const char* kNoTensor = "not a tensor; safetensors stores only tensors";

// What the canonical view holds beside tensors, as `hash --logical` names it.
std::vector<std::string> objects_of(const TrainingState& view) {
  std::vector<std::string> names;
  const ckpt::Value common = view.common.tree.root();
  for (size_t i = 0; i < common.item_count(); ++i) {
    names.push_back(ckpt::key_text(common.item(i).first));
  }
  for (size_t i = 0; i < view.chain.size(); ++i) {
    names.push_back("optimizer." + std::to_string(i));
  }
  for (const ModelEntry& entry : view.model) {
    if (entry.object) names.push_back(entry.name);
  }
  for (const auto& [key, document] : view.rank_objects) names.push_back(key);
  for (const RankItem& item : view.rank_items) names.push_back(item.name);
  return names;
}

// Of the tensor that loses something: "attributes of KEY", "class of KEY".
std::string key_of(const ckpt::NotCarried& lost) {
  const size_t of = lost.what.find(" of ");
  return of == std::string::npos ? lost.what : lost.what.substr(of + 4);
}

}  // namespace

ckpt::KeyRules rules_for(const TrainingState& view, ckpt::KeyRules rules) {
  const std::vector<std::string> objects = objects_of(view);
  std::vector<ckpt::KeyName> names;
  for (const TensorRef& tensor : tensors_of(view)) names.push_back({{}, tensor->key});
  for (const std::string& name : objects) names.push_back({{}, name});
  rules.resolve(names);
  return rules;
}

std::optional<std::string> key_in_safetensors(const std::string& key, const ckpt::KeyRules& rules) {
  if (!rules.accepts(key)) return std::nullopt;
  return rules.renamed(key);
}

ckpt::Target make_layer_wise_safetensors(const TrainingState& source,
                                         const ckpt::KeyRules& key_rules, bool as_folder) {
  const ckpt::KeyRules rules = rules_for(source, key_rules);
  ckpt::SafetensorsSpec spec;
  spec.as_folder = as_folder;
  std::set<std::string> keys;
  for (const TensorRef& tensor : tensors_of(source)) {
    const auto key = key_in_safetensors(tensor->key, rules);
    if (!key) continue;
    if (!keys.insert(*key).second) {
      throw Error(ErrorCode::InvalidArgument, {.file = {}, .key = *key},
                  "--rename gives this name to two keys");
    }
    spec.tensors.push_back({*key, tensor_source(tensor)});
  }
  if (spec.tensors.empty()) {
    throw Error(ErrorCode::InvalidArgument, {}, "no keys are left to write",
                "--include and --exclude choose the keys");
  }
  std::vector<ckpt::NotCarried> not_carried;
  const auto add = [&](const std::vector<ckpt::NotCarried>& losses) {
    for (const ckpt::NotCarried& lost : losses) {
      if (rules.accepts(key_of(lost))) not_carried.push_back(lost);
    }
  };
  add(source.not_carried);
  for (const std::string& name : objects_of(source)) {
    if (rules.accepts(name)) not_carried.push_back({name, kNoTensor, name});
  }
  add(lost_attributes(source));
  ckpt::Target target = ckpt::make_safetensors_target(std::move(spec), std::move(not_carried));
  target.left_out_count = rules.left_out_count();
  return target;
}

}  // namespace optim
