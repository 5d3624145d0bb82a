// Ranges of flattened fragments of Megatron-Core up to 0.14 are boxes of their parameter, each in
// the bytes where its elements lie; what is no such range is refused by name.
#include "layouts/filings/flattened_ranges.h"

#include <boost/test/unit_test.hpp>
#include <numeric>
#include <random>

#include "support/errors.h"

using ckpt::Extents;
using ckpt::TensorEntry;
using test::contains;

namespace {

// A state of a parameter, a chunk for each range of a fragment.
TensorEntry flattened(Extents grid, uint64_t fragment_elements) {
  TensorEntry tensor;
  tensor.key = "optimizer.state.exp_avg.w";
  tensor.dtype = ckpt::DType::Float32;
  tensor.shape = std::move(grid);
  tensor.shape.push_back(fragment_elements);
  return tensor;
}

void add_range(TensorEntry& tensor, Extents fragment, ckpt::ByteRange elements, uint32_t file) {
  ckpt::Box box{std::move(fragment), Extents(tensor.shape.size(), 1)};
  box.offsets.push_back(elements.offset_bytes);
  box.sizes.back() = elements.count_bytes;
  ckpt::Chunk chunk;
  chunk.box = std::move(box);
  chunk.region.file = file;
  tensor.chunks.push_back(std::move(chunk));
}

std::optional<ckpt::Error> error_of(const TensorEntry& stored, const Extents& shape) {
  return test::error_of([&] { optim::unflatten(stored, shape); });
}

}  // namespace

BOOST_AUTO_TEST_SUITE(flattened_ranges)

BOOST_AUTO_TEST_CASE(a_range_of_columns_parts_is_three_boxes_in_its_own_bytes) {
  // Layer 3 of (4, 32, 96), the columns of tensor parallel rank 1: elements 40 to 1535 of (32, 48).
  TensorEntry stored = flattened({4, 1, 2}, 1536);
  add_range(stored, {3, 0, 1}, {40, 1496}, 7);
  const TensorEntry tensor = optim::unflatten(stored, {4, 32, 96});
  BOOST_TEST((tensor.shape == Extents{4, 32, 96}));
  BOOST_REQUIRE_EQUAL(tensor.chunks.size(), 2u);  // the end of row 0, then whole rows
  BOOST_TEST((tensor.chunks[0].box == ckpt::Box{{3, 0, 88}, {1, 1, 8}}));
  BOOST_TEST((tensor.chunks[1].box == ckpt::Box{{3, 1, 48}, {1, 31, 48}}));
  BOOST_TEST(tensor.chunks[0].payload_offset_bytes == 0u);
  BOOST_TEST(tensor.chunks[1].payload_offset_bytes == 8 * sizeof(float));
  for (const ckpt::Chunk& chunk : tensor.chunks) BOOST_TEST(chunk.region.file == 7u);
}

BOOST_AUTO_TEST_CASE(a_whole_fragment_is_one_box) {
  TensorEntry stored = flattened({2, 1}, 2048);
  add_range(stored, {1, 0}, {0, 2048}, 0);
  const TensorEntry tensor = optim::unflatten(stored, {128, 32});
  BOOST_REQUIRE_EQUAL(tensor.chunks.size(), 1u);
  BOOST_TEST((tensor.chunks[0].box == ckpt::Box{{64, 0}, {64, 32}}));
}

BOOST_AUTO_TEST_CASE(ranges_that_cover_all_fragments_cover_the_tensor_once) {
  std::mt19937 random(1);
  const auto up_to = [&](uint64_t most) {
    return std::uniform_int_distribution<uint64_t>(1, most)(random);
  };
  for (int round = 0; round < 200; ++round) {
    const Extents grid = {up_to(3), up_to(3), up_to(2)}, part = {up_to(2), up_to(4), up_to(5)};
    const uint64_t elements = ckpt::element_count(part);
    TensorEntry stored = flattened(grid, elements);
    for (uint64_t i = 0; i < ckpt::element_count(grid); ++i) {
      const Extents at = {i / (grid[1] * grid[2]), i / grid[2] % grid[1], i % grid[2]};
      for (uint64_t first = 0; first < elements;) {
        const uint64_t count = up_to(elements - first);
        add_range(stored, at, {first, count}, 0);
        first += count;
      }
    }
    const Extents shape = {grid[0] * part[0], grid[1] * part[1], grid[2] * part[2]};
    const TensorEntry tensor = optim::unflatten(stored, shape);
    BOOST_TEST(tensor.chunks.size() <= stored.chunks.size() * 5);
    std::vector<int> seen(ckpt::element_count(shape));
    for (const ckpt::Chunk& chunk : tensor.chunks) {
      const auto& [begin, size] = chunk.box;
      for (uint64_t i = 0; i < ckpt::element_count(size); ++i) {
        const uint64_t a = begin[0] + i / (size[1] * size[2]), b = begin[1] + i / size[2] % size[1];
        ++seen.at((a * shape[1] + b) * shape[2] + begin[2] + i % size[2]);
      }
    }
    BOOST_TEST(std::ranges::all_of(seen, [](int count) { return count == 1; }));
  }
}

BOOST_AUTO_TEST_CASE(a_grid_that_does_not_fit_its_parameter_is_refused) {
  for (const Extents& grid :
       {Extents{4, 1}, Extents{3, 1, 2}, Extents{0, 1, 2}, Extents{4, 1, 1}}) {
    const auto error = error_of(flattened(grid, 1536), {4, 32, 96});
    BOOST_REQUIRE(error);
    BOOST_TEST((error->code() == ckpt::ErrorCode::Corrupt));
    BOOST_TEST(error->where().key == "optimizer.state.exp_avg.w");
    BOOST_TEST(contains(error->what(), "grid"));
  }
}

BOOST_AUTO_TEST_CASE(a_chunk_of_several_fragments_has_them_one_behind_the_other) {
  TensorEntry stored = flattened({2, 1, 2}, 6);
  add_range(stored, {0, 0, 0}, {2, 4}, 0);
  stored.chunks[0].box.sizes = {2, 1, 2, 4};
  const TensorEntry tensor = optim::unflatten(stored, {2, 2, 6});
  BOOST_REQUIRE_EQUAL(tensor.chunks.size(), 8u);  // of each the end of row 0, and row 1
  BOOST_TEST((tensor.chunks[6].box == ckpt::Box{{1, 0, 5}, {1, 1, 1}}));
  BOOST_TEST(tensor.chunks[6].payload_offset_bytes == 3 * 4 * sizeof(float));
}

BOOST_AUTO_TEST_CASE(a_chunk_of_very_many_fragments_is_refused) {
  TensorEntry stored = flattened({uint64_t{1} << 40, 1}, 1);
  add_range(stored, {0, 0}, {0, 1}, 0);
  stored.chunks[0].box.sizes[0] = stored.shape[0];
  const auto error = error_of(stored, {uint64_t{1} << 40, 1});
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ckpt::ErrorCode::Corrupt));
}

BOOST_AUTO_TEST_SUITE_END()
