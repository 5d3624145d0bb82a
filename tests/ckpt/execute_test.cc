#include <ckpt/document.h>
#include <ckpt/execute.h>

#include <boost/test/unit_test.hpp>
#include <mutex>
#include <stdexcept>

#include "support/errors.h"
#include "support/random_tensors.h"
#include "support/temporary_folder.h"

using ckpt::Box;
using ckpt::ErrorCode;
using ckpt::ExecuteOptions;
using ckpt::Plan;
using ckpt::Target;
using ckpt::TargetArchive;
using test::error_of;
using test::KnownTensor;
using test::MemoryPayloads;
using test::TemporaryFolder;
using Files = std::map<std::string, std::string>;

namespace {

// A target with what its members must hold.
struct KnownTarget {
  Target target;
  std::vector<std::vector<std::string>> expected;  // by file: data of all records, in order
};

// The least memory: pieces of 64 KiB, so that archives of some hundred KiB come in many of them.
ExecuteOptions options_of(unsigned threads, uint64_t memory_bytes = 0) {
  ExecuteOptions options;
  options.threads = threads;
  options.memory_bytes_max = memory_bytes;
  return options;
}

std::shared_ptr<const ckpt::TensorEntry> shared(const KnownTensor& tensor) {
  return std::make_shared<const ckpt::TensorEntry>(tensor.entry);
}

ckpt::TargetRecord record_of(const KnownTensor& tensor, const Box& box) {
  return {ckpt::element_count(box.sizes) * tensor.element_bytes(),
          ckpt::TensorSource{shared(tensor), box}};
}

TargetArchive bare_archive(const KnownTensor& tensor, const Box& box) {
  return {"archive", ckpt::BareTensor{tensor.entry.dtype, box.sizes}, {record_of(tensor, box)}};
}

TargetArchive tree_archive(std::vector<ckpt::TargetRecord> records) {
  auto tree = std::make_shared<ckpt::ValueTree>();
  tree->set_root(tree->list({tree->str("any"), tree->integer(7)}));
  return {"tree", std::move(tree), std::move(records)};
}

Target one_file(std::vector<TargetArchive> archives) {
  Target target;
  target.files.push_back({"f", std::move(archives), {}});
  return target;
}

ckpt::ExecuteStats run_in(const TemporaryFolder& folder, const Target& target,
                          const ckpt::PayloadSource& source, const ExecuteOptions& options) {
  ckpt::Staging staging = ckpt::Staging::create(folder / "out");
  const ckpt::ExecuteStats stats =
      ckpt::execute(target, ckpt::make_plan(target), source, staging, options);
  staging.commit();
  return stats;
}

// The files before the commit, which would wait for the device.
Files written(const Target& target, const ckpt::PayloadSource& source,
              const ExecuteOptions& options) {
  const TemporaryFolder folder;
  ckpt::Staging staging = ckpt::Staging::create(folder / "out");
  ckpt::execute(target, ckpt::make_plan(target), source, staging, options);
  return test::tree_of(staging.folder());
}

// Runs into an error, and looks whether anything is left behind.
ckpt::Error failure(const Target& target, const ckpt::PayloadSource& source,
                    const ExecuteOptions& options) {
  const TemporaryFolder folder;
  auto error = error_of([&] { run_in(folder, target, source, options); });
  BOOST_REQUIRE(error.has_value());
  BOOST_TEST(test::tree_of(folder.path()).empty());
  return *error;
}

// The storages of a file of archives back to back, each archive read strictly, each CRC-32 checked.
std::vector<std::string> storages_of(const std::string& file, const ckpt::TargetFile& target) {
  const test::MemoryFile bytes(file);
  std::vector<std::string> storages;
  uint64_t offset = 0;
  for (const TargetArchive& archive : target.archives) {
    const uint64_t count = ckpt::archive_count_bytes(archive);
    const auto members = ckpt::zip::read_directory(bytes, {offset, count});
    BOOST_REQUIRE(members.size() == archive.records.size() + 6);
    for (size_t m = 0; m < members.size(); ++m) {
      std::string data = file.substr(members[m].data.offset_bytes, members[m].data.count_bytes);
      BOOST_REQUIRE(members[m].crc32.value() == ckpt::crc32(test::bytes_of(data)));
      if (m >= 4 && m < 4 + archive.records.size()) storages.push_back(std::move(data));
    }
    offset += count;
  }
  BOOST_REQUIRE(offset == file.size());
  return storages;
}

KnownTensor large_tensor(test::Random& random, MemoryPayloads& payloads) {
  KnownTensor tensor;
  tensor.entry.key = "large";
  tensor.entry.dtype = ckpt::DType::Float32;
  tensor.entry.shape = {1 + random() % 200, 1 + random() % 300};
  tensor.content = test::random_bytes(random, ckpt::count_bytes(tensor.entry));
  for (const Box& box : test::random_grid(random, tensor.entry.shape)) {
    tensor.entry.chunks.push_back(test::store_row_major(random, payloads, tensor, box));
  }
  return tensor;
}

class TargetMaker {
 public:
  TargetMaker(test::Random& random, MemoryPayloads& payloads)
      : random_(random), payloads_(payloads) {}

