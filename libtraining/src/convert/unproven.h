#pragma once

#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include <training/filed_state.h>
#include <training/opened_training.h>

// Masters that bits do not prove, in a conversion.
namespace optim {

// What named masters where files do not: "the ping-pong deal".
std::string naming_of(const FiledState& view);

// Why no master can be proven by its bits: masters are remainders, or weights may be something else
// than rounded masters. nullopt where it can be.
std::optional<std::string> why_not_proven(const FiledState& view, const OpenedTraining& source);

// What of the optimizer's state may be right or lost: parameters without any although steps were
// taken, and counts of states that do not add up. For users; empty: nothing.
std::vector<std::string> states_not_proven(const FiledState& view);

// What can be told of such masters all the same. Throws Corrupt for what cannot be right, and
// Unsupported for state that may be displaced; Error(IoFailure, "cancelled") when asked to stop.
void check_unproven(const FiledState& view, const OpenedTraining& source,
                    const std::stop_token& stop);

}  // namespace optim
