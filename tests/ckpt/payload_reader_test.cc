#include "read/payload_reader.h"

#include <boost/test/unit_test.hpp>

#include "read/shared_blocks.h"
#include "support/errors.h"
#include "support/random_tensors.h"

using ckpt::Box;
using ckpt::BoxReader;
using ckpt::ErrorCode;
using ckpt::Extents;
using test::KnownTensor;
using test::MemoryPayloads;

namespace {

std::span<std::byte> writable(std::string& text) { return std::as_writable_bytes(std::span(text)); }

std::string read_all(BoxReader& reader) {
  std::string out(reader.left_bytes(), '\0');
  reader.read(writable(out));
  return out;
}

std::shared_ptr<const ckpt::StridedView> view_of(uint64_t offset, Extents strides) {
  return std::make_shared<const ckpt::StridedView>(ckpt::StridedView{offset, std::move(strides)});
}

KnownTensor tensor_of(test::Random& random, Extents shape, ckpt::DType dtype) {
  KnownTensor tensor;
  tensor.entry.key = "w";
  tensor.entry.shape = std::move(shape);
  tensor.entry.dtype = dtype;
  tensor.content = test::random_bytes(random, ckpt::count_bytes(tensor.entry));
  return tensor;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(payload_reader)

BOOST_AUTO_TEST_CASE(any_box_of_any_chunk_grid_is_read_right) {
  test::Random random(6);
  for (int round = 0; round < 1500; ++round) {
    MemoryPayloads payloads;
    const KnownTensor tensor = test::random_tensor(random, payloads);
    const Box box = test::random_box(random, tensor.entry.shape);
    ckpt::ScratchBuffer scratch(16 << random() % 6);
    BoxReader reader(tensor.entry, box, payloads, {.scratch = &scratch});
    BOOST_REQUIRE(read_all(reader) == tensor.expected(box));
  }
}

BOOST_AUTO_TEST_CASE(reading_through_blocks_that_are_shared_gives_the_same_bytes) {
  test::Random random(16);
  for (int round = 0; round < 1500; ++round) {
    MemoryPayloads payloads;
    const KnownTensor tensor = test::random_tensor(random, payloads);
    const uint64_t block_bytes = 16 << random() % 8;
    ckpt::SharedBlocks blocks(random() % 3 * block_bytes, block_bytes);
    for (int reader_count = 0; reader_count < 3; ++reader_count) {
      const Box box = test::random_box(random, tensor.entry.shape);
      ckpt::BoxReaderOptions options;
      options.shared = &blocks;
      BoxReader reader(tensor.entry, box, payloads, std::move(options));
      const std::string expected = tensor.expected(box);
      const uint64_t start = random() % expected.size();
      std::string part(random() % (expected.size() - start + 1), '\0');
      reader.read_at(start, writable(part));
      BOOST_REQUIRE(part == expected.substr(start, part.size()));
    }
  }
}

BOOST_AUTO_TEST_CASE(reading_in_pieces_gives_the_same_bytes) {
  test::Random random(7);
  for (int round = 0; round < 500; ++round) {
    MemoryPayloads payloads;
    const KnownTensor tensor = test::random_tensor(random, payloads);
    const Box box = test::random_box(random, tensor.entry.shape);
    const std::string expected = tensor.expected(box);
    BoxReader reader(tensor.entry, box, payloads);
    std::string content;
    while (reader.left_bytes() > 0) {
      const uint64_t left = reader.left_bytes() / tensor.element_bytes();
      std::string part((1 + random() % left) * tensor.element_bytes(), '\0');
      reader.read(writable(part));
      content += part;
    }
    BOOST_REQUIRE(content == expected);
    const uint64_t start = random() % ckpt::element_count(box.sizes) * tensor.element_bytes();
    reader.seek(start);
    BOOST_REQUIRE(read_all(reader) == expected.substr(start));
  }
}

BOOST_AUTO_TEST_CASE(an_expanded_dimension_repeats_its_elements) {
  test::Random random(8);
  MemoryPayloads payloads;
  KnownTensor tensor = tensor_of(random, {3, 4}, ckpt::DType::UInt8);
  tensor.content = "abcdabcdabcd";
  tensor.entry.chunks.push_back(
      {ckpt::whole({3, 4}), payloads.add_storage("xabcd"), 0, view_of(1, {0, 1})});
  BoxReader reader(tensor.entry, ckpt::whole({3, 4}), payloads);
  BOOST_TEST(read_all(reader) == tensor.content);
}

BOOST_AUTO_TEST_CASE(a_contiguous_chunk_is_read_with_one_call) {
  test::Random random(9);
  MemoryPayloads payloads;
  KnownTensor tensor = tensor_of(random, {64, 64}, ckpt::DType::Float32);
  tensor.entry.chunks.push_back({ckpt::whole({64, 64}), payloads.add_storage(tensor.content), 0});
  BoxReader reader(tensor.entry, {{8, 0}, {16, 64}}, payloads);
  BOOST_TEST((read_all(reader) == tensor.expected({{8, 0}, {16, 64}})));
  BOOST_TEST(payloads.reads() == 1);
}

BOOST_AUTO_TEST_CASE(short_runs_are_read_together_and_long_ones_apart) {
  test::Random random(10);
  {
    MemoryPayloads payloads;  // 1,000 rows of which 4 bytes each are wanted
    KnownTensor tensor = tensor_of(random, {1000, 16}, ckpt::DType::Float32);
    tensor.entry.chunks.push_back(
        {ckpt::whole({1000, 16}), payloads.add_storage(tensor.content), 0});
    const Box column{{0, 5}, {1000, 1}};
    BoxReader reader(tensor.entry, column, payloads);
    BOOST_TEST((read_all(reader) == tensor.expected(column)));
    BOOST_TEST(payloads.reads() == 1);
  }
  {
    MemoryPayloads payloads;  // 4 rows of 256 KiB of which the first half is wanted
    KnownTensor tensor = tensor_of(random, {4, 1 << 16}, ckpt::DType::Float32);
    tensor.entry.chunks.push_back(
        {ckpt::whole({4, 1 << 16}), payloads.add_storage(tensor.content), 0});
    const Box half{{0, 0}, {4, 1 << 15}};
    BoxReader reader(tensor.entry, half, payloads);
    BOOST_TEST((read_all(reader) == tensor.expected(half)));
    BOOST_TEST(payloads.reads() == 4);
    BOOST_TEST(payloads.longest_read_bytes() == 1 << 17);
  }
}

BOOST_AUTO_TEST_CASE(enclosing_reads_never_exceed_the_scratch_memory) {
  test::Random random(11);
  MemoryPayloads payloads;
  KnownTensor tensor = tensor_of(random, {96, 96}, ckpt::DType::BFloat16);
  const Box box = ckpt::whole({96, 96});
  tensor.entry.chunks.push_back(test::store_as_view(random, payloads, tensor, box));
  tensor.entry.chunks[0].view = view_of(0, {1, 96});  // transposed
  std::string transposed(tensor.content.size(), '\0');
  for (size_t r = 0; r < 96; ++r) {
    for (size_t c = 0; c < 96; ++c) {
      transposed.replace((c * 96 + r) * 2, 2, tensor.content, (r * 96 + c) * 2, 2);
    }
  }
  tensor.entry.chunks[0].region = payloads.add_storage(transposed);
  ckpt::ScratchBuffer scratch(1024);
  BoxReader reader(tensor.entry, box, payloads, {.scratch = &scratch});
  BOOST_TEST((read_all(reader) == tensor.content));
  BOOST_TEST(payloads.longest_read_bytes() <= 1024);
  BOOST_TEST(payloads.reads() < 40);  // the storage holds 18 times the scratch memory
}

BOOST_AUTO_TEST_CASE(a_hole_between_chunks_is_an_error_with_the_key) {
  test::Random random(12);
  MemoryPayloads payloads;
  KnownTensor tensor = tensor_of(random, {4}, ckpt::DType::UInt8);
  tensor.entry.chunks.push_back({{{0}, {3}}, payloads.add_storage("abc"), 0});
  BoxReader reader(tensor.entry, ckpt::whole({4}), payloads);
  const auto error = test::error_of([&] { read_all(reader); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ErrorCode::Corrupt));
  BOOST_TEST(error->where().key == "w");
}

BOOST_AUTO_TEST_CASE(a_chunk_that_leaves_its_storage_is_an_error_with_file_offset_and_key) {
  MemoryPayloads payloads;
  ckpt::TensorEntry tensor{{}, "w", ckpt::DType::Float32, {4}, {}};
  tensor.chunks.push_back({ckpt::whole({4}), payloads.add_storage(std::string(15, 'x')), 0});
  BoxReader reader(tensor, ckpt::whole({4}), payloads);
  const auto error = test::error_of([&] { read_all(reader); });
  BOOST_REQUIRE(error);
  BOOST_TEST(error->what() ==
             "source0 @0 'w': the tensor needs more than the 15 bytes of its storage");

  tensor.chunks[0].view = view_of(0, {~uint64_t{0} / 2});
  BoxReader far(tensor, ckpt::whole({4}), payloads);
  BOOST_TEST(test::error_of([&] { read_all(far); }).has_value());
}

BOOST_AUTO_TEST_CASE(asking_for_more_or_for_half_an_element_is_refused) {
  MemoryPayloads payloads;
  ckpt::TensorEntry tensor{{}, "w", ckpt::DType::Float32, {4}, {}};
  tensor.chunks.push_back({ckpt::whole({4}), payloads.add_storage(std::string(16, 'x')), 0});
  BoxReader reader(tensor, ckpt::whole({4}), payloads);
  std::string out(20, '\0');
  for (const size_t count : {20u, 3u}) {
    const auto error = test::error_of([&] { reader.read(writable(out).first(count)); });
    BOOST_REQUIRE(error);
    BOOST_TEST((error->code() == ErrorCode::InvalidArgument));
  }
  BOOST_TEST(test::error_of([&] { reader.seek(2); }).has_value());
  BOOST_TEST(test::error_of([&] { reader.seek(20); }).has_value());
}

BOOST_AUTO_TEST_CASE(any_bytes_are_read_also_from_within_an_element_to_within_another) {
  test::Random random(13);
  for (int round = 0; round < 200; ++round) {
    MemoryPayloads payloads;
    const KnownTensor tensor = test::random_tensor(random, payloads);
    const Box box = ckpt::whole(tensor.entry.shape);
    const std::string expected = tensor.expected(box);
    if (expected.empty()) continue;
    const size_t offset = random() % expected.size();
    std::string found(random() % (expected.size() - offset + 1), '?');
    BoxReader(tensor.entry, box, payloads)
        .read_at(offset, std::as_writable_bytes(std::span(found)));
    BOOST_REQUIRE(found == expected.substr(offset, found.size()));
  }
}

BOOST_AUTO_TEST_CASE(what_was_read_is_told_as_it_is_stored) {
  test::Random random(14);
  MemoryPayloads payloads;
  KnownTensor tensor = tensor_of(random, {4, 8}, ckpt::DType::UInt8);
  tensor.entry.chunks = {{ckpt::whole({4, 8}), payloads.add_storage(tensor.content), 0}};
  std::string told(tensor.content.size(), '?');
  const auto keep = [&](const ckpt::StorageRegion&, uint64_t offset_bytes,
                        std::span<const std::byte> bytes) {
    std::ranges::transform(bytes, told.begin() + static_cast<ptrdiff_t>(offset_bytes),
                           [](std::byte byte) { return static_cast<char>(byte); });
  };
  BoxReader whole(tensor.entry, ckpt::whole({4, 8}), payloads, {.after_read = keep});
  read_all(whole);
  BOOST_TEST(told == tensor.content);
  std::ranges::fill(told, '?');
  BoxReader column(tensor.entry, {{1, 2}, {2, 3}}, payloads, {.after_read = keep});
  read_all(column);  // two rows are read as one run, with the hole between them
  BOOST_TEST(told.substr(10, 11) == tensor.content.substr(10, 11));
}

BOOST_AUTO_TEST_CASE(a_wrong_checksum_is_told_with_the_place_of_the_storage) {
  MemoryPayloads payloads;
  auto storage = payloads.add_storage(std::string(3 << 20, 'x'));
  ckpt::check_storage_crc(storage, payloads);
  storage.crc32 = 0x12345678;
  const auto error = test::error_of([&] { ckpt::check_storage_crc(storage, payloads); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ErrorCode::Corrupt));
  BOOST_TEST(error->where().file == "source0");
  BOOST_TEST(*error->where().offset_bytes == 0);
  BOOST_TEST(test::contains(error->problem(), "the archive says 12345678"));
  for (const std::optional<uint32_t> absent : {std::optional<uint32_t>(), std::optional(0u)}) {
    storage.crc32 = absent;
    ckpt::check_storage_crc(storage, payloads);
  }
}

BOOST_AUTO_TEST_SUITE_END()
