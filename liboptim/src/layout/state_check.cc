#include "layout/state_check.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <unordered_map>

#include <ckpt/error.h>
#include <ckpt/tensor_stream.h>

#include "layout/layer_wise_view.h"
#include "layout/rounding.h"
#include "layout/state_names.h"

namespace optim {
namespace {

using ckpt::CheckKind;
using ckpt::DType;
using ckpt::Error;
using ckpt::ErrorCode;
using ckpt::Severity;
using ckpt::TensorEntry;

constexpr size_t kPieceElements = size_t{1} << 18;

bool is_half(DType dtype) { return dtype == DType::BFloat16 || dtype == DType::Float16; }

// A whole float32 storage of masters beside one of weights, element by element.
struct Mismatch {
  uint64_t count = 0;
  uint64_t first = 0;
};

Mismatch count_mismatches(const TensorEntry& master, const TensorEntry& weight,
                          const ckpt::Checkpoint& source) {
  const auto round = weight.dtype == DType::BFloat16 ? round_to_bfloat16 : round_to_float16;
  std::vector<float> masters(kPieceElements);
  std::vector<uint16_t> weights(kPieceElements);
  ckpt::TensorStream master_stream(master, source), weight_stream(weight, source);
  Mismatch result;
  uint64_t position = 0;
  while (weight_stream.left_bytes() > 0) {
    const size_t count = std::min(kPieceElements, weight_stream.left_bytes() / sizeof(uint16_t));
    master_stream.read(std::as_writable_bytes(std::span(masters).first(count)));
    weight_stream.read(std::as_writable_bytes(std::span(weights).first(count)));
    for (size_t i = 0; i < count; ++i) {
      if (round(masters[i]) == weights[i]) continue;
      if (result.count++ == 0) result.first = position + i;
    }
    position += count;
  }
  return result;
}

}  // namespace

StateCheck::StateCheck(const ckpt::Checkpoint& checkpoint, VerifyReport& report)
    : checkpoint_(checkpoint), report_(report) {
  name_parameters();
  add_states();
  add_pairs();
}

void StateCheck::name_parameters() {
  if (!is_layer_wise(checkpoint_)) return;
  try {
    view_ = name_layer_wise(checkpoint_);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::IoFailure) throw;
    if (error.code() == ErrorCode::Unsupported) {
      report_.not_checked.push_back({"which rank owns which parameter", error.what()});
    } else {
      report_.findings.findings.push_back(
          {CheckKind::Meaning, Severity::Damage, error.where(), error.problem(), error.hint()});
    }
  }
}

void StateCheck::add_states() {
  uint64_t flat_count = 0, other_count = 0;
  for (const TensorEntry& tensor : checkpoint_.catalog().tensors) {
    flat_count += is_flat_buffer(tensor) ? 1 : 0;
    if (!is_state(tensor)) continue;
    Scanned scanned{&tensor, is_second_moment(tensor), {}};
    for (const ckpt::Chunk& chunk : tensor.chunks) {
      if (const auto number = watch_.add(chunk, tensor.dtype, true)) {
        scanned.chunks.push_back(*number);
      }
    }
    if (scanned.chunks.size() != tensor.chunks.size()) ++other_count;
    scanned_.push_back(std::move(scanned));
  }
  if (flat_count != 0) {
    report_.not_checked.push_back(
        {std::to_string(flat_count) + " flat buffers of a DistributedOptimizer",
         "the gaps between parameters hold memory that nobody wrote"});
  }
  if (other_count != 0) {
    report_.not_checked.push_back({std::to_string(other_count) + " tensors of optimizer state",
                                   "no float32, bfloat16 or float16 in row-major order"});
  }
}

void StateCheck::add_pairs() {
  const ckpt::Catalog& catalog = checkpoint_.catalog();
  if (catalog.format == ckpt::Format::Torch) {
    if (!view_) return add_not_checked();
    for (const LayerWiseParam& param : view_->params) {
      const TensorEntry* master =
          view_->tensors.find_tensor(state_key(kMasterState, param.info.name));
      const TensorEntry* weight = view_->tensors.find_tensor(param.info.name);
      if (master != nullptr && weight != nullptr) add_pair(*master, *weight);
    }
    return add_not_checked();
  }
  for (const TensorEntry& tensor : catalog.tensors) {
    const auto name = master_of(tensor.key);
    const TensorEntry* weight = name ? catalog.find_tensor(*name) : nullptr;
    if (weight != nullptr) add_pair(tensor, *weight);
  }
  add_not_checked();
}

void StateCheck::add_not_checked() {
  const bool has_state = !scanned_.empty() || !report_.not_checked.empty();
  if (!pairs_.empty() || !has_state) return;
  const bool lacks_names = is_layer_wise(checkpoint_) || !report_.not_checked.empty();
  report_.not_checked.push_back(
      {"masters against weights",
       lacks_names ? "it is not known which belong together" : "there are no masters"});
}

