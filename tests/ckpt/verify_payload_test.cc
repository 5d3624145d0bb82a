// Payloads that several jobs of verify share.
#include <ckpt/convert.h>
#include <ckpt/plain_target.h>
#include <ckpt/verify.h>
#include <ckpt/write_target.h>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "support/temporary_folder.h"

using ckpt::ByteRange;

namespace {

constexpr uint64_t kPage = 4096;

// Tensors of bytes with these lengths, in a torch.save file.
ckpt::Checkpoint archive_of(const test::TemporaryFolder& folder,
                            const std::vector<uint64_t>& lengths) {
  std::string header, data;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const std::string begin = std::to_string(data.size());
    data.append(lengths[i], static_cast<char>(i + 1));
    header += (i == 0 ? "" : ",") + ("\"t" + std::to_string(i)) + R"(":{"dtype":"U8","shape":[)" +
              std::to_string(lengths[i]) + R"(],"data_offsets":[)" + begin + "," +
              std::to_string(data.size()) + "]}";
  }
  header = "{" + header + "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string length(8, '\0');
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i));
  test::write_file(folder / "source.safetensors", length + header + data);
  const auto source = ckpt::Checkpoint::open(folder / "source.safetensors");
  ckpt::TargetSpec spec;
  spec.format = ckpt::Format::Torch;
  ckpt::write_target(ckpt::make_target(source, spec),
                     {source, folder / "source.safetensors", &source}, folder / "archive.pt", {});
  return ckpt::Checkpoint::open(folder / "archive.pt");
}

using Pieces = std::map<uint64_t, std::vector<ByteRange>>;  // by where their storage is

Pieces pieces_of(const ckpt::Checkpoint& checkpoint, unsigned threads) {
  std::mutex mutex;
  Pieces pieces;
  ckpt::VerifyOptions options;
  options.execution.threads = threads;
  options.on_storage = [&](const ckpt::StoragePiece& piece) {
    const std::scoped_lock lock(mutex);
    pieces[piece.storage.offset_bytes].push_back({piece.offset_bytes, piece.bytes.size()});
  };
  BOOST_TEST(ckpt::verify(checkpoint, options).findings.empty());
  for (auto& [storage, ranges] : pieces) std::ranges::sort(ranges, {}, &ByteRange::offset_bytes);
  return pieces;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(verify_payload)

BOOST_AUTO_TEST_CASE(storages_pass_whole_in_pieces_that_start_at_a_page) {
  const test::TemporaryFolder folder;
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  const std::vector<uint64_t> lengths = {kMiB + 1, 9 * kMiB + 3, 3 * kMiB + 5, 5 * kMiB + 7};
  const ckpt::Checkpoint checkpoint = archive_of(folder, lengths);
  for (const unsigned threads : {1U, 3U}) {
    std::vector<uint64_t> passed;
    for (const auto& [storage, pieces] : pieces_of(checkpoint, threads)) {
      uint64_t end_bytes = 0;
      for (const ByteRange& piece : pieces) {
        BOOST_TEST(piece.offset_bytes == end_bytes);
        BOOST_TEST(piece.offset_bytes % kPage == 0);
        end_bytes = piece.end_bytes();
      }
      passed.push_back(end_bytes);
    }
    BOOST_TEST(passed == lengths, boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_SUITE_END()
