#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include <ckpt/box.h>
#include <optim/ownership.h>
#include <training/model_facts.h>

// Which place in the process grid a world rank has, in Megatron-Core's two grids over the same
// ranks: the dense one (tp, cp, dp, pp) and the experts' (etp, ep, edp, pp). Pure numbers.
// Source: RankGenerator and initialize_model_parallel of megatron/core/parallel_state.py.
namespace optim {

// Megatron's default; --use-tp-pp-dp-mapping is "tp-cp-ep-pp-dp". The first name varies fastest.
inline constexpr std::string_view kDefaultRankOrder = "tp-cp-ep-dp-pp";

struct RankCoordinates {
  uint32_t tp = 0, cp = 0, dp = 0, pp = 0;  // dense
  uint32_t etp = 0, ep = 0, edp = 0;        // experts; their pp is the same
  uint32_t dp_cp = 0;  // within the data and context parallel ranks: over them dense state is dealt
  // Within the ranks that hold one copy of the model (tp and pp) or of its experts (etp, ep, pp):
  // the dp_group_idx of a DistributedOptimizer's keys.
  uint32_t model_copy = 0, expert_copy = 0;
  bool operator==(const RankCoordinates&) const = default;

  // Among the ranks that share an expert's parameters, or the other ones.
  uint32_t tensor_rank(bool is_expert) const { return is_expert ? etp : tp; }
};

// How many ranks share an expert's parameters, or the other ones.
inline uint32_t tensor_ranks(const ParallelSizes& sizes, bool is_expert) {
  return is_expert ? sizes.expert_tensor_parallel : sizes.tensor_parallel;
}

// Throws Error(InvalidArgument) for sizes that make no grid (ParallelSizes::expt_dp), for an order
// that does not name each of tp, cp, ep, dp, pp at most once or leaves out one whose size is above
// 1, and where pipeline stages of the two grids would hold different ranks.
class RankGrid {
 public:
  explicit RankGrid(const ParallelSizes& sizes, std::string_view order = kDefaultRankOrder);

  uint64_t rank_count() const { return rank_count_; }
  // Of a rank below rank_count().
  RankCoordinates at(uint64_t world_rank) const;

 private:
  enum Axis : uint8_t { Tp, Cp, Ep, Dp, Pp };
  static constexpr size_t kAxisCount = 5;
  using PerAxis = std::array<uint32_t, kAxisCount>;

  PerAxis split(uint64_t world_rank, const PerAxis& sizes) const;
  uint32_t rank_within(const PerAxis& place, const PerAxis& sizes,
                       std::initializer_list<Axis> group) const;

  std::array<Axis, kAxisCount> order_ = {};
  PerAxis dense_ = {}, experts_ = {};
  uint64_t rank_count_ = 1;
};

// How tensor parallelism cuts one tensor. Pure numbers.
Split one_section(size_t dim, uint64_t size);
Split two_halves(size_t dim, uint64_t size);  // of an even size; throws Error(InvalidArgument)

// One of `count` tensor parallel (or expert tensor parallel) ranks.
struct TensorRank {
  uint32_t index = 0, count = 1;
};

// The blocks of the whole tensor that a rank holds, one of each section, as torch_dist stores them.
// Throws as boxes_of does.
std::vector<ckpt::Box> blocks_of(const ckpt::Extents& shape, const Split& split, TensorRank rank);

// The boxes of the whole tensor that a rank holds, in the order in which they lie in its own
// tensor; neighbours are joined. Throws Error(InvalidArgument) where the sections are not the
// dimension's size or one of them is not a multiple of the rank count, with both numbers.
std::vector<ckpt::Box> boxes_of(const ckpt::Extents& shape, const Split& split, TensorRank rank);

// Shape of each rank's tensor. Throws as boxes_of does.
ckpt::Extents shape_on_rank(const ckpt::Extents& shape, const Split& split, uint32_t rank_count);

// Rows of an embedding or output layer as Megatron pads them: the smallest multiple of
// make_vocab_size_divisible_by * tensor_parallel that holds the vocabulary.
// Throws Error(InvalidArgument) for a divisor or size of 0 and above 2^63 rows.
uint64_t padded_vocabulary(uint64_t true_size, uint64_t divisible_by, uint32_t tensor_parallel);

}  // namespace optim
