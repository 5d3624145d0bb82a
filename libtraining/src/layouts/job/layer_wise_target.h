#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/archive_builder.h>
#include <ckpt/plain_target.h>
#include <training/layer_wise_checkpoint.h>

#include "grid/build_state.h"
#include "grid/placement.h"
#include "grid/rank_files.h"
#include "grid/target_groups.h"

// What the writers of both formats share.
namespace optim {

// A training state on its way to a target: the source, where it goes, what is lost.
struct TargetJob {
  const FiledState& original;
  const FiledState& source;  // the same, its chain as the target files it
  const LayerWiseTargetSpec& spec;
  FiledAs filed;  // the target
  RunGrid grid;   // of the target
  uint64_t vocabulary_rows = 0;
  std::vector<WorldRank> ranks = {};
  std::optional<Placement> placement = {};
  TargetGroups groups = {};
  std::optional<RankDeals> deals = {};
  ckpt::Target target = {};

  bool size_changes() const { return grid != source.grid; }
  bool reseeds() const;
  bool format_changes() const { return spec.format != source.filed.container; }
  // A tensor or object as a whole.
  void lose(const std::string& key, std::string reason) {
    target.not_carried.push_back({key, std::move(reason), key});
  }
  // What is there in another form.
  void change(const std::string& what, std::string reason) {
    target.not_carried.push_back({what, std::move(reason), {}, true});
  }
};

// What make_layer_wise_target() makes, of a job whose source is filed already.
ckpt::Target make_filed_target(TargetJob job);

// Whether the source has random states, but not for the ranks of a grid: these have other places in
// the model, or each data-parallel rank has its own (data_parallel_random_init).
bool reseeds_rng(const FiledState& source, const RunGrid& grid);

// The rules, resolved with all canonical names of a checkpoint. Throws NotFound where one that is
// to be included or renamed is none of them.
ckpt::KeyRules rules_for(const TrainingState& state, ckpt::KeyRules rules);
// The name of a canonical key in safetensors; nullopt where the rules leave it out.
std::optional<std::string> key_in_safetensors(const std::string& key, const ckpt::KeyRules& rules);

// Whether files that are linked have the random states of the target's grid, from an earlier link.
bool has_linked_rng(const TargetJob& job);

// Lists what the target's grid changes or loses, and warns of what may surprise.
void note_what_changes(TargetJob& job);

// Whether the target has a file for each rank of the source.
bool keeps_rank_items(const TargetJob& job);

// Throws Unsupported, by name, where torch_dist has no place for a model that `torch` files hold:
// keys are stacked over layers, so that every layer must have them, in one shape and type, and all
// parameters of an optimizer the same states, but those in flat buffers.
void check_stackable(const TargetJob& job);

// All of a tensor.
ckpt::TensorSource tensor_source(const TensorRef& tensor);

// What the common state of the target holds under `key`; nullopt where it is not carried, which is
// noted. args get the target's sizes and format.
std::optional<ckpt::NodeId> carry_common_item(TargetJob& job, std::string_view key,
                                              const ckpt::Value& value,
                                              ckpt::ArchiveBuilder& archive);

// The `rng_state` of the ranks at one place; kNoNode: none, which was noted.
ckpt::NodeId rng_state_of(const TargetJob& job, const RankCoordinates& at,
                          ckpt::ArchiveBuilder& archive);

// Both add the files in the iteration's folder, without prefix.
void add_torch_files(TargetJob& job);
void add_torch_dist_files(TargetJob& job);

// Puts the files into the folder of an iteration, and a tracker beside that.
void make_root(ckpt::Target& target, const std::string& folder_name);

// Megatron-FSDP's files (--ckpt-format fsdp_dtensor) of a state that is filed by name, for the
// release of `form`, or the source's. Throws Unsupported, by name, for what it does not have: other
// optimizers than Adam.
ckpt::Target make_state_dict_target(const FiledState& source, const FilingChange& form);
// The expert-parallel size that its args state, and whose groups it has: the source's where a run
// without tensor parallelism can have it, else 1.
uint32_t expert_parallel_under_fsdp(const FiledState& source);
// The same of FSDP2 (torch_dcp), whose optimizer's groups must be those of one expert-parallel
// rank.
ckpt::Target make_fsdp2_target(const FiledState& source);

// What a state holds beside tensors, of keys that the rules accept.
std::vector<ckpt::NotCarried> lost_in_safetensors(const TrainingState& source,
                                                  const ckpt::KeyRules& rules);

// All tensors under their canonical names that the rules accept; what is no tensor is listed as not
// carried. Throws InvalidArgument where the rules leave nothing or give two tensors one key.
ckpt::Target make_layer_wise_safetensors(const TrainingState& source, const ckpt::KeyRules& rules,
                                         bool as_folder);

// The Namespace of the target: `args` of the source with the grid, the vocabulary and the format
// that the target has, as a run of that grid would have saved them (docs/formats/args.md).
// Arguments that an old version does not have are not added.
ckpt::NodeId carry_args(const TargetJob& job, const ckpt::Value& args,
                        ckpt::ArchiveBuilder& archive);

// Sets the number of the rank that writes them.
void set_rank(ckpt::ValueTree& tree, ckpt::NodeId args, uint32_t rank);

}  // namespace optim
