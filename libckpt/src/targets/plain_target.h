#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/archive_builder.h>
#include <ckpt/rank_files_target.h>

#include "base/text.h"
#include "targets/plain_state.h"

namespace ckpt {

// Tensors that view one storage of a torch.save file become copies; says so.
class SharedStorages {
 public:
  SharedStorages(std::string_view target, std::vector<NotCarried>& notes)
      : target_(target), notes_(notes) {}

  void note(const PlainEntry& entry) {
    const StorageRegion& region = entry.tensor->chunks.front().region;
    const std::string place =
        std::to_string(region.file) + "@" + std::to_string(region.bytes.offset_bytes);
    if (entry.tensor->chunks.size() > 1 || region.bytes.count_bytes == 0) return;
    if (places_.insert(place).second) return;
    notes_.push_back({"storage of " + entry.key,
                      "shared with another tensor; " + target_ + " stores a copy of each",
                      std::nullopt, true});
  }

 private:
  std::string target_;
  std::vector<NotCarried>& notes_;
  TextSet places_;
};

inline TensorSource whole_of(const PlainEntry& entry) {
  return {entry.tensor, whole(entry.tensor->shape)};
}

// A flattened state dict as a DCP folder, as the nested state dict in a torch.save file
// (unflatten_state_dict), and as safetensors.
Target plain_torch_dist_target(PlainState state, const TargetSpec& spec);
Target plain_torch_target(PlainState state, const TargetSpec& spec);
Target plain_safetensors_target(PlainState state, const TargetSpec& spec);

// The nested state dict as one archive; what it lists goes into state.not_carried. `add`: writes a
// tensor that is no more than its elements.
using AddTensor = std::function<NodeId(ArchiveBuilder&, const PlainEntry&)>;
TargetArchive nested_archive(PlainState& state, std::string name, const AddTensor& add);

// A state {"model", "optim", "extra_state"} as the files of spec.ranks ranks of FSDP, as verl's
// FSDPCheckpointManager writes them (format/joined/rank_files.h). What is a DTensor, of which
// version and on which device is as in the source's files, of rank r as of rank r modulo their
// number; of FSDP1's flat states each has its row. Values that ranks have of their own in
// extra_state (random states) stay with their rank: ranks that are not there any more are listed as
// not carried, new ones get none, which a warning says.
//
// A DCP folder and safetensors have no DTensors: these are tensors in several chunks, what the
// optimizer's groups name, and states of such a parameter's shape. What may be both is refused; of
// a model alone what is of floating point is a parameter, which a warning says.
struct RankFilesSpec {
  const TargetSpec& base;
  MeshSizes sizes;
};
Target rank_files_target(const Checkpoint& source, PlainState state, const RankFilesSpec& spec);

// What apply() does first: leaves out ranks that are not there any more, puts a model's own state
// dict under "model", and numbers what the optimizer names, as optimizer.state_dict() does, in the
// order of its groups.
void number_for_rank_files(uint64_t ranks, PlainState& state);

// How a plain state dict is written in a format.
struct TargetRow {
  Format format;
  std::string_view called;  // in the list of what is not carried
  Target (*make)(PlainState, const TargetSpec&);
  bool (*is_listed)(const PlainEntry&);  // there, and left out for it
  bool keeps_keys = false;               // and mappings: PlainTargetWords::keeps_keys

  PlainTargetWords words() const { return {called, keeps_keys}; }
};
// That of a format. Throws Unsupported where it is not written.
const TargetRow& target_row_of(Format format);
// A test adds one.
std::vector<TargetRow>& target_rows();

}  // namespace ckpt
