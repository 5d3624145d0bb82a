#include "repair/bucket_shift.h"

#include <algorithm>
#include <span>
#include <vector>

#include <ckpt/tensor_stream.h>

#include "state/remainders.h"
#include "state/rounding.h"

namespace optim {
namespace {

constexpr uint64_t kPieceElements = uint64_t{1} << 16;

// Elements of which master and weight agree.
uint64_t count_matching(const TrainedParam& param, const ckpt::PayloadSource& source) {
  const ckpt::DType dtype = param.weight->dtype;
  const auto rounds_to = dtype == ckpt::DType::Float16 ? rounds_to_float16 : rounds_to_bfloat16;
  std::vector<float> masters(kPieceElements);
  std::vector<uint16_t> weights(kPieceElements);
  ckpt::TensorStream master_stream(*param.master, source), weight_stream(*param.weight, source);
  uint64_t matching = 0;
  while (weight_stream.left_bytes() > 0) {
    const auto count = std::min(kPieceElements, weight_stream.left_bytes() / sizeof(uint16_t));
    master_stream.read(std::as_writable_bytes(std::span(masters).first(count)));
    weight_stream.read(std::as_writable_bytes(std::span(weights).first(count)));
    for (size_t i = 0; i < count; ++i) matching += rounds_to(masters[i], weights[i]) ? 1 : 0;
  }
  return matching;
}

bool are_halves(const FiledState& state, const std::vector<uint32_t>& params) {
  return std::ranges::all_of(params, [&](uint32_t param) {
    const ckpt::DType dtype = state.params[param].weight->dtype;
    return dtype == ckpt::DType::BFloat16 || dtype == ckpt::DType::Float16;
  });
}

}  // namespace

std::string first_displaced(const FiledState& state) {
  uint32_t first = static_cast<uint32_t>(state.params.size());
  const BucketWindows windows(state);
  for (const WindowedBuffer& buffer : windows.buffers()) {
    for (const WindowedParam& param : buffer.params) {
      if (param.is_stored && param.shift != 0) first = std::min(first, param.param);
    }
  }
  return first < state.params.size() ? state.params[first].info.name : std::string();
}

std::optional<FoundShift> find_bucket_shift(const FiledState& state, const OpenedTraining& source) {
  if (has_remainders(state)) return std::nullopt;  // which show no place
  if (state.filed.only() != &kByName) return std::nullopt;
  auto shifted = shift_back(state, source);
  if (!shifted || !are_halves(state, shifted->displaced)) return std::nullopt;
  FoundShift found{{}, std::move(*shifted), nullptr};
  found.payloads = std::make_shared<const RepairedPayloads>(source, found.shifted);
  BucketShift& shift = found.shift;
  shift.param = state.params[found.shifted.displaced.front()].info.name;
  shift.param_count = found.shifted.displaced.size();
  shift.least = found.shifted.least;
  shift.most = found.shifted.most;
  shift.lost_count = found.shifted.lost_count;
  for (const uint32_t param : found.shifted.displaced) {
    shift.element_count += ckpt::element_count(state.params[param].weight->shape);
    shift.stored_matching += count_matching(state.params[param], source);
    shift.matching_count += count_matching(found.shifted.state.params[param], *found.payloads);
  }
  // What replaces lost masters rounds to the weights that it is made of.
  shift.matching_count -= std::min(shift.matching_count, shift.lost_count);
  return found;
}

}  // namespace optim
