#include "convert/repaired_source.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include <training/known_arguments.h>
#include <training/megatron_folders.h>
#include <training/opened_training.h>

#include "args/bridge_args.h"
#include "huggingface/config_args.h"
#include "huggingface/model_files.h"
#include "issues/lost_common_state.h"
#include "issues/overwritten_ranks.h"
#include "state/words.h"
#include "verify/checks.h"

namespace optim {
namespace {

// Of verl's folders, global_step_N/actor: the shards of its Megatron backend, and huggingface/
// beside them.
constexpr const char* kShards = "dist_ckpt";

// A common state of another iteration says where training goes on, and how far optimizers are.
void accept_other_iteration(const OpenedTraining& source, const RepairOptions& options,
                            FiledState& state) {
  const auto other = other_iteration(source);
  if (!other) return;
  const std::string stated = std::to_string(other->stated), own = std::to_string(other->of_folder);
  if (!options.accept_loss) {
    throw Error(ErrorCode::Corrupt, {.file = options.like.string(), .key = {}},
                "its common state is of iteration " + stated + ", expected " + own,
                "--accept-loss takes its step counts, schedule and iteration all the same");
  }
  state.not_carried.push_back({"schedule, step counts and iteration " + own,
                               "in no file: those of iteration " + stated + " are in their place"});
}

void refuse_other_model(const RepairOptions& options, const FiledState& state) {
  const auto found = contradicted_arg(state, ContradictedArg::Decides::Modules);
  if (!found) return;
  throw Error(ErrorCode::Corrupt, {.file = options.like.string(), .key = "args." + found->name},
              found->problem, "--like needs an iteration of the same run");
}

// Where options ask for it.
std::optional<RepairFinding> replace_common_state(const std::filesystem::path& source,
                                                  const RepairOptions& repair,
                                                  ckpt::OpenOptions& opening) {
  if (!repair.wants(RepairKind::CommonState)) {
    if (repair.like.empty()) return std::nullopt;
    throw Error(ErrorCode::InvalidArgument, {}, "--like needs --repair common-state");
  }
  RepairFinding finding{.kind = RepairKind::CommonState, .text = "the common state can be used"};
  const auto fault = fault_of_common_state(source, {opening.iteration, opening.limits, {}});
  if (!fault) return finding;
  if (repair.like.empty()) {
    throw Error(ErrorCode::InvalidArgument, {},
                "--repair common-state needs --like OTHER: " + *fault);
  }
  opening.source = with_common_of(repair.like, opening.limits);
  finding.verdict = RepairFinding::Verdict::Mendable;
  finding.text = *fault + "; that of " + ckpt::escaped(repair.like.string()) + " is in its place";
  return finding;
}

OpenedTraining open_or_explain(const std::filesystem::path& source, const ConvertOptions& options,
                               ckpt::OpenOptions opening) {
  try {
    return open_checkpoint(source, std::move(opening));
  } catch (const Error& error) {
    const auto overwritten = find_overwritten(source, error, options.base.limits);
    if (!overwritten) throw;
    throw Error(ErrorCode::Corrupt, overwritten->where, overwritten->problem,
                "--model-only carries the weights, which are complete; " + overwritten->hint);
  }
}

// TransformerEngine's modules have the norm before them as a weight of their own.
const char* modules_of(const OpenedTraining& checkpoint) {
  const bool has_engine = std::ranges::any_of(
      checkpoint.catalog().tensors,
      [](const TensorEntry& tensor) { return tensor.key.ends_with(".layer_norm_weight"); });
  return has_engine ? "transformer_engine" : "local";
}

}  // namespace

void look_beside(const std::filesystem::path& source, ConvertOptions& options) {
  const std::filesystem::path config = source / kFolderOfVerl;
  const bool is_there =
      is_folder(source / kShards) && ckpt::kind_at(config / "config.json") == ckpt::EntryKind::File;
  if (is_there && options.hugging_face->args_from.empty()) options.hugging_face->args_from = config;
}

OpenedSource open_source(const std::filesystem::path& path, const ConvertOptions& options) {
  const bool is_beside =
      is_folder(path / kShards) && ckpt::kind_at(path / ".metadata") == ckpt::EntryKind::Absent;
  const std::filesystem::path source = is_beside ? path / kShards : path;
  ckpt::OpenOptions opening{.iteration = options.base.iteration, .limits = options.base.limits};
  if (options.model_only) opening.source = model_folder(source);
  std::vector<RepairFinding> repairs;
  if (auto repair = replace_common_state(source, options.repair, opening)) {
    repairs.push_back(std::move(*repair));
  }
  OpenedSource opened{open_or_explain(source, options, std::move(opening)), std::move(repairs)};
  const bool has_config = options.hugging_face && is_folder(options.hugging_face->args_from);
  const std::string config = options.peft ? bridge_config(opened.checkpoint) : "";
  if (!config.empty()) {  // whatever its optimizer is, which is left out
    ValueTree nothing;
    nothing.set_root(nothing.dict());
    auto assumed = std::make_shared<Document>();
    assumed->tree = args_of_bridge(config, nothing.root(), opened.checkpoint.catalog());
    opened.checkpoint.assume_args(std::move(assumed));
  } else if (has_config && is_megatron(opened.checkpoint)) {
    const auto& [names, args_from] =
        std::tie(options.hugging_face->names, options.hugging_face->args_from);
    nlohmann::json args = args_of_config(args_from, names).args;
    args["transformer_impl"] = modules_of(opened.checkpoint);
    for (auto at = args.begin(); at != args.end();) {  // a table's own say nothing of layouts
      at = is_known_argument(at.key()) ? std::next(at) : args.erase(at);
    }
    opened.checkpoint.assume_args(state_of_args(args));
  }
  return opened;
}

RepairedState read_repaired(const OpenedTraining& source, const ConvertOptions& options,
                            const std::vector<RepairFinding>& opened) {
  const ReadOptions reading{.rules = options.rules, .model_only = options.model_only};
  RepairedState repaired =
      repair_state(read_training_state(source, reading), source, options.repair);
  repaired.repairs.insert(repaired.repairs.begin(), opened.begin(), opened.end());
  if (options.link && !repaired.repairs.empty()) {
    throw Error(ErrorCode::InvalidArgument, {}, "--repair cannot be combined with --link");
  }
  const ckpt::ConvertOptions& base = options.base;
  const bool needs_files = base.resume || base.finish || base.share.world_size > 1;
  if (repaired.payloads && needs_files) {
    throw Error(ErrorCode::Unsupported, {.file = source.shown_path(), .key = {}},
                "elements that are in no file are replaced, so that the work cannot be shared by "
                "processes, nor resumed",
                "leave out --resume, --finish and --rank");
  }
  if (std::ranges::any_of(opened, is_mended)) {
    refuse_other_model(options.repair, repaired.state);
    accept_other_iteration(source, options.repair, repaired.state);
  }
  return repaired;
}

std::string what_may_mend(const FiledState& state, const std::vector<RepairFinding>& repairs) {
  for (const Issue* const issue : known_issues()) {
    const bool was_looked_for =
        std::ranges::find(repairs, issue->kind, &RepairFinding::kind) != repairs.end();
    if (was_looked_for || issue->explain == nullptr) continue;
    if (std::string hint = issue->explain(state); !hint.empty()) return hint;
  }
  return {};
}

}  // namespace optim
