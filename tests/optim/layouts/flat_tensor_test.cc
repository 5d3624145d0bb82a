// Ranges of a flat buffer are tensors of parameters: each element is where the buffer has it, in
// boxes that are runs of bytes, whatever pieces the buffer is stored in.
#include "layouts/parts/flat_states.h"

#include <boost/test/unit_test.hpp>
#include <map>
#include <random>

#include "layouts/parts/tensor_parts.h"
#include "parallel/rank_grid.h"
#include "support/errors.h"
#include "support/sanitizer.h"

using ckpt::Chunk;
using ckpt::Extents;
using ckpt::TensorEntry;
using optim::FlatTensor;
using test::contains;

namespace {

// A buffer of fp32 in pieces of these sizes, each in a region of its own at 1000 * its number.
TensorEntry buffer_of(const std::vector<uint64_t>& pieces) {
  TensorEntry tensor{"f", "buffer", ckpt::DType::Float32, {0}, {}};
  for (const uint64_t size : pieces) {
    Chunk chunk{{{tensor.shape[0]}, {size}}, {}, 0};
    chunk.region.bytes = {1000 * tensor.chunks.size(), size * sizeof(float)};
    tensor.chunks.push_back(chunk);
    tensor.shape[0] += size;
  }
  return tensor;
}

// [element of the tensor, row-major] its element of the buffer, by chunks that are runs.
std::map<uint64_t, uint64_t> places_in(const TensorEntry& part, const TensorEntry& buffer) {
  const Extents strides = ckpt::row_major_strides(part.shape);
  std::map<uint64_t, uint64_t> places;
  for (const Chunk& chunk : part.chunks) {
    const uint64_t piece = chunk.region.bytes.offset_bytes / 1000;
    const Extents inner = ckpt::row_major_strides(chunk.box.sizes);
    BOOST_REQUIRE(chunk.view == nullptr);
    for (uint64_t i = 0; i < ckpt::element_count(chunk.box.sizes); ++i) {
      uint64_t element = 0;
      for (size_t dim = 0; dim < part.shape.size(); ++dim) {
        element += (chunk.box.offsets[dim] + i / inner[dim] % chunk.box.sizes[dim]) * strides[dim];
      }
      const uint64_t place =
          buffer.chunks[piece].box.offsets[0] + chunk.payload_offset_bytes / sizeof(float) + i;
      BOOST_REQUIRE(places.emplace(element, place).second);
    }
  }
  return places;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(flat_tensor)

BOOST_AUTO_TEST_CASE(every_element_is_where_the_buffer_has_it) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<uint64_t> pieces;
    for (int i = 0; i < 6; ++i) pieces.push_back(1 + random() % 40);
    const TensorEntry buffer = buffer_of(pieces);
    const Extents shape{1 + random() % 4, 1 + random() % 4, 1 + random() % 5};
    const uint64_t count = ckpt::element_count(shape);
    if (count > buffer.shape[0]) continue;
    const uint64_t begin = random() % (buffer.shape[0] - count + 1);
    const TensorEntry part = FlatTensor(buffer).slice(begin, shape);
    const auto places = places_in(part, buffer);
    BOOST_REQUIRE_EQUAL(places.size(), count);
    for (const auto& [element, place] : places) BOOST_REQUIRE_EQUAL(place, begin + element);
  }
}

BOOST_AUTO_TEST_CASE(a_scalar_and_a_tensor_without_elements_have_their_place) {
  const TensorEntry buffer = buffer_of({5});
  BOOST_TEST(FlatTensor(buffer).slice(4, {}).chunks.at(0).payload_offset_bytes == 16u);
  BOOST_TEST(FlatTensor(buffer).slice(5, {0, 3}).chunks.empty());
}

BOOST_AUTO_TEST_CASE(a_buffer_that_is_stored_with_strides_keeps_them) {
  TensorEntry buffer = buffer_of({12});
  buffer.chunks[0].view = std::make_shared<ckpt::StridedView>(ckpt::StridedView{7, {2}});
  const TensorEntry part = FlatTensor(buffer).slice(4, {2, 3});
  BOOST_REQUIRE_EQUAL(part.chunks.size(), 1u);
  BOOST_TEST(part.chunks[0].view->offset == 15u);
  BOOST_TEST((part.chunks[0].view->strides == Extents{6, 2}));
}

BOOST_AUTO_TEST_CASE(what_leaves_the_buffer_or_is_in_no_chunk_is_told) {
  TensorEntry buffer = buffer_of({4, 4, 4});
  const auto beyond = test::error_of([&] { FlatTensor(buffer).slice(10, {3}); });
  BOOST_REQUIRE(beyond);
  BOOST_TEST(contains(beyond->what(), "has 12 elements, but a parameter of 3 starts at 10"));
  BOOST_TEST(test::error_of([&] { FlatTensor(buffer).slice(~uint64_t{0}, {3}); }).has_value());
  buffer.chunks.erase(buffer.chunks.begin() + 1);
  const auto hole = test::error_of([&] { FlatTensor(buffer).slice(2, {4}); });
  BOOST_REQUIRE(hole);
  BOOST_TEST(contains(hole->what(), "its element 4 is in no chunk"));
  const TensorEntry square{"f", "square", ckpt::DType::Float32, {2, 2}, {}};
  BOOST_TEST(test::error_of([&] { FlatTensor{square}; }).has_value());
}

// Row-parallel parts in pieces that end within rows: the whole has each piece's boxes.
BOOST_AUTO_TEST_CASE(pieces_of_tensor_parallel_ranks_join_to_one_tensor) {
  const TensorEntry buffers[] = {buffer_of({5, 7}), buffer_of({1, 11})};
  TensorEntry parts[] = {FlatTensor(buffers[0]).slice(0, {4, 3}),
                         FlatTensor(buffers[1]).slice(0, {4, 3})};
  optim::TensorParts joined;
  for (uint32_t rank = 0; rank < 2; ++rank) joined.add("w", rank, parts[rank]);
  const auto whole = joined.join("w", {optim::TensorSharing{true, optim::one_section(1, 6)}, 2});
  BOOST_TEST((whole->shape == Extents{4, 6}));
  uint64_t elements = 0;
  for (const Chunk& chunk : whole->chunks) {
    const bool is_second = chunk.box.offsets[1] >= 3;
    BOOST_TEST((chunk.box.offsets[1] + chunk.box.sizes[1] <= (is_second ? 6u : 3u)));
    elements += ckpt::element_count(chunk.box.sizes);
  }
  BOOST_TEST(elements == 24u);
}

// Not more than linear: a search of all pieces for each parameter would run into the time limit.
BOOST_AUTO_TEST_CASE(a_million_pieces_are_each_named_once) {
  constexpr size_t kParams = test::kIsSanitized ? 10'000 : 100'000;
  const TensorEntry buffer = buffer_of(std::vector<uint64_t>(10 * kParams, 7));
  const FlatTensor flat(buffer);
  size_t chunks = 0;
  for (size_t i = 0; i < kParams; ++i) chunks += flat.slice(i * 70, {10, 7}).chunks.size();
  BOOST_TEST(chunks == 10 * kParams);
}

BOOST_AUTO_TEST_SUITE_END()
