// What a folder states of its filing, and the reader of its container.
#include "layouts/layouts.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ckpt/named_file.h>
#include <training/key_kind.h>
#include <training/megatron_folders.h>

#include "args/common_state.h"
#include "args/iteration_names.h"
#include "args/nemo_args.h"
#include "args/run_args.h"
#include "grid/build_state.h"
#include "grid/flat_buffers.h"
#include "grid/placement.h"
#include "grid/whole_states.h"
#include "layouts/parts/tensor_parts.h"
#include "layouts/torch/readers.h"
#include "layouts/torch_dist/readers.h"
#include "model/tensor_names.h"
#include "state/not_checked.h"
#include "state/remainders.h"
#include "state/words.h"

namespace optim {

// The frameworks whose training states are read: a line each.
std::vector<const Framework*>& frameworks() {
  static std::vector<const Framework*> table = {&kMegatron, &kMegatronFsdp};
  return table;
}

bool has_training_state(const OpenedTraining& checkpoint) {
  return std::ranges::any_of(
      frameworks(), [&](const Framework* framework) { return framework->has_state(checkpoint); });
}

FiledState read_training_state(const OpenedTraining& checkpoint, const ReadOptions& options) {
  try {
    for (const Framework* const framework : frameworks()) {
      auto state = framework->read(checkpoint, options);
      if (!state) continue;
      require_whole_states(*state, checkpoint);
      return std::move(*state);
    }
  } catch (Error& error) {
    if (checkpoint.was_root()) error.below(checkpoint.folder().filename().string());
    if (error.code() == ErrorCode::Unsupported) error.hinted(what_works_on(checkpoint));
    throw;
  }
  refuse_kind(checkpoint, "a training checkpoint of Megatron");
}

namespace {

using ckpt::Format;

bool is_zero1(const Value& args) {
  // Megatron-Core up to 0.16 says it by the optimizer's name.
  const auto optimizer = args.find("optimizer");
  const bool is_named =
      optimizer && optimizer->is(Kind::Str) && optimizer->text().starts_with("dist_");
  return is_named || is_true(args, "use_distributed_optimizer");
}

// Neither groups nor a tensor of an optimizer: the model of a run, saved without.
bool holds_model_alone(const OpenedTraining& checkpoint, const Value& common_root) {
  if (common_root.find("optimizer")) return false;
  const ckpt::Catalog& catalog = checkpoint.catalog();
  const auto is_of_state = [](const TensorEntry& tensor) {
    return kind_of_key(tensor.file, tensor.key) == KeyKind::OptimizerState;
  };
  return std::ranges::none_of(catalog.tensors, is_of_state) &&
         std::ranges::none_of(catalog.objects, is_state_object);
}

// Whether --model-only leaves something out.
bool holds_optimizer(const OpenedTraining& checkpoint) {
  if (checkpoint.catalog().format != Format::Torch) {
    const CommonState* const common = checkpoint.common_state();
    return common == nullptr || !holds_model_alone(checkpoint, common->document->tree.root());
  }
  if (has_rank_files(checkpoint) || has_flat_files(checkpoint)) return true;
  const Document* const document = checkpoint.document(checkpoint.args().file());
  return document != nullptr && document->tree.root().find("optimizer");
}

bool has_masters(const OpenedTraining& checkpoint) {
  const std::vector<TensorEntry>& tensors = keys_of(checkpoint).tensors;
  return std::ranges::any_of(tensors, [](const TensorEntry& tensor) {
    return tensor.key.starts_with(state_key(kMasterState, ""));
  });
}

const Filing* filing_named(std::string_view name) {
  const auto found = std::ranges::find(filings(), name, &Filing::name);
  return found == filings().end() ? nullptr : *found;
}

std::optional<StatedFiling> stated_in_store(const OpenedTraining& checkpoint) {
  const CommonState* const common = checkpoint.common_state();
  if (common == nullptr || holds_state_dicts(checkpoint.catalog())) return std::nullopt;
  const Value root = common->document->tree.root();
  const auto args = args_of(root);
  if (!args) return std::nullopt;
  const Release* const release = common->key.empty() ? &kCore016 : &kCore019;
  if (is_true(*args, kLayerWiseArg)) {
    return StatedFiling{&kDealt, release_of(common->key.empty(), root)};
  }
  if (holds_model_alone(checkpoint, root)) return StatedFiling{&kWhole, release};
  if (!is_zero1(*args)) {
    // Masters beside 16-bit weights: fp32 training has none, and is not read.
    if (!has_masters(checkpoint)) return std::nullopt;
    return StatedFiling{&kWhole, release};
  }
  const Filing* const filing = filing_named(stated_sharding(root));
  const bool is_known = filing != nullptr && filing->container == Format::TorchDist &&
                        (filing->is_written || release == &kCore016);
  return is_known ? std::optional(StatedFiling{filing, release}) : std::nullopt;
}

// A rank file, of one chunk of the model or of several.
bool holds_model(const Value& root) { return root.find("model") || root.find("model0"); }

bool holds_whole_states(const OpenedTraining& checkpoint, const RunArgs& args) {
  const Document* const document = checkpoint.document(args.file());
  if (!args.are_there() || document == nullptr) return false;
  const Value root = document->tree.root();
  const auto stated = args_of(root);
  if (!stated || is_true(*stated, kLayerWiseArg)) return false;
  const auto optimizer = root.find("optimizer");
  if (!optimizer) return holds_model(root) && !has_flat_files(checkpoint);
  return !is_zero1(*stated) && optimizer->is(Kind::Dict) &&
         optimizer->find("fp32_from_fp16_params");
}

std::optional<StatedFiling> stated_in_rank_files(const OpenedTraining& checkpoint) {
  const RunArgs& args = checkpoint.args();
  if (has_rank_files(checkpoint) || args.is_true(kLayerWiseArg)) {
    return StatedFiling{&kDealt, &kCore016};
  }
  if (holds_whole_states(checkpoint, args)) return StatedFiling{&kWhole, &kCore016};
  const bool is_flat = has_flat_files(checkpoint) || (args.are_there() && is_zero1(*args.args()));
  return is_flat ? std::optional(StatedFiling{&kFlatFile, &kCore016}) : std::nullopt;
}

}  // namespace

std::optional<StatedFiling> stated_filing(const OpenedTraining& checkpoint) {
  switch (checkpoint.catalog().format) {
    case Format::Torch: return stated_in_rank_files(checkpoint);
    case Format::TorchDist: return stated_in_store(checkpoint);
    default: return std::nullopt;
  }
}

namespace {

FiledState read_filed(const OpenedTraining& checkpoint, const Filing& filing,
                      const ReadOptions& options) {
  const bool is_torch = checkpoint.catalog().format == Format::Torch;
  return (is_torch ? read_torch_folder : read_store_folder)(checkpoint, filing, options);
}

// The parameters that no optimizer steps, as the values of all others tell.
std::optional<std::set<std::string>> find_frozen(const OpenedTraining& checkpoint) {
  const bool is_dealt = checkpoint.catalog().format == Format::Torch && !has_flat_files(checkpoint);
  if (!is_dealt) return find_frozen_in_buffers(checkpoint);
  return may_have_frozen_params(checkpoint) ? find_frozen_params(checkpoint) : std::nullopt;
}

// A state that does not fit all parameters may fit those that are not frozen.
std::optional<FiledState> read_without_frozen(const OpenedTraining& checkpoint,
                                              const Filing& filing, ReadOptions options) {
  try {
    auto frozen = find_frozen(checkpoint);
    if (!frozen) return std::nullopt;
    options.frozen = std::move(*frozen);
    return read_filed(checkpoint, filing, options);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Corrupt) throw;
    return std::nullopt;  // something else is wrong
  }
}

// What a DistributedOptimizer stores once more of weights that are their own masters, among 16-bit
// ones. Throws as FlatBuffers::of() where that may be another parameter's, Corrupt where it is.
void drop_copies_of_weights(const OpenedTraining& checkpoint, FiledState& state) {
  const auto is_copied = [&](const TrainedParam& param) {
    return param.master && is_own_master(param.weight->dtype) &&
           state.filed.optimizers[param.optimizer]->by_elements;
  };
  std::set<uint32_t> optimizers;
  for (const TrainedParam& param : state.params) {
    if (is_copied(param)) optimizers.insert(param.optimizer);
  }
  const auto has_half = [](const TrainedParam& param) {
    return param.master && !is_own_master(param.weight->dtype);
  };
  if (optimizers.empty() || std::ranges::none_of(state.params, has_half)) return;
  if (is_true(state.args(), "use_precision_aware_optimizer")) {
    throw Error(ErrorCode::Unsupported, {.file = {}, .key = "args"},
                "use_precision_aware_optimizer is set, with float32 parameters among 16-bit "
                "ones: what it keeps of those is not known",
                "--model-only carries all weights, without the optimizer's state");
  }
  const Placement placement(state, state.grid);
  const std::vector<ParamGroup> groups = groups_of(state.args(), state.grid.sizes, state.params);
  const FlatArguments arguments = flat_arguments(state.args(), "args of the checkpoint");
  const FlatBuffers buffers(state, placement, groups, arguments);
  for (const uint32_t optimizer : optimizers) buffers.require_laid_out(optimizer);
  for (TrainedParam& param : state.params) {
    if (!is_copied(param)) continue;
    if (!are_equal(*param.weight, *param.master, checkpoint)) {
      throw Error(ErrorCode::Corrupt, {.file = {}, .key = param.master->key},
                  "differs from the weight, which is float32, so that it is what the "
                  "optimizer steps");
    }
    param.master.reset();
  }
}

FiledState read_filed_or_frozen(const OpenedTraining& checkpoint, const Filing& filing,
                                const ReadOptions& options) {
  try {
    return read_filed(checkpoint, filing, options);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Corrupt || options.model_only) throw;
    auto state = read_without_frozen(checkpoint, filing, options);
    if (!state) throw;
    return std::move(*state);
  }
}

