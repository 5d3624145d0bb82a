#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ckpt/dtype.h>
#include <ckpt/value.h>

// What optimizers and ranks keep beside the states of parameters, as parts of a TrainingState.
// Values: nodes are of TrainingState::common.
namespace optim {

// Where an optimizer keeps its step count.
enum class StepLayout : uint8_t {
  None,            // Muon
  PerParam,        // a 0-dim tensor in each parameter's state; torch_dist: one `common_step`
  PerParamNumber,  // SOAP: an integer in its place
  PerGroup,        // an integer in each group that is not empty on the rank
};

// What an optimizer of the chain keeps beside the states of its parameters.
struct ChainedOptimizerState {
  std::vector<ckpt::NodeId> groups;  // in `common`: dicts without `params`, with `step` if PerGroup
  StepLayout step_layout = StepLayout::None;
  ckpt::DType step_dtype = ckpt::DType::Float32;  // PerParam
  std::string step_bytes;                         // PerParam: the value that all parameters share
  int64_t step_number = 0;                        // PerParamNumber: the same
  // Further keys of its state, e.g. grad_scaler, and of the wrapped optimizer's state in it.
  std::vector<std::pair<std::string, ckpt::NodeId>> others, inner_others;
};

// A further key of an optimizer's state in `torch` files that not all ranks state, and equally.
struct RankItem {
  std::string name;  // "optimizer.0/KEY"; "optimizer.0/optimizer/KEY" of the wrapped optimizer
  std::string key;
  uint32_t optimizer = 0;                                 // place in the chain
  bool is_inner = false;                                  // of the wrapped optimizer's state
  std::vector<std::pair<uint32_t, ckpt::NodeId>> values;  // by rank; in `common`
};

// The random state that the ranks of one place of the model share: `rng_state`, in `common`.
struct RankRng {
  uint32_t tensor = 0, pipeline = 0, expert = 0;  // ranks
  ckpt::NodeId value = ckpt::kNoNode;
};

}  // namespace optim
