#include <numeric>
#include <random>
#include <set>

#include <ckpt/error.h>
#include <boost/test/unit_test.hpp>

#include "parallel/rank_grid.h"
#include "parallel/stages.h"
#include "sharding/flat_layout.h"

// What holds for any sizes. 25,000 random cases each, four times as many with SHARDWISE_LONG_TESTS.
BOOST_AUTO_TEST_SUITE(sharding_properties)

using Random = std::mt19937_64;

uint32_t pick(Random& random, uint32_t least, uint32_t most) {
  return std::uniform_int_distribution<uint32_t>(least, most)(random);
}

int case_count() { return std::getenv("SHARDWISE_LONG_TESTS") ? 100'000 : 25'000; }

// Sizes of at most 4 each whose experts fit the same ranks.
optim::ParallelSizes random_sizes(Random& random) {
  while (true) {
    optim::ParallelSizes sizes = {.data_parallel = pick(random, 1, 4),
                                  .context_parallel = pick(random, 1, 3),
                                  .tensor_parallel = pick(random, 1, 4),
                                  .pipeline_parallel = pick(random, 1, 3),
                                  .expert_parallel = pick(random, 1, 4),
                                  .expert_tensor_parallel = pick(random, 1, 4)};
    const uint32_t per_stage = sizes.tensor_parallel * sizes.context_parallel * sizes.data_parallel;
    if (per_stage % (sizes.expert_parallel * sizes.expert_tensor_parallel) == 0) return sizes;
  }
}

