#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ckpt/execute.h>
#include <ckpt/limits.h>
#include <optim/ownership.h>
#include <optim/process_groups.h>
#include <optim/rule_config.h>
#include <replay/comparison.h>
#include <replay/export.h>

namespace optim {

// Replays optimizer steps of a Megatron LayerWise checkpoint from recorded gradients.

struct ReplayOptions {
  std::filesystem::path checkpoint;
  std::optional<int64_t> iteration = {};  // of a checkpoint root
  ckpt::Limits limits = {};               // of reading the checkpoint and what is expected
  // grad{k}.NAME in safetensors, a torch.save file (also /grad{k}/NAME) or a DCP folder, reduced,
  // before clipping; with from_init also init.NAME. A folder means its init_and_grads.safetensors,
  // or the only *.safetensors in it. Or what Megatron saves with --save-wgrads-interval, at the
  // checkpoint's parallel sizes: a folder wgrads, the one that holds it, or of the next iteration.
  std::filesystem::path gradients;
  std::optional<int64_t> steps = {};  // default: all that are recorded
  int64_t first = 0;                  // grad{first} is that of the first step
  // Start from init.*: masters are their fp32 casts, states zero, the schedule at 0. The checkpoint
  // gives names, groups and arguments.
  bool from_init = false;
  // Clip by steps[k].grad_norm of the run.json beside the gradients, not by a norm of our own.
  bool recorded_grad_norm = false;
  // A checkpoint, or safetensors with model.NAME, fp32_param.NAME (or master.NAME), exp_avg.NAME,
  // ...
  std::filesystem::path expect = {};
  std::optional<Tolerance> tolerance = {};     // of --expect, for every element; default: per kind
  std::optional<uint32_t> data_parallel = {};  // ranks of the layout; default: the checkpoint's
  OwnershipPolicy ownership = OwnershipPolicy::PingPong;
  std::filesystem::path output =
      {};               // write the result as a checkpoint, in the format that was read
  bool force = false;   // replace an existing output
  bool strict = false;  // Unsupported where something cannot be carried to the output
  bool verify = false;  // read the output back before it is published
  // Called in the process that writes the output, with true before it is begun and with false when
  // it is published or gone. In between a process that is to end has something to undo.
  std::function<void(bool is_writing)> on_writing = {};
  // Of writing the output; once a stop is requested no further step is taken, either (IoFailure,
  // "cancelled").
  ckpt::ExecuteOptions execute = {};

  // Where parameters and states lie and are updated: "cpu" or "cuda". On a GPU the norm is its own,
  // not a recorded one.
  std::string device = "cpu";

  // The release of emerging_optimizers whose SOAP and adaptive Muon are stepped.
  EmergingOptimizers era = EmergingOptimizers::V0_3;

  // [argument of Megatron] a scalar as JSON: counts in place of what args, groups and schedule of
  // the checkpoint say. docs/optimizer.md, "A replay with other arguments", lists the names.
  std::map<std::string, std::string> overrides = {};

  ProcessMesh processes = {};  // all must pass the same options above
};

struct ReplayedStep {
  double lr = 0;              // of the first group
  double grad_norm = 0;       // before clipping: our own
  double grad_norm_used = 0;  // to clip: recorded, or our own
  int64_t num_zeros = 0;      // after clipping
  double loss_scale = 1;      // that gradients were divided by
  bool was_skipped = false;   // for an overflow: nothing moved, and the rest is not known
};

// What was compared of one kind: "model", "fp32_param", "exp_avg", "momentum_buffer", "step", ...
struct ComparedKind {
  std::string kind;
  int64_t tensors = 0, equal = 0;  // equal: bit for bit
  bool passed = true;
  std::string worst_tensor = {};  // the one that uses most of its tolerance
  Difference worst = {};
};

struct ReplayReport {
  uint32_t data_parallel = 1;
  int processes = 1;
  int64_t first_iteration = 0;  // of the state that was loaded; 0 with from_init
  std::vector<ReplayedStep> steps;
  std::vector<ComparedKind> compared;         // empty without `expect`
  std::optional<Divergence> divergence = {};  // none: all that was compared has the same bits
  bool passed = true;
  bool has_unused_norms = false;  // a run.json is there, and recorded_grad_norm was not asked for
  std::vector<std::string> warnings;
  std::vector<std::string> not_carried;  // to `output`; only process 0 knows
};

// A JSON object of such arguments. Throws as read files do, and InvalidArgument for names that are
// not known and for values that are no scalars.
REPLAY_EXPORT std::map<std::string, std::string> read_overrides(const std::filesystem::path& path);

// Loads, steps, compares, writes. Collective where there are several processes: each returns the
// same report. Computes with the calling thread alone. The result depends neither on processes nor
// on the layout.
// Throws Corrupt, with file and key, for gradients and expected states that lack a tensor, have one
// too many or one of another shape or type, for gradients that are not finite or not of steps 0, 1,
// 2, ..., and for arguments and groups of a checkpoint whose values make no sense; InvalidArgument
// for more steps than were recorded; what read_training_state() throws.
REPLAY_EXPORT ReplayReport replay(const ReplayOptions& options);

}  // namespace optim
