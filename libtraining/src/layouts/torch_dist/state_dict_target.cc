// Writes what state_dicts.cc reads, as Megatron saves it under FSDP.
// Megatron-FSDP's of core 0.19 and of August 2026 (--ckpt-format fsdp_dtensor): masters as the
// model, states and groups by name, gate and up apart. Source: preprocess_fsdp_dtensor_state_dict
// of megatron/training/checkpointing.py.
#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "args/run_args.h"
#include "grid/build_state.h"
#include "grid/glu_rows.h"
#include "grid/placement.h"
#include "layouts/job/layer_wise_target.h"
#include "layouts/torch_dist/state_dict_folder.h"
#include "model/tensor_names.h"
#include "state/words.h"

namespace optim {
namespace {

constexpr const char* kWithoutOptimizer =
    "--model-only carries all weights, without the optimizer's state";
constexpr std::string_view kWrapper = "module.";  // a 16-bit model has one more
constexpr std::array<std::string_view, 2> kHalves = {"_w", "_v"};
constexpr std::pair<const char*, bool> kArgs[] = {{"use_megatron_fsdp", true},
                                                  {"use_distributed_optimizer", true}};

// Megatron's change 6271 (20 August 2026), by an argument of the same day.
bool is_since_6271(const Value& args) { return args.find("rl_durable_rollout_bank").has_value(); }

class MegatronFsdpWriter {
 public:
  MegatronFsdpWriter(const FiledState& source, const FilingChange& form)
      : source_(source), has_optimizer_(!source.chain.empty()), folder_(source) {
    const auto args = args_of(source.common.tree.root());
    splits_gates_ = args && is_true(*args, "swiglu");
    is_half_ = args && (is_true(*args, "bf16") || is_true(*args, "fp16"));
    renames_mtp_ = form.release != nullptr ? form.is_main_branch : args && is_since_6271(*args);
    names_release_ = form.release != nullptr;
    if (form.release != nullptr && form.release != &kCore019) {
      throw Error(ErrorCode::InvalidArgument, {},
                  "Megatron-FSDP's folder is written as core 0.19 and 0.20-dev read it",
                  "--target-megatron 0.19 or 0.20-dev, or leave it out");
    }
  }

  ckpt::Target run() {
    require_known();
    folder_.add_common({"fsdp_dtensor",
                        kArgs,
                        {"rng_state", "(0, 0)", int64_t{0}},
                        expert_parallel_under_fsdp(source_)});
    for (const ModelEntry& entry : source_.model) {
      if (entry.what != ModelEntry::What::ExtraState) {
        add_weight(entry.name, source_.params.at(entry.param));
      }
    }
    if (has_optimizer_) add_optimizer();
    ckpt::Target target = folder_.finish();
    note_names_of_mtp(target);
    return target;
  }

 private:
  // An older Megatron-FSDP keeps silently what a run started with where names are others.
  void note_names_of_mtp(ckpt::Target& target) const {
    const auto has_two_names = [&](const TrainedParam& param) {
      return mtp_name_in_store(param.info.name) != param.info.name;
    };
    if (names_release_ || std::ranges::none_of(source_.params, has_two_names)) return;
    target.warnings.push_back(
        renames_mtp_ ? "layers of multi-token prediction are named as 0.20-dev reads them "
                       "(transformer_layer); core 0.19 needs --target-megatron 0.19"
                     : "layers of multi-token prediction are named as core 0.19 reads them "
                       "(mtp_model_layer); later ones need --target-megatron 0.20-dev");
  }

  // --- what Megatron-FSDP has ---

  void require_known() const {
    RunGrid one_rank = source_.grid;
    one_rank.sizes.tensor_parallel = one_rank.sizes.expert_tensor_parallel = 1;
    require_cuts_between_blocks(source_, one_rank);
    if (splits_gates_ && !is_half_) {
      throw Error(ErrorCode::Unsupported, {.file = {}, .key = "args.swiglu"},
                  "is set without bf16 or fp16: Megatron-FSDP neither saves nor loads such a model",
                  "--to torch_dist is what other runs of Megatron load");
    }
    if (!has_optimizer_) return;
    for (const TrainedParam& param : source_.params) {
      if (!is_model_buffer(param.info.name)) require_adam_in_float32(param, kWithoutOptimizer);
    }
  }

  // --- tensors ---

  // Under another name that the model has for it (T5's output_layer.bias), too.
  void add_weight(const std::string& name, const TrainedParam& param) {
    const bool has_master = has_optimizer_ && param.master;
    add_tensor({"model", std::string(kWrapper) + stored_name(name)}, name,
               has_master ? param.master : param.weight);
  }

  void add_optimizer() {
    for (const TrainedParam& param : source_.params) {
      const std::string& name = param.info.name;
      for (const StateTensor& state : param.states) {
        add_tensor({"optimizer", "state", wrapped(stored_name(name)), state.name}, name,
                   state.value);
      }
    }
    add_groups();
  }

  std::string wrapped(const std::string& name) const {
    return (is_half_ ? "module.module.module." : "module.module.") + name;
  }

  // Of tensors; groups are those of the model's own names.
  std::string stored_name(const std::string& name) const {
    return renames_mtp_ ? mtp_name_in_store(name) : name;
  }

  // Of SwiGLU's units alone, and of those in layers: Megatron leaves other gated ones whole.
  bool has_halves(const std::string& name, const TensorEntry& tensor) const {
    if (!splits_gates_ || !is_gated(source_, name)) return false;
    const auto found = rules_of(source_).find(name);
    return found && found->rule->split == SplitKind::GatedRows && name.find(".mlp.") != name.npos &&
           !tensor.shape.empty() && tensor.shape[0] % 2 == 0;
  }

  // The second step but one is the parameter's name, or the last.
  void add_tensor(Path path, const std::string& name, const TensorRef& tensor) {
    if (!has_halves(name, *tensor)) return folder_.add_tensor(path, tensor);
    Step& of_name = path[path.size() == 2 ? 1 : 2];
    const std::string whole = std::get<std::string>(of_name);
    Box half = ckpt::whole(tensor->shape);
    half.sizes[0] /= 2;
    for (const std::string_view suffix : kHalves) {
      of_name = whole + std::string(suffix);
      folder_.add_box(path, tensor, half);
      half.offsets[0] += half.sizes[0];
    }
  }

  void add_groups() {
    for (const TrainedParam& param : source_.params) {
      if (is_model_buffer(param.info.name)) continue;
      const NodeId group = source_.chain.at(param.optimizer).groups.at(param.group);
      const Value settings = source_.common.tree.value(group);
      for (const auto& [key, value] : ckpt::items_of(settings)) {
        folder_.add_value(
            {"optimizer", "param_to_group_meta", wrapped(param.info.name), ckpt::key_text(key)},
            value);
      }
    }
  }

  const FiledState& source_;
  bool has_optimizer_, splits_gates_, is_half_, renames_mtp_, names_release_;
  StateDictFolder folder_;
};

}  // namespace

uint32_t expert_parallel_under_fsdp(const FiledState& source) {
  const ParallelSizes& sizes = source.grid.sizes;
  return sizes.data_parallel % sizes.expert_parallel == 0 ? sizes.expert_parallel : 1;
}

ckpt::Target make_state_dict_target(const FiledState& source, const FilingChange& form) {
  return MegatronFsdpWriter(source, form).run();
}

}  // namespace optim
