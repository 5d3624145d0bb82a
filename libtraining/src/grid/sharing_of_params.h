#pragma once

#include <cstdint>
#include <string>

#include <training/training_state.h>

// How tensor parallel ranks share a parameter: the files are asked before a rule.
namespace optim {

// Of `torch` files, where `param.weight` is one rank's part and the attributes of its master, if it
// has any, are in `state`, as nodes of `common`. Throws Unsupported where `tensor_ranks` share it
// and neither says how.
TensorSharing sharing_of(const TrainingState& state, const TrainedParam& param,
                         uint32_t tensor_ranks, const ckpt::ValueTree& common);

// Of a tensor in torch_dist, by the grid of its chunks: blocks of one size along one dimension.
// `tensor_ranks`: of the run that wrote it. The rule of its name is asked where the chunks do not
// tell.
TensorSharing sharing_of_chunks(const TrainingState& state, const TrainedParam& param,
                                uint32_t tensor_ranks);

// For a hint: the row of --model-rules that would be enough for an entry of the model.
std::string row_for(const TrainingState& state, const std::string& name);

}  // namespace optim
