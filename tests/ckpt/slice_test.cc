#include <ckpt/slice.h>

#include <boost/test/unit_test.hpp>

#include <ckpt/tensor_stream.h>

#include "support/errors.h"
#include "support/random_tensors.h"

using ckpt::ErrorCode;
using ckpt::Extents;
using ckpt::Slice;
using test::KnownTensor;
using test::MemoryPayloads;

namespace {

// Counts what is read.
class CountingPayloads final : public ckpt::PayloadSource {
 public:
  explicit CountingPayloads(const MemoryPayloads& payloads) : payloads_(payloads) {}
  ckpt::LocatedRegion locate(const ckpt::StorageRegion& region) const override {
    return payloads_.locate(region);
  }
  void read_bytes(const ckpt::StorageRegion& located, uint64_t offset_bytes,
                  std::span<std::byte> out) const override {
    count_bytes += out.size();
    payloads_.read_bytes(located, offset_bytes, out);
  }
  std::string file_name(uint32_t file) const override { return payloads_.file_name(file); }

  mutable uint64_t count_bytes = 0;

 private:
  const MemoryPayloads& payloads_;
};

ckpt::TensorEntry stored_tensor(MemoryPayloads& payloads, const Extents& shape) {
  ckpt::TensorEntry tensor{.file = {}, .key = "w", .shape = shape, .chunks = {}};
  const std::string content(ckpt::count_bytes(tensor), 'x');
  tensor.chunks.push_back({ckpt::whole(shape), payloads.add_storage(content)});
  return tensor;
}

uint64_t bytes_read(const Extents& shape, const std::string& slice) {
  MemoryPayloads payloads;
  const CountingPayloads counting(payloads);
  const ckpt::TensorEntry tensor = stored_tensor(payloads, shape);
  const ckpt::SlicedTensor sliced(tensor, ckpt::parse_slice(slice, shape), counting);
  ckpt::TensorStream stream(sliced.entry(), sliced);
  std::vector<std::byte> out(stream.left_bytes());
  stream.read(out);
  return counting.count_bytes;
}

std::string random_index(test::Random& random, uint64_t size) {
  const auto bound = [&] {
    const auto from_zero = static_cast<int64_t>(random() % (2 * size + 3));
    return random() % 3 == 0 ? "" : std::to_string(from_zero - static_cast<int64_t>(size) - 1);
  };
  return bound() + ":" + bound() + (random() % 2 ? "" : ":" + std::to_string(1 + random() % 3));
}

// The bytes of the slice, taken element by element out of those of the whole tensor.
std::string picked(const KnownTensor& tensor, const Slice& slice) {
  std::string bytes;
  const Extents strides = ckpt::row_major_strides(tensor.entry.shape);
  const uint64_t element_bytes = ckpt::bytes_per_element(tensor.entry.dtype);
  for (uint64_t i = 0; i < ckpt::element_count(slice.shape()); ++i) {
    uint64_t left = i, at = 0;
    for (size_t d = slice.dims.size(); d-- > 0;) {
      const ckpt::SliceDim& dim = slice.dims[d];
      at += (dim.start + left % dim.count * dim.step) * strides[d];
      left /= dim.count;
    }
    bytes += tensor.content.substr(at * element_bytes, element_bytes);
  }
  return bytes;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(slice)

BOOST_AUTO_TEST_CASE(dimensions_are_those_of_python) {
  const auto shape = [](const char* text) { return ckpt::parse_slice(text, {4, 6, 8}).shape(); };
  BOOST_TEST((shape("...") == Extents{4, 6, 8}));
  BOOST_TEST((shape("1") == Extents{6, 8}));
  BOOST_TEST((shape("-1, 2") == Extents{8}));
  BOOST_TEST((shape("0, 0, 0").empty()));
  BOOST_TEST((shape(":2, ..., ::3") == Extents{2, 6, 3}));
  BOOST_TEST((shape("3:1, 99:, -99:99") == Extents{0, 0, 8}));
  BOOST_TEST((shape("0:99999999999999999999999,") == Extents{4, 6, 8}));
}

BOOST_AUTO_TEST_CASE(what_is_no_slice_of_the_shape_is_a_usage_error_that_says_the_shape) {
  for (const char* text : {"4", "-5", "0,0,0,0", "::0", "::-1", "...,...", "a", "", "1:2:3:4",
                           "1 2", "0,,0", "99999999999999999999999", "None", "0x1"}) {
    BOOST_TEST_CONTEXT(text) {
      const auto error = test::error_of([&] { (void)ckpt::parse_slice(text, {4, 6, 8}); });
      BOOST_REQUIRE(error.has_value());
      BOOST_TEST((error->code() == ErrorCode::InvalidArgument));
      BOOST_TEST(error->problem().find("[4, 6, 8]") != std::string::npos);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_dimension_beyond_63_bits_is_sliced_without_overflow) {
  const Extents shape{UINT64_MAX, 0};
  BOOST_TEST((ckpt::parse_slice("5:7", shape).shape() == Extents{2, 0}));
  BOOST_TEST((ckpt::parse_slice("-1", shape).shape() == Extents{0}));
  BOOST_TEST((ckpt::parse_slice("...", shape).shape() == shape));
}

BOOST_AUTO_TEST_CASE(a_key_is_told_from_its_slice) {
  const auto sliced = ckpt::split_slice("layers.[0-3].weight[0:4, :8]");
  BOOST_REQUIRE(sliced.has_value());
  BOOST_TEST(sliced->key == "layers.[0-3].weight");
  BOOST_TEST(sliced->slice == "0:4, :8");
  BOOST_TEST(sliced->is_sure);
  BOOST_TEST(!ckpt::split_slice("weight[abc]")->is_sure);
  BOOST_TEST(!ckpt::split_slice("[0]").has_value());
  BOOST_TEST(!ckpt::split_slice("weight").has_value());
}

BOOST_AUTO_TEST_CASE(any_slice_of_any_chunk_grid_is_read_right) {
  test::Random random(7);
  for (int round = 0; round < 1500; ++round) {
    MemoryPayloads payloads;
    const KnownTensor tensor = test::random_tensor(random, payloads);
    std::string text;
    for (const uint64_t size : tensor.entry.shape) text += random_index(random, size) + ",";
    const Slice slice = ckpt::parse_slice(text.empty() ? "..." : text, tensor.entry.shape);
    const ckpt::SlicedTensor sliced(tensor.entry, slice, payloads);
    ckpt::TensorStream stream(sliced.entry(), sliced);
    const uint64_t element_bytes = ckpt::bytes_per_element(tensor.entry.dtype);
    std::string out;
    while (stream.left_bytes() > 0) {  // in pieces that cut runs
      const uint64_t left = stream.left_bytes() / element_bytes;
      std::string piece((1 + random() % left) * element_bytes, '\0');
      stream.read(std::as_writable_bytes(std::span(piece)));
      out += piece;
    }
    BOOST_REQUIRE(out == picked(tensor, slice));
  }
}

BOOST_AUTO_TEST_CASE(only_what_a_slice_needs_is_read) {
  BOOST_TEST(bytes_read({1000, 1000}, "3:5") == 2 * 4000);
  BOOST_TEST(bytes_read({1000, 1000}, "7, 5") == 4);
  BOOST_TEST(bytes_read({10, 100'000}, ":, :2") == 10 * 8);
  BOOST_TEST(bytes_read({1000, 1000}, "::500") == 2 * 4000);
  BOOST_TEST(bytes_read({20, 100'000}, "::10, 0:1") == 2 * 4);
  BOOST_TEST(bytes_read({1'000'000}, "::500000") == 2 * 4);
}

BOOST_AUTO_TEST_SUITE_END()
