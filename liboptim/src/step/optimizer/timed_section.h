#pragma once

#include <optim/optimizer.h>

#include "step/optimizer/inside.h"

namespace optim {

// Tells the configuration's timers, if it has any, that a section begins and ends; with
// barrier_with_L1_time all ranks begin it together. Names are the reference's.
class TimedSection {
 public:
  TimedSection(Optimizer& optimizer, const char* name) : timers_(optimizer.config().timers) {
    name_ = name;
    if (!timers_) return;
    if (optimizer.config().barrier_with_L1_time) StepInside::of(optimizer).peers->barrier();
    timers_(name_, TimerEvent::Start);
  }
  ~TimedSection() {
    if (timers_) timers_(name_, TimerEvent::Stop);
  }
  TimedSection(const TimedSection&) = delete;
  TimedSection& operator=(const TimedSection&) = delete;

 private:
  const TimerFn& timers_;
  const char* name_ = nullptr;
};

}  // namespace optim
