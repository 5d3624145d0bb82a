#pragma once

#include <span>
#include <string_view>

#include <ckpt/root.h>

namespace optim {

// A folder of a root that a program names after an iteration.
struct NamedIteration {
  ckpt::IterationFolder folder;
  std::string_view writer;    // whose way to name it is: "Megatron", "Hugging Face Trainer"
  bool counts_steps = false;  // as the checkpoint itself counts them
  // Where in the folder the checkpoint may lie; the first that is there counts.
  std::span<const std::string_view> below = {};
};

}  // namespace optim
