#include "args/checkpoint_kind.h"

#include <algorithm>
#include <utility>

#include <ckpt/error.h>
#include <training/megatron_folders.h>

#include "args/run_args.h"

namespace optim {
namespace {

bool has_file(const ckpt::Catalog& catalog, std::string_view part) {
  return std::ranges::any_of(catalog.files, [&](const ckpt::FileEntry& file) {
    return file.path.find(part) != file.path.npos;
  });
}

bool has_key(const ckpt::Catalog& catalog, std::string_view part) {
  return std::ranges::any_of(catalog.tensors, [&](const ckpt::TensorEntry& tensor) {
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
  if (is_megatron(checkpoint)) return {};
  return checkpoint.catalog().format == ckpt::Format::TorchDist
             ? "; torch.distributed.checkpoint loads it at any number of ranks as it is"
             : "; it has no parallel sizes: ckpt-convert changes its format";
}

}  // namespace

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
  throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = named.string(), .key = {}},
                    "is " + kind_of_checkpoint(checkpoint) + "; expected " + std::string(expected),
                    commands_for(checkpoint) + " work on it" + what_else(checkpoint));
}

bool is_megatron(const ckpt::Checkpoint& checkpoint) {
  const ckpt::FolderConvention* const convention = checkpoint.convention();
  return convention != nullptr && convention->framework == kMegatronFolders.framework;
}

}  // namespace optim
