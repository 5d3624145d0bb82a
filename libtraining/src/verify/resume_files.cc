// Files beside weights that a run resumes from, and that its program writes together: those that
// are there show which are missing.
#include <training/megatron_folders.h>
#include <training/trainer_facts.h>

#include <algorithm>
#include <set>

#include <ckpt/text.h>

#include "state/not_checked.h"
#include "verify/checks.h"

namespace optim {
namespace {

class ResumeFiles {
 public:
  ResumeFiles(const OpenedTraining& checkpoint, VerifyReport& report)
      : checkpoint_(checkpoint),
        report_(report),
        names_(checkpoint.source().list(checkpoint.folder())) {}

  void run() {
    if (has(kTrainerState) || has("training_args.bin")) {
      check_trainer();
    } else if (has_start("random_states_") || has("scheduler.bin")) {
      check_accelerate();
    }
  }

 private:
  // transformers/trainer.py, _save_checkpoint: all of them, or with save_only_model none.
  void check_trainer() {
    const bool resumes = has("optimizer.pt") || has("scheduler.pt") || has_start("rng_state");
    if (!resumes) return;
    const bool is_deepspeed = has_start("global_step");  // has optimizer and scheduler in there
    require(kTrainerState);
    if (!is_deepspeed && !has_optimizer()) require("optimizer.pt");
    if (!is_deepspeed) require("scheduler.pt");
    if (!has("rng_state.pth")) require_numbers("rng_state_", ".pth", "rng_state.pth");
  }

  // accelerate/checkpointing.py, save_accelerator_state. DeepSpeed's files are in a folder.
  void check_accelerate() {
    require_numbers("random_states_", ".pkl", kAccelerateStates);
    if (has_start("custom_checkpoint_")) {
      require_numbers("custom_checkpoint_", ".pkl", "custom_checkpoint_0.pkl");
    }
    if (has_start("scheduler") && !has_optimizer() && !has("pytorch_model")) {
      require("optimizer.bin");
    }
  }

  bool has(const std::string& name) const {
    return std::ranges::find(names_, name) != names_.end();
  }
  bool has_start(const std::string& start) const {
    return std::ranges::any_of(names_, [&](const auto& name) { return name.starts_with(start); });
  }
  // In one file, in one of each rank, in a folder.
  bool has_optimizer() const {
    return std::ranges::any_of(
        names_, [](const auto& name) { return name.find("optimizer") != name.npos; });
  }

  void require(const std::string& name) {
    if (has(name)) return;
    report_.find({.file = checkpoint_.shown_name(name), .key = {}},
                 "this file of the checkpoint is missing",
                 "a run that resumes would start anew with what it holds");
    report_.findings.findings.back().is_incomplete = true;
  }

  // A file of each process, from 0 on. `only`: what is missing where there is none.
  void require_numbers(const std::string& start, const std::string& end, const std::string& only) {
    constexpr uint64_t kNumbersMax = 1 << 16;
    std::set<uint64_t> numbers;
    for (const std::string& name : names_) {
      if (!name.starts_with(start) || !name.ends_with(end)) continue;
      const size_t length = name.size() - start.size() - end.size();
      const auto number = ckpt::number_in<uint64_t>(name.substr(start.size(), length));
      if (number && *number < kNumbersMax) numbers.insert(*number);
    }
    if (numbers.empty()) return require(only);
    for (uint64_t number = 0; number < *numbers.rbegin(); ++number) {
      require(start + std::to_string(number) + end);
    }
  }

  const OpenedTraining& checkpoint_;
  VerifyReport& report_;
  std::vector<std::string> names_;
};

}  // namespace

void check_resume_files(const OpenedTraining& checkpoint, VerifyReport& report) {
  const bool is_plain = !is_megatron(checkpoint) && !checkpoint.was_file();
  if (!is_plain || !checkpoint.source().can_list(checkpoint.folder())) return;
  ResumeFiles(checkpoint, report).run();
}

}  // namespace optim