  KnownTarget make() {
    const size_t file_count = 1 + random_() % 3;
    for (size_t f = 0; f < file_count; ++f) {
      known_.target.files.push_back({"folder/f" + std::to_string(f), {}, {}});
      known_.expected.emplace_back();
      const size_t archive_count = 1 + random_() % 8;
      for (size_t a = 0; a < archive_count; ++a) {
        known_.target.files.back().archives.push_back(archive());
      }
    }
    known_.target.files.push_back({"metadata.json", {}, "{}"});
    known_.target.files.push_back({"empty", {}, {}});
    known_.expected.resize(known_.target.files.size());
    return std::move(known_);
  }

 private:
  TargetArchive archive() {
    if (random_() % 2 == 0) {
      const KnownTensor tensor = some_tensor();
      const Box box = some_box(tensor);
      known_.expected.back().push_back(tensor.expected(box));
      return bare_archive(tensor, box);
    }
    std::vector<ckpt::TargetRecord> records;
    for (size_t r = random_() % 12; r > 0; --r) records.push_back(record());
    return tree_archive(std::move(records));
  }

  ckpt::TargetRecord record() {
    const std::string bytes = test::random_bytes(random_, random_() % 4 * (random_() % 50000));
    switch (random_() % 3) {
      case 0:
        known_.expected.back().push_back(bytes);
        return {bytes.size(), bytes};
      case 1:
        known_.expected.back().push_back(bytes);
        return {bytes.size(), ckpt::StorageSource{payloads_.add_storage(bytes)}};
      default: {
        const KnownTensor tensor = some_tensor();
        const Box box = some_box(tensor);
        known_.expected.back().push_back(tensor.expected(box));
        return record_of(tensor, box);
      }
    }
  }

  KnownTensor some_tensor() {
    return random_() % 3 == 0 ? large_tensor(random_, payloads_)
                              : test::random_tensor(random_, payloads_);
  }

  Box some_box(const KnownTensor& tensor) {
    return random_() % 2 ? ckpt::whole(tensor.entry.shape)
                         : test::random_box(random_, tensor.entry.shape);
  }

  test::Random& random_;
  MemoryPayloads& payloads_;
  KnownTarget known_;
};

// A tensor of 200 KiB in one storage: in pieces of 64 KiB it is sliced.
struct Sliced {
  Sliced() {
    test::Random random(20);
    tensor.entry.key = "sliced.weight";
    tensor.entry.dtype = ckpt::DType::Float32;
    tensor.entry.shape = {100, 512};
    tensor.content = test::random_bytes(random, 100 * 512 * 4);
    tensor.entry.chunks.push_back(
        {ckpt::whole(tensor.entry.shape), payloads.add_storage(tensor.content), 0});
  }
  Target target(const Box& box) const { return one_file({bare_archive(tensor, box)}); }
  Box all() const { return ckpt::whole(tensor.entry.shape); }

  MemoryPayloads payloads;
  KnownTensor tensor;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(execute)

BOOST_AUTO_TEST_CASE(every_byte_is_right_whatever_the_cuts_and_the_number_of_threads) {
  test::Random random(21);
  for (int round = 0; round < 40; ++round) {
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
  const Files files = test::tree_of(folder.path());
  BOOST_REQUIRE(files.size() == 1);
  BOOST_TEST((storages_of(files.at("out.pt"), target.files[0]).at(0) == sliced.tensor.content));
}

BOOST_AUTO_TEST_CASE(a_storage_wrapped_in_an_archive_is_unwrapped) {
  const Sliced sliced;
  const Target wrapped = sliced.target(sliced.all());
  const std::string file = written(wrapped, sliced.payloads, options_of(1)).at("f");
  MemoryPayloads payloads;
  KnownTensor tensor = sliced.tensor;
  ckpt::StorageRegion region{
      payloads.add_file("before" + file), {6, file.size()}, ckpt::Wrapping::TorchSave};
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
      BOOST_TEST(test::contains(error.problem(), "the archive says " + damaged.stated),
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
  BOOST_TEST(stats.read_bytes == 2 * sliced.tensor.content.size());  // checked, then copied
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
  const ckpt::StorageRegion region{
      sliced.payloads.add_file(file), {0, file.size()}, ckpt::Wrapping::TorchSave};
  const ckpt::Error error = failure(one_file({tree_archive({{8, ckpt::StorageSource{region}}})}),
                                    sliced.payloads, options_of(1));
  BOOST_TEST((error.code() == ErrorCode::Corrupt));
  BOOST_TEST(test::contains(error.problem(), "204800 bytes where one of 8"));
}

BOOST_AUTO_TEST_CASE(a_source_that_fails_at_any_read_leaves_nothing_behind) {
  test::Random random(22);
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
  BOOST_TEST(test::tree_of(folder.path()).empty());
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
