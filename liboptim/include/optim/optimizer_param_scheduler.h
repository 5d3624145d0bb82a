#pragma once

#include <cstdint>
#include <string>

#include <optim/export.h>
#include <optim/optimizer.h>

namespace optim {

// Megatron-Core's OptimizerParamScheduler. All lengths are in its num_steps: consumed samples, not
// iterations, when a Megatron trainer drives it.
struct SchedulerSettings {
  double init_lr = 0, max_lr = 0, min_lr = 0;
  int64_t lr_warmup_steps = 0, lr_decay_steps = 1;
  std::string lr_decay_style = "linear";  // constant, linear, cosine, inverse-square-root, WSD
  double start_wd = 0, end_wd = 0;
  int64_t wd_incr_steps = 1;
  std::string wd_incr_style = "constant";          // constant, linear, cosine
  int64_t wsd_decay_steps = 0;                     // WSD: the length of the last phase
  std::string lr_wsd_decay_style = "exponential";  // linear, cosine, exponential, minus_sqrt
};

// Sets lr and weight_decay of every group of an optimizer, which must outlive it. Groups override
// max_lr, min_lr, start_wd and end_wd; their decay is multiplied by wd_mult.
class OPTIM_EXPORT OptimizerParamScheduler {
 public:
  // Throws Error(Unsupported) with the key for an unknown style, Error(InvalidArgument) for lengths
  // and rates that make no schedule. Writes the groups for num_steps 0.
  OptimizerParamScheduler(Optimizer& optimizer, SchedulerSettings settings);

  void step(int64_t increment);  // after each step that was not skipped
  int64_t num_steps() const { return num_steps_; }

  double get_lr(const ParamGroup& group) const;
  double get_wd(const ParamGroup& group) const;

  StateDict state_dict() const;
  // Replaces settings and position by the saved ones, then writes the groups. Throws what the
  // constructor throws, before anything changed.
  void load_state_dict(const StateDict& state_dict);

 private:
  OPTIM_PRIVATE double decay_coefficient() const;
  OPTIM_PRIVATE double wsd_coefficient() const;

  Optimizer& optimizer_;
  SchedulerSettings settings_;
  int64_t num_steps_ = 0;
};

}  // namespace optim
