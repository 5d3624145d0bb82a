#include "huggingface/import_args.h"

#include <algorithm>
#include <set>
#include <string_view>

#include <ckpt/error.h>

#include "args/run_args.h"
#include "huggingface/table_walk.h"
#include "model/expression.h"

namespace optim {
namespace {

using ckpt::Error;
using ckpt::ErrorCode;
using nlohmann::json;

// Of one rank, whatever the run was whose args are taken.
constexpr std::string_view kOnes[] = {"world_size",
                                      "data_parallel_size",
                                      "tensor_model_parallel_size",
                                      "pipeline_model_parallel_size",
                                      "transformer_pipeline_model_parallel_size",
                                      "context_parallel_size",
                                      "expert_model_parallel_size",
                                      "expert_tensor_parallel_size",
                                      "num_distributed_optimizer_instances"};
constexpr std::string_view kNones[] = {
    "virtual_pipeline_model_parallel_size", "num_layers_per_virtual_pipeline_stage",
    "num_virtual_stages_per_pipeline_rank", "pipeline_model_parallel_layout",
    "decoder_first_pipeline_num_layers",    "decoder_last_pipeline_num_layers"};
constexpr std::string_view kZeros[] = {"iteration",
                                       "rank",
                                       "local_rank",
                                       "consumed_train_samples",
                                       "consumed_valid_samples",
                                       "skipped_train_samples"};
constexpr std::string_view kFalse[] = {"use_distributed_optimizer", kLayerWiseArg,
                                       "account_for_embedding_in_pipeline_split",
                                       "account_for_loss_in_pipeline_split", "sequence_parallel"};

// Plain ones.
json args_of_checkpoint(const std::filesystem::path& path) {
  const OpenedTraining checkpoint = open_checkpoint(path);
  const auto stated = checkpoint.args().args();
  if (!stated) {
    throw Error(ErrorCode::Unsupported, {.file = path.string(), .key = {}},
                "states no args; --args-from needs a Megatron checkpoint, or a JSON object");
  }
  json args = json::object();
  for (size_t i = 0; i < stated->item_count(); ++i) {
    const auto& [name, value] = stated->item(i);
    if (!name.is(ckpt::Kind::Str) || value.is(ckpt::Kind::Object)) continue;
    json plain = json_of(value);
    if (plain != json("(an object)")) args[std::string(name.text())] = std::move(plain);
  }
  return args;
}

// config.json decides; a file may only add to it, args of a run have their own view of it.
json more_args(const std::filesystem::path& from, const json& by_config) {
  if (from.empty()) return json::object();
  if (ckpt::kind_at(from) == ckpt::EntryKind::Folder) return args_of_checkpoint(from);
  const json added = read_object(from);
  for (const auto& [name, value] : added.items()) {
    const json stated = by_config.value(name, json());
    if (stated.is_null() || stated == value) continue;
    throw Error(ErrorCode::Unsupported, {.file = from.string(), .key = name},
                "is " + value.dump() + ", but config.json makes it " + stated.dump(),
                "--args-from adds what config.json does not say");
  }
  return added;
}

json whole_args(const json& by_config, const std::filesystem::path& from) {
  json args = {{"transformer_impl", "transformer_engine"},
               {"moe_grouped_gemm", !by_config.value("num_experts", json()).is_null()},
               {"make_vocab_size_divisible_by", 128},
               {"seq_length", by_config.value("max_position_embeddings", json())}};
  args.update(more_args(from, by_config));
  for (const auto& [name, value] : by_config.items()) {
    if (!value.is_null() || !args.contains(name)) args[name] = value;
  }
  for (const std::string_view name : kOnes) args[std::string(name)] = 1;
  for (const std::string_view name : kNones) args[std::string(name)] = nullptr;
  for (const std::string_view name : kZeros) args[std::string(name)] = 0;
  for (const std::string_view name : kFalse) args[std::string(name)] = false;
  args["padded_vocab_size"] = args.value("vocab_size", json());
  return args;
}

bool is_told_otherwise(const std::string& field) {
  static const std::set<std::string_view> kOthers = {"architectures",
                                                     "model_type",
                                                     "transformers_version",
                                                     "torch_dtype",
                                                     "rope_scaling",
                                                     "rope_parameters",
                                                     "rope_theta",
                                                     "quantization_config",
                                                     "auto_map",
                                                     "num_nextn_predict_layers"};
  return kOthers.contains(field);
}

}  // namespace

ImportArgs import_args(const std::filesystem::path& folder, const HuggingFaceOptions& options) {
  auto [table, by_config] = args_of_config(folder, options.names);
  ImportArgs made{std::move(table), whole_args(by_config, options.args_from), {}, {}};
  const json vocabulary = made.args.value("vocab_size", json());
  if (!vocabulary.is_number_integer()) {
    throw Error(ErrorCode::Unsupported,
                {.file = (folder / "config.json").string(), .key = "vocab_size"},
                "is not a number: the table '" + made.table.name + "' has no args for config.json",
                "docs/huggingface.md says which families are imported");
  }
  made.given = {{"vocabulary", vocabulary}, {"vocabulary_rows", vocabulary}};
  const NameScope scope(made.table, made.args, made.given);
  require_conditions(made.table, scope, "config.json");
  json config = json::object();
  for (const auto& [field, text] : made.table.config) config[field] = scope.value(text);
  require_same_config(config, folder);
  const json stated = config_of(folder);
  for (const auto& [field, value] : stated.items()) {
    if (!config.contains(field) && !is_told_otherwise(field)) made.unused_fields.push_back(field);
  }
  return made;
}

}  // namespace optim
