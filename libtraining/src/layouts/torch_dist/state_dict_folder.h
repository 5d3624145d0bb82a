#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <ckpt/archive_builder.h>
#include <ckpt/torch_dist_target.h>
#include <training/filed_state.h>

namespace optim {

using Step = std::variant<std::string, int64_t>;  // of a path in nested dictionaries and lists
using Path = std::vector<Step>;

// [parameter] of a run under FSDP: throws Unsupported, by name, unless Adam steps it in float32.
void require_adam_in_float32(const TrainedParam& param, const std::string& hint);

// A folder of nested state dicts, as torch.distributed.checkpoint flattens and stores them.
class StateDictFolder {
 public:
  explicit StateDictFolder(const FiledState& source);  // which must outlive it

  // All of it, or a box.
  void add_tensor(const Path& path, const TensorRef& tensor);
  void add_box(const Path& path, const TensorRef& tensor, ckpt::Box box);
  void add_object(const Path& path, ckpt::ArchiveBuilder& archive, ckpt::NodeId root);
  void add_value(const Path& path, const ckpt::Value& value);  // of the source's common state

  struct Run {
    const char* ckpt_format;
    std::span<const std::pair<const char*, bool>> args;  // set, whether args have them or not
    Path first_rng;                                      // the random states of the first rank
    uint32_t expert_parallel = 1;
  };
  // args as a run of this format at TP 1 has them, the schedule, random states of the first place.
  void add_common(const Run& run);

  // As many files as the source had data-parallel ranks, of one size.
  ckpt::Target finish();

 private:
  void note(const Path& path);
  void share_out();
  void add_values(const Path& path, const ckpt::Value& value);
  void add_args(const ckpt::Value& args, const Run& run);

  const FiledState& source_;
  ckpt::DistSpec spec_;
  ckpt::ValueTree paths_;
  ckpt::NodeId paths_root_;
};

}  // namespace optim
