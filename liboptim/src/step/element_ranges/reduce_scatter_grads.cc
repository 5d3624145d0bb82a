// Averaging gradients over data-parallel processes, each of which gets its own ranges.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <ckpt/error.h>
#include <algorithm>

#include "step/element_ranges/range_sharding.h"
#include "step/layer_wise/layer_wise_sharding.h"

namespace optim {
namespace {

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
