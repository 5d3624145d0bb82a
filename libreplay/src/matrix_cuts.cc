#include "matrix_cuts.h"

#include <ATen/ops/cat.h>

#include <ckpt/error.h>
#include <optim/rule_table.h>
#include <optim/update_rule.h>
#include <algorithm>
#include <utility>

namespace optim {
namespace {

// Of the group that the checkpoint has it in.
std::string updated_by(const TrainingState& state, const TrainedParam& param,
                       const OptimizerConfig& config) {
  const ckpt::NodeId group = state.chain[param.optimizer].groups[param.group];
  const auto stated = state.common.tree.value(group).find("optimizer");
  return stated && stated->is(ckpt::Kind::Str) ? std::string(stated->text()) : config.optimizer;
}

uint32_t tensor_ranks(const TrainingState& state, const TrainedParam& param) {
  const ParallelSizes& sizes = state.grid.sizes;
  return param.info.attributes.expert_tp ? sizes.expert_tensor_parallel : sizes.tensor_parallel;
}

// Of each section the block of this rank, as TensorSharing says.
std::vector<ckpt::Box> boxes_of_rank(const TrainedParam& param, uint32_t rank, uint32_t ranks) {
  const Split& split = *param.sharing.split;
  const ckpt::Extents shape(param.info.shape.begin(), param.info.shape.end());
  std::vector<ckpt::Box> boxes;
  uint64_t begin = 0;
  for (const uint64_t section : split.sections) {
    ckpt::Box box = ckpt::whole(shape);
    box.sizes[split.dim] = section / ranks;
    box.offsets[split.dim] = begin + rank * (section / ranks);
    boxes.push_back(std::move(box));
    begin += section;
  }
  const bool is_whole =
      begin == shape[split.dim] &&
      std::ranges::all_of(split.sections, [&](uint64_t size) { return size % ranks == 0; });
  if (is_whole) return boxes;
  throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = {}, .key = param.info.name},
                    "cannot be divided over " + std::to_string(ranks) + " tensor-parallel ranks");
}

at::Tensor narrowed(const at::Tensor& whole, const ckpt::Box& box) {
  at::Tensor part = whole;
  for (size_t dim = 0; dim < box.sizes.size(); ++dim) {
    part = part.narrow(static_cast<int64_t>(dim), static_cast<int64_t>(box.offsets[dim]),
                       static_cast<int64_t>(box.sizes[dim]));
  }
  return part;
}

}  // namespace

Cuts::Cuts(const TrainingState& state, const OptimizerConfig& config) {
  for (const TrainedParam& param : state.params) {
    const uint32_t ranks = tensor_ranks(state, param);
    const RuleDescription* const rule = find_rule(updated_by(state, param, config));
    const bool is_matrix = param.info.requires_grad && rule != nullptr && rule->needs_matrix;
    if (!is_matrix || ranks == 1) continue;
    if (!param.sharing.is_known) {
      throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = param.info.name},
                        "it is not known how tensor-parallel ranks shared this matrix");
    }
    if (!param.sharing.is_split()) continue;
    const bool are_apart = !rule->has_tp_modes || config.muon_tp_mode == MuonTpMode::Blockwise;
    std::vector<ckpt::Box> gathered;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      std::vector<ckpt::Box> boxes = boxes_of_rank(param, rank, ranks);
      if (are_apart) {
        add(param, param.info.name + "[tp " + std::to_string(rank) + "]", std::move(boxes));
      } else {
        gathered.insert(gathered.end(), boxes.begin(), boxes.end());
      }
    }
    const bool is_reordered = gathered.size() > ranks;  // a block of each section of each rank
    if (is_reordered) add(param, param.info.name, std::move(gathered));
  }
}

void Cuts::add(const TrainedParam& param, const std::string& name, std::vector<ckpt::Box> boxes) {
  Piece piece;
  piece.param = param.info.name;
  piece.whole_shape = param.info.shape;
  piece.shape = param.info.shape;
  piece.dim = static_cast<int64_t>(param.sharing.split->dim);
  int64_t& size = piece.shape[param.sharing.split->dim];
  size = 0;
  for (const ckpt::Box& box : boxes) {
    size += static_cast<int64_t>(box.sizes[param.sharing.split->dim]);
  }
  piece.boxes = std::move(boxes);
  pieces_.emplace(name, std::move(piece));
  names_[param.info.name].push_back(name);
}

std::vector<ParamInfo> Cuts::pieces_of(const ParamInfo& whole) const {
  const auto names = names_.find(whole.name);
  if (names == names_.end()) return {whole};
  std::vector<ParamInfo> infos;
  for (const std::string& name : names->second) {
    infos.push_back(whole);
    infos.back().name = name;
    infos.back().shape = pieces_.at(name).shape;
  }
  return infos;
}

const std::string& Cuts::whole_name(const std::string& name) const {
  const auto found = pieces_.find(name);
  return found == pieces_.end() ? name : found->second.param;
}

ParamInfo Cuts::whole_of(const ParamInfo& piece) const {
  ParamInfo whole = piece;
  whole.name = whole_name(piece.name);
  const auto found = pieces_.find(piece.name);
  if (found != pieces_.end()) whole.shape = found->second.whole_shape;
  return whole;
}

std::vector<int64_t> Cuts::whole_shape(const std::string& name, at::IntArrayRef shape) const {
  const auto found = pieces_.find(name);
  return found == pieces_.end() ? shape.vec() : found->second.whole_shape;
}

at::Tensor Cuts::piece(const at::Tensor& whole, const std::string& name) const {
  const auto found = pieces_.find(name);
  if (found == pieces_.end()) return whole;
  const Piece& piece = found->second;
  if (whole.sizes() != at::IntArrayRef(piece.whole_shape)) {
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = piece.param},
                      "has a state of another shape, of which tensor-parallel ranks' parts are not "
                      "known");
  }
  std::vector<at::Tensor> parts;
  for (const ckpt::Box& box : piece.boxes) parts.push_back(narrowed(whole, box));
  return at::cat(parts, piece.dim);
}

void Cuts::put(const at::Tensor& part, const std::string& name, const at::Tensor& whole) const {
  const Piece& piece = pieces_.at(name);
  int64_t begin = 0;
  for (const ckpt::Box& box : piece.boxes) {
    const auto count = static_cast<int64_t>(box.sizes[static_cast<size_t>(piece.dim)]);
    narrowed(whole, box).copy_(part.narrow(piece.dim, begin, count));
    begin += count;
  }
}

}  // namespace optim
