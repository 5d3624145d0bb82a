// What a DistributedOptimizer does with other processes in a step.
#include <ATen/core/grad_mode.h>

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "rules/refuse_key.h"
#include "step/element_ranges/range_sharding.h"
#include "step/layer_wise/layer_wise_sharding.h"
#include "step/loops/grad_stats_kernels.h"
#include "step/optimizer/peers_and_device.h"

namespace optim {
namespace {

// Of what counts in the norm, as square_sum_for_norm() has it.
double counted(const RangeSharding& sharding, uint32_t id, double sum, bool is_duplicate) {
  const bool counts = !sharding.params[id].info.attributes.shared && !is_duplicate;
  return counts || !std::isfinite(sum) ? sum : 0;
}

// Over all processes, by id; where several hold different parameters under one id, in the order of
// ranks: of those that share parameters the first tells.
double norm_over_world(RangeSharding& sharding, const std::vector<double>& by_id) {
  Collectives& stats = sharding.stats;
  const int64_t count = max_of(static_cast<int64_t>(by_id.size()), stats);
  at::Tensor mine = at::zeros({count}, at::kDouble);
  auto* const cells = mine.mutable_data_ptr<double>();
  for (uint32_t id = 0; id < by_id.size(); ++id) {
    if (sharding.group_of(id).collectives.rank() == 0) cells[id] = by_id[id];
  }
  return norm_of(cells_of_ranks(mine, stats));
}

bool is_one_model(RangeSharding& sharding) {
  const int processes = sharding.stats.size();
  const bool shares_experts =
      sharding.experts.ids.empty() || sharding.experts.collectives.size() == processes;
  return sharding.dense.collectives.size() == processes && shares_experts;
}

std::vector<OptimizedParam*> with_grad(const std::vector<OptimizedParam*>& params,
                                       RangeSharding& sharding, const SharingGroup& group) {
  std::vector<OptimizedParam*> found;
  for (OptimizedParam* const param : params) {
    if (param->grad.defined() && &sharding.group_of(param->id) == &group) found.push_back(param);
  }
  return found;
}

class RangePeers final : public Processes {
 public:
  using Processes::Processes;
  at::Device device() override { return at::kCPU; }  // the constructor refuses others
};

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

// Gradients of a group's parameters, by place in its ids.
std::vector<NamedGrad> grads_of(const RangeSharding& sharding, const SharingGroup& group,
                                const std::function<at::Tensor(const ParamInfo&)>& grad_of) {
  std::vector<NamedGrad> grads;
  for (const uint32_t id : group.ids) {
    const Param& param = sharding.params[id];
    grads.push_back(named_grad(param, grad_of ? grad_of(param.info) : param.main_grad));
  }
  return grads;
}

// The ranges of one process, one behind the other, as fp32 numbers.
class RangeStream {
 public:
  void add(const at::Tensor& range) {
    ranges_.push_back(range);
    begins_.push_back(count_);
    count_ += range.numel();
  }
  int64_t count() const { return count_; }

  // visit(part of a range, its place behind `begin`) for elements [begin, end).
  template <class Visit>
  void for_each_part(int64_t begin, int64_t end, Visit&& visit) const {
    for (size_t i = 0; i < ranges_.size(); ++i) {
      const int64_t from = std::max(begin, begins_[i]);
      const int64_t to = std::min(end, begins_[i] + ranges_[i].numel());
      if (from < to) visit(ranges_[i].narrow(0, from - begins_[i], to - from), from - begin);
    }
  }

