// How many steps were taken, as the files of one save say it, and the name of its folder.
#include <algorithm>

#include <ckpt/root.h>
#include <training/megatron_folders.h>
#include <training/trainer_facts.h>

#include "args/bridge_args.h"
#include "args/iteration_names.h"
#include "args/value_place.h"
#include "state/not_checked.h"
#include "state/words.h"
#include "verify/checks.h"

namespace optim {
namespace {

using Steps = std::optional<int64_t>;

struct Counts {
  Steps named;      // by the folder
  Steps run;        // by the program: trainer_state.json
  Steps scheduler;  // of the learning rate
  Steps optimizer;  // of the parameter with the most
};

std::optional<Value> at(const std::optional<Value>& value, const char* key) {
  return value && value->is(Kind::Dict) ? value->find(key) : std::nullopt;
}

constexpr int64_t kStepsMax = 1'000'000'000'000;

Steps steps_at(const std::optional<Value>& value, const char* key) {
  const auto found = at(value, key);
  const bool is_count = found && found->is(Kind::Int) && found->as_int() >= 0;
  return is_count && found->as_int() < kStepsMax ? Steps(found->as_int()) : std::nullopt;
}

std::optional<Value> root_of(const OpenedTraining& checkpoint) {
  const Document* const document = checkpoint.state();
  return document != nullptr ? std::optional(document->tree.root()) : std::nullopt;
}

// A number, or a tensor that holds one, at a JSON pointer of a file.
Steps count_at(const OpenedTraining& file, const std::string& pointer, const Value& value) {
  const auto* const tensor = file.catalog().find_tensor(pointer, "");
  std::optional<double> count;
  if (value.is(Kind::Int) || value.is(Kind::Float)) count = value.as_float();
  if (tensor != nullptr) count = scalar_of(*tensor, file);
  const bool is_count = count && *count >= 0 && *count < kStepsMax;
  return is_count ? Steps(static_cast<int64_t>(*count)) : std::nullopt;
}

// Of an optimizer's state dict at a JSON pointer of a file.
Steps steps_taken(const OpenedTraining& file, const std::optional<Value>& optimizer,
                  const std::string& pointer) {
  Steps most;
  const auto state = at(optimizer, "state");
  for (size_t i = 0; state && state->is(Kind::Dict) && i < state->item_count(); ++i) {
    const auto [key, of_param] = state->item(i);
    const auto step = at(of_param, "step");
    if (!step) continue;
    const std::string at_step = pointer + "/state" + escaped_step(ckpt::key_text(key)) + "/step";
    most = std::max(most, count_at(file, at_step, *step));
  }
  return most;
}

constexpr const char* kTrainState = "train_state.pt";

// What Megatron Bridge goes on with lies beside what Megatron saves.
void check_bridge(const OpenedTraining& checkpoint, VerifyReport& report) {
  const auto compare = [&](const std::string& name, Steps stated, const std::string& by) {
    const auto kind = checkpoint.source().kind_of(checkpoint.folder() / name);
    if (!stated || kind != ckpt::EntryKind::File) return;
    const auto file = open_beside(checkpoint, name);
    const auto step = at(root_of(*file), "step");
    const Steps steps = step ? count_at(*file, "/step", *step) : std::nullopt;
    if (!steps || *steps == *stated) return;
    report.find({.file = checkpoint.shown_name(name), .key = "step"},
                "is " + std::to_string(*steps) + ", but " + by + " says " + std::to_string(*stated),
                "it is of another save");
  };
  if (!checkpoint.source().has(checkpoint.folder() / kTrainState)) {
    report.not_proven.push_back(
        {"that Megatron Bridge resumes", std::string(kTrainState) + " is not there"});
  }
  compare(kTrainState, checkpoint.catalog().iteration, "the folder's name");
  if (!checkpoint.was_root()) return;
  const auto latest = ckpt::latest_iteration(checkpoint.folder().parent_path(), kMegatronFolders);
  compare("../latest_train_state.pt", latest, std::string(kMegatronFolders.tracker));
}

class StepCheck {
 public:
  StepCheck(const OpenedTraining& checkpoint, VerifyReport& report)
      : checkpoint_(checkpoint), report_(report), facts_(trainer_facts(checkpoint)) {
    counts_.named = steps_in_name(checkpoint.folder());
    counts_.run = facts_.step;
  }

  void run() {
    const auto deepspeed = at(root_of(checkpoint_), "deepspeed");
    if (!checkpoint_.joined_words().empty() && deepspeed) {
      check_deepspeed(*deepspeed);
    } else if (facts_.source == kTrainerState) {
      check_name(true);
      read_beside(".pt");
      check_trainer();
    } else if (facts_.source == kAccelerateStates) {
      read_beside(".bin");
      check_accelerate();
    } else {
      check_name(facts_.step_key == kTitanStepKey);
    }
  }

 private:
  // --- against the folder's name ---

  void check_name(bool is_name_of_writer) {
    if (!counts_.named || !counts_.run || *counts_.named == *counts_.run) return;
    const std::string saved = "the state is from step " + std::to_string(*counts_.run);
    const std::string named = "the folder's name says " + std::to_string(*counts_.named);
    if (!is_name_of_writer) {
      return report_.not_proven.push_back({saved, named});
    }
    const bool is_beside = !facts_.source.empty();
    report_.find({.file = checkpoint_.shown_name(is_beside ? facts_.source : ".metadata"),
                  .key = is_beside ? "" : facts_.step_key},
                 saved + ", but " + named, "the folder may have been renamed, or copied into");
  }

