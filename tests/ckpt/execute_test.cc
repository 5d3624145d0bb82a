#include <ckpt/execute.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <mutex>

#include "codec/crc32.h"
#include "support/sanitizer.h"
#include "support/target_maker.h"
#include "support/targets.h"

using ckpt::ExecuteOptions;
using ckpt::Plan;
using ckpt::Target;
using namespace test;

BOOST_AUTO_TEST_SUITE(execute)

BOOST_AUTO_TEST_CASE(every_byte_is_right_whatever_the_cuts_and_the_number_of_threads) {
  Random random(21);
  for (int round = 0; round < (kIsSanitized ? 12 : 40); ++round) {
    MemoryPayloads payloads;
    const KnownTarget known = TargetMaker(random, payloads).make();
    const Files files = written(known.target, payloads, options_of(1));
    for (size_t f = 0; f < known.target.files.size(); ++f) {
      const ckpt::TargetFile& file = known.target.files[f];
      const std::string& content = files.at(file.path);
      if (file.archives.empty()) {
        BOOST_REQUIRE(content == file.bytes);
      } else {
        BOOST_REQUIRE((storages_of(content, file) == known.expected[f]));
      }
    }
    BOOST_REQUIRE((written(known.target, payloads, options_of(3)) == files));
    BOOST_REQUIRE((written(known.target, payloads, options_of(2, 2 << 20)) == files));
    BOOST_REQUIRE((written(known.target, payloads, options_of(4, 256 << 20)) == files));
  }
}

BOOST_AUTO_TEST_CASE(sizes_and_counts_are_those_of_the_plan) {
  const Sliced sliced;
  Target target = sliced.target(sliced.all());
  target.files.push_back({"g", {}, "text"});
  const TemporaryFolder folder;
  const ckpt::ExecuteStats stats = run_in(folder, target, sliced.payloads, options_of(2));
  const Plan plan = ckpt::make_plan(target);
  BOOST_TEST(stats.written_bytes == plan.total_bytes);
  BOOST_TEST(stats.read_bytes == plan.payload_bytes);  // no storage is read twice
  BOOST_TEST(stats.file_count == 2);
  BOOST_TEST(std::filesystem::file_size(folder / "out/f") == plan.files[0].count_bytes);
}

BOOST_AUTO_TEST_CASE(each_finished_piece_is_told_once_with_the_checksum_of_what_it_holds) {
  Random random(27);
  for (int round = 0; round < 10; ++round) {
    MemoryPayloads payloads;
    const KnownTarget known = TargetMaker(random, payloads).make();
    std::mutex mutex;
    std::map<uint32_t, ckpt::WrittenPiece> told;
    ExecuteOptions options = options_of(1 + random() % 4);
    options.on_piece = [&](const ckpt::WrittenPiece& written) {
      const std::scoped_lock lock(mutex);
      BOOST_TEST(told.emplace(written.piece.file, written).second);
    };
    const Files files = written(known.target, payloads, options);
    BOOST_REQUIRE(told.size() == known.target.files.size());
    for (const auto& [index, written] : told) {
      const std::string& content = files.at(known.target.files[index].path);
      BOOST_TEST(written.piece.bytes.count_bytes == content.size());
      BOOST_TEST(written.crc32 == ckpt::crc32(std::as_bytes(std::span(content))));
    }
  }
}

BOOST_AUTO_TEST_CASE(only_the_chosen_files_are_written_and_they_are_as_in_a_whole_run) {
  Random random(28);
  MemoryPayloads payloads;
  const KnownTarget known = TargetMaker(random, payloads).make();
  const Files whole = written(known.target, payloads, options_of(1));
  for (size_t f = 0; f < known.target.files.size(); ++f) {
    ExecuteOptions options = options_of(2);
    options.pieces = {ckpt::whole_files(ckpt::make_plan(known.target))[f]};
    Files one = written(known.target, payloads, options);
    std::erase_if(one, [](const auto& file) { return file.second == "/"; });
    BOOST_REQUIRE(one.size() == 1);
    BOOST_TEST(one.begin()->first == known.target.files[f].path);
    BOOST_TEST((one.begin()->second == whole.at(known.target.files[f].path)));
  }
}

BOOST_AUTO_TEST_CASE(a_single_file_is_written_where_the_staging_says) {
  const Sliced sliced;
  Target target = sliced.target(sliced.all());
  target.files[0].path.clear();
  const TemporaryFolder folder;
  {
    ckpt::Staging staging =
        ckpt::Staging::create(folder / "out.pt", {.single_file = true, .source = {}});
    ckpt::execute(target, ckpt::make_plan(target), sliced.payloads, staging);
    staging.commit();
  }
  const Files files = tree_of(folder.path());
  BOOST_REQUIRE(files.size() == 1);
  BOOST_TEST((storages_of(files.at("out.pt"), target.files[0]).at(0) == sliced.tensor.content));
}

BOOST_AUTO_TEST_CASE(a_storage_wrapped_in_an_archive_is_unwrapped) {
  const Sliced sliced;
  const Target wrapped = sliced.target(sliced.all());
  const std::string file = written(wrapped, sliced.payloads, options_of(1)).at("f");
  MemoryPayloads payloads;
  KnownTensor tensor = sliced.tensor;
  ckpt::StorageRegion region{.file = payloads.add_file("before" + file),
                             .wrapping = ckpt::Wrapping::TorchSave,
                             .bytes = {6, file.size()}};
  tensor.entry.chunks = {{sliced.all(), region, 0}};
  const Target target = one_file({bare_archive(tensor, sliced.all())});
  BOOST_TEST((written(target, payloads, options_of(2)).at("f") == file));
  // As a storage, whatever tensor it belongs to.
  const Target storage =
      one_file({tree_archive({{tensor.content.size(), ckpt::StorageSource{region}}})});
  BOOST_TEST(
      (storages_of(written(storage, payloads, options_of(2)).at("f"), storage.files[0]).at(0) ==
       tensor.content));
}

BOOST_AUTO_TEST_CASE(progress_grows_up_to_the_total_one_call_at_a_time) {
  const Sliced sliced;
  const Target target = sliced.target(sliced.all());
  const uint64_t total_bytes = ckpt::make_plan(target).total_bytes;
  std::mutex mutex;
  uint64_t last_bytes = 0;
  bool alone = true, grows = true;
  ExecuteOptions options = options_of(4);
  options.on_progress = [&](const ckpt::Progress& progress) {
    const std::unique_lock lock(mutex, std::try_to_lock);
    alone = alone && lock.owns_lock();
    grows = grows && progress.done_bytes >= last_bytes && progress.total_bytes == total_bytes;
    last_bytes = progress.done_bytes;
  };
  written(target, sliced.payloads, options);
  BOOST_TEST(alone);
  BOOST_TEST(grows);
  BOOST_TEST(last_bytes == total_bytes);
}

BOOST_AUTO_TEST_CASE(no_read_is_longer_than_a_share_of_the_memory) {
  const Sliced sliced;
  written(sliced.target(sliced.all()), sliced.payloads, options_of(2));
  BOOST_TEST(sliced.payloads.longest_read_bytes() <= 64 << 10);
}

BOOST_AUTO_TEST_SUITE_END()
