#include "convert/cast_states.h"

#include <algorithm>
#include <string>
#include <vector>

#include "model/tensor_names.h"
#include "state/remainders.h"
#include "state/words.h"

namespace optim {
namespace {

// A second moment that has become 0 would divide the next update by epsilon alone.
constexpr const char* kWhyNotZero = "the next update of that element would be huge";

std::string text(DType dtype) { return std::string(ckpt::name(dtype)); }

void require_cast(const FiledState& state, const StateType& asked) {
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
      const bool is_number = asked.dtype != DType::Int16;  // that is of remainders alone
      if (from == asked.dtype || (is_number && ckpt::can_cast(from, asked.dtype))) continue;
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

void add_once(std::vector<std::string>& lines, std::string line) {
  if (std::ranges::find(lines, line) == lines.end()) lines.push_back(std::move(line));
}

}  // namespace

std::vector<StateType> types_of_target(const FiledState& state, const FiledAs& target,
                                       const std::vector<StateType>& asked) {
  std::vector<StateType> types = asked;
  for (const StateType& one : asked) {
    if (std::ranges::count(asked, one.name, &StateType::name) > 1) {
      throw Error(ErrorCode::InvalidArgument, {},
                  "--state-dtype " + ckpt::escaped(one.name) + ": is given more than one type");
    }
    require_cast(state, one);
  }
  // Megatron gathers them as float32 in all forms but this one.
  const bool is_int16 = target.only() == &kBuckets;
  types.push_back({std::string(kRemainderState), is_int16 ? DType::Int16 : DType::Float32});
  return types;
}

CastStates cast_states(const FiledState& state, const std::vector<StateType>& types) {
  CastStates made;
  std::shared_ptr<FiledState> filed;
  for (size_t p = 0; p < state.params.size(); ++p) {
    for (size_t s = 0; s < state.params[p].states.size(); ++s) {
      const StateTensor& one = state.params[p].states[s];
      const StateType* const type = type_for(types, one);
      if (type == nullptr) continue;
      if (!filed) filed = std::make_shared<FiledState>(state);
      const DType from = one.value->dtype;
      const ckpt::Cast cast{.zero_is_wrong = is_second_moment_name(one.name) ? kWhyNotZero : ""};
      filed->params[p].states[s].value =
          std::make_shared<TensorEntry>(ckpt::with_cast(*one.value, type->dtype, cast));
      if (one.name == kRemainderState) continue;
      add_once(ckpt::is_widening(type->dtype) ? made.widened : made.rounded,
               one.name + ": " + text(from) + " to " + text(type->dtype));
    }
  }
  made.state = std::move(filed);
  return made;
}

void cast_weights(ckpt::TypeChange& types, FiledState& state) {
  if (!state.chain.empty()) {
    throw Error(ErrorCode::Unsupported, {.file = {}, .key = {}},
                "--dtype changes a model's weights, and beside an optimizer these are its masters, "
                "rounded: a run would go on from the masters",
                "--model-only leaves the optimizer out; --state-dtype changes its states");
  }
  for (TrainedParam& param : state.params) {
    param.weight = types.apply(param.weight, param.info.name, keeps_type(param.info.name));
    param.info.dtype = param.weight->dtype;
  }
}

void state_type(DType type, TrainingState& state) {
  ValueTree& tree = state.common.tree;
  const NodeId args = state.args().id();
  const auto put = [&](std::string_view name, NodeId value) {
    if (tree.value(args).find(name)) tree.put(args, name, value);
  };
  put("bf16", tree.boolean(type == DType::BFloat16));
  put("fp16", tree.boolean(type == DType::Float16));
  put("params_dtype", tree.global("torch", ckpt::name(type)));
}

}  // namespace optim
