#include "huggingface/config_args.h"

#include <algorithm>
#include <set>
#include <string_view>

#include <ckpt/named_file.h>

#include "args/run_args.h"
#include "huggingface/table_walk.h"
#include "model/expression.h"
#include "state/words.h"

namespace optim {
namespace {

using nlohmann::json;

namespace fs = std::filesystem;

constexpr uint64_t kBytesMax = 16 << 20;
constexpr int kDepthMax = 32;

// Fields of objects by the names of all: rope_parameters_full_attention_rope_theta.
void flatten(const std::string& front, const json& object, json& flat, int depth = 0) {
  for (const auto& [name, value] : object.items()) {
    flat[front + name] = value;
    if (value.is_object() && depth < 2) flatten(front + name + "_", value, flat, depth + 1);
  }
}

NameTable table_of(const json& config, const fs::path& folder, const std::string& names) {
  if (names != "auto") return find_table(names);
  if (auto table = table_of_architecture(architecture_of(config))) return *std::move(table);
  std::string known;
  for (const std::string& name : known_tables()) {
    known += (known.empty() ? "" : ", ") + find_table(name).architecture;
  }
  throw Error(
      ErrorCode::Unsupported, {.file = (folder / "config.json").string(), .key = "architectures"},
      "is " + config.value("architectures", json::array()).dump() + ", expected one of " + known,
      "--names FILE takes a table of your own, --names none keeps a folder's names: "
      "docs/huggingface.md");
}

NodeId node_of(const json& value, ValueTree& tree, int depth = 0) {
  if (value.is_boolean()) return tree.boolean(value.get<bool>());
  if (value.is_number_integer()) return tree.integer(value.get<int64_t>());
  if (value.is_number()) return tree.real(value.get<double>());
  if (value.is_string()) return tree.str(value.get<std::string>());
  if (!value.is_array() || depth > kDepthMax) return tree.none();
  const NodeId list = tree.list();
  for (const json& each : value) tree.append(list, node_of(each, tree, depth + 1));
  return list;
}

// Releases of transformers write it in two places; null: as it is without any.
json rope_of(const json& config) {
  json rope = config.value("rope_scaling", json());
  if (rope.is_null()) rope = config.value("rope_parameters", json());
  if (rope.is_object() && rope.contains("full_attention")) rope = json(rope["full_attention"]);
  if (!rope.is_object()) return nullptr;
  rope.erase("rope_theta");
  if (rope.contains("type") && !rope.contains("rope_type")) rope["rope_type"] = rope["type"];
  rope.erase("type");
  return rope.value("rope_type", json("default")) == "default" ? json() : rope;
}

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
  for (const auto& [name, value] : ckpt::items_of(*stated)) {
    if (!name.is(Kind::Str) || value.is(Kind::Object)) continue;
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

json read_object(const fs::path& path) {
  json object = json::parse(ckpt::read_named_file(path, kBytesMax), nullptr, false);
  if (object.is_object()) return object;
  throw Error(ErrorCode::Corrupt, {.file = path.string(), .key = {}}, "is not a JSON object",
              "copy it again; from a Hugging Face folder --names none needs none");
}

json config_of(const fs::path& folder) { return read_object(folder / "config.json"); }

std::string architecture_of(const json& config) {
  const json stated = config.value("architectures", json());
  const bool is_one = stated.is_array() && stated.size() == 1 && stated[0].is_string();
  return is_one ? stated[0].get<std::string>() : "";
}

ConfigArgs args_of_config(const fs::path& folder, const std::string& names) {
  const json config = config_of(folder);
  json flat = json::object();
  flatten("", config, flat);
  ConfigArgs found{table_of(config, folder, names), json::object()};
  for (const auto& [name, text] : found.table.args) {
    try {
      found.args[name] =
          evaluate(text, [&](const std::string& field) { return flat.value(field, json()); });
    } catch (Error& error) {
      throw error.within({.file = (folder / "config.json").string(), .key = name});
    }
  }
  return found;
}

std::optional<NameTable> table_of_architecture(const std::string& architecture) {
  for (const std::string& name : known_tables()) {
    NameTable table = find_table(name);
    if (table.architecture == architecture) return table;
  }
  return std::nullopt;
}

std::shared_ptr<const Document> state_of_args(const json& args) {
  auto document = std::make_shared<Document>();
  ValueTree& tree = document->tree;
  const NodeId attributes = tree.dict();
  for (const auto& [name, value] : args.items()) tree.put(attributes, name, node_of(value, tree));
  const NodeId space =
      tree.object(ckpt::Construction::Reduce, tree.global("argparse", "Namespace"), tree.tuple());
  tree.set_state(space, attributes);
  const NodeId root = tree.dict();
  tree.put(root, "args", space);
  tree.set_root(root);
  return document;
}

void require_same_config(const json& made, const fs::path& folder) {
  constexpr std::string_view kOwn[] = {"dtype",        "use_cache",    "rope_scaling", "rope_theta",
                                       "bos_token_id", "eos_token_id", "pad_token_id"};
  const json given = config_of(folder);
  const auto refuse = [&](const std::string& field, const json& is, const json& expected) {
    throw Error(ErrorCode::Unsupported, {.file = (folder / "config.json").string(), .key = field},
                "is " + is.dump() + ", but the model would get " + expected.dump(),
                "--args-from FILE says what args of the checkpoint lack");
  };
  for (const auto& [field, value] : made.items()) {
    const auto stated = given.find(field);
    if (stated == given.end() || stated->is_null()) continue;
    if (std::ranges::find(kOwn, field) != std::end(kOwn) || *stated == value) continue;
    refuse(field, *stated, value);
  }
  const json rope = rope_of(given), made_rope = rope_of(made);
  if (rope != made_rope) refuse("rope_parameters", rope, made_rope);
}

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
