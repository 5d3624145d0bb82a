// A run of 671 B parameters, 10 TB in a million chunks, over 64 processes: what each of them gets.
// Nothing is read or written. SHARDWISE_LONG_TESTS=1: all chunks, and numbers for
// docs/distributed.md; else a twentieth of them, of the same sizes.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <numeric>
#include <vector>

#include <ckpt/plan.h>
#include <ckpt/staging.h>
#include <ckpt/target.h>

#include "work/workers.h"

namespace {

constexpr uint32_t kProcesses = 64;
constexpr uint64_t kPieceBytes = ckpt::Share().piece_bytes_min;

// Of an expert, of attention, of a vocabulary's part: rows of float32.
constexpr uint64_t kRows[] = {256, 2048, 1024, 2048, 256, 2048, 3072, 2048, 16, 2048, 16160};

// Files of ranks, each with chunks of many sizes, as torch_dist has them.
ckpt::Target target_of(size_t file_count, size_t chunks_in_file) {
  ckpt::Target target;
  target.format = ckpt::Format::TorchDist;
  size_t number = 0;
  for (size_t f = 0; f < file_count; ++f) {
    ckpt::TargetFile file{"__" + std::to_string(f) + "_0.distcp", {}, {}};
    for (size_t c = 0; c < chunks_in_file; ++c) {
      const ckpt::Extents shape = {kRows[number++ % std::size(kRows)], 860};
      auto tensor = std::make_shared<ckpt::TensorEntry>();
      tensor->dtype = ckpt::DType::Float32;
      tensor->shape = shape;
      tensor->chunks.push_back({.box = ckpt::whole(shape), .region = {}});
      const uint64_t bytes = shape[0] * shape[1] * sizeof(float);
      ckpt::TargetArchive archive{"archive", ckpt::BareTensor{tensor->dtype, shape}, {}};
      archive.records.push_back({bytes, ckpt::TensorSource{tensor, ckpt::whole(shape)}});
      file.archives.push_back(std::move(archive));
    }
    target.files.push_back(std::move(file));
  }
  return target;
}

struct Shares {
  std::vector<uint64_t> bytes, pieces, reads;  // by process
};

Shares deal(const ckpt::Target& target, const ckpt::Plan& plan) {
  const std::vector<ckpt::Piece> pieces = ckpt::cut_into_pieces(target, plan, kPieceBytes);
  std::vector<uint64_t> sizes;
  for (const ckpt::Piece& piece : pieces) sizes.push_back(piece.bytes.count_bytes);
  const std::vector<uint32_t> owners = ckpt::deal_by_bytes(sizes, kProcesses);
  Shares shares;
  for (auto* of : {&shares.bytes, &shares.pieces, &shares.reads}) of->resize(kProcesses);
  for (size_t p = 0; p < pieces.size(); ++p) {
    shares.bytes[owners[p]] += sizes[p];
    ++shares.pieces[owners[p]];
    for (size_t r = pieces[p].first_record; r < pieces[p].end_record; ++r) {
      shares.reads[owners[p]] += plan.records[r].copies.size();
    }
  }
  return shares;
}

double largest_of_mean(const std::vector<uint64_t>& values) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return static_cast<double>(*std::ranges::max_element(values)) * kProcesses / sum;
}

void print(const char* what, const std::vector<uint64_t>& values) {
  const auto [least, most] = std::ranges::minmax(values);
  std::cout << what << ": " << least << " to " << most << ", largest / mean "
            << largest_of_mean(values) << "\n";
}

}  // namespace

BOOST_AUTO_TEST_SUITE(shares)

BOOST_AUTO_TEST_CASE(the_slowest_of_64_processes_has_a_tenth_more_than_the_mean_at_most) {
  const char* const is_long = std::getenv("SHARDWISE_LONG_TESTS");
  const ckpt::Target target = target_of(2048, is_long != nullptr ? 512 : 26);
  const auto start = std::chrono::steady_clock::now();
  const ckpt::Plan plan = ckpt::make_plan(target);
  const auto planned = std::chrono::steady_clock::now();
  const Shares shares = deal(target, plan);
  const auto dealt = std::chrono::steady_clock::now();
  if (is_long != nullptr) {
    const auto seconds = [](auto duration) {
      return std::chrono::duration<double>(duration).count();
    };
    std::cout << plan.records.size() << " chunks, " << plan.total_bytes << " bytes, planned in "
              << seconds(planned - start) << " s, dealt in " << seconds(dealt - planned) << " s\n";
    print("bytes", shares.bytes);
    print("pieces", shares.pieces);
    print("reads", shares.reads);
  }
  BOOST_TEST(largest_of_mean(shares.bytes) <= 1.1);
  BOOST_TEST(std::accumulate(shares.bytes.begin(), shares.bytes.end(), uint64_t{0}) ==
             plan.total_bytes);
}

BOOST_AUTO_TEST_SUITE_END()
