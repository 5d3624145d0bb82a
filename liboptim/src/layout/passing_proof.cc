#include "layout/passing_proof.h"

#include "layout/layer_wise_view.h"
#include "layout/weight_sum.h"

namespace optim {
namespace {

using ckpt::DType;
using ckpt::TensorEntry;

// The whole of one storage, as it lies in its file.
bool is_whole_storage(const TensorEntry& tensor) {
  if (tensor.chunks.size() != 1) return false;
  const ckpt::Chunk& chunk = tensor.chunks[0];
  return chunk.region.wrapping == ckpt::Wrapping::None && !chunk.view &&
         chunk.payload_offset_bytes == 0 &&
         chunk.region.bytes.count_bytes == ckpt::count_bytes(tensor);
}

}  // namespace

PassingProof::PassingProof(const LayerWiseCheckpoint& view, const ckpt::Checkpoint& source)
    : view_(view), source_(source), params_(view.params.size()) {
  for (size_t i = 0; i < params_.size(); ++i) {
    const std::string& name = view.params[i].info.name;
    const TensorEntry& weight = *view.tensors.find_tensor(name);
    const TensorEntry& master = *view.tensors.find_tensor(state_key(kMasterState, name));
    const bool is_plain = weight.dtype == DType::BFloat16 && master.dtype == DType::Float32 &&
                          weight.shape == master.shape && is_whole_storage(weight) &&
                          is_whole_storage(master);
    if (!is_plain) continue;
    params_[i].count = ckpt::element_count(weight.shape);
    add_place(weight, {i, false});
    add_place(master, {i, true});
  }
}

// A storage that two tensors share proves neither.
void PassingProof::add_place(const TensorEntry& tensor, Place place) {
  const ckpt::StorageRegion& region = tensor.chunks[0].region;
  const auto [known, added] = places_.try_emplace({region.file, region.bytes.offset_bytes}, place);
  if (added) return;
  params_[known->second.param].count = 0;
  params_[place.param].count = 0;
}

void PassingProof::note(const ckpt::StorageRegion& located, uint64_t offset_bytes,
                        std::span<const std::byte> bytes) {
  const auto found = places_.find({located.file, located.bytes.offset_bytes});
  if (found == places_.end()) return;
  const auto [index, is_master] = found->second;
  Param& param = params_[index];
  const uint64_t element_bytes = is_master ? sizeof(float) : sizeof(uint16_t);
  const uint64_t pair_bytes = element_bytes * kWeightsPerPair;
  const uint64_t end_bytes = offset_bytes + bytes.size();
  const bool is_in_pairs =
      offset_bytes % pair_bytes == 0 &&
      (end_bytes % pair_bytes == 0 || end_bytes == param.count * element_bytes);
  if (param.count == 0 || !is_in_pairs) return;
  const uint64_t first = offset_bytes / element_bytes;
  Tensor& tensor = is_master ? param.master : param.weight;
  tensor.sum += is_master ? sum_of_masters(bytes, first) : sum_of_weights(bytes, first);
  tensor.passed_elements += bytes.size() / element_bytes;
  if (!param.has_passed() || param.weight.sum == param.master.sum) return;
  refuse_master(view_, source_, view_.params[index]);
}

std::optional<uint64_t> PassingProof::proven(size_t param) const {
  const Param& known = params_[param];
  if (known.count == 0 || !known.has_passed() || known.weight.sum != known.master.sum) {
    return std::nullopt;
  }
  return known.weight.sum;
}

}  // namespace optim
