#pragma once

#include <optional>
#include <vector>

#include <training/training_state.h>
#include <training/verify.h>

#include "verify/contradicted_arg.h"

namespace optim {

// Whether args describe each layer by itself, so that layers need not be alike.
bool layers_are_described(const TrainingState& state);

// Arguments that the tensors of the model contradict, each once: sizes, numbers of layers and
// experts, the vocabulary, what modules layers have. docs/verify.md lists them, and those of which
// no tensor tells anything. Empty: they agree, or the model has nothing to compare with.
std::vector<ContradictedArg> contradicted_args(const TrainingState& state);

// The first of them that decides so much, or more; nullopt: none does.
std::optional<ContradictedArg> contradicted_arg(const TrainingState& state,
                                                ContradictedArg::Decides least);

// The same as findings: of the model alone, where its optimizer cannot be read.
void check_args(const OpenedTraining& checkpoint, VerifyReport& report);
void check_args(const TrainingState& state, VerifyReport& report);

}  // namespace optim
