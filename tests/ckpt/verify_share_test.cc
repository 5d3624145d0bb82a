#include "verify/verify_files.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>

namespace {

using ckpt::ByteRange;
using ckpt::FileRole;
using ckpt::VerifiedFile;
using FilePieces = std::vector<ByteRange>;

VerifiedFile file_of(FileRole role, uint32_t index, uint64_t count_bytes) {
  const std::string name = std::to_string(index);
  return {name, name, role, index, count_bytes};
}

// A catalog whose storages start at these places of file 0, 1, ...
ckpt::Catalog catalog_of(const std::vector<std::vector<uint64_t>>& starts) {
  ckpt::Catalog catalog;
  for (uint32_t file = 0; file < starts.size(); ++file) {
    catalog.files.push_back({std::to_string(file)});
    for (const uint64_t start : starts[file]) {
      ckpt::TensorEntry& tensor = catalog.tensors.emplace_back();
      tensor.chunks.resize(1);
      tensor.chunks[0].region.file = file;
      tensor.chunks[0].region.bytes = {start, 1};
    }
  }
  return catalog;
}

// What each of `world_size` processes looks at of each file.
std::vector<std::vector<VerifiedFile>> deals(const std::vector<VerifiedFile>& files,
                                             const ckpt::Catalog& catalog, uint32_t world_size,
                                             uint64_t piece_bytes_min) {
  std::vector<std::vector<VerifiedFile>> shares(world_size, files);
  for (uint32_t rank = 0; rank < world_size; ++rank) {
    deal_files(shares[rank], catalog, {rank, world_size, piece_bytes_min});
  }
  return shares;
}

// All pieces of one file, of all processes, in order.
FilePieces pieces_of(const std::vector<std::vector<VerifiedFile>>& shares, size_t file) {
  FilePieces all;
  for (const std::vector<VerifiedFile>& share : shares) {
    all.insert(all.end(), share[file].own.begin(), share[file].own.end());
  }
  std::ranges::sort(all, {}, &ByteRange::offset_bytes);
  return all;
}

bool cover(const FilePieces& pieces, uint64_t count_bytes) {
  uint64_t position = 0;
  for (const ByteRange& piece : pieces) {
    if (piece.offset_bytes != position) return false;
    position = piece.end_bytes();
  }
  return !pieces.empty() && position == count_bytes;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(verify_share)

BOOST_AUTO_TEST_CASE(files_are_cut_in_front_of_storages_into_pieces_of_the_least_size_or_more) {
  const auto catalog = catalog_of({{10, 100, 150, 210, 390}});
  const auto shares = deals({file_of(FileRole::Archive, 0, 400)}, catalog, 2, 90);
  BOOST_TEST((pieces_of(shares, 0) == FilePieces{{0, 100}, {100, 110}, {210, 190}}));
}

BOOST_AUTO_TEST_CASE(every_byte_is_one_processes) {
  const auto catalog = catalog_of({{64, 64, 128, 300, 300, 512}, {0, 7}, {}, {5000}});
  const std::vector<VerifiedFile> files = {
      file_of(FileRole::Archive, 0, 600), file_of(FileRole::Entries, 1, 14),
      file_of(FileRole::Entries, 2, 0), file_of(FileRole::Safetensors, 3, 100)};
  for (const uint32_t world_size : {1U, 2U, 3U, 40U}) {
    for (const uint64_t piece_bytes_min : {uint64_t{0}, uint64_t{1}, uint64_t{100}, UINT64_MAX}) {
      const auto shares = deals(files, catalog, world_size, piece_bytes_min);
      for (size_t file = 0; file < files.size(); ++file) {
        BOOST_TEST(
            cover(pieces_of(shares, file), files[file].count_bytes),
            "file " << file << ", " << world_size << " processes, pieces of " << piece_bytes_min);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(what_is_read_as_a_whole_is_one_piece) {
  const auto catalog = catalog_of({{10, 200}});
  for (const FileRole role : {FileRole::Plain, FileRole::Manifest, FileRole::Tracker}) {
    const auto shares = deals({file_of(role, 0, 400)}, catalog, 3, 1);
    BOOST_TEST((pieces_of(shares, 0) == FilePieces{{0, 400}}));
  }
  VerifiedFile listed = file_of(FileRole::Archive, 0, 400);
  listed.manifest_hash = ckpt::Sha256{};
  BOOST_TEST((pieces_of(deals({listed}, catalog, 3, 1), 0) == FilePieces{{0, 400}}));
  VerifiedFile stray = file_of(FileRole::Stray, 0, 400);
  stray.index = std::nullopt;
  BOOST_TEST((pieces_of(deals({stray}, catalog, 3, 1), 0) == FilePieces{{0, 400}}));
}

BOOST_AUTO_TEST_CASE(one_process_cuts_nothing) {
  const auto shares = deals({file_of(FileRole::Archive, 0, 400)}, catalog_of({{10, 200}}), 1, 1);
  BOOST_TEST((shares[0][0].own == FilePieces{{0, 400}}));
}

BOOST_AUTO_TEST_CASE(what_starts_in_a_piece_or_behind_the_end_has_one_owner) {
  ckpt::FileAccount first, last, none;
  first.file_bytes = last.file_bytes = none.file_bytes = 100;
  first.pieces = {{0, 10}, {40, 10}};
  last.pieces = {{10, 30}, {50, 50}};
  for (const uint64_t offset : {0U, 9U, 40U, 49U}) BOOST_TEST(first.owns(offset));
  for (const uint64_t offset : {10U, 39U, 50U, 99U, 100U, 5000U}) BOOST_TEST(last.owns(offset));
  for (uint64_t offset = 0; offset < 200; ++offset) {
    BOOST_TEST(first.owns(offset) != last.owns(offset));
    BOOST_TEST(!none.owns(offset));
  }
  ckpt::FileAccount empty;
  empty.pieces = {{0, 0}};
  BOOST_TEST(empty.owns(0));
}

BOOST_AUTO_TEST_SUITE_END()