 private:
  std::vector<at::Tensor> ranges_;
  std::vector<int64_t> begins_;
  int64_t count_ = 0;
};

// Round by round: every process sends each other one the next `piece` elements of its ranges.
void exchange(const std::vector<RangeStream>& streams, int64_t piece, Collectives& collectives) {
  const int processes = collectives.size();
  int64_t longest = 0;
  for (const RangeStream& stream : streams) longest = std::max(longest, stream.count());
  const RangeStream& own = streams[static_cast<size_t>(collectives.rank())];
  piece = std::max<int64_t>(1, std::min(piece, longest));
  for (int64_t begin = 0; begin < longest; begin += piece) {
    at::Tensor sent = at::zeros({processes * piece}, at::kFloat);
    at::Tensor received = at::zeros({processes * piece}, at::kFloat);
    for (int rank = 0; rank < processes; ++rank) {
      streams[static_cast<size_t>(rank)].for_each_part(
          begin, begin + piece, [&](const at::Tensor& part, int64_t at) {
            sent.narrow(0, rank * piece + at, part.numel()).copy_(part);
          });
    }
    collectives.all_to_all(received, sent);
    at::Tensor sum = at::zeros({piece}, at::kFloat);
    for (int rank = 0; rank < processes; ++rank) {
      sum.add_(received.narrow(0, rank * piece, piece));
    }
    sum.div_(processes);
    own.for_each_part(begin, begin + piece, [&](const at::Tensor& part, int64_t at) {
      part.copy_(sum.narrow(0, at, part.numel()));
    });
  }
}

}  // namespace

double DistributedOptimizer::get_grad_norm() {
  RangeSharding& sharding = *sharding_;
  const std::vector<OptimizedParam*> own = get_parameters();
  sharding.grad_count = sum_of(own_grad_count(*this), sharding.stats);
  std::vector<double> by_id(sharding.params.size(), 0);
  for (SharingGroup* const group : sharding.groups()) {
    const std::vector<double> sums =
        square_sums(sharding, *group, with_grad(own, sharding, *group));
    for (const uint32_t id : group->ids) {
      by_id[id] = counted(sharding, id, sums[id], sharding.is_duplicate[id]);
    }
  }
  return is_one_model(sharding) ? norm_of(by_id) : norm_over_world(sharding, by_id);
}

int64_t DistributedOptimizer::count_zeros() {
  return sum_of(Optimizer::count_zeros(), sharding_->stats);
}

void DistributedOptimizer::bind_grads(const std::function<at::Tensor(const ParamInfo&)>& grad_of) {
  for (OptimizedParam* const param : get_parameters()) {
    const Param& whole = sharding_->params[param->id];
    const at::Tensor grad = grad_of ? grad_of(whole.info) : whole.main_grad;
    param->model.main_grad = at::Tensor();
    if (!grad.defined()) continue;
    if (grad.sizes() != whole.param.sizes() || !grad.is_contiguous()) {
      refuse_key(whole.info.name, "expected a contiguous gradient of the parameter's shape");
    }
    param->model.main_grad =
        grad.detach().view({-1}).narrow(0, param->first_element, param->model.param.numel());
  }
}

std::vector<std::unique_ptr<ParamGather>> DistributedOptimizer::make_gathers() {
  RangeSharding& sharding = *sharding_;
  const auto& is_in_first = sharding.options.is_in_first_model_chunk;
  const bool has_chunks = config().overlap_param_gather_with_optimizer_step && is_in_first;
  std::vector<std::unique_ptr<ParamGather>> gathers;
  for (const bool is_first : {true, false}) {
    if (!is_first && !has_chunks) break;
    for (SharingGroup* const group : sharding.groups()) {
      std::vector<SharedParam> shared;
      for (const ElementPiece& piece : group->pieces) {
        const Param& param = sharding.params[piece.id];
        if (has_chunks && is_in_first(param.info) != is_first) continue;
        shared.push_back({piece.of(param.param), piece.id, piece.owner});
      }
      gathers.push_back(
          make_copying_gather(shared, sharding.options.gather_bucket_bytes, group->collectives));
    }
  }
  return gathers;
}

bool DistributedOptimizer::step_with_ready_grads() {
  const std::optional<std::string> partial = partial_grad(*sharding_, get_parameters());
  if (StepInside::of(*this).peers->any(partial.has_value())) {
    refuse_key(partial.value_or(""),
               "some processes have a gradient of the parameter, others have none");
  }
  if (!config().overlap_param_gather) return ChainedOptimizer::step_with_ready_grads();
  update_and_gather(*this, make_gathers(), grad_scale_);
  return true;
}

StepResult DistributedOptimizer::step() {
  const StepResult result = ChainedOptimizer::step();
  if (result.update_successful && !config().overlap_param_gather) allgather_params();
  return result;
}

void DistributedOptimizer::allgather_params() {
  const TimedSection timed(*this, "params-all-gather");
  const at::NoGradGuard no_grad;
  for (const std::unique_ptr<ParamGather>& gather : make_gathers()) gather->run();
}

std::unique_ptr<Peers> make_peers(Optimizer& optimizer, RangeSharding& sharding) {
  return std::make_unique<RangePeers>(optimizer, sharding.stats, sharding.grad_count);
}

std::optional<std::string> partial_grad(RangeSharding& sharding,
                                        std::span<OptimizedParam* const> own) {
  const auto count = static_cast<int64_t>(sharding.params.size());
  std::optional<std::string> found;
  for (SharingGroup* const group : sharding.groups()) {
    if (group->ids.empty()) continue;
    at::Tensor largest = at::zeros({2, count}, at::kLong);
    auto* const present = largest.mutable_data_ptr<int64_t>();
    auto* const absent = present + count;
    for (const OptimizedParam* const param : own) {
      if (&sharding.group_of(param->id) != group) continue;
      (param->grad.defined() ? present : absent)[param->id] = 1;
    }
    group->collectives.all_reduce_max(largest);
    for (int64_t id = 0; id < count && !found; ++id) {
      if (present[id] != 0 && absent[id] != 0) {
        found = sharding.params[static_cast<size_t>(id)].info.name;
      }
    }
  }
  return found;
}

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

void DistributedOptimizer::reduce_scatter_grads(
    const std::function<at::Tensor(const ParamInfo&)>& grad_of) {
  const at::NoGradGuard no_grad;
  RangeSharding& sharding = *sharding_;
  std::array<std::vector<NamedGrad>, 2> grads;
  const auto groups = sharding.groups();
  for (size_t g = 0; g < groups.size(); ++g) {
    grads[g] = grads_of(sharding, *groups[g], grad_of);
    check_kinds(grads[g], groups[g]->collectives);
  }
  const auto piece = sharding.options.gather_bucket_bytes / int64_t{sizeof(float)};
  for (size_t g = 0; g < groups.size(); ++g) {
    SharingGroup& group = *groups[g];
    if (group.collectives.size() == 1) continue;
    std::vector<RangeStream> streams(static_cast<size_t>(group.collectives.size()));
    for (size_t i = 0; i < group.ids.size(); ++i) {
      if (!grads[g][i].grad.defined()) continue;
      for (const ElementPiece& range : group.pieces_of(group.ids[i])) {
        streams[static_cast<size_t>(range.owner)].add(range.of(grads[g][i].grad));
      }
    }
    exchange(streams, piece, group.collectives);
  }
}

}  // namespace optim
