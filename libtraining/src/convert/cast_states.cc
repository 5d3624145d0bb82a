#include "convert/cast_states.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <tuple>

#include <ckpt/error.h>

#include "convert/cast_payloads.h"
#include "model/tensor_names.h"
#include "state/remainders.h"

namespace optim {
namespace {

using ckpt::DType;
using ckpt::Error;
using ckpt::ErrorCode;

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
      if (from == asked.dtype || (is_number && can_cast(from, asked.dtype))) continue;
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

// Checksums of storages, each once: many tensors may lie in one.
class CheckedRegions {
 public:
  CheckedRegions(const OpenedTraining& source, const std::stop_token& stop)
      : source_(source), stop_(stop) {}

  void check(const ckpt::TensorEntry& tensor) {
    for (const ckpt::Chunk& chunk : tensor.chunks) {
      if (stop_.stop_requested()) throw Error(ErrorCode::IoFailure, {}, "cancelled");
      const ckpt::StorageRegion& region = chunk.region;
      const bool is_new =
          known_.emplace(region.file, region.bytes.offset_bytes, region.bytes.count_bytes).second;
      if (is_new) source_.check_crc({{}, tensor.key, tensor.dtype, tensor.shape, {chunk}});
    }
  }

 private:
  const OpenedTraining& source_;
  const std::stop_token& stop_;
  std::set<std::tuple<uint32_t, uint64_t, uint64_t>> known_;  // file, offset, bytes
};

}  // namespace

bool changes_any(const FiledState& state, const std::vector<StateType>& types) {
  return std::ranges::any_of(state.params, [&](const TrainedParam& param) {
    return std::ranges::any_of(
        param.states, [&](const StateTensor& one) { return type_for(types, one) != nullptr; });
  });
}

namespace {

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

CastStates cast_states(const FiledState& state, const CastSource& from_source,
                       const std::vector<StateType>& types) {
  const auto& [source, payloads, stop] = from_source;
  CastStates made;
  auto filed = std::make_shared<FiledState>(state);
  // The number after the files of the checkpoint is that of a filler (repair/shifted_state.h).
  const auto first_file = static_cast<uint32_t>(source.catalog().files.size() + 1);
  auto cast = std::make_shared<CastPayloads>(payloads, first_file);
  CheckedRegions checked(source, stop);
  for (TrainedParam& param : filed->params) {
    for (StateTensor& one : param.states) {
      const StateType* const type = type_for(types, one);
      if (type == nullptr) continue;
      const DType from = one.value->dtype;
      checked.check(*one.value);
      one.value = std::make_shared<ckpt::TensorEntry>(
          cast->cast(*one.value, type->dtype, !is_second_moment_name(one.name)));
      if (one.name == kRemainderState) continue;
      add_once(is_widening(type->dtype) ? made.widened : made.rounded,
               one.name + ": " + text(from) + " to " + text(type->dtype));
    }
  }
  made.state = std::move(filed);
  made.payloads = std::move(cast);
  return made;
}

}  // namespace optim
