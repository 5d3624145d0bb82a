// Writes what state_dicts.cc reads, as Megatron-FSDP of core 0.19 and of August 2026 saves it
// (--ckpt-format fsdp_dtensor): masters as the model, states and groups by name, gate and up apart.
// Source: preprocess_fsdp_dtensor_state_dict of megatron/training/checkpointing.py.
#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ckpt/torch_dist_target.h>

#include "args/run_args.h"
#include "grid/build_state.h"
#include "grid/glu_rows.h"
#include "grid/placement.h"
#include "layouts/job/layer_wise_target.h"
#include "model/tensor_names.h"
#include "state/words.h"

namespace optim {
namespace {

using ckpt::ArchiveBuilder;

constexpr const char* kWithoutOptimizer =
    "--model-only carries all weights, without the optimizer's state";
constexpr std::string_view kWrapper = "module.", kWrappers = "module.module.module.";
constexpr std::array<std::string_view, 2> kHalves = {"_w", "_v"};

[[noreturn]] void refuse_param(const std::string& key, std::string problem, std::string hint = {}) {
  throw Error(ErrorCode::Unsupported, {.file = {}, .key = key}, std::move(problem),
              std::move(hint));
}

using Step = std::variant<std::string, int64_t>;  // of a path in nested dictionaries and lists
using Path = std::vector<Step>;

// Megatron's change 6271 (20 August 2026), by an argument of the same day.
bool is_since_6271(const Value& args) { return args.find("rl_durable_rollout_bank").has_value(); }

std::string key_of(const Path& path) {
  std::string key;
  for (const Step& step : path) {
    if (!key.empty()) key += '.';
    const auto* const index = std::get_if<int64_t>(&step);
    key += index != nullptr ? std::to_string(*index) : std::get<std::string>(step);
  }
  return key;
}

class StateDictWriter {
 public:
  StateDictWriter(const FiledState& source, const FilingChange& form)
      : source_(source), has_optimizer_(!source.chain.empty()) {
    paths_root_ = paths_.dict();
    const auto args = args_of(source.common.tree.root());
    splits_gates_ = args && is_true(*args, "swiglu");
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
    add_common();
    for (const ModelEntry& entry : source_.model) {
      if (entry.what != ModelEntry::What::ExtraState) {
        add_weight(entry.name, source_.params.at(entry.param));
      }
    }
    if (has_optimizer_) add_optimizer();
    share_out();
    ckpt::Target target;
    target.format = ckpt::Format::TorchDist;
    paths_.set_root(paths_root_);
    spec_.planner_data = std::move(paths_);
    spec_.chunk_index = true;
    target.files = ckpt::make_torch_dist_files(std::move(spec_));
    if (!source_.rank_objects.empty()) {
      target.not_carried.push_back(
          {"rerun_state_machine_state", "of the ranks of one run; Megatron-FSDP starts its own"});
    }
    if (source_.rng_states.size() > 1) {
      target.not_carried.push_back(
          {"rng_state of " + std::to_string(source_.rng_states.size() - 1) + " places in the model",
           "the first one's is carried"});
    }
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
    for (const TrainedParam& param : source_.params) {
      const std::string& name = param.info.name;
      if (is_in_blocks(source_, name)) {
        refuse_param(name, "rows of gate and up alternate in blocks, which is not known of it");
      }
      if (!has_optimizer_ || is_model_buffer(name)) continue;
      if (!param.master || param.master->dtype != DType::Float32) {
        refuse_param(name, "has no float32 master, which is what it stores", kWithoutOptimizer);
      }
      for (const StateTensor& state : param.states) {
        if (state.name == "exp_avg" || state.name == "exp_avg_sq") continue;
        refuse_param(state.value->key, "Megatron-FSDP has Adam's states alone", kWithoutOptimizer);
      }
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
        add_tensor({"optimizer", "state", std::string(kWrappers) + stored_name(name), state.name},
                   name, state.value);
      }
    }
    add_groups();
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
    if (!has_halves(name, *tensor))
      return add_box(std::move(path), tensor, ckpt::whole(tensor->shape));
    Step& of_name = path[path.size() == 2 ? 1 : 2];
    const std::string whole = std::get<std::string>(of_name);
    Box half = ckpt::whole(tensor->shape);
    half.sizes[0] /= 2;
    for (const std::string_view suffix : kHalves) {
      of_name = whole + std::string(suffix);
      add_box(path, tensor, half);
      half.offsets[0] += half.sizes[0];
    }
  }

  void add_box(Path path, const TensorRef& tensor, Box box) {
    const auto index = static_cast<uint32_t>(spec_.tensors.size());
    spec_.tensors.push_back({key_of(path), tensor->dtype, box.sizes});
    note(path);
    Box whole = ckpt::whole(box.sizes);
    spec_.chunks.push_back(
        {index, 0, std::move(whole), ckpt::TensorSource{tensor, std::move(box)}});
  }

