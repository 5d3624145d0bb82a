#include "convert/cast_states.h"

#include <algorithm>

#include <ckpt/error.h>

#include "convert/cast_payloads.h"
#include "state/remainders.h"

namespace optim {
namespace {

using ckpt::DType;
using ckpt::Error;
using ckpt::ErrorCode;

std::string text(DType dtype) { return std::string(ckpt::name(dtype)); }

void require_cast(const TrainingState& state, const StateType& asked) {
  const std::string option = "--state-dtype " + ckpt::escaped(asked.name) + ": ";
  if (asked.name == kRemainderState) {
    throw Error(ErrorCode::InvalidArgument, {},
                option + "remainders of masters have the type of the form that they are filed in");
  }
  bool is_known = false;
  for (const TrainedParam& param : state.params) {
    for (const StateTensor& of_param : param.states) {
      if (of_param.name != asked.name) continue;
      is_known = true;
      const DType from = of_param.value->dtype;
      if (from == asked.dtype || can_cast(from, asked.dtype)) continue;
      throw Error(
          ErrorCode::InvalidArgument, {.file = {}, .key = of_param.value->key},
          option + "it is of type " + text(from) + ", which cannot become " + text(asked.dtype));
    }
  }
  if (!is_known) {
    throw Error(ErrorCode::InvalidArgument, {},
                option + "no parameter has a state of this name; masters keep their type",
                "ckpt-inspect groups lists the states");
  }
}

const StateType* type_for(const std::vector<StateType>& types, const StateTensor& state) {
  const auto found = std::ranges::find(types, state.name, &StateType::name);
  const bool changes = found != types.end() && state.value->dtype != found->dtype;
  return changes ? &*found : nullptr;
}

bool changes_any(const TrainingState& state, const std::vector<StateType>& types) {
  return std::ranges::any_of(state.params, [&](const TrainedParam& param) {
    return std::ranges::any_of(
        param.states, [&](const StateTensor& one) { return type_for(types, one) != nullptr; });
  });
}

void add_once(std::vector<std::string>& lines, std::string line) {
  if (std::ranges::find(lines, line) == lines.end()) lines.push_back(std::move(line));
}

}  // namespace

std::vector<StateType> types_of_target(const TrainingState& state, const TargetForm& form,
                                       const std::vector<StateType>& asked) {
  std::vector<StateType> types = asked;
  for (const StateType& one : asked) require_cast(state, one);
  // Megatron gathers them as float32 in all forms but this one.
  const bool is_int16 = form.sharding == OptimizerSharding::DpReshardable;
  types.push_back({std::string(kRemainderState), is_int16 ? DType::Int16 : DType::Float32});
  return types;
}

CastStates cast_states(const TrainingState& state, const ckpt::Checkpoint& source,
                       const ckpt::PayloadSource& payloads, const std::vector<StateType>& types) {
  CastStates made;
  if (!changes_any(state, types)) return made;
  auto filed = std::make_shared<TrainingState>(state);
  // The number after the files of the checkpoint is that of a filler (repair/shifted_state.h).
  const auto first_file = static_cast<uint32_t>(source.catalog().files.size() + 1);
  auto cast = std::make_shared<CastPayloads>(payloads, first_file);
  for (TrainedParam& param : filed->params) {
    for (StateTensor& one : param.states) {
      const StateType* const type = type_for(types, one);
      if (type == nullptr) continue;
      const DType from = one.value->dtype;
      source.check_crc(*one.value);
      one.value = std::make_shared<ckpt::TensorEntry>(cast->cast(*one.value, type->dtype));
      if (one.name == kRemainderState) continue;
      add_once(is_widening(from, type->dtype) ? made.widened : made.rounded,
               one.name + ": " + text(from) + " to " + text(type->dtype));
    }
  }
  made.state = std::move(filed);
  made.payloads = std::move(cast);
  return made;
}

}  // namespace optim
