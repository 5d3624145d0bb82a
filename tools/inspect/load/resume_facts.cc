// What a Megatron checkpoint says that load_checkpoint asks of it.
#include <algorithm>
#include <filesystem>
#include <optional>

#include <ckpt/error.h>
#include <training/layer_wise_checkpoint.h>
#include <training/megatron_folders.h>
#include <training/repair.h>
#include <training/run_facts.h>
#include <training/size_change.h>

#include "inspect/load/resume.h"
#include "inspect/value_text.h"

namespace tools::inspect {
namespace {

nlohmann::json stated_args(const optim::OpenedTraining& checkpoint) {
  const optim::RunFacts facts = run_facts(checkpoint);
  if (!facts.args) {
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {}, "it has no arguments of a Megatron run",
                      "--expect-keys FILE asks for the tensors of a model instead");
  }
  return value_to_json(*facts.args);
}

// "muon" of a LayerWise optimizer is what the command line calls dist_muon.
void name_optimizer_as_typed(nlohmann::json& args, bool is_layer_wise) {
  const auto optimizer = args.find("optimizer");
  if (optimizer == args.end() || !optimizer->is_string() || !is_layer_wise) return;
  const auto& name = optimizer->get_ref<const std::string&>();
  if (!name.starts_with("dist_")) *optimizer = "dist_" + name;
}

bool has_file(const optim::OpenedTraining& checkpoint, std::string_view name) {
  return checkpoint.source().has(checkpoint.folder() / name);
}

// What torch.load(weights_only=True) is asked for.
void add_globals(const ckpt::Document& document, std::set<std::string>& names) {
  for (size_t i = 0; i < document.tree.node_count(); ++i) {
    const ckpt::Value value(document.tree, static_cast<ckpt::NodeId>(i));
    if (!value.is(ckpt::Kind::Global)) continue;
    names.insert(std::string(value.module()) + "." + std::string(value.name()));
  }
}

// The command that mends what its writer did wrong; empty: nothing, as far as is known.
std::string repair_of(const optim::OpenedTraining& checkpoint, const ResumeFacts& facts) {
  if (!facts.is_dist || !facts.is_zero1) return {};
  for (const optim::RepairFinding& found : optim::find_repairs(checkpoint.folder())) {
    if (found.verdict == optim::RepairFinding::Verdict::Sound) continue;
    return "ckpt-convert CKPT OUT --to torch_dist --repair " + std::string(name(found.kind));
  }
  return {};
}

}  // namespace

ResumeFacts resume_facts(const optim::OpenedTraining& checkpoint, const optim::FiledState& state) {
  ResumeFacts facts;
  facts.args = stated_args(checkpoint);
  const ckpt::Catalog& catalog = checkpoint.catalog();
  facts.is_dist = catalog.format == ckpt::Format::TorchDist;
  facts.iteration = catalog.iteration.value_or(0);
  facts.is_layer_wise = state.filed.is_layer_wise;
  facts.distributes_adam = state.filed.release->distributes_adam;
  facts.is_zero1 = state.filed.is_zero1();
  facts.has_buckets = state.filed.has(optim::kBuckets);
  facts.has_ranges = state.filed.has(optim::kRanges);
  facts.has_gathered = state.filed.has(optim::kGathered);
  name_optimizer_as_typed(facts.args, facts.is_layer_wise);
  facts.is_release = state.folder_name == "release";
  facts.has_backend_file = has_file(checkpoint, optim::kMegatronFolders.backend_file);
  facts.mend = repair_of(checkpoint, facts);
  facts.has_common_file = false;
  for (const ckpt::FileEntry& file : catalog.files) {
    const bool is_common = file.path == optim::kMegatronFolders.common_file;
    facts.has_common_file = facts.has_common_file || is_common;
    const size_t slash = file.path.find('/');
    if (slash != file.path.npos) facts.rank_folders.insert(file.path.substr(0, slash));
    const bool is_read = is_common || file.path.ends_with("model_optim_rng.pt");
    const ckpt::Document* const document =
        is_read && facts.globals.empty() ? checkpoint.document(file.path) : nullptr;
    if (document != nullptr) add_globals(*document, facts.globals);
  }
  for (const ckpt::ObjectEntry& object : catalog.objects) {
    const bool is_rng = object.key.starts_with("rng_state/shard_");
    if (is_rng && std::ranges::count(object.key, '.') == 4) facts.has_rng_of_data_ranks = true;
  }
  return facts;
}

std::optional<optim::RunGrid> grid_of_run(const optim::FiledState& state, const ResumeRun& run) {
  if (!run.missing.empty()) return std::nullopt;
  for (const char* shape :
       {"num_attention_heads", "num_experts", "num_layers", "num_query_groups"}) {
    if (run.changes.contains(shape)) return std::nullopt;  // it is another model
  }
  optim::SizeChange change;
  const auto set = [&](const char* name, std::optional<uint32_t>& size) {
    const auto found = run.changes.find(name);
    const bool is_size = found != run.changes.end() && found->is_number_unsigned();
    if (is_size) size = found->get<uint32_t>();
  };
  set("tensor_model_parallel_size", change.tensor_parallel);
  set("pipeline_model_parallel_size", change.pipeline_parallel);
  set("num_virtual_stages_per_pipeline_rank", change.virtual_pipeline_parallel);
  set("context_parallel_size", change.context_parallel);
  set("expert_model_parallel_size", change.expert_parallel);
  set("expert_tensor_parallel_size", change.expert_tensor_parallel);
  set("world_size", change.world_size);
  if (change.empty()) return state.grid;
  if (!change.world_size) change.world_size = static_cast<uint32_t>(state.grid.sizes.world());
  return target_grid(state, change);
}

}  // namespace tools::inspect
