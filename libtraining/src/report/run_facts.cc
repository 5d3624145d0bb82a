#include <ckpt/inventory.h>
#include <training/megatron_folders.h>
#include <training/run_facts.h>

#include "args/common_state.h"
#include "args/run_args.h"
#include "state/unless_damaged.h"

namespace optim {
namespace {

using ckpt::Kind;
using ckpt::Value;

constexpr const char* kSizes[] = {"tensor_model_parallel_size",
                                  "pipeline_model_parallel_size",
                                  "virtual_pipeline_model_parallel_size",
                                  "context_parallel_size",
                                  "expert_model_parallel_size",
                                  "expert_tensor_parallel_size",
                                  "data_parallel_size",
                                  "world_size"};

// The root of the file or object that has `args`.
std::optional<Value> common_root(const OpenedTraining& checkpoint, RunFacts& facts) {
  for (const auto& [path, file, document] : documents_of(checkpoint)) {
    if (args_of(document->tree.root())) return document->tree.root();
  }
  if (checkpoint.catalog().format != ckpt::Format::TorchDist) return std::nullopt;
  const auto common = unless_damaged([&] { return checkpoint.common_state(); });
  if (!common || *common == nullptr) return std::nullopt;
  facts.document = (*common)->document;
  return facts.document->tree.root();
}

void add_version(const Value& root, RunFacts& facts) {
  const auto version = root.is(Kind::Dict) ? root.find("checkpoint_version") : std::nullopt;
  if (!version) return;
  if (version->is(Kind::Str)) facts.checkpoint_version = version->text();
  const bool is_number = version->is(Kind::Float) || version->is(Kind::Int);
  if (is_number) facts.checkpoint_version = std::to_string(version->as_float());
  while (is_number && facts.checkpoint_version.ends_with("00")) facts.checkpoint_version.pop_back();
}

}  // namespace

RunFacts run_facts(const OpenedTraining& checkpoint) {
  RunFacts facts;
  const auto root = common_root(checkpoint, facts);
  if (!root) return facts;
  facts.args = args_of(*root);
  const bool has_file = checkpoint.document(kMegatronFolders.common_file) != nullptr;
  facts.release = release_of(has_file, *root);
  add_version(*root, facts);
  if (!facts.args) return facts;
  for (const char* name : kSizes) {
    const auto size = facts.args->find(name);
    if (size && size->is(Kind::Int)) facts.sizes.emplace_back(name, size->as_int());
  }
  const auto optimizer = facts.args->find("optimizer");
  if (optimizer && optimizer->is(Kind::Str)) facts.optimizer = optimizer->text();
  const auto decoupled = facts.args->find("decoupled_weight_decay");
  if (decoupled && decoupled->is(Kind::Bool)) facts.decoupled_weight_decay = decoupled->as_bool();
  return facts;
}

}  // namespace optim
