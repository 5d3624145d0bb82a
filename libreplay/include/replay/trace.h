#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <optim/rule_config.h>
#include <replay/comparison.h>
#include <replay/export.h>
#include <replay/replay.h>

namespace optim {

// Recorded steps of one optimizer: NAME.json {name, config {class, ...}, params {name: shape},
// qkv_params, scalars {}} and, beside it, NAME.safetensors with init.PARAM, grad{k}.PARAM for
// k = 0, 1, 2, ... and, after step k, step{k}.param.PARAM, step{k}.STATE.PARAM and, where torch
// counts steps in a tensor, step{k}.step.PARAM (a number in `scalars` where SOAP does). `scalars`
// and counts may be left out. Of steps in the middle of a run `first_step` is how many updates
// there were before, `rates` has [lr, weight_decay] of each step, and the file start.STATE.PARAM.
// config of Adam may have `arithmetic`: "torch" (the default) or "fused" of torch.optim's classes,
// "fused_adam" (the default) or "transformer_engine" of FusedAdam.
// Any other field or tensor is refused, and so is a value of another JSON type: nothing is
// converted.

struct CheckOptions {
  std::optional<Tolerance> tolerance = {};  // instead of the bound below
  bool from_recorded_state = false;  // start each step from what was recorded after the one before
  // The release of emerging_optimizers that recorded it, which the trace does not say.
  EmergingOptimizers era = EmergingOptimizers::V0_3;
};

struct TraceReport {
  std::string name;
  bool passed = false;
  int64_t steps = 0;
  NamedDifference worst;  // the largest max_scaled; "param.PARAM", "momentum_buffer.PARAM", ...
};

// Replays a trace and compares every parameter and state after every step: it passes when each is
// within the tolerance, by default within the bound of its algorithm and precision that
// docs/optimizer.md argues. Throws NotFound; Corrupt, with the field or the tensor, for a malformed
// trace; Unsupported, with the name, for files that are no traces, for optimizers that cannot be
// replayed and for fields that are not known.
REPLAY_EXPORT TraceReport check_trace(const std::filesystem::path& json_file,
                                      const CheckOptions& options = {});

// Replays steps as replay() does, and writes them as traces into a new folder: one of each
// parameter group that has parameters, optimizer{N}_group{M}.json. What goes into a step is in them
// as it is updated: masters, clipped gradients in float32, rates. The names, in that order. One
// process, on the CPU. Throws what replay() throws; AlreadyExists; Unsupported for rules that no
// trace is of, and for steps that were skipped. A folder is written whole or not at all.
REPLAY_EXPORT std::vector<std::filesystem::path> record_traces(const ReplayOptions& options,
                                                               const std::filesystem::path& folder);

// Throws what check_trace() would throw for what the JSON file says, without replaying anything.
REPLAY_EXPORT void validate_trace(const std::filesystem::path& json_file,
                                  const CheckOptions& options = {});

}  // namespace optim
