// Boxes of a tensor, flattened, have each of its elements where row-major order puts it, whatever
// chunks it is stored in.
#include "issues/bucket_windows.h"

#include <boost/test/unit_test.hpp>
#include <map>
#include <random>

using ckpt::Box;
using ckpt::Chunk;
using ckpt::Extents;
using ckpt::TensorEntry;

namespace {

using Random = std::mt19937;

uint64_t between(Random& random, uint64_t least, uint64_t most) {
  return std::uniform_int_distribution<uint64_t>(least, most)(random);
}

// [0, size) in pieces.
std::vector<uint64_t> borders(Random& random, uint64_t size) {
  std::vector<uint64_t> cuts = {0};
  while (cuts.back() < size) cuts.push_back(between(random, cuts.back() + 1, size));
  return cuts;
}

constexpr uint64_t kChunkElements = 1 << 16;  // between the starts of two regions

// Of float32, in a grid of chunks; that of number i starts at i * kChunkElements elements of a
// file.
TensorEntry tensor_of(Random& random, const Extents& shape, bool with_views) {
  TensorEntry tensor{{}, "a", ckpt::DType::Float32, shape, {}};
  std::vector<Box> boxes = {ckpt::whole(shape)};
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    const auto cuts = borders(random, shape[dim]);
    std::vector<Box> parts;
    for (const Box& box : boxes) {
      for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        Box part = box;
        part.offsets[dim] = cuts[i];
        part.sizes[dim] = cuts[i + 1] - cuts[i];
        parts.push_back(part);
      }
    }
    boxes = parts;
  }
  for (const Box& box : boxes) {
    Chunk chunk{box, {}};
    chunk.region.bytes = {tensor.chunks.size() * kChunkElements * sizeof(float),
                          kChunkElements * sizeof(float)};
    if (with_views) {
      ckpt::StridedView view{3, ckpt::row_major_strides(box.sizes)};
      for (uint64_t& stride : view.strides) stride *= 2;
      chunk.view = std::make_shared<ckpt::StridedView>(view);
    }
    tensor.chunks.push_back(chunk);
  }
  return tensor;
}

// Where an element is stored, in elements of the file.
uint64_t place_in(const Chunk& chunk, const Extents& element) {
  uint64_t place =
      chunk.region.bytes.offset_bytes / sizeof(float) + chunk.payload_offset_bytes / sizeof(float);
  const Extents strides =
      chunk.view ? chunk.view->strides : ckpt::row_major_strides(chunk.box.sizes);
  if (chunk.view) place += chunk.view->offset;
  for (size_t dim = 0; dim < strides.size(); ++dim) {
    place += (element[dim] - chunk.box.offsets[dim]) * strides[dim];
  }
  return place;
}

std::vector<Extents> elements_of(const Box& box) {
  std::vector<Extents> elements;
  const Extents strides = ckpt::row_major_strides(box.sizes);
  for (uint64_t i = 0; i < ckpt::element_count(box.sizes); ++i) {
    Extents element;
    for (size_t dim = 0; dim < strides.size(); ++dim) {
      element.push_back(box.offsets[dim] + i / strides[dim] % box.sizes[dim]);
    }
    elements.push_back(element);
  }
  return elements;
}

Box random_box(Random& random, const Extents& shape) {
  Box box;
  for (const uint64_t size : shape) {
    box.offsets.push_back(between(random, 0, size - 1));
    box.sizes.push_back(between(random, 1, size - box.offsets.back()));
  }
  return box;
}

// [element of the flattened boxes] where it is stored.
std::map<uint64_t, uint64_t> places_in(const std::vector<Chunk>& chunks) {
  std::map<uint64_t, uint64_t> places;
  for (const Chunk& chunk : chunks) {
    BOOST_REQUIRE_EQUAL(chunk.box.sizes.size(), 1);
    for (const Extents& element : elements_of(chunk.box)) {
      BOOST_REQUIRE(places.emplace(element[0], place_in(chunk, element)).second);
    }
  }
  return places;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(flat_chunks)

BOOST_AUTO_TEST_CASE(every_element_is_where_row_major_order_puts_it) {
  Random random(5077);
  for (int round = 0; round < 200; ++round) {
    Extents shape;
    for (uint64_t dims = between(random, 1, 3); dims > 0; --dims) {
      shape.push_back(between(random, 1, 7));
    }
    const TensorEntry tensor = tensor_of(random, shape, round % 4 == 0);
    const std::vector<Box> boxes = {random_box(random, shape), random_box(random, shape)};
    const auto places = places_in(optim::flat_chunks(tensor, boxes));
    uint64_t at = 0;
    for (const Box& box : boxes) {
      for (const Extents& element : elements_of(box)) {
        for (const Chunk& chunk : tensor.chunks) {
          if (!ckpt::intersect(chunk.box, {element, Extents(shape.size(), 1)})) continue;
          BOOST_REQUIRE_EQUAL(places.at(at), place_in(chunk, element));
        }
        ++at;
      }
    }
    BOOST_REQUIRE_EQUAL(places.size(), at);
  }
}

BOOST_AUTO_TEST_CASE(whole_rows_are_one_chunk) {
  const Extents shape = {8, 4};
  TensorEntry tensor{{}, "a", ckpt::DType::Float32, shape, {{ckpt::whole(shape), {}}}};
  const std::vector<Box> rows = {{{2, 0}, {3, 4}}};
  BOOST_TEST(optim::flat_chunks(tensor, rows).size() == 1);
  const std::vector<Box> columns = {{{0, 1}, {8, 2}}};
  BOOST_TEST(optim::flat_chunks(tensor, columns).size() == 8);
}

BOOST_AUTO_TEST_CASE(a_single_number_is_one_element) {
  TensorEntry tensor{{}, "a", ckpt::DType::Float32, {}, {{ckpt::whole({}), {}}}};
  const std::vector<Box> boxes = {ckpt::whole({})};
  const auto chunks = optim::flat_chunks(tensor, boxes);
  BOOST_REQUIRE(chunks.size() == 1);
  BOOST_TEST(chunks[0].box.sizes == Extents{1});
}

BOOST_AUTO_TEST_SUITE_END()
