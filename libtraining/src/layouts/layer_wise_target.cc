// A target of a training state: how it is filed, in which grid.
#include <algorithm>
#include <set>

#include <ckpt/plain_target.h>
#include <ckpt/safetensors_target.h>
#include <training/continuation.h>
#include <training/megatron_folders.h>

#include "args/bridge_args.h"
#include "args/run_args.h"
#include "grid/build_state.h"
#include "grid/flat_buffers.h"
#include "layouts/job/layer_wise_target.h"
#include "layouts/job/tensor_attributes.h"
#include "layouts/layouts.h"
#include "state/remainders.h"
#include "state/words.h"

namespace optim {
namespace {

std::string tracker_text(const std::string& folder_name) {
  constexpr std::string_view kPrefix = kMegatronFolders.iteration_prefix;
  if (!folder_name.starts_with(kPrefix)) return folder_name;  // release
  const size_t first = folder_name.find_first_not_of('0', kPrefix.size());
  return first == folder_name.npos ? "0" : folder_name.substr(first);
}

// Megatron, or we, write no such files.
void require_written(const FiledAs& target) {
  if (target.container == ckpt::Format::TorchDist) return;
  if (target.container == ckpt::Format::Torch && target.release == &kCore016) return;
  if (target.is_layer_wise) {
    throw Error(ErrorCode::Unsupported, {},
                "Megatron-Core from 0.18 on writes no `torch` checkpoints of LayerWise optimizers",
                "leave out --target-megatron, or write torch_dist");
  }
  throw Error(
      ErrorCode::Unsupported, {},
      "the `torch` layout of Megatron-Core 0.19 of optimizers that are not sharded is not known",
      "leave out --target-megatron; --model-only writes the model in that layout");
}

// Rank files need args that no configuration of Bridge has.
void require_args(const FiledState& source) {
  if (source.config.empty()) return;
  throw Error(ErrorCode::Unsupported, {.file = kBridgeConfig, .key = {}},
              "a checkpoint of Megatron Bridge has no args, which `torch` files need",
              "torch_dist, safetensors and a Hugging Face folder can be written");
}

// The configuration of Megatron Bridge that is of the target's sizes.
void add_config(TargetJob& job) {
  ckpt::ArchiveBuilder archive;
  const Value common = job.source.common.tree.root();
  const NodeId args = carry_args(job, *common.find("args"), archive);
  std::string text = config_with_args(job.source.config, *archive.tree().value(args).state());
  const auto& tokens = job.source.facts.vocabulary;
  const bool is_padded = is_true(job.source.args(), "should_pad_vocab");
  if (!is_padded && tokens && job.vocabulary_rows > *tokens) {
    throw Error(ErrorCode::Unsupported, {.file = kBridgeConfig, .key = "model.vocab_size"},
                "is " + std::to_string(*tokens) +
                    ", no multiple of --tp, and without should_pad_vocab no row is added");
  }
  job.target.files.insert(job.target.files.begin(), {kBridgeConfig, {}, std::move(text)});
}

// What is written as asked, though not every Megatron runs with it.
void warn_of_form(TargetJob& job) {
  const bool is_dealt_anew = job.filed.is_layer_wise && !job.original.filed.is_layer_wise;
  if (is_dealt_anew && !job.source.chain.empty()) {
    job.target.warnings.push_back(
        "no Megatron run has a LayerWise optimizer for Adam alone: torch_dist at EP 1 loads into a "
        "run without --use-distributed-optimizer");
  }
  const auto is_expert_of_half = [&](const ParamGroup& group) {
    return group.is_expert_parallel && job.filed.optimizers[group.optimizer_index]->by_elements;
  };
  const bool has_experts = job.filed.is_layer_wise && job.filed.release->distributes_adam &&
                           std::ranges::any_of(job.groups.groups, is_expert_of_half);
  if (!has_experts) return;
  job.target.warnings.push_back(
      "Megatron-Core from 0.18 on refuses experts beside Muon at EP above 1, unless it is started "
      "with --no-use-layer-wise-param-layout and a checkpoint of --target-megatron 0.16");
}

void require_store_loads(const TargetJob& job) {
  const auto stated = job.source.args().find("optimizer");
  const bool is_stored = job.spec.format == ckpt::Format::TorchDist && !job.source.chain.empty();
  if (!is_stored || !stated || !stated->is(Kind::Str)) return;
  const std::string_view failure = load_failure_of_store(stated->text(), job.filed.is_layer_wise);
  if (failure.empty()) return;
  throw Error(ErrorCode::Unsupported, {.file = {}, .key = "args.optimizer"},
              "is '" + ckpt::escaped(stated->text()) +
                  "', whose state Megatron saves in torch_dist but does not load (" +
                  std::string(failure) + ")",
              "--to torch; --model-only");
}

// What Megatron's DistributedOptimizer saves of weights that are their own masters, but does not
// load, or mistakes for another's.
void require_own_masters_load(const TargetJob& job) {
  std::set<uint32_t> laid_out;
  for (const TrainedParam& param : job.source.params) {
    const bool is_stepped = param.master || !param.states.empty();
    if (!is_stepped || !is_own_master(param.weight->dtype)) continue;
    const Filing& filing = *job.filed.optimizers[param.optimizer];
    if (!filing.by_elements && param.master && job.original.filed.is_zero1()) {
      throw Error(
          ErrorCode::Unsupported, {.file = {}, .key = param.info.name},
          "is float32, like everything that is trained: how a run without a DistributedOptimizer "
          "files that is not known",
          "leave out --optimizer-sharding; --model-only");
    }
    if (!filing.by_elements) continue;
    if (filing.in_order) {
      throw Error(ErrorCode::Unsupported, {.file = {}, .key = param.info.name},
                  "is float32, which Megatron saves in flat buffers of a DistributedOptimizer but "
                  "does not load ('a view of a leaf Variable')",
                  "--to torch_dist --optimizer-sharding fully_reshardable; --model-only");
    }
    if (param.master) continue;  // no 16-bit parameter is among them
    if (!laid_out.insert(param.optimizer).second) continue;
    const FlatArguments arguments = flat_arguments(job.source.args(), "args of the checkpoint");
    FlatBuffers(job.source, *job.placement, job.groups.groups, arguments)
        .require_laid_out(param.optimizer);
  }
}

// Which weights are frozen, only those of one rank folder tell.
void require_one_folder(const TargetJob& job) {
  const ParallelSizes& sizes = job.grid.sizes;
  const bool is_one = sizes.tensor_parallel * sizes.pipeline_parallel * sizes.expert_parallel == 1;
  if (is_one || job.filed.optimizers.empty() || job.filed.has(kFlatFile)) return;
  for (const TrainedParam& param : job.source.params) {
    if (!is_frozen(job.source, param)) continue;
    throw Error(ErrorCode::Unsupported, {.file = {}, .key = param.info.name},
                "is frozen, which `torch` files of more than one model-parallel rank do not say",
                "--to torch_dist; --model-only");
  }
}

// What a module has in torch files whatever it is, and a store was saved without.
void require_extra_states(const FiledState& source) {
  const bool are_dropped = source.filed.container == ckpt::Format::TorchDist &&
                           is_true(source.args(), "ckpt_drop_redundant_extra_state");
  if (!are_dropped) return;
  throw Error(
      ErrorCode::Unsupported, {.file = {}, .key = "args.ckpt_drop_redundant_extra_state"},
      "is True: modules' _extra_state was left out, without which Megatron loads no `torch` "
      "files",
      "--to torch_dist, for a run with that option");
}

constexpr const char* kNoTensor = "not a tensor; safetensors stores only tensors";

// What the training state holds beside tensors, as `hash --logical` names it.
std::vector<std::string> objects_of(const TrainingState& state) {
  std::vector<std::string> names;
  const Value common = state.common.tree.root();
  for (size_t i = 0; i < common.item_count(); ++i) {
    names.push_back(ckpt::key_text(common.item(i).first));
  }
  for (size_t i = 0; i < state.chain.size(); ++i) {
    names.push_back("optimizer." + std::to_string(i));
  }
  for (const ModelEntry& entry : state.model) {
    if (entry.object) names.push_back(entry.name);
  }
  for (const auto& [key, document] : state.rank_objects) names.push_back(key);
  for (const RankItem& item : state.rank_items) names.push_back(item.name);
  return names;
}

// Of the tensor that loses something: "attributes of KEY", "class of KEY".
std::string key_of(const ckpt::NotCarried& lost) {
  const size_t of = lost.what.find(" of ");
  return of == std::string::npos ? lost.what : lost.what.substr(of + 4);
}

}  // namespace

ckpt::Target make_layer_wise_target(const FiledState& source, const LayerWiseTargetSpec& spec) {
  const FiledAs target = choose_filings(source, spec.format, spec.form);
  const RunGrid grid = target_grid(source, spec.sizes);
  const auto filed = filed_as(source, target, spec.form, grid.sizes);
  return make_filed_target({source, filed ? *filed : source, spec, target, grid});
}

ckpt::Target make_filed_target(TargetJob job) {
  const FiledState& source = job.source;
  const LayerWiseTargetSpec& spec = job.spec;
  job.filed.optimizers = source.filed.optimizers;
  if (has_remainders(source) && !job.filed.is_zero1()) {
    throw Error(ErrorCode::Unsupported, {},
                "masters that are stored as 16-bit remainders belong to a DistributedOptimizer, "
                "and have no place in other forms",
                "--optimizer-sharding fully_reshardable, dp_reshardable or flat_file");
  }
  const bool torch = spec.format == ckpt::Format::Torch;
  if (torch && spec.ownership != OwnershipPolicy::PingPong) {
    throw Error(ErrorCode::Unsupported, {},
                "`torch` checkpoints know only ping-pong ownership: Megatron replays its own deal",
                "leave out --ownership, or write torch_dist");
  }
  require_written(job.filed);
  if (torch) require_one_folder(job);
  if (torch) require_extra_states(source);
  const auto are_apart = [&](const ParallelSizes& sizes) {
    return source.facts.expert_count > 0 && !source.chain.empty() &&
           are_experts_apart(source.args(), sizes);
  };
  const bool were_apart = are_apart(job.original.grid.sizes);
  const bool is_same_chain = torch ? !were_apart : were_apart == are_apart(job.grid.sizes);
  const bool is_unsharded = !job.filed.is_layer_wise && !job.filed.is_zero1();
  if (is_unsharded && (!is_same_chain || (torch && are_apart(job.grid.sizes)))) {
    throw Error(
        ErrorCode::Unsupported, {},
        "experts of more than one expert-parallel rank, or since core 0.19 where --etp is not "
        "--tp, "
        "have an optimizer of their own where no optimizer is sharded: they keep it in torch_dist "
        "alone, and get or lose none",
        were_apart ? "--to torch_dist, with --ep above 1 or --etp other than --tp"
                   : "--ep 1, and --etp as --tp");
  }
  job.vocabulary_rows = target_vocabulary(source, job.grid, spec.sizes);
  job.ranks = ranks_of(job.grid);
  job.placement.emplace(source, job.grid, job.vocabulary_rows);
  job.groups = target_groups(source, job.grid.sizes);
  require_own_masters_load(job);
  require_store_loads(job);
  job.deals.emplace(source, *job.placement, job.groups.groups,
                    RankDeals::Policy{job.filed.is_layer_wise, spec.ownership});
  job.target.format = spec.format;
  job.target.not_carried = source.not_carried;
  note_what_changes(job);
  warn_of_form(job);
  if (torch) require_args(source);
  (torch ? add_torch_files : add_torch_dist_files)(job);
  if (!source.config.empty()) add_config(job);
  if (spec.as_root) make_root(job.target, source.folder_name);
  return std::move(job.target);
}

// iter_0000003/... and, last, the tracker that makes it the latest.
void make_root(ckpt::Target& target, const std::string& folder_name) {
  for (ckpt::TargetFile& file : target.files) file.path = folder_name + "/" + file.path;
  target.files.push_back({std::string(kMegatronFolders.tracker), {}, tracker_text(folder_name)});
}

ckpt::KeyRules rules_for(const TrainingState& state, ckpt::KeyRules rules) {
  const std::vector<std::string> objects = objects_of(state);
  std::vector<ckpt::KeyName> names;
  for (const TensorRef& tensor : tensors_of(state)) names.push_back({{}, tensor->key});
  for (const std::string& name : objects) names.push_back({{}, name});
  rules.resolve(names);
  return rules;
}

std::optional<std::string> key_in_safetensors(const std::string& key, const ckpt::KeyRules& rules) {
  if (!rules.accepts(key)) return std::nullopt;
  return rules.renamed(key);
}

std::vector<ckpt::NotCarried> lost_in_safetensors(const TrainingState& source,
                                                  const ckpt::KeyRules& rules) {
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
  return not_carried;
}

// The training state: every tensor under its canonical name, and a list of the rest.
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
  ckpt::Target target =
      ckpt::make_safetensors_target(std::move(spec), lost_in_safetensors(source, rules));
  target.left_out_count = rules.left_out_count();
  return target;
}

}  // namespace optim
