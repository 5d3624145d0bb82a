// From parameters to the records of flat buffers.
#include "layouts/job/flat_records.h"

#include <algorithm>

#include "args/run_args.h"
#include "grid/build_state.h"
#include "grid/sharing_of_params.h"
#include "state/remainders.h"
#include "state/words.h"

namespace optim {
namespace {

[[noreturn]] void refuse(const std::string& key, std::string problem) {
  throw Error(ErrorCode::Unsupported, {.file = {}, .key = key}, std::move(problem),
              "--optimizer-sharding fully_reshardable, or --to safetensors");
}

const TrainedParam& param_of(const TrainingState& source, const HeldEntry& held) {
  return source.params[source.model[held.entry].param];
}

// visit(name, dtype) for each state of a parameter that flat buffers have.
void for_each_state(const TrainedParam& param, const auto& visit) {
  if (const TensorRef& filed = filed_as_master(param)) visit(kDistributedMaster, filed->dtype);
  for (const auto& [name, value] : param.states) {
    if (name != kRemainderState) visit(std::string_view(name), value->dtype);
  }
}

std::vector<FlatState> states_of(const TrainedParam& param) {
  std::vector<FlatState> states;
  for_each_state(param, [&](std::string_view name, DType dtype) {
    states.push_back({std::string(name), dtype});
  });
  return states;
}

// Whether states_of() gives these: of 10^6 parameters without making a list for each.
bool has_states(const TrainedParam& param, const std::vector<FlatState>& states) {
  size_t count = 0;
  bool are_same = true;
  for_each_state(param, [&](std::string_view name, DType dtype) {
    are_same = are_same && count < states.size() && states[count].name == name &&
               states[count].dtype == dtype;
    ++count;
  });
  return are_same && count == states.size();
}

}  // namespace

TargetBuffers::TargetBuffers(const TargetJob& job)
    : job_(job),
      arguments_(flat_arguments(job.source.args(), "args of the checkpoint")),
      buffers_(job.source, *job.placement, job.groups.groups, arguments_) {
  if (job.source.unknown_order.empty()) return;
  throw Error(ErrorCode::Unsupported, {.file = {}, .key = job.source.unknown_order},
              "it is not known at which place the model registers it, which decides its "
              "place in the flat buffers of the optimizer",
              "--optimizer-sharding fully_reshardable needs no order; it is given by " +
                  row_for(job.source, job.source.unknown_order));
}

DType TargetBuffers::weights_of(const FlatBuffer& buffer) const {
  return param_of(job_.source, buffer.held.front()).info.dtype;
}

// Source: grad_dtype of megatron/core/distributed/distributed_data_parallel.py.
DType TargetBuffers::gradients_of(const FlatBuffer& buffer) const {
  return is_true(job_.source.args(), "accumulate_allreduce_grads_in_fp32") ? DType::Float32
                                                                           : weights_of(buffer);
}

NodeId TargetBuffers::add_types(ValueTree& tree, const FlatBuffer& buffer) const {
  return tree.tuple({tree.global("torch", ckpt::name(weights_of(buffer))),
                     tree.global("torch", ckpt::name(gradients_of(buffer)))});
}

std::string TargetBuffers::types_text(const FlatBuffer& buffer) const {
  return "(torch." + std::string(ckpt::name(weights_of(buffer))) + ", torch." +
         std::string(ckpt::name(gradients_of(buffer))) + ")";
}

std::vector<FlatState> states_in(const TrainingState& source, const FlatBuffer& buffer) {
  const TrainedParam& first = param_of(source, buffer.held.front());
  std::vector<FlatState> states = states_of(first);
  for (const HeldEntry& held : buffer.held) {
    const TrainedParam& param = param_of(source, held);
    if (!has_states(param, states)) {
      refuse(param.info.name, "has other optimizer states, or of other types, than '" +
                                  ckpt::escaped(first.info.name) +
                                  "', which would lie in one flat buffer with it");
    }
    for (const FlatState& state : states) {
      if (state_of(param, state.name)->shape == param.weight->shape) continue;
      refuse(state_of(param, state.name)->key,
             "has a shape of its own; a flat buffer has an element for each of its parameter's");
    }
  }
  return states;
}

const TensorRef& state_of(const TrainedParam& param, std::string_view name) {
  if (name == kDistributedMaster) return filed_as_master(param);
  return std::ranges::find(param.states, name, &StateTensor::name)->value;
}

std::vector<Box> boxes_on_rank(const TargetJob& job, uint32_t param, const RankCoordinates& at) {
  return job.placement->boxes(param, job.placement->tensor_rank(param, at));
}

std::vector<ckpt::Segment> segments_of(std::span<const Box> boxes, const TensorRef& tensor,
                                       ElementRange range, uint64_t offset_bytes) {
  const uint64_t element_bytes = ckpt::bytes_per_element(tensor->dtype);
  std::vector<ckpt::Segment> segments;
  uint64_t box_begin = 0;  // in the rank's part
  for (Box box : boxes) {
    const uint64_t box_end = box_begin + ckpt::element_count(box.sizes);
    const uint64_t begin = std::max(range.begin, box_begin);
    uint64_t end = std::min(range.end, box_end);
    if (!box.sizes.empty() && box.offsets[0] + box.sizes[0] > tensor->shape[0]) {
      const uint64_t stored = tensor->shape[0];
      box.sizes[0] = stored > box.offsets[0] ? stored - box.offsets[0] : 0;
      end = std::min(end, box_begin + ckpt::element_count(box.sizes));
    }
    if (begin < end) {
      segments.push_back({offset_bytes + (begin - range.begin) * element_bytes,
                          {tensor, std::move(box)},
                          begin - box_begin,
                          end - begin});
    }
    box_begin = box_end;
  }
  return segments;
}

}  // namespace optim
