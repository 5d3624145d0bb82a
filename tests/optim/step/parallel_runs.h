#pragma once

#include <ATen/ops/cat.h>

#include <numeric>

#include "optim/step/layer_wise_runs.h"

// Tensor-parallel ranks beside data-parallel ones, each in a thread.

struct GridSizes {
  int tp = 1, dp = 1;
  int processes() const { return tp * dp; }
};

// [dp * sizes.tp + tp]. Experts have no tensor-parallel group of their own.
inline std::vector<optim::ProcessGroupCollection> make_grid(const GridSizes& sizes) {
  const optim::GlooOptions loopback = {.network_interface = "lo"};
  const auto world = optim::make_in_process_groups(sizes.processes(), loopback);
  std::vector<optim::ProcessGroupCollection> grid(world.size());
  const auto at = [&](int dp, int tp) -> optim::ProcessGroupCollection& {
    return grid[static_cast<size_t>(dp * sizes.tp + tp)];
  };
  for (int tp = 0; tp < sizes.tp; ++tp) {
    const auto groups = optim::make_in_process_groups(sizes.dp, loopback);
    for (int dp = 0; dp < sizes.dp; ++dp) at(dp, tp) = groups[static_cast<size_t>(dp)];
  }
  for (int dp = 0; dp < sizes.dp; ++dp) {
    const auto groups = optim::make_in_process_groups(sizes.tp, loopback);
    for (int tp = 0; tp < sizes.tp; ++tp) at(dp, tp).tp = groups[static_cast<size_t>(tp)].dp_cp;
  }
  for (size_t rank = 0; rank < grid.size(); ++rank) grid[rank].world = world[rank].dp_cp;
  return grid;
}

// body(rank) in a thread each; the first error of any.
inline void run_ranks(size_t count, const std::function<void(size_t)>& body) {
  std::vector<std::exception_ptr> errors(count);
  {
    std::vector<std::jthread> threads;
    for (size_t rank = 0; rank < count; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          body(rank);
        } catch (...) {
          errors[rank] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

// What each of `count` ranks threw.
inline std::vector<std::string> errors_of_ranks(size_t count,
                                                const std::function<void(size_t)>& body) {
  std::vector<std::string> errors(count);
  run_ranks(count, [&](size_t rank) {
    try {
      body(rank);
    } catch (const ckpt::Error& error) {
      errors[rank] = error.what();
    }
  });
  return errors;
}

// Two ranks: about two thirds and one third, in multiples of `unit`.
inline std::vector<int64_t> uneven(int64_t extent, int64_t unit, int ranks) {
  if (ranks == 1) return {extent};
  const int64_t first = (extent / unit * 2 + 2) / 3 * unit;
  return {first, extent - first};
}

inline at::Tensor part_of(const at::Tensor& whole, const optim::ParamInfo& info,
                          const optim::ProcessRank& tp) {
  const int dim = info.attributes.partition_dim;
  if (dim < 0 || tp.size == 1) return whole;
  const bool is_qkv = info.name.find("linear_qkv") != std::string::npos;
  const std::vector<int64_t> extents = uneven(whole.size(dim), is_qkv ? 8 : 1, tp.size);
  const auto rank = static_cast<size_t>(tp.rank);
  const int64_t begin = std::accumulate(extents.begin(), extents.begin() + tp.rank, int64_t{0});
  return whole.narrow(dim, begin, extents[rank]).contiguous();
}
