#include <ckpt/execute.h>

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <new>

#include "support/target_maker.h"
#include "support/targets.h"

using ckpt::ErrorCode;
using ckpt::ExecuteOptions;
using ckpt::Plan;
using ckpt::Target;
using ckpt::TargetArchive;
using namespace test;

BOOST_AUTO_TEST_SUITE(execute_failure)

BOOST_AUTO_TEST_CASE(a_wrong_checksum_of_a_source_storage_is_found_on_every_way) {
  Sliced sliced;
  KnownTensor small = sliced.tensor;
  small.entry.key = "small.weight";
  small.entry.shape = {3};
  small.content = "abcdefghijkl";
  small.entry.chunks = {{ckpt::whole({3}), sliced.payloads.add_storage(small.content), 0}};
  small.entry.chunks[0].region.crc32 = 0x11111111;
  sliced.tensor.entry.chunks[0].region.crc32 = 0x22222222;
  const auto& tensor = sliced.tensor;
  const ckpt::StorageSource storage{tensor.entry.chunks[0].region};
  const struct {
    std::string what, file, key, stated;
    Target target;
  } cases[] = {
      {"whole, in one piece", "source1", "small.weight", "11111111",
       one_file({bare_archive(small, ckpt::whole({3}))})},
      {"a part, in one piece", "source1", "small.weight", "11111111",
       one_file({bare_archive(small, {{1}, {2}})})},
      {"whole, in slices", "source0", "sliced.weight", "22222222", sliced.target(sliced.all())},
      {"a part, in slices", "source0", "sliced.weight", "22222222",
       sliced.target({{1, 0}, {98, 512}})},
      {"a storage", "source0", "", "22222222",
       one_file({tree_archive({{tensor.content.size(), storage}})})},
  };
  for (const auto& damaged : cases) {
    for (const unsigned threads : {1u, 4u}) {
      const ckpt::Error error = failure(damaged.target, sliced.payloads, options_of(threads));
      BOOST_TEST((error.code() == ErrorCode::Corrupt), damaged.what);
      BOOST_TEST(error.where().file == damaged.file, damaged.what);
      BOOST_TEST(*error.where().offset_bytes == 0, damaged.what);
      BOOST_TEST(error.where().key == damaged.key, damaged.what);
      BOOST_TEST(contains(error.problem(), "the archive says " + damaged.stated),
                 damaged.what << ": " << error.what());
    }
  }
}

BOOST_AUTO_TEST_CASE(a_storage_that_many_records_are_cut_from_is_checked_once) {
  const Sliced sliced;
  std::vector<TargetArchive> archives;
  for (uint64_t row = 0; row < 100; ++row) {
    archives.push_back(bare_archive(sliced.tensor, {{row, 0}, {1, 512}}));
  }
  const Target target = one_file(std::move(archives));
  const TemporaryFolder folder;
  const ckpt::ExecuteStats stats = run_in(folder, target, sliced.payloads, options_of(4));
  // Copied and checked at once. An element on the border of two windows is read for both.
  BOOST_TEST(stats.read_bytes - sliced.tensor.content.size() <= 4 * sizeof(float));
}

BOOST_AUTO_TEST_CASE(a_storage_of_which_a_part_is_wanted_is_read_to_its_end_once) {
  const Sliced sliced;
  const Target target = sliced.target({{40, 0}, {20, 512}});
  const TemporaryFolder folder;
  const ckpt::ExecuteStats stats = run_in(folder, target, sliced.payloads, options_of(3));
  BOOST_TEST(stats.read_bytes == sliced.tensor.content.size());
}

BOOST_AUTO_TEST_CASE(a_checksum_of_zero_is_no_checksum) {
  Sliced sliced;
  sliced.tensor.entry.chunks[0].region.crc32 = 0;
  written(sliced.target(sliced.all()), sliced.payloads, options_of(1));
  written(sliced.target({{1, 0}, {98, 512}}), sliced.payloads, options_of(1));
}

