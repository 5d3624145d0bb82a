#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <optim/lpt_layout.h>
#include <training/filed_state.h>
#include <training/opened_training.h>

namespace optim {

// A parameter group as it is stored, without its parameters.
struct StoredGroup {
  // Where it stands: a file, one beside the checkpoint too, or an object's key; empty for a single
  // file.
  std::string file;
  uint32_t optimizer = 0;  // place in the chain, or among the optimizers of the file
  uint32_t group = 0;
  std::vector<std::pair<std::string, ckpt::Value>> settings;  // in the order of the file
  std::optional<uint64_t> param_count;                        // none where the file does not say
  std::optional<uint64_t> element_count;                      // where their shapes are known
};

// What names the parameters of groups.
enum class NameSource : uint8_t {
  TrainingState,  // read_training_state()
  ParamGroups,    // `params` of the groups
  ParamNames,     // `param_names` of the groups
  ModelOrder,     // shapes of the model in the file, whose order the groups have
  Numbers,        // nothing: the files number them, or say less
};
std::string_view name(NameSource source);  // "training_state", "param_groups", ...

// Optimizer state that a rank wrote; where there are no ranks, a parameter of a group.
struct OwnedParam {
  std::string name;
  // Of the part that the rank owns; of a DistributedOptimizer, of the tensor that it has, of which
  // it owns `elements`, row-major.
  std::vector<uint64_t> shape;
  std::optional<ElementRange> elements = {};
  uint32_t rank = 0;
  uint32_t optimizer = 0, group = 0;  // where GroupReport::has_groups_of_params
  bool has_shape = true;
};

struct RankLoad {
  uint32_t rank = 0;
  uint64_t param_count = 0;  // of those without a name: chunks of state
  uint64_t element_count =
      0;                     // of parameters; of a plain optimizer's stored state all its elements
  uint64_t state_bytes = 0;  // masters and states
  std::optional<double> cost;  // of a step, see update_cost(); where parameters are named
};

struct GroupReport {
  std::vector<StoredGroup> groups;
  std::vector<OwnedParam> params;  // sorted by rank, then in the model's or the file's order
  std::vector<RankLoad> ranks;
  std::string unnamed_reason;  // why parameters have no names; empty where they have
  NameSource names = NameSource::TrainingState;
  bool has_groups_of_params = true;

  std::shared_ptr<const FiledState> state;  // what `settings` may point into, and:
  std::vector<std::shared_ptr<const ckpt::Document>> documents;
  // Files beside the checkpoint that the groups are in, and their names: optimizer.pt.
  std::vector<std::pair<std::string, std::shared_ptr<const OpenedTraining>>> beside;
};

// Groups, their settings, and who owns what. Checkpoints that read_training_state() reads give
// parameters by name with group and owner; others the groups that are stored (torch.save files of
// any training loop, PyTorch's FSDP and DCP), with the step count of their parameters and as many
// names as files prove, and in torch_dist which rank wrote which state; of a folder of weights
// those in optimizer.pt (Hugging Face's Trainer) or optimizer.bin (Accelerate) beside them. Values
// point into the checkpoint, `state`, `documents` or `beside`. A model that was saved alone has a
// state, but no groups.
GroupReport find_groups(const OpenedTraining& checkpoint);

// The same. Throws NotFound where neither groups nor optimizer state are stored.
GroupReport describe_groups(const OpenedTraining& checkpoint);

}  // namespace optim
