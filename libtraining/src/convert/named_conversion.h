#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/target.h>
#include <training/conservation.h>
#include <training/continuation.h>
#include <training/convert.h>
#include <training/filed_state.h>
#include <training/layer_wise_checkpoint.h>

#include "convert/write_named.h"
#include "layouts/job/layer_wise_target.h"

namespace optim {

// The folder of a checkpoint that no run has stepped.
inline constexpr std::string_view kRelease = "release";

// A training state on its way to its destination.
struct NamedConversion {
  const FiledState& state;
  LayerWiseTargetSpec spec = {};                  // not of safetensors
  std::optional<Continuation> continuation = {};  // of Megatron's formats, with an optimizer
  std::shared_ptr<const FiledState> filed = {};   // in the target's form; null: the state is
  RunGrid grid = {};
  uint64_t rows = 0;       // of the vocabulary; 0: as they are
  std::string names = {};  // of a Hugging Face folder
  ckpt::Target target = {};
  std::vector<StateCount> source_states = {}, states = {};  // of the source, of the target
  const FiledState& target_state() const { return filed ? *filed : state; }
};

// As options.fsdp_dtensor and torch_dcp ask: files of state dicts, which do not depend on sizes.
NamedConversion to_fsdp(const FiledState& state, Job& job, const ConvertOptions& options);

}  // namespace optim
