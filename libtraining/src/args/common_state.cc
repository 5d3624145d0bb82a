#include "args/common_state.h"

#include <algorithm>
#include <array>
#include <list>
#include <map>
#include <utility>

#include <ckpt/archive_builder.h>
#include <training/megatron_folders.h>

#include "args/bridge_args.h"
#include "args/run_args.h"
#include "state/words.h"

namespace optim {
namespace {

constexpr const char* kCommonFile = "common.pt";

bool is_of_common_state(const ckpt::ObjectEntry& object) {
  constexpr std::array<std::string_view, 3> kOthers = {"model.", "optimizer.", "rng_state."};
  return std::ranges::none_of(
      kOthers, [&](std::string_view prefix) { return object.key.starts_with(prefix); });
}

// "opt_param_scheduler.max_lr" is a value of a dictionary.
CommonState common_of_state_dicts(const ckpt::Checkpoint& checkpoint) {
  ckpt::ArchiveBuilder builder;
  ValueTree& tree = builder.tree();
  const NodeId root = tree.dict();
  std::map<std::string, NodeId> dicts;
  std::list<Document> read;  // storages are told apart by document
  for (const ckpt::ObjectEntry& object : checkpoint.catalog().objects) {
    if (!is_of_common_state(object)) continue;
    const Document& one = read.emplace_back(checkpoint.read_object(object));
    const NodeId value = builder.carry(one.tree.root(), one);
    const size_t dot = object.key.find('.');
    if (dot == object.key.npos) {
      tree.put(root, object.key, value);
      continue;
    }
    const auto [dict, is_new] = dicts.try_emplace(object.key.substr(0, dot));
    if (is_new) tree.put(root, dict->first, dict->second = tree.dict());
    tree.put(dict->second, std::string_view(object.key).substr(dot + 1), value);
  }
  return {".metadata", "", std::make_shared<Document>(builder.finish_document(root))};
}

std::string text_at(const std::optional<Value>& dict, std::string_view key) {
  const auto value = dict && dict->is(Kind::Dict) ? dict->find(key) : std::nullopt;
  return value && value->is(Kind::Str) ? std::string(value->text()) : std::string();
}

bool has_file(const ckpt::Catalog& catalog, std::string_view part) {
  return std::ranges::any_of(catalog.files, [&](const ckpt::FileEntry& file) {
    return file.path.find(part) != file.path.npos;
  });
}

bool has_key(const ckpt::Catalog& catalog, std::string_view part) {
  return std::ranges::any_of(catalog.tensors, [&](const TensorEntry& tensor) {
    return tensor.key.find(part) != tensor.key.npos;
  });
}

// How Megatron calls the ways in which a DistributedOptimizer stores its state.
std::string sharding_of(const ckpt::Catalog& catalog) {
  if (catalog.format == ckpt::Format::Torch) return ", flat_file";
  if (has_key(catalog, "optimizer.distributed.dp_group_idx_")) return ", dp_reshardable";
  return has_key(catalog, "optimizer.state.param.") ? ", fully_reshardable" : "";
}

std::string optimizer_kind(const ckpt::Catalog& catalog, const RunArgs& args) {
  const std::string name = args.text("optimizer");
  const bool is_layer_wise = args.is_true("use_layer_wise_distributed_optimizer") ||
                             has_file(catalog, "/layer_wise_optimizer_");
  if (is_layer_wise) return "a LayerWise" + (name.empty() ? "" : " (" + name + ")") + " checkpoint";
  if (args.is_true("use_distributed_optimizer") || has_file(catalog, "/distrib_optim.pt")) {
    return "a DistributedOptimizer (ZeRO-1" + sharding_of(catalog) + ") checkpoint";
  }
  if (!args.are_there()) return "a Megatron checkpoint without training arguments";
  return "a Megatron checkpoint without a distributed optimizer" +
         (name.empty() ? "" : " (" + name + ")");
}

std::string sizes_of(const RunArgs& args) {
  constexpr std::pair<const char*, const char*> kSizes[] = {{"TP", "tensor_model_parallel_size"},
                                                            {"PP", "pipeline_model_parallel_size"},
                                                            {"CP", "context_parallel_size"},
                                                            {"EP", "expert_model_parallel_size"}};
  std::string text;
  for (const auto& [name, field] : kSizes) {
    const uint32_t size = args.size(field);
    if (size == 1) continue;
    text += (text.empty() ? " with " : ", ") + std::string(name) + " " + std::to_string(size);
  }
  return text;
}

std::string commands_for(const OpenedTraining& checkpoint) {
  const std::string groups = is_megatron(checkpoint) ? "groups, " : "";
  return "ckpt-inspect ls, show, tree, " + groups + "hash, diff and verify";
}

// What people want who ask for a training state of a checkpoint that has none.
std::string what_else(const OpenedTraining& checkpoint) {
  const std::filesystem::path around = checkpoint.folder().lexically_normal() / "..";
  if (checkpoint.source().has(around / kNemoConfig)) {
    return "; open " + ckpt::escaped(around.lexically_normal().string()) + " with NeMo's context/";
  }
  if (is_megatron(checkpoint)) return {};
  return checkpoint.catalog().format == ckpt::Format::TorchDist
             ? "; torch.distributed.checkpoint loads it at any number of ranks as it is"
             : "; it has no parallel sizes: ckpt-convert changes its format";
}

}  // namespace

void CommonState::corrupt(const std::string& pointer, std::string problem) const {
  throw Error(ErrorCode::Corrupt, {file, std::nullopt, key + pointer}, std::move(problem));
}

bool holds_state_dicts(const ckpt::Catalog& catalog) {
  constexpr std::array<std::string_view, 3> kOfMegatron = {"args", "checkpoint_version",
                                                           "iteration"};
  return catalog.format == ckpt::Format::TorchDist &&
         std::ranges::all_of(kOfMegatron, [&](std::string_view key) {
           return catalog.find_object(key) != nullptr;
         });
}

std::optional<CommonState> read_common_state(const ckpt::Checkpoint& checkpoint) {
  const Document* file = checkpoint.document(kCommonFile);
  const ckpt::ObjectEntry* object = checkpoint.catalog().find_object(kCommonStateKey);
  if (file != nullptr && object != nullptr) {
    throw Error(ErrorCode::Corrupt, {kCommonFile, std::nullopt, std::string(kCommonStateKey)},
                "the common state is stored twice: in this file and in .metadata");
  }
  if (file != nullptr) {
    return CommonState{kCommonFile, "", {std::shared_ptr<const Document>(), file}};
  }
  if (object == nullptr) {
    if (!holds_state_dicts(checkpoint.catalog())) return std::nullopt;
    return common_of_state_dicts(checkpoint);
  }
  auto document = std::make_shared<Document>(checkpoint.read_object(*object));
  const Value root = document->tree.root();
  if (!root.is(Kind::List) || root.size() != 1 || !root[0].is(Kind::Dict)) {
    throw Error(ErrorCode::Corrupt, {".metadata", std::nullopt, std::string(kCommonStateKey)},
                "is not a list of one dictionary");
  }
  document->tree.set_root(root[0].id());
  return CommonState{".metadata", std::string(kCommonStateKey), std::move(document)};
}

const ckpt::Catalog& keys_of(const OpenedTraining& checkpoint) {
  const CommonState* const state = checkpoint.common_state();
  return state != nullptr && state->catalog ? *state->catalog : checkpoint.catalog();
}

std::string stated_sharding(const Value& common_root) {
  if (!common_root.is(Kind::Dict)) return {};
  std::string content =
      text_at(common_root.find("content_metadata"), "distrib_optim_sharding_type");
  if (!content.empty()) return content;
  auto optimizer = common_root.find("optimizer");  // up to 0.12
  if (!optimizer || !optimizer->is(Kind::Dict)) return {};
  if (const auto first = optimizer->find(int64_t{0})) optimizer = first;
  return text_at(optimizer, "param_state_sharding_type");
}

const Release* release_of(bool has_common_file, const Value& common_root) {
  const auto chain =
      common_root.is(Kind::Dict) ? common_root.find("optimizer") : std::optional<Value>();
  bool distributes_adam = false;
  for (size_t i = 0; chain && chain->is(Kind::Dict) && i < chain->item_count(); ++i) {
    const Value optimizer = chain->item(i).second;
    const bool is_dict = optimizer.is(Kind::Dict);
    if (is_dict && optimizer.find("param_state_sharding_type")) distributes_adam = true;
  }
  const Release* nearest = nullptr;
  for (const Release* const release : releases()) {
    if (release->has_common_file != has_common_file) continue;
    if (release->distributes_adam == distributes_adam) return release;
    if (nearest == nullptr) nearest = release;
  }
  return nearest;
}

std::string kind_of_checkpoint(const OpenedTraining& checkpoint) {
  if (!is_megatron(checkpoint)) {
    return "a plain " + std::string(name(checkpoint.catalog().format)) + " checkpoint";
  }
  const RunArgs& args = checkpoint.args();
  return optimizer_kind(checkpoint.catalog(), args) + sizes_of(args);
}

std::string what_works_on(const OpenedTraining& checkpoint) {
  return commands_for(checkpoint) + " work on " + kind_of_checkpoint(checkpoint);
}

void refuse_kind(const OpenedTraining& checkpoint, std::string_view expected) {
  const auto files = checkpoint.files();
  const bool is_file = !is_megatron(checkpoint) && files.size() == 1;
  const auto& named = is_file ? files.front() : checkpoint.folder();
  throw Error(ErrorCode::Unsupported, {.file = named.string(), .key = {}},
              "is " + kind_of_checkpoint(checkpoint) + "; expected " + std::string(expected),
              commands_for(checkpoint) + " work on it" + what_else(checkpoint));
}

bool is_megatron(const ckpt::Checkpoint& checkpoint) {
  const ckpt::FolderConvention* const convention = checkpoint.convention();
  return convention != nullptr && convention->framework == kMegatronFolders.framework;
}

}  // namespace optim
