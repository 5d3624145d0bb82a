// Newton-Schulz of matrices that tensor-parallel ranks share.
#include <optim/matrix_split.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>

#include <ckpt/error.h>
#include <algorithm>
#include <numeric>
#include <string>

#include "step/loops/grad_stats_kernels.h"
#include "step/rules/newton_schulz_iteration.h"

namespace optim {
namespace {

[[noreturn]] void refuse_mode(const std::string& problem) {
  throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {}, "Newton-Schulz of a part: " + problem);
}

void check_split(const at::Tensor& part, const MatrixSplit& split) {
  if (split.mode == MuonTpMode::Blockwise)
    refuse_mode("blockwise, each part is a matrix of its own");
  if (split.dim != 0 && split.dim != 1)
    refuse_mode("the matrix is cut along neither rows nor columns");
  const auto rank = static_cast<size_t>(split.ranks ? split.ranks->rank() : 0);
  const auto& extents = split.extents;
  if (!split.ranks || rank >= extents.size()) refuse_mode("the ranks are not given");
  if (std::ranges::any_of(extents, [](int64_t extent) { return extent < 1; })) {
    refuse_mode("a rank has no part of the matrix");
  }
  if (part.size(split.dim) != extents[rank]) {
    refuse_mode("it has " + std::to_string(part.size(split.dim)) + " of the " +
                std::to_string(extents[rank]) + " rows or columns of this rank");
  }
}

// The whole matrix, on every rank.
at::Tensor gathered(const at::Tensor& part, const MatrixSplit& split) {
  const int64_t other = part.size(1 - split.dim);
  std::vector<int64_t> counts;
  for (const int64_t extent : split.extents) counts.push_back(extent * other);
  std::vector<at::Tensor> parts = split.ranks->all_gather(part.contiguous(), counts);
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    const int64_t extent = split.extents[rank];
    parts[rank] =
        split.dim == 0 ? parts[rank].view({extent, other}) : parts[rank].view({other, extent});
  }
  return at::cat(parts, split.dim);
}

// What each rank has, added up in fp32 in the order of ranks and rounded once to its type.
at::Tensor sum_over_ranks(const at::Tensor& mine, MatrixRanks& ranks, size_t rank_count) {
  const std::vector<int64_t> counts(rank_count, mine.numel());
  const std::vector<at::Tensor> all = ranks.all_gather(mine, counts);
  const bool is_double = mine.scalar_type() == at::kDouble;
  const at::ScalarType wide = is_double ? at::kDouble : at::kFloat;
  at::Tensor sum = all[0].to(wide, /*non_blocking=*/false, /*copy=*/true);
  for (size_t rank = 1; rank < all.size(); ++rank) sum.add_(all[rank].to(wide));
  return sum.to(mine.scalar_type()).view(mine.sizes());
}

at::Tensor duplicated(const at::Tensor& part, const NewtonSchulzOptions& options,
                      const MatrixSplit& split) {
  const auto rank = static_cast<size_t>(split.ranks->rank());
  const int64_t begin = std::accumulate(
      split.extents.begin(), split.extents.begin() + static_cast<int64_t>(rank), int64_t{0});
  return newton_schulz(gathered(part, split), options)
      .narrow(split.dim, begin, split.extents[rank])
      .contiguous();
}

at::Tensor distributed(const at::Tensor& part, const NewtonSchulzOptions& options,
                       const MatrixSplit& split) {
  const bool transposes = split.dim == 0;
  const at::Tensor x = (transposes ? part.t() : part).contiguous();
  const size_t count = split.extents.size();
  MatrixRanks& ranks = *split.ranks;
  const at::Tensor squares =
      sum_over_ranks(at::full({1}, sum_of_squares(x), at::kDouble), ranks, count);
  const at::Tensor result =
      iterate(x,
              {.columns = split.whole_extent(),
               .square_sum = *squares.const_data_ptr<double>(),
               .gram = [&](const at::Tensor& gram) { return sum_over_ranks(gram, ranks, count); }},
              options);
  return transposes ? result.t().contiguous() : result;
}

}  // namespace

int64_t MatrixSplit::whole_extent() const {
  return std::accumulate(extents.begin(), extents.end(), int64_t{0});
}

at::Tensor newton_schulz_tp(const at::Tensor& part, const NewtonSchulzOptions& options,
                            const MatrixSplit& split) {
  check_newton_schulz(part, options);
  check_split(part, split);
  return split.mode == MuonTpMode::Duplicated ? duplicated(part, options, split)
                                              : distributed(part, options, split);
}

}  // namespace optim
