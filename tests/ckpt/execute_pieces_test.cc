#include <ckpt/execute.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <mutex>

#include "support/sanitizer.h"
#include "support/targets.h"

using ckpt::ExecuteOptions;
using ckpt::Plan;
using ckpt::Target;
using namespace test;

namespace {

// A file of one archive, one of several, and one without checksums, each of some MiB.
Target large_target(Random& random, MemoryPayloads& payloads) {
  const auto storage = [&](size_t count_bytes) -> ckpt::TargetRecord {
    const std::string bytes = random_bytes(random, count_bytes);
    return {count_bytes, ckpt::StorageSource{payloads.add_storage(bytes)}};
  };
  const auto records = [&] {
    std::vector<ckpt::TargetRecord> result;
    for (int r = 0; r < 12; ++r) result.push_back(storage(random() % (r % 4 ? 700'000 : 3'000)));
    result.push_back({5, "bytes"});
    return result;
  };
  Target target;
  target.files.push_back({"one", {tree_archive(records())}, {}});
  target.files.push_back({"several", {}, {}});
  for (int a = 0; a < 8; ++a) {
    const size_t count_bytes = 1 + random() % 600'000;
    target.files.back().archives.push_back(
        {"archive", ckpt::BareTensor{ckpt::DType::UInt8, {count_bytes}}, {storage(count_bytes)}});
  }
  target.files.push_back({"raw", {{"", ckpt::RawHeader{"header"}, records()}}, {}});
  target.files.push_back({"marker", {}, "text"});
  return target;
}

// A long record of segments of several tensors, short and long ones, with and without gaps.
ckpt::TargetRecord segmented_record(Random& random, MemoryPayloads& payloads) {
  std::vector<ckpt::Segment> segments;
  uint64_t end_bytes = 0;
  for (uint64_t s = 1 + random() % 12; s > 0; --s) {
    if (random() % 2 == 0) end_bytes += 2 * (random() % 2 == 0 ? random() % 30'000 : random() % 9);
    KnownTensor tensor;
    tensor.entry.key = "tensor" + std::to_string(s);
    tensor.entry.dtype = ckpt::DType::BFloat16;
    tensor.entry.shape = {1 + random() % 60, 1 + random() % (random() % 2 == 0 ? 4000 : 90)};
    tensor.content = random_bytes(random, ckpt::count_bytes(tensor.entry));
    for (const ckpt::Box& box : random_grid(random, tensor.entry.shape)) {
      tensor.entry.chunks.push_back(store_row_major(random, payloads, tensor, box));
    }
    const ckpt::Box box = random() % 4 == 0 ? random_box(random, tensor.entry.shape)
                                            : ckpt::whole(tensor.entry.shape);
    const uint64_t first = random() % 3 == 0 ? random() % ckpt::element_count(box.sizes) : 0;
    const uint64_t count = ckpt::element_count(box.sizes) - first;
    segments.push_back({end_bytes, {shared(tensor), box}, first, count});
    end_bytes += count * tensor.element_bytes();
  }
  return {end_bytes + random() % 2 * (random() % 1000), std::move(segments)};
}

// Records of segments with short records between them, or none.
std::vector<ckpt::TargetRecord> mixed_records(Random& random, MemoryPayloads& payloads) {
  std::vector<ckpt::TargetRecord> records;
  const auto add_text = [&](uint64_t count_bytes) {
    records.push_back({count_bytes, random_bytes(random, count_bytes)});
  };
  for (uint64_t r = 1 + random() % 6; r > 0; --r) {
    records.push_back(segmented_record(random, payloads));
    while (random() % 3 == 0) add_text(random() % 3000);
    if (random() % 3 == 0) add_text(random() % 4 * 70'000);
  }
  return records;
}

Target segmented_target(Random& random, MemoryPayloads& payloads) {
  Target target;
  target.files.push_back({"one", {tree_archive(mixed_records(random, payloads))}, {}});
  target.files.push_back({"several", {}, {}});
  for (uint64_t a = 1 + random() % 6; a > 0; --a) {
    std::vector<ckpt::TargetRecord> records = mixed_records(random, payloads);
    if (random() % 2 == 0) records.resize(1);
    target.files.back().archives.push_back(tree_archive(std::move(records)));
    for (uint64_t short_ones = random() % 4; short_ones > 0; --short_ones) {
      target.files.back().archives.push_back(tree_archive({{5, "bytes"}}));
    }
  }
  target.files.push_back(
      {"raw", {{"", ckpt::RawHeader{"header"}, mixed_records(random, payloads)}}, {}});
  return target;
}

// As processes do it that know nothing of each other, in any order; then what closes the files.
void check_pieces_written_apart(Random& random, const Target& target,
                                const MemoryPayloads& payloads, std::vector<ckpt::Piece> pieces) {
  const Plan plan = ckpt::make_plan(target);
  std::ranges::shuffle(pieces, random);
  std::ranges::stable_partition(pieces, [](const ckpt::Piece& piece) { return !piece.closes; });
  const TemporaryFolder folder;
  ckpt::Staging staging = ckpt::Staging::create(folder / "out");
  std::vector<uint32_t> crcs(plan.records.size());
  for (const ckpt::Piece& piece : pieces) {
    ExecuteOptions options = options_of(static_cast<unsigned>(1 + random() % 3));
    options.pieces = {piece};
    if (piece.closes) options.record_crcs = crcs;
    options.on_piece = [&](const ckpt::WrittenPiece& written) {
      for (size_t i = 0; i < written.record_crcs.size(); ++i) {
        crcs[piece.first_record + i] ^= written.record_crcs[i];
      }
    };
    const auto stats = ckpt::execute(target, plan, payloads, staging, options);
    BOOST_TEST(stats.written_bytes == piece.bytes.count_bytes);
  }
  BOOST_REQUIRE((tree_of(staging.folder()) == written(target, payloads, options_of(2))));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(execute_pieces)

BOOST_AUTO_TEST_CASE(pieces_written_apart_give_the_bytes_of_a_whole_run) {
  Random random(29);
  for (int round = 0; round < (kIsSanitized ? 4 : 12); ++round) {
    MemoryPayloads payloads;
    const Target target = large_target(random, payloads);
    std::vector<ckpt::Piece> pieces =
        ckpt::cut_into_pieces(target, ckpt::make_plan(target), 256 << 10);
    BOOST_REQUIRE(pieces.size() > target.files.size());
    check_pieces_written_apart(random, target, payloads, std::move(pieces));
  }
}

BOOST_AUTO_TEST_CASE(pieces_inside_of_records_give_the_bytes_of_a_whole_run) {
  Random random(32);
  size_t parts = 0;  // of records
  const size_t rounds = kIsSanitized ? 4 : 60;
  for (size_t round = 0; round < rounds; ++round) {
    MemoryPayloads payloads;
    const Target target = segmented_target(random, payloads);
    std::vector<ckpt::Piece> pieces =
        ckpt::cut_into_pieces(target, ckpt::make_plan(target), 128 << 10);
    for (size_t p = 1; p < pieces.size(); ++p) {
      parts += pieces[p].first_record + 1 == pieces[p - 1].end_record ? 1 : 0;
    }
    check_pieces_written_apart(random, target, payloads, std::move(pieces));
  }
  BOOST_TEST(parts > 2 * rounds);
}

// The pieces of a process are written in one call, and most of a record may be its own.
BOOST_AUTO_TEST_CASE(every_second_piece_at_once_gives_the_bytes_of_a_whole_run) {
  Random random(33);
  for (int round = 0; round < (kIsSanitized ? 3 : 30); ++round) {
    MemoryPayloads payloads;
    const Target target = segmented_target(random, payloads);
    const Plan plan = ckpt::make_plan(target);
    std::vector<std::vector<ckpt::Piece>> shares(3);
    for (const ckpt::Piece& piece : ckpt::cut_into_pieces(target, plan, 128 << 10)) {
      shares[piece.closes ? 2 : random() % 2].push_back(piece);
    }
    const TemporaryFolder folder;
    ckpt::Staging staging = ckpt::Staging::create(folder / "out");
    std::vector<uint32_t> crcs(plan.records.size());
    for (const std::vector<ckpt::Piece>& share : shares) {
      if (share.empty()) continue;
      std::vector<ckpt::WrittenPiece> done;
      std::mutex mutex;
      ExecuteOptions options = options_of(3);
      options.pieces = share;
      if (share[0].closes) options.record_crcs = crcs;
      options.on_piece = [&](const ckpt::WrittenPiece& piece) {
        const std::scoped_lock lock(mutex);
        done.push_back(piece);
      };
      ckpt::execute(target, plan, payloads, staging, options);
      for (const ckpt::WrittenPiece& piece : done) {
        for (size_t i = 0; i < piece.record_crcs.size(); ++i) {
          crcs[piece.piece.first_record + i] ^= piece.record_crcs[i];
        }
      }
    }
    BOOST_REQUIRE((tree_of(staging.folder()) == written(target, payloads, options_of(2))));
  }
}

BOOST_AUTO_TEST_CASE(segments_of_whole_storages_are_read_once_by_whoever_has_them) {
  Random random(34);
  MemoryPayloads payloads;
  std::vector<ckpt::Segment> segments;
  uint64_t end_bytes = 0;
  for (int s = 0; s < 20; ++s) {
    KnownTensor tensor;
    tensor.entry.shape = {20'000 + random() % 100};
    tensor.content = random_bytes(random, ckpt::count_bytes(tensor.entry));
    const ckpt::Box all = ckpt::whole(tensor.entry.shape);
    tensor.entry.chunks = {{all, payloads.add_storage(tensor.content), 0}};
    segments.push_back({end_bytes, {shared(tensor), all}, 0, tensor.entry.shape[0]});
    end_bytes += tensor.content.size();
  }
  const Target target = one_file({tree_archive({{end_bytes, segments}})});
  const Plan plan = ckpt::make_plan(target);
  uint64_t read_bytes = 0, parts = 0;
  const TemporaryFolder folder;
  ckpt::Staging staging = ckpt::Staging::create(folder / "out");
  for (const ckpt::Piece& piece : ckpt::cut_into_pieces(target, plan, 256 << 10)) {
    if (piece.closes) continue;
    ExecuteOptions options = options_of(2);
    options.pieces = {piece};
    read_bytes += ckpt::execute(target, plan, payloads, staging, options).read_bytes;
    ++parts;
  }
  BOOST_TEST(parts > 3u);
  // But for what is a block's before a cut.
  BOOST_TEST(read_bytes >= end_bytes);
  BOOST_TEST(read_bytes <= end_bytes + (parts - 1) * ckpt::Piece::kBlockBytes);
}

BOOST_AUTO_TEST_CASE(what_closes_a_file_needs_the_checksums_of_its_records) {
  Random random(30);
  MemoryPayloads payloads;
  const Target target = large_target(random, payloads);
  const Plan plan = ckpt::make_plan(target);
  ExecuteOptions options;
  options.pieces = ckpt::cut_into_pieces(target, plan, 256 << 10);
  std::erase_if(options.pieces, [](const ckpt::Piece& piece) { return !piece.closes; });
  BOOST_REQUIRE(!options.pieces.empty());
  const TemporaryFolder folder;
  ckpt::Staging staging = ckpt::Staging::create(folder / "out");
  const auto error = error_of([&] { ckpt::execute(target, plan, payloads, staging, options); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ckpt::ErrorCode::InvalidArgument));
}

BOOST_AUTO_TEST_SUITE_END()
