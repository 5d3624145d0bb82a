// What several windows read of the same rows is read once: blocks, groups of records, the order of
// windows.
#include "write/shared_reads.h"

#include <algorithm>
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <map>
#include <set>

#include <ckpt/run_jobs.h>

#include "read/shared_blocks.h"
#include "support/targets.h"

using ckpt::Box;
using ckpt::Plan;
using ckpt::Target;
using namespace test;

namespace {

constexpr uint64_t kWindowBytes = 64 << 10;

struct Matrix {
  explicit Matrix(uint32_t seed, ckpt::Extents shape = {1024, 1024}) {
    Random random(seed);
    tensor.entry.key = "matrix" + std::to_string(seed);
    tensor.entry.dtype = ckpt::DType::Float32;
    tensor.entry.shape = std::move(shape);
    tensor.content = random_bytes(random, ckpt::count_bytes(tensor.entry));
  }
  void store(MemoryPayloads& payloads) {
    const Box all = ckpt::whole(tensor.entry.shape);
    tensor.entry.chunks.push_back({all, payloads.add_storage(tensor.content), 0});
  }
  Box columns(uint64_t part, uint64_t parts) const {
    const uint64_t width = tensor.entry.shape[1] / parts;
    return {{0, part * width}, {tensor.entry.shape[0], width}};
  }
  KnownTensor tensor;
};

void add_file(Target& target, std::vector<ckpt::TargetArchive> archives) {
  target.files.push_back({"f" + std::to_string(target.files.size()), std::move(archives), {}});
}

// Two files for each of `parts` ranks: both have the rank's columns, the first some rows before.
Target target_of_columns(const Matrix& other, const Matrix& matrix, uint64_t parts) {
  Target target;
  for (uint64_t part = 0; part < parts; ++part) {
    const auto cut = bare_archive(matrix.tensor, matrix.columns(part, parts));
    const uint64_t rows = other.tensor.entry.shape[0] / parts;
    const Box own = {{part * rows, 0}, {rows, other.tensor.entry.shape[1]}};
    add_file(target, {bare_archive(other.tensor, own), cut});
    add_file(target, {cut});
  }
  return target;
}

struct Order {
  Order(const Target& target, const Plan& plan)
      : windows(ckpt::whole_files(plan), kWindowBytes),
        shared(ckpt::find_shared_reads(target, plan, windows.pieces())),
        order(ckpt::order_windows(target, plan, shared, windows)) {}

  void check_that_all_come_in_the_order_of_their_files() const {
    BOOST_REQUIRE(std::set(order.begin(), order.end()).size() == windows.count());
    std::map<uint32_t, uint64_t> last;
    for (const uint32_t index : order) {
      const ckpt::Window window = windows.window(index);
      const auto [entry, is_first] = last.try_emplace(window.file, window.bytes.offset_bytes);
      BOOST_TEST((is_first || entry->second < window.bytes.offset_bytes));
      entry->second = window.bytes.offset_bytes;
    }
  }

