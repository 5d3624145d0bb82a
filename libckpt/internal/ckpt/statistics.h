#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/checkpoint.h>
#include <ckpt/execute.h>

namespace ckpt {

// Elements whose magnitude is at least 2^exponent and less than twice that. The first exponent has
// all smaller ones, the last all larger ones: those of float32 and bfloat16 have bins of their own,
// but for subnormal ones.
struct HistogramBin {
  static constexpr int kExponentMin = -127, kExponentMax = 127;
  int exponent = 0;
  bool is_negative = false;
  uint64_t count = 0;
  bool operator==(const HistogramBin&) const = default;
};

// What the elements of a tensor are like. Infinities count in min and max, NaN does not. Mean, std,
// norm and histogram are over finite elements, and NaN where there is none. No moments where all
// elements are NaN, and neither for complex tensors.
struct Statistics {
  struct Moments {
    double min = 0, max = 0;
    double mean = 0;  // infinite where the sum is more than a double holds
    double std = 0;   // of the population: divided by the count, not by the count minus one
    double norm = 0;  // L2: the square root of the sum of squares; infinite as mean
  };
  // Nearest-rank quantiles of the finite elements: one of them for floating-point types of 8 and 16
  // bits and for integers up to 2048, a value within 2^-11 (0.05 %) of its magnitude for others; 0
  // for subnormal numbers of float64. The same for any number of threads.
  struct Quantiles {
    double p1 = 0, p50 = 0, p99 = 0;
  };
  // The exact ends of int64 and uint64, which a double rounds.
  struct Integers {
    bool is_signed = true;
    uint64_t min = 0, max = 0;  // the bits
  };
  uint64_t element_count = 0;
  uint64_t zero_count = 0;  // both signs
  uint64_t nan_count = 0;   // complex: either part
  uint64_t inf_count = 0;
  std::optional<Moments> moments;
  std::optional<Integers> integers;
  std::optional<Quantiles> quantiles;     // where they were asked for, as mean
  std::vector<HistogramBin> histogram;    // from the lowest to the highest; without zeros
  std::vector<std::string> first_values;  // row-major, as text
};

// Statistics of elements that come in parts. Sums are over blocks of kBlockBytes, and these add up
// without an error: the same blocks give the same result in whatever order and by whichever threads
// they come. Blocks that are cut elsewhere may change the last digits.
class StatisticsSum {
 public:
  static constexpr uint64_t kBlockBytes = 4096;

  // A histogram costs twice of all else: of `histogram_every` blocks one is counted, for all of
  // them, and of the others the lowest and the highest element alone.
  explicit StatisticsSum(DType dtype, unsigned histogram_every = 1);
  StatisticsSum(StatisticsSum&&) noexcept;
  StatisticsSum& operator=(StatisticsSum&&) noexcept;
  ~StatisticsSum();

  // Before anything is added. Takes 8 KiB for each sign and exponent that occurs, and costs more
  // than all else.
  void count_quantiles();
  // Whole ones; the first begins a block, the number of which says whether it is counted.
  void add(std::span<const std::byte> elements, uint64_t first_block = 0);
  void add(const StatisticsSum& other);  // of the same type
  Statistics result() const;             // without first values

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct StatisticsWishes {
  size_t first_values_max = 8;
  bool has_quantiles = false;
};

// Streams the tensor once, in row-major order, through a slab of at most 4 MiB. The result does not
// depend on how the tensor is chunked. Any entry will do whose chunks lie in the source: one that
// is stored, or one of an Inventory.
Statistics make_statistics(const TensorEntry& tensor, const PayloadSource& source,
                           const StatisticsWishes& wishes = {});

// The same of each of them, by several threads, which share long tensors. Memory: a slab a thread,
// together at most options.memory_bytes_max. Throws Error(IoFailure, "cancelled") after a stop.
std::vector<Statistics> make_statistics(std::span<const TensorEntry> tensors,
                                        const PayloadSource& source, const ExecuteOptions& options,
                                        const StatisticsWishes& wishes = {});

}  // namespace ckpt
