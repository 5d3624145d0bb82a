#include "layouts/layer_wise_view.h"

#include <algorithm>

#include <optim/checkpoint_args.h>

namespace optim {
namespace {

using ckpt::Error;
using ckpt::ErrorCode;
using ckpt::Kind;
using ckpt::Value;

// A positive number that may be absent or None.
uint32_t size_arg(const Value& args, const std::string& file, std::string_view name) {
  const auto value = args.find(name);
  if (!value || value->is_none()) return 1;
  if (!value->is(Kind::Int) || value->as_int() < 1 || value->as_int() > INT32_MAX) {
    throw Error(ErrorCode::Corrupt, {file, std::nullopt, "/args/@" + std::string(name)},
                "is not a valid size");
  }
  return static_cast<uint32_t>(value->as_int());
}

bool is_true(const Value& args, std::string_view name) {
  const auto value = args.find(name);
  return value && value->is(Kind::Bool) && value->as_bool();
}

[[noreturn]] void unsupported(const std::string& file, std::string_view name,
                              const std::string& problem) {
  throw Error(ErrorCode::Unsupported, {file, std::nullopt, "/args/@" + std::string(name)}, problem);
}

void refuse_other_parallelism(const Value& args, const std::string& file) {
  constexpr std::string_view kSizes[] = {
      "tensor_model_parallel_size",           "pipeline_model_parallel_size",
      "virtual_pipeline_model_parallel_size", "context_parallel_size",
      "expert_model_parallel_size",           "expert_tensor_parallel_size",
      "num_distributed_optimizer_instances"};
  for (const std::string_view name : kSizes) {
    const uint32_t size = size_arg(args, file, name);
    if (size > 1) {
      unsupported(file, name,
                  "is " + std::to_string(size) +
                      "; expected 1: only the data-parallel "
                      "size may be above 1");
    }
  }
}

// Arguments that change which parameters there are or how they are stored.
void refuse_other_models(const Value& args, const std::string& file) {
  for (const std::string_view name :
       {"num_experts", "heterogeneous_layers_config_path",
        "heterogeneous_layers_config_encoded_json", "mtp_num_layers", "hybrid_override_pattern"}) {
    const auto value = args.find(name);
    if (value && !value->is_none())
      unsupported(file, name, "is set; models of this kind are not supported");
  }
  for (const std::string_view name : {"use_distributed_optimizer", "multi_latent_attention"}) {
    if (is_true(args, name)) unsupported(file, name, "is set, which is not supported");
  }
}

// Megatron stacks keys over layers only where these are alike (TransformerBlock's
// sharded_state_dict): it asks whether a frequency is a list or above 1.
bool has_layers_alike(const Value& args) {
  for (const std::string_view name : {"moe_layer_freq", "linear_attention_freq"}) {
    const auto value = args.find(name);
    if (value && (value->is(Kind::List) || (value->is(Kind::Int) && value->as_int() > 1))) {
      return false;
    }
  }
  return !is_true(args, "hetereogenous_dist_checkpoint");  // sic
}

bool has_local_layers(const Value& args, const std::string& file) {
  const auto implementation = args.find("transformer_impl");
  if (!implementation || !implementation->is(Kind::Str)) {
    unsupported(file, "transformer_impl", "is missing, so the names of layer norms are unknown");
  }
  if (implementation->text() == "local") return true;
  if (implementation->text() == "transformer_engine") return false;
  unsupported(file, "transformer_impl",
              "'" + ckpt::escaped(implementation->text()) + "' is not known");
}

}  // namespace

std::string state_key(std::string_view state, std::string_view name) {
  return std::string(kStatePrefix) + std::string(state) + "." + std::string(name);
}

std::string rank_item_name(uint32_t optimizer, bool is_inner, std::string_view key) {
  return "optimizer." + std::to_string(optimizer) + (is_inner ? "/optimizer/" : "/") +
         std::string(key);
}

bool is_state_dtype(ckpt::DType dtype) {
  switch (dtype) {
    case ckpt::DType::Float32:
    case ckpt::DType::Float64:
    case ckpt::DType::Float16:
    case ckpt::DType::BFloat16:
    case ckpt::DType::Float8E4M3FN:
    case ckpt::DType::Float8E4M3FNUZ:
    case ckpt::DType::Float8E5M2:
    case ckpt::DType::Float8E5M2FNUZ: return true;
    default: return false;
  }
}

std::optional<ckpt::Extents> shape_of_state(std::string_view state, const ckpt::Extents& of_param) {
  if (state == "moment2_buffer") return std::nullopt;
  const bool is_left = state == "L" || state == "Q_L", is_right = state == "R" || state == "Q_R";
  if ((!is_left && !is_right) || of_param.size() != 2) return of_param;
  const uint64_t size = of_param[is_left ? 0 : 1];
  return ckpt::Extents{size, size};
}

void read_args(const Value& args, const std::string& file, TrainingState& view) {
  if (!is_true(args, kLayerWiseArg)) {
    unsupported(file, kLayerWiseArg, "is not set; expected a LayerWise checkpoint");
  }
  refuse_other_parallelism(args, file);
  refuse_other_models(args, file);
  view.sizes = {};
  view.sizes.data_parallel = size_arg(args, file, "data_parallel_size");
  view.layer_count = size_arg(args, file, "num_layers");
  view.gated_linear_unit = is_true(args, "swiglu");
  view.layer_norm_renamed = has_local_layers(args, file);
  view.layers_stacked = has_layers_alike(args);
}

KeyRules key_rules(const TrainingState& view) {
  return {view.layer_norm_renamed, view.layer_count, view.layers_stacked};
}

TensorRef with_key(ckpt::TensorEntry tensor, std::string key) {
  tensor.file.clear();
  tensor.key = std::move(key);
  return std::make_shared<const ckpt::TensorEntry>(std::move(tensor));
}

TrainedParam make_param(const ckpt::TensorEntry& tensor, std::string name) {
  TrainedParam param;
  param.weight = with_key(tensor, name);
  param.info.attributes = megatron_attributes(name, tensor.shape.size());
  param.info.name = std::move(name);
  param.info.shape.assign(tensor.shape.begin(), tensor.shape.end());
  param.info.dtype = tensor.dtype;
  return param;
}

std::vector<ParamGroup> group_params(const Value& args, std::vector<TrainedParam>& params) {
  std::vector<ParamInfo> infos;
  for (const TrainedParam& param : params) infos.push_back(param.info);
  std::vector<ParamGroup> groups = get_param_groups(infos, config_from_args(args));
  uint32_t group = 0;
  for (size_t i = 0; i < groups.size(); ++i) {
    group = i > 0 && groups[i].optimizer_index == groups[i - 1].optimizer_index ? group + 1 : 0;
    for (const GroupedParam& grouped : groups[i].params) {
      params[grouped.index].optimizer = groups[i].optimizer_index;
      params[grouped.index].group = group;
    }
  }
  return groups;
}

RankGroups deal_params(const std::vector<ParamGroup>& groups, uint32_t data_parallel,
                       OwnershipPolicy policy) {
  std::vector<uint32_t> param_of_id;
  for (const ParamGroup& group : groups) {
    for (const GroupedParam& grouped : group.params) {
      param_of_id.push_back(static_cast<uint32_t>(grouped.index));
    }
  }
  ParallelSizes sizes;
  sizes.data_parallel = data_parallel;
  const Ownership ownership = shard_params(groups, sizes, policy);
  RankGroups ranks;
  for (uint32_t rank = 0; rank < data_parallel; ++rank) {
    ranks.push_back(ownership.groups_on({rank, 0}));
    for (auto& ids : ranks.back()) {
      for (uint32_t& id : ids) id = param_of_id[id];
    }
  }
  return ranks;
}

ckpt::Document CommonBuilder::finish() { return builder_.finish_document(root_); }

void finish_view(TrainingState& view, CommonBuilder& common, const ckpt::Checkpoint& source) {
  view.common = common.finish();
  view.format = source.catalog().format;
  view.folder_name = source.folder().filename().string();
}

}  // namespace optim
