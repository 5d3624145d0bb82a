// The norm of gradients that are cut anywhere, with the bits of the norm of whole ones.
#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>

#include "step/element_ranges/range_sharding.h"
#include "step/loops/grad_stats_kernels.h"

namespace optim {
namespace {

constexpr int64_t kBlock = kStatsBlockElements;

int64_t blocks_in(int64_t elements) { return (elements + kBlock - 1) / kBlock; }

// A block of which several processes have parts, in order: each goes on where the one before it
// ended.
struct CutBlock {
  int64_t cell = 0;                      // of its sum
  std::vector<ElementPiece> parts = {};  // elements of the parameter, within the block
  int64_t first = 0;                     // its first element
};

// Where each block's sum stands.
struct Cells {
  std::map<uint32_t, int64_t> first;  // of each parameter
  int64_t count = 0;
  std::vector<CutBlock> cut;
};

bool is_cut(const ElementPiece& piece, int64_t block, int64_t whole_count) {
  const int64_t begin = block * kBlock, end = std::min(begin + kBlock, whole_count);
  return piece.begin > begin || piece.begin + piece.count < end;
}

Cells cells_of(const RangeSharding& sharding, const SharingGroup& group) {
  Cells cells;
  for (const uint32_t id : group.ids) {
    const int64_t elements = sharding.params[id].param.numel();
    cells.first[id] = cells.count;
    for (const ElementPiece& piece : group.pieces_of(id)) {
      const int64_t end = piece.begin + piece.count;
      for (const int64_t block : {piece.begin / kBlock, (end - 1) / kBlock}) {
        if (!is_cut(piece, block, elements)) continue;
        const int64_t cell = cells.count + block;
        if (cells.cut.empty() || cells.cut.back().cell != cell) {
          cells.cut.push_back({cell, {}, block * kBlock});
        }
        ElementPiece part = piece;
        part.begin = std::max(piece.begin, block * kBlock);
        part.count = std::min(end, (block + 1) * kBlock) - part.begin;
        std::vector<ElementPiece>& parts = cells.cut.back().parts;
        if (parts.empty() || parts.back().owner != part.owner) parts.push_back(part);
      }
    }
    cells.count += blocks_in(elements);
  }
  return cells;
}

// Blocks that lie in a range as a whole.
void add_whole_blocks(const OptimizedParam& param, double* cells) {
  const int64_t begin = param.first_element, end = begin + param.grad.numel();
  const int64_t first = blocks_in(begin);
  const int64_t last = end == param.whole_count ? blocks_in(end) : end / kBlock;
  at::parallel_for(first, std::max(first, last), 8, [&](int64_t from, int64_t to) {
    for (int64_t block = from; block < to; ++block) {
      const int64_t at = block * kBlock;
      cells[block] = sum_of_squares(param.grad.narrow(0, at - begin, std::min(kBlock, end - at)));
    }
  });
}

// Step `turn`: each block's part of this number goes on from the sums of the part before.
class CutSums {
 public:
  CutSums(const Cells& cells, SharingGroup& group, std::map<uint32_t, const OptimizedParam*> own)
      : cells_(cells), group_(group), own_(std::move(own)) {
    for (const CutBlock& block : cells.cut) turns_ = std::max(turns_, block.parts.size());
  }

  void add(double* sums) {
    const auto count = static_cast<int64_t>(cells_.cut.size());
    at::Tensor before = at::zeros({count, 16}, at::kDouble);
    for (size_t turn = 0; turn < turns_; ++turn) {
      at::Tensor after = at::zeros({count, 16}, at::kDouble);
      for (int64_t i = 0; i < count; ++i) {
        const auto& block = cells_.cut[static_cast<size_t>(i)];
        BlockSums lanes;
        std::copy_n(before.const_data_ptr<double>() + i * 16, 16, lanes.lanes.begin());
        if (!continues(block, turn, lanes)) continue;
        std::ranges::copy(lanes.lanes, after.mutable_data_ptr<double>() + i * 16);
        if (turn + 1 == block.parts.size()) sums[block.cell] = lanes.total();
      }
      if (turn + 1 < turns_) group_.collectives.all_reduce_sum(after);  // one addend is not 0
      before = after;
    }
  }

 private:
  // Adds this process's part of a block to the sums of the parts before it; false: it has none.
  bool continues(const CutBlock& block, size_t turn, BlockSums& lanes) const {
    if (turn >= block.parts.size()) return false;
    const ElementPiece& part = block.parts[turn];
    const auto param = own_.find(part.id);
    if (part.owner != group_.collectives.rank() || param == own_.end()) return false;
    const OptimizedParam& range = *param->second;
    lanes.add_squares(range.grad.narrow(0, part.begin - range.first_element, part.count),
                      part.begin - block.first);
    return true;
  }

  const Cells& cells_;
  SharingGroup& group_;
  std::map<uint32_t, const OptimizedParam*> own_;
  size_t turns_ = 0;
};

}  // namespace

std::vector<double> square_sums(const RangeSharding& sharding, SharingGroup& group,
                                std::span<OptimizedParam* const> own) {
  const Cells cells = cells_of(sharding, group);
  at::Tensor sums = at::zeros({cells.count}, at::kDouble);
  auto* const values = sums.mutable_data_ptr<double>();
  std::map<uint32_t, const OptimizedParam*> own_by_id;
  for (const OptimizedParam* const param : own) {
    own_by_id[param->id] = param;
    add_whole_blocks(*param, values + cells.first.at(param->id));
  }
  CutSums(cells, group, std::move(own_by_id)).add(values);
  if (cells.count > 0) group.collectives.all_reduce_sum(sums);  // one addend is not 0: exact
  std::vector<double> by_id(sharding.params.size(), 0);
  for (const uint32_t id : group.ids) {
    const int64_t first = cells.first.at(id);
    const int64_t count = blocks_in(sharding.params[id].param.numel());
    for (int64_t block = 0; block < count; ++block) by_id[id] += values[first + block];
  }
  return by_id;
}

}  // namespace optim
