#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/checkpoint.h>
#include <ckpt/dtype.h>
#include <ckpt/value.h>
#include <training/filed_state.h>
#include <training/training_state.h>

// What update rules keep of each parameter, by the table of rules, beside what a training state
// has of it.
namespace optim {

// The steps that an optimizer of the chain has taken; nullopt where it does not count them.
std::optional<double> step_of(const FiledState& state, uint32_t optimizer);

// All optimizers of a chain take their steps together, and Muon counts none: its own count, that of
// another one, or the iteration says it.
enum class Stepped : uint8_t { Never, Unknown, Yes };
Stepped has_stepped(const FiledState& state, uint32_t optimizer);

// Throws Corrupt, with the file of a parameter's state and the key of what is missing, for the
// first parameter that has some states, but not all that its rule keeps and that others of its
// optimizer have.
void require_whole_states(const FiledState& state, const ckpt::Checkpoint& source);

// Parameters with a master and without any state, although their rule keeps some: indices.
struct StatelessParams {
  std::vector<uint32_t> never_stepped;  // of an optimizer that has taken no step
  std::vector<uint32_t> unexplained;
};
StatelessParams find_stateless(const FiledState& state);
// Why nothing proves that an unexplained one is right.
std::string why_unexplained(const FiledState& state, const TrainedParam& param);

// The states that a rule keeps of every parameter that it has stepped, whatever its settings.
std::vector<std::string_view> states_kept_by(std::string_view rule);

// What comes of it.
inline constexpr const char* kUncounted =
    "the correction of the moments' bias would start anew, as at the first step";
// The optimizers of the chain that have moments and whose rule corrects their bias by a count of
// steps, which is nowhere, although steps may have been taken.
std::vector<uint32_t> find_uncounted(const FiledState& state);

// Moves the step that all parameters of an optimizer share into its groups, as a
// DistributedOptimizer files it. `tree`: of the groups. Throws Unsupported for a tensor of
// another type than float32, float64, int32 and int64.
void put_steps_into_groups(ckpt::ValueTree& tree, ChainedOptimizerState& optimizer);

// One element of a tensor of the types in which optimizers count steps; nullopt for other types and
// for bytes that are not one element.
std::optional<double> step_number(ckpt::DType dtype, const std::string& bytes);

}  // namespace optim
