#include <ckpt/archive_builder.h>
#include <ckpt/plan.h>

#include <boost/test/unit_test.hpp>

#include "support/targets.h"

using ckpt::Piece;
using ckpt::Plan;
using ckpt::Target;
using namespace test;

namespace {

constexpr uint64_t kBlock = Piece::kBlockBytes;
constexpr uint64_t kMiB = 1 << 20;

ckpt::TargetRecord zeros(uint64_t count_bytes) {
  return {count_bytes, std::string(static_cast<size_t>(count_bytes), '\0')};
}

std::vector<ckpt::TargetRecord> records_of(std::vector<uint64_t> sizes) {
  std::vector<ckpt::TargetRecord> records;
  for (const uint64_t size : sizes) records.push_back(zeros(size));
  return records;
}

Target archives_of(std::vector<uint64_t> sizes) {
  std::vector<ckpt::TargetArchive> archives;
  for (const uint64_t size : sizes) {
    archives.push_back({"archive", ckpt::BareTensor{ckpt::DType::UInt8, {size}}, {zeros(size)}});
  }
  return one_file(std::move(archives));
}

std::vector<Piece> cut(const Target& target, uint64_t piece_bytes_min) {
  return ckpt::cut_into_pieces(target, ckpt::make_plan(target), piece_bytes_min);
}

std::vector<uint64_t> random_sizes(Random& random) {
  std::vector<uint64_t> sizes(1 + random() % 12);
  for (uint64_t& size : sizes) size = random() % (random() % 3 == 0 ? kMiB : 3 * kBlock);
  return sizes;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cut_pieces)

BOOST_AUTO_TEST_CASE(pieces_tile_every_file_and_deal_out_every_record) {
  Random random(71);
  for (int round = 0; round < 200; ++round) {
    Target target = random() % 2 ? one_file({tree_archive(records_of(random_sizes(random)))})
                                 : archives_of(random_sizes(random));
    target.files.push_back({"text", {}, "text"});
    target.files.push_back({"empty", {}, {}});
    const Plan plan = ckpt::make_plan(target);
    const uint64_t least_bytes = 2 * kBlock + random() % kMiB;
    std::vector<uint64_t> ends(plan.files.size()), own_ends(plan.files.size());
    size_t next_record = 0;
    for (const Piece& piece : ckpt::cut_into_pieces(target, plan, least_bytes)) {
      BOOST_TEST(piece.bytes.offset_bytes == ends[piece.file]);
      ends[piece.file] = piece.bytes.end_bytes();
      if (piece.closes) {
        BOOST_TEST(piece.own.count_bytes == 0u);
        continue;
      }
      BOOST_TEST(piece.first_record == next_record);
      next_record = piece.end_record;
      BOOST_TEST(piece.own.offset_bytes == own_ends[piece.file]);
      own_ends[piece.file] = piece.own.end_bytes();
      BOOST_TEST(piece.bytes.offset_bytes % kBlock == 0);
      const bool is_whole = piece.bytes.count_bytes == plan.files[piece.file].count_bytes;
      BOOST_TEST((is_whole || piece.bytes.count_bytes >= least_bytes));
    }
    BOOST_TEST(next_record == plan.records.size());
    for (size_t f = 0; f < ends.size(); ++f) {
      BOOST_TEST(ends[f] == plan.files[f].count_bytes);
      BOOST_TEST(own_ends[f] == plan.files[f].count_bytes);
    }
  }
}

BOOST_AUTO_TEST_CASE(an_archive_that_is_cut_is_closed_by_what_states_all_its_checksums) {
  const Target target = one_file({tree_archive(records_of({kMiB, kMiB, kMiB, kMiB}))});
  const std::vector<Piece> pieces = cut(target, kMiB);
  BOOST_REQUIRE(pieces.size() == 4);  // the last two records, one of which is cut short, in one
  const ckpt::ArchiveLayout layout = ckpt::archive_layout(target.files[0].archives[0]);
  BOOST_TEST(pieces.back().closes);
  BOOST_TEST(pieces.back().bytes.offset_bytes == layout.closing_offset_bytes);
  for (size_t p = 1; p < 3; ++p) {
    const uint64_t record_bytes = layout.records[pieces[p].first_record].offset_bytes;
    BOOST_TEST(pieces[p].bytes.offset_bytes >= record_bytes);
    BOOST_TEST(pieces[p].bytes.offset_bytes < record_bytes + kBlock);
  }
}

BOOST_AUTO_TEST_CASE(of_several_archives_none_is_cut) {
  const std::vector<Piece> pieces = cut(archives_of({kMiB, kMiB, kMiB, kMiB, 10, kMiB}), 2 * kMiB);
  BOOST_REQUIRE(pieces.size() == 2);
  BOOST_TEST(pieces[1].first_record == 2);
  for (const Piece& piece : pieces) BOOST_TEST(!piece.closes);
}

BOOST_AUTO_TEST_CASE(a_file_without_checksums_is_not_closed) {
  const Target target = one_file(
      {{"", ckpt::RawHeader{std::string(1000, ' ')}, records_of({kMiB, kMiB, kMiB, kMiB})}});
  const std::vector<Piece> pieces = cut(target, kMiB);
  BOOST_REQUIRE(pieces.size() == 3);
  for (const Piece& piece : pieces) BOOST_TEST(!piece.closes);
}

BOOST_AUTO_TEST_CASE(what_is_too_short_to_be_cut_is_one_piece) {
  const Target target = one_file({tree_archive(records_of({kMiB, kMiB, kMiB, kMiB}))});
  for (const uint64_t least_bytes : {3 * kMiB, 100 * kMiB, ~uint64_t{0}}) {
    const std::vector<Piece> pieces = cut(target, least_bytes);
    BOOST_REQUIRE(pieces.size() == 1);
    BOOST_TEST(!pieces[0].closes);
    BOOST_TEST(pieces[0].end_record == 4);
  }
  BOOST_TEST(
      cut(one_file({tree_archive(records_of(std::vector<uint64_t>(1000, 5000)))}), 0).size() ==
      1);  // no record to start with
}

BOOST_AUTO_TEST_SUITE_END()