void StateCheck::add_pair(const TensorEntry& master, const TensorEntry& weight) {
  if (master.dtype != DType::Float32 || !is_half(weight.dtype) || master.shape != weight.shape) {
    const char* reason = master.shape != weight.shape ? "another shape than its weight"
                         : is_half(weight.dtype)      ? "no float32: remainders or scaled values"
                                                      : "the weight is not rounded to 16 bits";
    report_.not_checked.push_back({"'" + ckpt::escaped(master.key) + "'", reason});
    return;
  }
  Pair pair{&master, &weight, {}};
  if (!watch_pair(pair)) pair.chunks.clear();
  pairs_.push_back(std::move(pair));
}

bool StateCheck::watch_pair(Pair& pair) {
  std::map<std::vector<uint64_t>, const ckpt::Chunk*> weights;
  for (const ckpt::Chunk& chunk : pair.weight->chunks) {
    weights.emplace(std::vector<uint64_t>(chunk.box.offsets.begin(), chunk.box.offsets.end()),
                    &chunk);
  }
  const auto print = pair.weight->dtype == DType::BFloat16 ? StateWatch::Print::AsBFloat16
                                                           : StateWatch::Print::AsFloat16;
  for (const ckpt::Chunk& chunk : pair.master->chunks) {
    const auto found =
        weights.find(std::vector<uint64_t>(chunk.box.offsets.begin(), chunk.box.offsets.end()));
    if (found == weights.end() || !(found->second->box == chunk.box)) return false;
    const auto weight =
        watch_.add(*found->second, pair.weight->dtype, true, StateWatch::Print::AsStored);
    const auto master = watch_.add(chunk, DType::Float32, true, print);
    if (!weight || !master) return false;
    pair.chunks.emplace_back(*master, *weight);
  }
  return pair.chunks.size() == pair.weight->chunks.size();
}

void StateCheck::finish() {
  for (const Scanned& scanned : scanned_) scan_tensor(scanned);
  for (const Pair& pair : pairs_) compare(pair);
}

void StateCheck::scan_tensor(const Scanned& scanned) {
  ValueScan total;
  bool is_seen = !scanned.chunks.empty();
  for (const size_t chunk : scanned.chunks) {
    is_seen = is_seen && watch_.is_seen(chunk);
    total.not_finite_count += watch_[chunk].values.not_finite_count;
    total.negative_count += watch_[chunk].values.negative_count;
  }
  report_.state_count += is_seen ? 1 : 0;
  if (total.not_finite_count != 0) {
    find(*scanned.tensor, std::to_string(total.not_finite_count) + " values are NaN or infinite");
  } else if (scanned.not_negative && total.negative_count != 0) {
    find(*scanned.tensor,
         std::to_string(total.negative_count) + " values of a second moment are below zero");
  }
}

void StateCheck::compare(const Pair& pair) {
  bool is_equal = true, is_seen = true;
  for (const auto& [master, weight] : pair.chunks) {
    is_seen = is_seen && watch_.is_seen(master) && watch_.is_seen(weight);
    is_equal = is_equal && watch_[master].fingerprint == watch_[weight].fingerprint;
  }
  if (!is_seen) return;  // what kept it from being read is a finding
  ++report_.master_count;
  if (pair.chunks.empty() || !is_equal) refuse(pair);
}

void StateCheck::refuse(const Pair& pair) {
  Mismatch mismatch;
  try {
    mismatch = count_mismatches(*pair.master, *pair.weight, checkpoint_);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::IoFailure) throw;
    return;  // unreadable: a finding of the structure
  }
  if (mismatch.count == 0) return;
  const auto owner = writer_of(checkpoint_.file_name(pair.master->chunks[0].region.file));
  const auto holder = writer_of(checkpoint_.file_name(pair.weight->chunks[0].region.file));
  std::string hint = "master and weight are of different iterations or parameters";
  if (owner && holder && *owner != *holder) {
    hint = "rank " + std::to_string(*holder) + " wrote the weight, rank " + std::to_string(*owner) +
           " owns it: a weight that was not gathered after the last step is stale like this";
  }
  find(*pair.weight,
       std::to_string(mismatch.count) + " of " +
           std::to_string(ckpt::element_count(pair.weight->shape)) +
           " elements are not what the fp32 master rounds to, the first is number " +
           std::to_string(mismatch.first),
       std::move(hint));
}

void StateCheck::find(const TensorEntry& tensor, std::string problem, std::string hint) {
  const ckpt::StorageRegion& region = tensor.chunks.at(0).region;
  report_.findings.findings.push_back(
      {CheckKind::Meaning,
       Severity::Damage,
       {checkpoint_.file_name(region.file), region.bytes.offset_bytes, tensor.key},
       std::move(problem),
       std::move(hint)});
}

}  // namespace optim