  // --- transformers and Accelerate ---

  void read_beside(const std::string& suffix) {
    const std::string scheduler = "scheduler" + suffix, optimizer = "optimizer" + suffix;
    if (const auto file = open_if_there(scheduler)) {
      const auto root = root_of(*file);
      // ReduceLROnPlateau counts evaluations.
      if (!at(root, "num_bad_epochs")) counts_.scheduler = steps_at(root, "last_epoch");
    }
    const auto file = open_if_there(optimizer);
    if (file) counts_.optimizer = steps_taken(*file, root_of(*file), "");
  }

  std::shared_ptr<const OpenedTraining> open_if_there(const std::string& name) const {
    const bool is_there =
        checkpoint_.source().kind_of(checkpoint_.folder() / name) == ckpt::EntryKind::File;
    return is_there ? open_beside(checkpoint_, name) : nullptr;
  }

  // The Trainer steps the optimizer and the scheduler together, each time that it counts a step,
  // unless the loss scaler skips both. Files of another save are beyond it, or differ by more than
  // an optimizer that takes no first step.
  void check_trainer() {
    const Steps run = counts_.run;
    const auto compare = [&](Steps steps, Steps other, const std::string& file) {
      if (!run || !steps || *steps == *run || steps == counts_.named) return;
      const std::string text = "counts " + std::to_string(*steps) + " steps, " + kTrainerState +
                               " " + std::to_string(*run);
      const bool is_late = *steps < *run && (!other || *other != *run);
      const bool is_first_left_out = *steps + 1 == *run && file == "optimizer.pt";
      if (is_late || is_first_left_out) {
        return report_.not_proven.push_back({file + " " + text, "steps may have been skipped"});
      }
      report_.find({.file = checkpoint_.shown_name(file), .key = ""},
                   text + ": it is of another save", "the folder may have been copied into");
    };
    compare(counts_.scheduler, counts_.optimizer, "scheduler.pt");
    compare(counts_.optimizer, counts_.scheduler, "optimizer.pt");
  }

  // With its optimizer a scheduler steps once, or once for each process; by itself at any time.
  void check_accelerate() {
    if (!counts_.scheduler || !counts_.optimizer || *counts_.scheduler == *counts_.optimizer)
      return;
    int64_t processes = 0;
    for (const std::string& name : checkpoint_.source().list(checkpoint_.folder())) {
      processes += name.starts_with("random_states_") ? 1 : 0;
    }
    if (*counts_.scheduler == *counts_.optimizer * processes) return;
    report_.not_proven.push_back({"scheduler.bin counts " + std::to_string(*counts_.scheduler) +
                                      " steps, optimizer.bin " + std::to_string(*counts_.optimizer),
                                  "a scheduler that is not stepped with the optimizer may"});
  }

  // --- DeepSpeed ---

  // An optimizer's count may start with one more: some versions take a step to make its state. It
  // has fewer where it was not loaded when the run went on.
  void check_deepspeed(const Value& stated) {
    const Steps global = steps_at(stated, "global_steps");
    if (!global) return;
    const int64_t skipped = steps_at(stated, "skipped_steps").value_or(0),
                  taken = *global - skipped;
    const Steps steps =
        steps_taken(checkpoint_, at(root_of(checkpoint_), "optimizer"), "/optimizer");
    const std::string text = "global_steps is " + std::to_string(*global) +
                             (skipped == 0 ? "" : ", skipped_steps " + std::to_string(skipped));
    const std::string count =
        "the optimizer has taken " + std::to_string(steps.value_or(0)) + " steps";
    const bool is_of_name = counts_.named && steps && *counts_.named == *steps + skipped;
    if (steps && (*steps > taken + 1 || (is_of_name && *counts_.named != *global))) {
      return report_.find({.file = checkpoint_.shown_name(model_file()), .key = "global_steps"},
                          text + ", but " + count, "model and optimizer are of two saves");
    }
    if (steps && *steps < taken) report_.not_proven.push_back({text, count});
    counts_.run = global;
    check_name(false);
  }

  std::string model_file() const {
    const auto& files = checkpoint_.catalog().files;
    const auto found = std::ranges::find_if(
        files, [](const ckpt::FileEntry& file) { return file.path.ends_with("_model_states.pt"); });
    return found == files.end() ? std::string() : found->path;
  }

  const OpenedTraining& checkpoint_;
  VerifyReport& report_;
  TrainerFacts facts_;
  Counts counts_;
};

}  // namespace

std::shared_ptr<const OpenedTraining> open_beside(const OpenedTraining& checkpoint,
                                                  const std::string& name) {
  const ckpt::Folder& source = checkpoint.source();
  ckpt::OpenOptions options{.iteration = {}, .limits = checkpoint.limits()};
  options.source = {std::shared_ptr<const void>(), &source};  // the checkpoint lives longer
  return std::make_shared<const OpenedTraining>(
      open_checkpoint(checkpoint.folder() / name, std::move(options)));
}

void check_steps(const OpenedTraining& checkpoint, VerifyReport& report) {
  if (checkpoint.was_file()) return;
  if (is_megatron(checkpoint)) {
    if (!bridge_config(checkpoint).empty())
      unless_damaged([&] { check_bridge(checkpoint, report); });
    return;
  }
  unless_damaged([&] { StepCheck(checkpoint, report).run(); });
}

}  // namespace optim
