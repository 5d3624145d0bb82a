#include "layouts/torch/readers.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include <ckpt/error.h>
#include <ckpt/tensor_stream.h>

#include "model/tensor_names.h"
#include "state/weight_sum.h"

namespace optim {
namespace {

using ckpt::DType;
using ckpt::TensorEntry;

constexpr std::string_view kModel = "/model/";
// Of the one rank folder that such checkpoints have.
constexpr std::string_view kModelFile = "mp_rank_00/model_optim_rng.pt";
constexpr size_t kPieceElements = size_t{1} << 18;

struct WeightsAndMasters {
  std::vector<const TensorEntry*> weights, masters;
};

// nullopt where masters tell nothing of the weights: these are not of one 16-bit type.
std::optional<WeightsAndMasters> list_tensors(const OpenedTraining& checkpoint) {
  WeightsAndMasters found;
  const bool has_files = has_rank_files(checkpoint);  // of which the model's file repeats one
  for (const TensorEntry& tensor : checkpoint.catalog().tensors) {
    const bool is_of_model = tensor.file == kModelFile;
    if (is_of_model && tensor.key.starts_with(kModel)) {
      found.weights.push_back(&tensor);
    } else if (is_of_model != has_files && is_numbered_master(tensor)) {
      found.masters.push_back(&tensor);
    }
  }
  const auto is_known = [&](const TensorEntry* weight) {
    return weight->dtype == found.weights[0]->dtype &&
           (weight->dtype == DType::BFloat16 || weight->dtype == DType::Float16);
  };
  const bool are_fit =
      found.masters.size() < found.weights.size() && std::ranges::all_of(found.weights, is_known) &&
      std::ranges::all_of(found.masters,
                          [](const TensorEntry* m) { return m->dtype == DType::Float32; });
  return are_fit ? std::optional(std::move(found)) : std::nullopt;
}

// Of a weight, or of what a master rounds to.
uint64_t content_sum(const TensorEntry& tensor, DType weights, const OpenedTraining& source) {
  const uint64_t element_bytes = ckpt::bytes_per_element(tensor.dtype);
  std::vector<std::byte> buffer(kPieceElements * element_bytes);
  ckpt::TensorStream stream(tensor, source);
  uint64_t sum = 0, first = 0;
  while (stream.left_bytes() > 0) {
    const auto piece =
        std::span(buffer).first(std::min<uint64_t>(buffer.size(), stream.left_bytes()));
    stream.read(piece);
    sum += tensor.dtype == DType::Float32 ? sum_of_masters(piece, first, weights)
                                          : sum_of_weights(piece, first, weights);
    first += piece.size() / element_bytes;
  }
  return sum;
}

}  // namespace

bool may_have_frozen_params(const OpenedTraining& checkpoint) {
  const auto found = list_tensors(checkpoint);
  if (!found) return false;
  std::map<ckpt::Extents, int64_t> left;  // weights of a shape without a master
  for (const TensorEntry* weight : found->weights) ++left[weight->shape];
  for (const TensorEntry* master : found->masters) --left[master->shape];
  return std::ranges::all_of(left, [](const auto& shape) { return shape.second >= 0; });
}

std::optional<std::set<std::string>> find_frozen_params(const OpenedTraining& checkpoint) {
  const auto found = list_tensors(checkpoint);
  if (!found) return std::nullopt;
  const DType dtype = found->weights[0]->dtype;
  using Content = std::pair<ckpt::Extents, uint64_t>;
  std::map<Content, std::vector<std::string>> names;
  for (const TensorEntry* weight : found->weights) {
    names[{weight->shape, content_sum(*weight, dtype, checkpoint)}].push_back(
        weight->key.substr(kModel.size()));
  }
  std::map<Content, size_t> masters;
  for (const TensorEntry* master : found->masters) {
    ++masters[{master->shape, content_sum(*master, dtype, checkpoint)}];
  }
  std::set<std::string> frozen;
  for (auto& [content, equal] : names) {
    const auto owned = masters.extract(content);
    const size_t count = owned.empty() ? 0 : owned.mapped();
    if (count != 0 && count != equal.size()) return std::nullopt;  // some of several equal ones
    if (count == 0) frozen.insert(equal.begin(), equal.end());
  }
  return masters.empty() ? std::optional(std::move(frozen)) : std::nullopt;
}

}  // namespace optim