BOOST_AUTO_TEST_CASE(a_storage_of_another_length_than_planned_is_refused) {
  Sliced sliced;
  const Target wrapped = sliced.target(sliced.all());
  const std::string file = written(wrapped, sliced.payloads, options_of(1)).at("f");
  const ckpt::StorageRegion region{.file = sliced.payloads.add_file(file),
                                   .wrapping = ckpt::Wrapping::TorchSave,
                                   .bytes = {0, file.size()}};
  const ckpt::Error error = failure(one_file({tree_archive({{8, ckpt::StorageSource{region}}})}),
                                    sliced.payloads, options_of(1));
  BOOST_TEST((error.code() == ErrorCode::Corrupt));
  BOOST_TEST(contains(error.problem(), "a storage of 8 bytes, found 204800"));
}

BOOST_AUTO_TEST_CASE(a_source_that_fails_at_any_read_leaves_nothing_behind) {
  Random random(22);
  for (int round = 0; round < 30; ++round) {
    MemoryPayloads payloads;
    const KnownTarget known = TargetMaker(random, payloads).make();
    written(known.target, payloads, options_of(1));
    const uint64_t reads = payloads.reads();
    if (reads == 0) continue;
    std::atomic<uint64_t> left = random() % reads;
    payloads.before_read = [&] {
      if (left-- == 0) throw ckpt::Error(ErrorCode::IoFailure, {"disk"}, "is on fire");
    };
    const ckpt::Error error = failure(known.target, payloads, options_of(1 + random() % 4));
    BOOST_TEST((error.code() == ErrorCode::IoFailure));
    BOOST_TEST(error.where().file == "disk");
  }
}

BOOST_AUTO_TEST_CASE(exceptions_that_are_none_of_ours_pass_through) {
  Sliced sliced;
  sliced.payloads.before_read = [] { throw std::bad_alloc(); };
  const TemporaryFolder folder;
  BOOST_CHECK_THROW(run_in(folder, sliced.target(sliced.all()), sliced.payloads, options_of(2)),
                    std::bad_alloc);
  BOOST_TEST(tree_of(folder.path()).empty());
}

BOOST_AUTO_TEST_CASE(a_requested_stop_ends_the_run) {
  Sliced sliced;
  std::stop_source stop;
  sliced.payloads.before_read = [&] { stop.request_stop(); };
  ExecuteOptions options = options_of(1);
  options.stop = stop.get_token();
  const ckpt::Error error = failure(sliced.target(sliced.all()), sliced.payloads, options);
  BOOST_TEST((error.code() == ErrorCode::IoFailure));
  BOOST_TEST(error.problem() == "cancelled");
}

BOOST_AUTO_TEST_CASE(files_stay_inside_the_target) {
  for (const std::string path : {"../f", "/f", "a/../../f", "", ".", "a/"}) {
    Target target;
    target.files.push_back({"g", {}, "x"});
    target.files.push_back({path, {}, "x"});
    const ckpt::Error error = failure(target, MemoryPayloads(), options_of(1));
    BOOST_TEST((error.code() == ErrorCode::InvalidArgument), path);
  }
}

BOOST_AUTO_TEST_CASE(two_files_of_one_name_are_refused) {
  Target target;
  target.files.push_back({"f", {}, "x"});
  target.files.push_back({"f", {}, "y"});
  const ckpt::Error error = failure(target, MemoryPayloads(), options_of(1));
  BOOST_TEST((error.code() == ErrorCode::AlreadyExists));
}

BOOST_AUTO_TEST_CASE(a_plan_of_another_target_is_refused) {
  const Sliced sliced;
  const TemporaryFolder folder;
  ckpt::Staging staging = ckpt::Staging::create(folder / "out");
  const auto error = error_of(
      [&] { ckpt::execute(sliced.target(sliced.all()), Plan{}, sliced.payloads, staging); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ErrorCode::InvalidArgument));
}

BOOST_AUTO_TEST_SUITE_END()
