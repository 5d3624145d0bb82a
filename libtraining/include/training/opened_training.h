#pragma once

#include <filesystem>
#include <memory>

#include <ckpt/checkpoint.h>
#include <ckpt/document.h>
#include <training/export.h>

namespace optim {

struct CommonState;
class RunArgs;

// An opened checkpoint, and what it says of the run that wrote it: read once, when it is first
// asked for, by any of many threads. What cannot be read throws each time.
class TRAINING_EXPORT OpenedTraining final : public ckpt::Checkpoint {
 public:
  explicit OpenedTraining(ckpt::Checkpoint checkpoint);
  OpenedTraining(OpenedTraining&&) noexcept;
  OpenedTraining& operator=(OpenedTraining&&) noexcept;
  ~OpenedTraining() override;

  // What a Megatron torch_dist folder does not shard; null where there is none. Throws Corrupt
  // where it is stored twice, or is no dictionary.
  TRAINING_PRIVATE const CommonState* common_state() const;
  // The same of a checkpoint that needs one: throws Corrupt where there is none.
  TRAINING_PRIVATE const CommonState& require_common_state() const;
  // The training arguments, as far as they are there.
  TRAINING_PRIVATE const RunArgs& args() const;
  // For a torch_dist folder without arguments: those of a dictionary {"args": Namespace} are taken
  // for its own. Before anything above is asked.
  TRAINING_PRIVATE void assume_args(std::shared_ptr<const ckpt::Document> state);

 private:
  struct Known;
  std::unique_ptr<Known> known_;
};

// Checkpoint::open() that knows Megatron's folders; options.convention does not count.
// options.iteration also names folders of other programs' roots: checkpoint-500, step-100.
TRAINING_EXPORT OpenedTraining open_checkpoint(const std::filesystem::path& path,
                                               ckpt::OpenOptions options = {});

}  // namespace optim
