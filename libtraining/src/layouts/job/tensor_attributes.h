#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ckpt/document.h>
#include <training/training_state.h>

#include "grid/build_state.h"

// What torch files say of a tensor beside its values: Megatron marks masters with the attributes of
// tensor parallelism, which torch_dist has no place for and which a parameter's name gives again.
namespace optim {

// Takes down the attributes of a tensor under its canonical key; what no target holds (its class,
// requires_grad) goes to state.not_carried.
struct FoundTensor {
  std::string key;
  ckpt::Value value;  // in the document
  const ckpt::Document& document;
};
void note_attributes(const FoundTensor& tensor, CommonBuilder& common, TrainingState& state);

// Of a step count, which is written anew: all that it is beside its value goes to
// state.not_carried.
void note_what_a_step_loses(const FoundTensor& step, TrainingState& state);

// Those that Megatron sets on the master of a parameter of this name, in its order.
using Attribute = std::pair<std::string, std::variant<bool, int64_t>>;
std::vector<Attribute> master_attributes(const TrainedParam& param);

// What is lost where attributes are not written: those that a parameter's name does not give.
std::vector<ckpt::NotCarried> lost_attributes(const TrainingState& state);

}  // namespace optim