// What NeMo's users call their folders, Megatron does not look for; its schedule is Lightning's.
void finish_nemo(FiledState& state) {
  const auto step = state.common.tree.root().find("iteration");
  const bool is_number = step && step->is(Kind::Int) && step->as_int() >= 0;
  state.folder_name = is_number ? megatron_folder(step->as_int()) : kMegatronFolders.unnumbered;
  if (state.chain.empty()) return;
  state.not_carried.push_back(
      {std::string(kSchedulerOfNemo),
       "NeMo has none: a result says how many samples were seen, where a data module does, and "
       "Megatron loads it with --override-opt-param-scheduler"});
}

// What states no filing, the reader of its container refuses in more detail.
std::optional<FiledState> read_megatron(const OpenedTraining& checkpoint,
                                        const ReadOptions& options) {
  const auto stated = stated_filing(checkpoint);
  const bool has_reader = checkpoint.catalog().format != Format::Safetensors;
  if (!stated && (!has_reader || !is_megatron(checkpoint))) return std::nullopt;
  const auto [filing, release] = stated.value_or(StatedFiling{&kDealt, &kCore016});
  FiledState state = read_filed_or_frozen(checkpoint, *filing, options);
  drop_copies_of_weights(checkpoint, state);
  if (&keys_of(checkpoint) != &checkpoint.catalog()) finish_nemo(state);
  state.filed.is_layer_wise = filing == &kDealt;
  state.filed.release = release;
  if (options.model_only && holds_optimizer(checkpoint)) {
    state.not_carried.push_back({"the optimizer state", "--model-only leaves it out"});
  }
  return state;
}

}  // namespace

constexpr Framework kMegatron = {
    .name = "Megatron",
    .has_state =
        [](const OpenedTraining& checkpoint) { return stated_filing(checkpoint).has_value(); },
    .read = read_megatron};

constexpr Framework kMegatronFsdp = {
    .name = "Megatron with FSDP",
    .has_state =
        [](const OpenedTraining& checkpoint) { return holds_state_dicts(checkpoint.catalog()); },
    .read = [](const OpenedTraining& checkpoint,
               const ReadOptions& options) -> std::optional<FiledState> {
      if (!holds_state_dicts(checkpoint.catalog())) return std::nullopt;
      FiledState state = read_state_dicts(checkpoint, options);
      state.filed.is_layer_wise = false;
      return state;
    }};

std::shared_ptr<const ModelRules> read_model_rules(const std::filesystem::path& path) {
  constexpr uint64_t kBytesMax = uint64_t{16} << 20;
  const std::string text = ckpt::read_named_file(path, kBytesMax);
  const ModelRules rules = ModelRules::parse(text, path.string());
  return std::make_shared<const ModelRules>(ModelRules::built_in().with(rules));
}

}  // namespace optim
