// Writes what state_dicts.cc reads, as Megatron saves it under torch's FSDP2 (--ckpt-format
// torch_dcp): masters and states by number, in the order of groups. Source: state_dict of
// Float16OptimizerWithFloat16Params, megatron/core/optimizer/optimizer.py.
#include <string>
#include <utility>

#include "args/run_args.h"
#include "grid/build_state.h"
#include "grid/target_groups.h"
#include "layouts/job/layer_wise_target.h"
#include "layouts/torch_dist/state_dict_folder.h"
#include "state/state_values.h"
#include "state/words.h"

namespace optim {
namespace {

constexpr const char* kOtherFormats = "--to torch_dist carries it";
constexpr std::pair<const char*, bool> kFsdp2Args[] = {
    {"use_torch_fsdp2", true}, {"use_megatron_fsdp", false}, {"use_distributed_optimizer", false}};

[[noreturn]] void refuse_as_fsdp2(std::string problem, const std::string& key = {}) {
  throw Error(ErrorCode::Unsupported, {.file = {}, .key = key}, std::move(problem), kOtherFormats);
}

// Which its strict load asks for, or its arguments refuse: validate_args of
// megatron/training/arguments.py.
void require_for_fsdp2(const FiledState& source) {
  const Value args = source.args();
  if (source.chain.empty())
    refuse_as_fsdp2("Megatron loads torch_dcp with the optimizer's state alone");
  if (!is_true(args, "bf16")) refuse_as_fsdp2("Megatron loads torch_dcp of --bf16 runs alone");
  if (!is_true(args, "untie_embeddings_and_output_weights")) {
    refuse_as_fsdp2("Megatron's FSDP2 needs --untie-embeddings-and-output-weights");
  }
  const auto rng = source.common.tree.root().find("rng_state");
  if (!rng || !rng->is(Kind::List) || rng->size() != 1) {
    refuse_as_fsdp2(rng ? "each data-parallel rank has random states of its own, and torch_dcp one"
                        : "it has no random states, which Megatron loads from torch_dcp");
  }
  if (!source.unknown_order.empty()) {
    refuse_as_fsdp2(
        "it is not known at which place the model registers it, which numbers its state",
        source.unknown_order);
  }
  for (const TrainedParam& param : source.params) {
    if (!is_model_buffer(param.info.name)) require_adam_in_float32(param, kOtherFormats);
  }
}

class Fsdp2Writer {
 public:
  explicit Fsdp2Writer(const FiledState& source) : source_(source), folder_(source) {}

  ckpt::Target run() {
    require_for_fsdp2(source_);
    folder_.add_common({"torch_dcp", kFsdp2Args, {"rng_state", int64_t{0}}});
    if (!source_.common.tree.root().find(kCounted)) {
      ckpt::ArchiveBuilder archive;
      folder_.add_object({kCounted}, archive, archive.tree().integer(0));
    }
    for (const ModelEntry& entry : source_.model) add_entry(entry);
    const TargetGroups groups = target_groups(source_, {});
    for (uint32_t group = 0; group < groups.groups.size(); ++group) add_group(groups, group);
    ckpt::Target target = folder_.finish();
    for (const auto& [name, states] : source_.expert_states) {
      target.not_carried.push_back(
          {name, "it is of single experts, and torch_dcp has one of all", name});
    }
    target.warnings.push_back(
        "Megatron-Core 0.12 to 0.20-dev stops at torch_dcp folders, its own too: "
        "ChainedOptimizer.state_dict() has no is_loading (docs/errata.md)");
    return target;
  }

 private:
  // Which Megatron takes for 0 where it is missing, but its load of torch_dcp asks for it.
  static constexpr const char* kCounted = "num_floating_point_operations_so_far";

  void add_entry(const ModelEntry& entry) {
    const Path path = {"model", entry.name};
    if (entry.what != ModelEntry::What::ExtraState) {
      return folder_.add_tensor(path, source_.params.at(entry.param).weight);
    }
    ckpt::ArchiveBuilder archive;
    NodeId root = archive.tree().none();
    if (entry.object) {
      const Document& document = *source_.extra_states[*entry.object];
      root = archive.carry(document.tree.root(), document);
    }
    folder_.add_object(path, archive, root);
  }

  void add_group(const TargetGroups& groups, int64_t group) {
    ckpt::ArchiveBuilder ids;
    const NodeId list = ids.tree().list();
    for (int64_t place = 0; const GroupedParam& member : groups.groups[group].params) {
      const TrainedParam& param = source_.params[member.index];
      folder_.add_tensor({"optimizer", "fp32_from_fp16_params", group, place++}, param.master);
      for (const StateTensor& state : param.states) {
        folder_.add_tensor(
            {"optimizer", "optimizer", "state", std::to_string(next_id_), state.name}, state.value);
      }
      ids.tree().append(list, ids.tree().integer(next_id_++));
    }
    const Path path = {"optimizer", "optimizer", "param_groups", group};
    const auto within = [&](std::string setting) {
      Path further = path;
      further.emplace_back(std::move(setting));
      return further;
    };
    const Value settings = source_.common.tree.value(groups.stated[group]);
    for (const auto& [key, value] : ckpt::items_of(settings)) {
      folder_.add_value(within(ckpt::key_text(key)), value);
    }
    folder_.add_object(within("params"), ids, list);
  }

  const FiledState& source_;
  StateDictFolder folder_;
  int64_t next_id_ = 0;
};

}  // namespace

ckpt::Target make_fsdp2_target(const FiledState& source) { return Fsdp2Writer(source).run(); }

}  // namespace optim