  ckpt::WindowMap windows;
  ckpt::SharedReads shared;
  std::vector<uint32_t> order;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(shared_reads)

BOOST_AUTO_TEST_CASE(columns_and_copies_of_a_matrix_read_it_once) {
  MemoryPayloads payloads;
  Matrix other(1), matrix(2);
  other.store(payloads);
  matrix.store(payloads);
  const Target target = target_of_columns(other, matrix, 8);
  const uint64_t source_bytes = other.tensor.content.size() + matrix.tensor.content.size();
  Files first;
  for (const unsigned threads : {1u, 2u, 4u}) {
    const TemporaryFolder folder;
    const ckpt::ExecuteStats stats =
        run_in(folder, target, payloads, options_of(threads, 64 << 20));
    BOOST_TEST(stats.read_bytes <= source_bytes + source_bytes / 50);
    const Files files = tree_of(folder.path());
    if (first.empty()) first = files;
    BOOST_TEST((files == first));
  }
  for (uint64_t part = 0; part < 8; ++part) {
    const ckpt::TargetFile& file = target.files[2 * part + 1];
    BOOST_TEST((storages_of(first.at("out/" + file.path), file).at(0) ==
                matrix.tensor.expected(matrix.columns(part, 8))));
  }
}

BOOST_AUTO_TEST_CASE(with_the_least_memory_the_bytes_are_the_same) {
  MemoryPayloads payloads;
  Matrix other(3, {256, 512}), matrix(4, {256, 512});
  other.store(payloads);
  matrix.store(payloads);
  const Target target = target_of_columns(other, matrix, 4);
  const Files files = written(target, payloads, options_of(1, 64 << 20));
  BOOST_TEST((written(target, payloads, options_of(3)) == files));
  BOOST_TEST((written(target, payloads, options_of(2, 4 << 20)) == files));
}

BOOST_AUTO_TEST_CASE(windows_that_read_the_same_rows_stand_side_by_side) {
  MemoryPayloads payloads;
  Matrix other(5), matrix(6);
  other.store(payloads);
  matrix.store(payloads);
  const Target target = target_of_columns(other, matrix, 4);
  const Plan plan = ckpt::make_plan(target);
  const Order order(target, plan);
  order.check_that_all_come_in_the_order_of_their_files();
  BOOST_TEST(order.shared.readers_max() == 8);
  BOOST_TEST(order.shared.file_sets.size() == 1);
  // The files without the rows of the other matrix wait for those that have them.
  uint64_t largest_lead = 0;
  std::map<uint32_t, uint64_t> shown;
  for (const uint32_t index : order.order) {
    const ckpt::Window window = order.windows.window(index);
    shown[window.file] = window.bytes.end_bytes();
    if (window.file == 1) {
      const uint64_t ahead = shown[1];
      const uint64_t others = shown[0] - plan.files[0].archive_offsets[1];
      largest_lead = std::max(largest_lead, ahead - std::min(ahead, others));
    }
  }
  BOOST_TEST(largest_lead <= 2 * kWindowBytes);
}

BOOST_AUTO_TEST_CASE(records_that_wait_for_each_other_are_all_written) {
  MemoryPayloads payloads;
  Matrix a(7, {256, 256}), b(8, {256, 256});
  a.store(payloads);
  b.store(payloads);
  const auto cut = [](const Matrix& matrix, uint64_t part) {
    return bare_archive(matrix.tensor, matrix.columns(part, 2));
  };
  Target target;
  add_file(target, {cut(a, 0), cut(b, 0)});
  add_file(target, {cut(b, 1), cut(a, 1)});
  add_file(target, {cut(a, 0), cut(a, 0)});  // one file shares with itself
  const Plan plan = ckpt::make_plan(target);
  Order(target, plan).check_that_all_come_in_the_order_of_their_files();
  const Files files = written(target, payloads, options_of(4));
  BOOST_TEST(
      (storages_of(files.at("f1"), target.files[1]).at(1) == a.tensor.expected(a.columns(1, 2))));
}

BOOST_AUTO_TEST_CASE(files_are_taken_in_sets_that_share_nothing_and_are_not_large) {
  MemoryPayloads payloads;
  std::vector<Matrix> matrices;
  for (uint32_t m = 0; m < 3; ++m) matrices.emplace_back(10 + m, ckpt::Extents{64, 1024});
  for (Matrix& matrix : matrices) matrix.store(payloads);
  Target target;
  for (uint64_t f = 0; f < 600; ++f) {
    const Matrix& matrix = matrices[f % 3];
    add_file(target, {bare_archive(matrix.tensor, matrix.columns(f % 4, 4))});
  }
  const Plan plan = ckpt::make_plan(target);
  const Order order(target, plan);
  order.check_that_all_come_in_the_order_of_their_files();
  std::set<uint32_t> files;
  for (const std::vector<uint32_t>& set : order.shared.file_sets) {
    BOOST_TEST(set.size() <= 128);
    for (const uint32_t file : set) {
      BOOST_TEST(file % 3 == set[0] % 3);
      files.insert(file);
    }
  }
  BOOST_TEST(files.size() == 600);
}

BOOST_AUTO_TEST_CASE(rows_of_their_own_and_short_records_are_not_shared) {
  MemoryPayloads payloads;
  Matrix matrix(14), small(15, {16, 256});
  matrix.store(payloads);
  small.store(payloads);
  Target target;
  for (uint64_t part = 0; part < 4; ++part) {
    add_file(target, {bare_archive(matrix.tensor, {{part * 256, 0}, {256, 1024}}),
                      bare_archive(small.tensor, small.columns(part, 4))});
  }
  const Order order(target, ckpt::make_plan(target));
  BOOST_TEST(order.shared.readers_max() == 1);
  BOOST_TEST(order.shared.file_sets.size() == 4);
  BOOST_TEST(std::ranges::is_sorted(order.order));
}

BOOST_AUTO_TEST_CASE(a_block_is_read_by_one_for_all) {
  MemoryPayloads payloads;
  Random random(16);
  const std::string content = random_bytes(random, 8 << 16);
  const ckpt::StorageRegion storage = payloads.add_storage(content);
  const ckpt::AfterRead unseen;
  ckpt::SharedBlocks blocks(16 << 20);
  std::atomic<size_t> right = 0;
  ckpt::run_jobs(64, 4, [&](size_t job, unsigned) {
    const ckpt::ByteRange part = {job % 8 << 16, 1 << 16};
    blocks.with_block({payloads, unseen}, storage, part, [&](std::span<const std::byte> bytes) {
      right += std::ranges::equal(bytes, bytes_of(content).subspan(part.offset_bytes, 1 << 16));
    });
  });
  BOOST_TEST(right == 64);
  BOOST_TEST(payloads.reads() == 8);
}

BOOST_AUTO_TEST_CASE(a_block_that_could_not_be_read_is_read_again_by_the_next) {
  MemoryPayloads payloads;
  const ckpt::StorageRegion storage = payloads.add_storage("content");
  const ckpt::AfterRead unseen;
  ckpt::SharedBlocks blocks(64, 64);
  const auto read = [&] {
    return blocks.with_block({payloads, unseen}, storage, {0, 7}, [](auto) {});
  };
  payloads.before_read = [] { throw ckpt::Error(ckpt::ErrorCode::IoFailure, {}, "broken"); };
  BOOST_TEST(bool(error_of(read)));
  BOOST_TEST(bool(error_of(read)));
  payloads.before_read = nullptr;
  BOOST_TEST(read());
}

BOOST_AUTO_TEST_CASE(without_a_free_slot_nothing_is_shared) {
  MemoryPayloads payloads;
  const ckpt::StorageRegion storage = payloads.add_storage("content");
  const ckpt::AfterRead unseen;
  ckpt::SharedBlocks none(63, 64);
  BOOST_TEST(!none.with_block({payloads, unseen}, storage, {0, 7}, [](auto) {}));
  ckpt::SharedBlocks one(64, 64);
  BOOST_TEST(one.with_block({payloads, unseen}, storage, {0, 4}, [&](auto) {
    BOOST_TEST(!one.with_block({payloads, unseen}, storage, {4, 3}, [](auto) {}));
  }));
  BOOST_TEST(one.with_block({payloads, unseen}, storage, {4, 3}, [](auto) {}));
}

BOOST_AUTO_TEST_SUITE_END()