// Counts how often each element of a small tensor is in one of the boxes.
void count_in(const std::vector<ckpt::Box>& boxes, const ckpt::Extents& shape,
              std::vector<int>& counts) {
  for (const ckpt::Box& box : boxes) {
    for (uint64_t row = 0; row < box.sizes[0]; ++row) {
      for (uint64_t column = 0; column < box.sizes[1]; ++column) {
        ++counts[(box.offsets[0] + row) * shape[1] + box.offsets[1] + column];
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(tensor_parallel_ranks_hold_each_element_once) {
  Random random(1);
  for (int i = 0; i < case_count(); ++i) {
    const uint32_t ranks = pick(random, 1, 6);
    optim::Split split = {.dim = pick(random, 0, 1), .sections = {}};
    for (uint32_t n = pick(random, 1, 4); n > 0; --n) {
      split.sections.push_back(uint64_t{ranks} * pick(random, 0, 3));
    }
    ckpt::Extents shape = {pick(random, 1, 5), pick(random, 1, 5)};
    shape[split.dim] = std::accumulate(split.sections.begin(), split.sections.end(), uint64_t{0});
    const ckpt::Extents on_rank = optim::shape_on_rank(shape, split, ranks);
    std::vector<int> counts(ckpt::element_count(shape), 0);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      const auto boxes = optim::boxes_of(shape, split, {rank, ranks});
      count_in(boxes, shape, counts);
      uint64_t held = 0;
      for (const ckpt::Box& box : boxes) held += ckpt::element_count(box.sizes);
      BOOST_REQUIRE_EQUAL(held, ckpt::element_count(on_rank));
    }
    BOOST_REQUIRE(std::ranges::all_of(counts, [](int count) { return count == 1; }));
  }
}

BOOST_AUTO_TEST_CASE(each_place_of_both_grids_is_one_ranks) {
  Random random(2);
  for (int i = 0; i < case_count() / 20; ++i) {
    const optim::ParallelSizes sizes = random_sizes(random);
    const optim::RankGrid grid(sizes);
    std::set<std::array<uint32_t, 4>> dense, experts;
    std::set<std::array<uint32_t, 3>> dealt;
    for (uint64_t rank = 0; rank < grid.rank_count(); ++rank) {
      const optim::RankCoordinates at = grid.at(rank);
      dense.insert({at.tp, at.cp, at.dp, at.pp});
      experts.insert({at.etp, at.ep, at.edp, at.pp});
      dealt.insert({at.tp, at.pp, at.dp_cp});
      BOOST_REQUIRE_LT(at.dp_cp, sizes.dp_cp());
      BOOST_REQUIRE_LT(at.edp, sizes.expt_dp());
    }
    BOOST_REQUIRE_EQUAL(dense.size(), grid.rank_count());
    BOOST_REQUIRE_EQUAL(experts.size(), grid.rank_count());
    BOOST_REQUIRE_EQUAL(dealt.size(), grid.rank_count());
  }
}

BOOST_AUTO_TEST_CASE(each_layer_is_in_one_chunk) {
  Random random(3);
  int built = 0;
  for (int i = 0; i < case_count(); ++i) {
    optim::PipelineSplit split = {.num_layers = pick(random, 1, 24),
                                  .pipeline_parallel = pick(random, 1, 4),
                                  .chunks_per_stage = pick(random, 1, 3),
                                  .mtp_num_layers = pick(random, 0, 2)};
    if (pick(random, 0, 2) == 0) split.num_layers_in_first_pipeline_stage = pick(random, 0, 4);
    if (pick(random, 0, 2) == 0) split.num_layers_in_last_pipeline_stage = pick(random, 0, 4);
    split.account_for_embedding_in_pipeline_split = pick(random, 0, 2) == 0;
    split.account_for_loss_in_pipeline_split = pick(random, 0, 2) == 0;
    std::vector<optim::ModelChunk> chunks;
    try {
      chunks = optim::model_chunks(split);
    } catch (const ckpt::Error&) {
      continue;  // does not divide
    }
    ++built;
    uint32_t next = 0, next_mtp = 0;
    for (const optim::ModelChunk& chunk : chunks) {
      BOOST_REQUIRE_EQUAL(chunk.layers.first, next);
      BOOST_REQUIRE_EQUAL(chunk.mtp_layers.first, next_mtp);
      next += chunk.layers.count;
      next_mtp += chunk.mtp_layers.count;
    }
    BOOST_REQUIRE_EQUAL(next, split.num_layers);
    BOOST_REQUIRE_EQUAL(next_mtp, split.mtp_num_layers);
    BOOST_REQUIRE_EQUAL(chunks.size(), split.pipeline_parallel * split.chunks_per_stage);
  }
  BOOST_TEST(built > case_count() / 50);
}

// Backwards from the last parameter, without overlaps; buckets join and end aligned.
void check_flat(const std::vector<optim::FlatParam>& params, const optim::BufferRules& rules) {
  const optim::FlatLayout layout = optim::lay_out_flat(params, rules);
  uint64_t next = 0, compact = 0;
  for (size_t id = params.size(); id-- > 0;) {
    const optim::FlatPlace& place = layout.places[id];
    const optim::FlatBucket& bucket = layout.buckets[place.bucket];
    BOOST_REQUIRE_GE(place.range.begin, next);
    BOOST_REQUIRE_EQUAL(place.range.begin % rules.param_alignment, 0u);
    BOOST_REQUIRE_EQUAL(place.range.end - place.range.begin, params[id].element_count);
    BOOST_REQUIRE_GE(place.range.begin, bucket.range.begin);
    BOOST_REQUIRE_LE(place.range.end, bucket.range.begin + bucket.unpadded_count);
    BOOST_REQUIRE_GE(layout.compact_begin(id), compact);
    next = place.range.end;
    compact = layout.compact_begin(id) + params[id].element_count;
  }
  BOOST_REQUIRE_LE(compact, layout.unpadded_count());
  uint64_t end = 0;
  for (const optim::FlatBucket& bucket : layout.buckets) {
    BOOST_REQUIRE_EQUAL(bucket.range.begin, end);
    end = bucket.range.end;
    BOOST_REQUIRE_EQUAL(end % rules.bucket_alignment, 0u);
    BOOST_REQUIRE_LE(bucket.range.begin + bucket.unpadded_count, end);
  }
  BOOST_REQUIRE_EQUAL(end, layout.element_count());
}

BOOST_AUTO_TEST_CASE(a_buffer_holds_each_parameter_once_in_reverse_order) {
  Random random(4);
  for (int i = 0; i < case_count(); ++i) {
    const uint32_t ranks = pick(random, 1, 12);
    optim::BufferRules rules;
    if (pick(random, 0, 3) > 0) {
      rules = optim::distributed_optimizer_buffers(ranks, pick(random, 0, 9) == 0);
    }
    if (pick(random, 0, 1) == 0) rules.bucket_elements = pick(random, 0, 3000);
    std::vector<optim::FlatParam> params(pick(random, 0, 12));
    for (optim::FlatParam& param : params) {
      param = {pick(random, 0, 700), pick(random, 0, 9) == 0};
    }
    check_flat(params, rules);
    // The same share of each bucket for each rank.
    for (const optim::FlatBucket& bucket : optim::lay_out_flat(params, rules).buckets) {
      if (rules.bucket_alignment > 1) BOOST_REQUIRE_EQUAL(bucket.range.end % ranks, 0u);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_padded_vocabulary_is_the_smallest_multiple) {
  BOOST_TEST(optim::padded_vocabulary(120, 32, 1) == 128u);
  BOOST_TEST(optim::padded_vocabulary(96, 32, 1) == 96u);
  BOOST_TEST(optim::padded_vocabulary(96, 32, 2) == 128u);
  BOOST_TEST(optim::padded_vocabulary(50257, 128, 8) == 51200u);
  BOOST_CHECK_THROW(optim::padded_vocabulary(0, 128, 1), ckpt::Error);
  BOOST_CHECK_THROW(optim::padded_vocabulary(1, uint64_t{1} << 62, 2), ckpt::Error);
}

BOOST_AUTO_TEST_SUITE_END()