  // planner_data
  void note(const Path& path) {
    std::vector<NodeId> steps;
    for (const Step& step : path) {
      const auto* const index = std::get_if<int64_t>(&step);
      steps.push_back(index != nullptr ? paths_.integer(*index)
                                       : paths_.str(std::get<std::string>(step)));
    }
    paths_.put(paths_root_, key_of(path), paths_.sequence(Kind::Tuple, steps));
  }

  // As many files as there were data-parallel ranks, of one size.
  void share_out() {
    spec_.rank_count = std::clamp<uint32_t>(source_.grid.sizes.data_parallel, 1, 1024);
    std::vector<uint64_t> loads(spec_.rank_count);
    for (ckpt::DistChunk& chunk : spec_.chunks) {
      const auto least = std::ranges::min_element(loads);
      chunk.rank = static_cast<uint32_t>(least - loads.begin());
      *least += ckpt::element_count(chunk.box.sizes) *
                ckpt::bytes_per_element(spec_.tensors[chunk.tensor].dtype);
    }
    std::ranges::stable_sort(spec_.chunks, {}, &ckpt::DistChunk::rank);
  }

  // --- objects ---

  void add_object(const Path& path, ArchiveBuilder& archive, NodeId root) {
    note(path);
    ckpt::TargetArchive made = archive.finish("archive", root);
    spec_.objects.push_back(
        {key_of(path), std::get<1>(std::move(made.content)), std::move(made.records), 0});
  }

  void add_value(const Path& path, const Value& value) {
    ArchiveBuilder archive;
    add_object(path, archive, archive.carry(value, source_.common));
  }

  // Dictionaries are flattened, and tensors entries of their own.
  void add_values(const Path& path, const Value& value) {
    if (const auto tensor = ckpt::as_tensor(value)) {
      const auto entry = std::make_shared<const TensorEntry>(
          ckpt::make_tensor_entry(source_.common, {key_of(path), value.id(), *tensor}, {}));
      return add_box(path, entry, ckpt::whole(entry->shape));
    }
    if (!value.is(Kind::Dict)) return add_value(path, value);
    for (size_t i = 0; i < value.item_count(); ++i) {
      Path further = path;
      further.emplace_back(ckpt::key_text(value.item(i).first));
      add_values(further, value.item(i).second);
    }
  }

  void add_common() {
    const Value root = source_.common.tree.root();
    for (const auto& [name, value] : ckpt::items_of(root)) {
      const std::string key = ckpt::key_text(name);
      if (key == "args") {
        add_args(value);
      } else if (key == "rng_state") {
        add_random_states(value);
      } else {
        add_values({key}, value);
      }
    }
  }

  void add_args(const Value& args) {
    ArchiveBuilder archive;
    ValueTree& tree = archive.tree();
    const NodeId carried = archive.carry(args, source_.common);
    const NodeId attributes = tree.value(carried).state()->id();
    tree.put(attributes, "ckpt_format", tree.str("fsdp_dtensor"));
    tree.put(attributes, "use_megatron_fsdp", tree.boolean(true));
    tree.put(attributes, "use_distributed_optimizer", tree.boolean(true));
    const auto put = [&](std::string_view name, NodeId value) {
      if (tree.value(attributes).find(name)) tree.put(attributes, name, value);
    };
    // Random states are those of one rank of the model.
    for (const char* const size : {"pipeline_model_parallel_size", "tensor_model_parallel_size",
                                   "expert_model_parallel_size", "expert_tensor_parallel_size"}) {
      put(size, tree.integer(1));
    }
    put("sequence_parallel", tree.boolean(false));
    put("virtual_pipeline_model_parallel_size", tree.none());
    add_object({"args"}, archive, carried);
  }

  // Of the first place in the model.
  void add_random_states(const Value& list) {
    if (!list.is(Kind::List) || list.size() == 0 || !list[0].is(Kind::Dict)) return;
    add_values({"rng_state", "(0, 0)", int64_t{0}}, list[0]);
  }

  void add_groups() {
    for (const TrainedParam& param : source_.params) {
      if (is_model_buffer(param.info.name)) continue;
      const NodeId group = source_.chain.at(param.optimizer).groups.at(param.group);
      const Value settings = source_.common.tree.value(group);
      for (const auto& [key, value] : ckpt::items_of(settings)) {
        add_value({"optimizer", "param_to_group_meta", std::string(kWrappers) + param.info.name,
                   ckpt::key_text(key)},
                  value);
      }
    }
  }

  const FiledState& source_;
  bool has_optimizer_, splits_gates_, renames_mtp_, names_release_;
  ckpt::DistSpec spec_;
  ValueTree paths_;
  NodeId paths_root_;
};

}  // namespace

ckpt::Target make_state_dict_target(const FiledState& source, const FilingChange& form) {
  return StateDictWriter(source, form).run();
}

}  // namespace optim
