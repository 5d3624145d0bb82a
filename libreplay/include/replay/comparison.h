#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <replay/export.h>

namespace optim {

// How far `ours` is from `expected`. Elements of equal bits differ by 0, NaNs included; any other
// pair with a NaN, or with an infinity on one side, differs by infinity.
struct Difference {
  double max_abs = 0;     // |a - b|
  double max_rel = 0;     // |a - b| / max(|b|, 1e-3 max|b|)
  double max_scaled = 0;  // max|a - b| / max|b|
  double max_ulp = 0;     // max|a - b| in units in the last place of max|b|, in b's element type
  double square_sum = 0;  // of a - b
  int64_t differing = 0;  // elements whose bits differ
  double excess = 0;      // max (|a - b| - rtol |b|), for a tolerance atol + rtol |b|
};

// Tensors of one shape and floating element type, contiguous, on the CPU; else
// Error(InvalidArgument). `rtol` enters `excess` only.
REPLAY_EXPORT Difference compare(const at::Tensor& ours, const at::Tensor& expected,
                                 double rtol = 0);

// How the elements of two tensors lie to each other.
struct Spread {
  // Elements whose values are more than the row before, and up to `ulp_max`, representable values
  // of their type apart. In ascending order, without empty rows.
  struct Row {
    uint64_t ulp_max =
        0;  // 0, 1, 2, 4, 8, ...; the largest number: NaN, or an infinity on one side
    int64_t elements = 0;
  };
  std::vector<Row> ulps;
  double cosine = 1;  // of the angle between the tensors; 1 where both are zero
};
// Of tensors that compare() takes.
REPLAY_EXPORT Spread spread_of(const at::Tensor& ours, const at::Tensor& expected);

// A tensor's worst difference, and where.
struct NamedDifference {
  std::string tensor = {};
  int64_t step = 0;  // from 0
  Difference difference = {};
};

// atol + rtol |b| for every element.
struct Tolerance {
  double atol = 0, rtol = 0;
};

}  // namespace optim
