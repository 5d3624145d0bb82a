#pragma once

#include <ckpt/checkpoint.h>
#include <ckpt/target.h>
#include <training/training_state.h>

namespace optim {

// Says of each embedding whose padding a target leaves out how large the largest value in these
// rows is, of the weight, its master and its states: padding that was trained is not zero.
// `rows`: of the target.
void tell_cut_rows(const TrainingState& view, const ckpt::PayloadSource& source, uint64_t rows,
                   ckpt::Target& target);

}  // namespace optim
