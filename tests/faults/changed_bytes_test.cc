// Bytes that are not what they should be: a source that changes, a device that forgets.
#include <ckpt/error.h>
#include <ckpt/write_target.h>
#include <training/opened_training.h>

#include <boost/test/unit_test.hpp>
#include <span>

#include "faults/conversions.h"
#include "support/errors.h"
#include "support/faulty_calls.h"

using namespace test;

namespace {

// Changes one byte of one of the writes that what is published consists of.
class LyingDevice final : public ckpt::SystemCalls {
 public:
  explicit LyingDevice(uint64_t number) : number_(number) {}

  bool has_lied() const { return writes_ > number_; }

  ssize_t pwrite(int file, const void* bytes, size_t count_bytes, off_t offset_bytes) override {
    const ssize_t count = SystemCalls::pwrite(file, bytes, count_bytes, offset_bytes);
    if (count <= 0 || !is_content(file) || writes_++ != number_) return count;
    const off_t middle = count / 2;
    const char byte = static_cast<char>(static_cast<const char*>(bytes)[middle] ^ 0x10);
    SystemCalls::pwrite(file, &byte, 1, offset_bytes + middle);
    return count;
  }

 private:
  static bool is_content(int file) {
    const fs::path path = fs::read_symlink("/proc/self/fd/" + std::to_string(file));
    return contains(path.string(), "-partial/content");
  }

  uint64_t number_, writes_ = 0;
};

// One call fails with this error, the first of its name.
std::optional<ckpt::Error> error_where(const Conversion& conversion, const fs::path& destination,
                                       const std::string& call, int error_number) {
  FaultyCalls clean;
  {
    const ckpt::InstalledSystemCalls installed(clean);
    conversion.run(destination, on_one_thread());
  }
  fs::remove_all(destination);
  uint64_t number = 0;
  while (clean.name(number) != call) ++number;
  FaultyCalls calls({Fault::Kind::Fails, number, error_number});
  const ckpt::InstalledSystemCalls installed(calls);
  return error_of([&] { conversion.run(destination, on_one_thread()); });
}

optim::ConvertOptions verifying() {
  optim::ConvertOptions options = on_one_thread();
  options.base.verify = true;
  return options;
}

// If it lies, the conversion says so and leaves nothing.
void refuse_what_it_says(const LyingDevice& device, const Conversion& conversion,
                         const optim::ConvertOptions& options, const TemporaryFolder& work) {
  const auto error = error_of([&] { conversion.run(work / "out", options); });
  BOOST_TEST_REQUIRE(error.has_value() == device.has_lied(), conversion.name);
  if (!error) return;
  BOOST_TEST((error->code() == ckpt::ErrorCode::IoFailure), error->what());
  BOOST_TEST(contains(error->problem(), "differ from those written"), error->what());
  BOOST_TEST(tree_of(work.path()).empty());
}

// Lies about each write in turn; returns how many there are.
uint64_t lies_found(const Conversion& conversion, const optim::ConvertOptions& options,
                    const TemporaryFolder& work) {
  for (uint64_t number = 0;; ++number) {
    LyingDevice device(number);
    {
      const ckpt::InstalledSystemCalls installed(device);
      refuse_what_it_says(device, conversion, options, work);
    }
    fs::remove_all(work / "out");
    if (!device.has_lied()) return number;
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(changed_bytes)

BOOST_AUTO_TEST_CASE(F2_F5_a_source_that_changes_meanwhile_is_an_error_and_nothing_is_published) {
  const TemporaryFolder sources, work;
  for (const Conversion& conversion : conversions_in(sources)) {
    for (const bool resume : {false, true}) {
      optim::ConvertOptions options = on_one_thread();
      options.base.resume = resume;
      fs::path changed = conversion.source;
      if (fs::is_directory(changed)) {
        for (const auto& entry : fs::recursive_directory_iterator(conversion.source)) {
          if (entry.is_regular_file() && entry.file_size() > 1000) changed = entry.path();
        }
      }
      options.base.execute.on_progress = [&](const ckpt::Progress&) {
        fs::last_write_time(changed, fs::last_write_time(changed) + std::chrono::seconds(1));
      };
      const auto error = error_of([&] { conversion.run(work / "out", options); });
      BOOST_REQUIRE(error);
      BOOST_TEST((error->code() == ckpt::ErrorCode::Corrupt), conversion.name);
      BOOST_TEST(contains(error->problem(), "changed"), error->what());
      BOOST_TEST(!fs::exists(work / "out"));
      // What came of the source as it was is not continued.
      if (!resume) continue;
      const auto again = error_of([&] {
        optim::ConvertOptions next = on_one_thread();
        next.base.resume = true;
        conversion.run(work / "out", next);
      });
      BOOST_REQUIRE(again);
      BOOST_TEST(contains(again->problem(), "from one that has changed"), again->what());
      ckpt::Staging::clean(work / "out");
    }
    BOOST_TEST(tree_of(work.path()).empty());
  }
}

// All in their lengths: with old metadata and new payload nothing else would notice.
BOOST_AUTO_TEST_CASE(F2_a_source_that_was_saved_again_since_it_was_opened_is_an_error) {
  const TemporaryFolder sources, work;
  const std::vector<Conversion> conversions = conversions_in(sources);
  ckpt::TargetSpec spec;
  spec.format = ckpt::Format::Torch;
  for (const Conversion& conversion : std::span(conversions).first(2)) {  // of plain state dicts
    const ckpt::Checkpoint opened = optim::open_checkpoint(conversion.source);
    for (const fs::path& file : opened.files()) {
      const auto before = fs::last_write_time(file);
      write_file(file, read_file(file));
      fs::last_write_time(file, before + std::chrono::seconds(1));
      const auto error = error_of([&] {
        ckpt::ConvertOptions options;
        ckpt::write_target(ckpt::make_target(opened, spec), {opened, conversion.source, &opened},
                           work / "out", options);
      });
      BOOST_REQUIRE(error);
      BOOST_TEST((error->code() == ckpt::ErrorCode::Corrupt), error->what());
      BOOST_TEST(contains(error->problem(), "changed while it was read"), error->what());
      BOOST_TEST(tree_of(work.path()).empty());
      fs::last_write_time(file, before);
    }
  }
}

BOOST_AUTO_TEST_CASE(verify_finds_whatever_a_device_gives_back_that_was_not_written) {
  const TemporaryFolder sources, work;
  const std::vector<Conversion> conversions = conversions_in(sources);
  for (const Conversion& conversion : conversions) {
    BOOST_TEST(lies_found(conversion, verifying(), work) > 0, conversion.name);
  }
  optim::ConvertOptions options = verifying();
  options.base.integrity = true;
  const uint64_t hashed = lies_found(conversions[0], options, work);
  options.base.zstd_level = 1;
  // What is compressed, what came of it, the metadata of both.
  BOOST_TEST(lies_found(conversions[0], options, work) >= hashed + 2);
}

BOOST_AUTO_TEST_CASE(what_is_not_what_was_written_is_neither_compressed_nor_hashed) {
  const TemporaryFolder sources, work;
  const Conversion conversion = conversions_in(sources)[0];
  for (const bool compressed : {false, true}) {
    optim::ConvertOptions options = on_one_thread();
    options.base.integrity = !compressed;
    if (compressed) options.base.zstd_level = 1;
    LyingDevice device(0);
    const ckpt::InstalledSystemCalls installed(device);
    refuse_what_it_says(device, conversion, options, work);
    BOOST_TEST(device.has_lied());
  }
}

BOOST_AUTO_TEST_CASE(F3_F4_a_full_disk_a_quota_and_a_read_only_one_are_told_and_leave_nothing) {
  const TemporaryFolder sources, work;
  const struct {
    const char* call;
    int error_number;
    const char* text;
  } cases[] = {{"mkdir", EROFS, "Read-only"},     {"mkdir", EACCES, "denied"},
               {"fallocate", ENOSPC, "No space"}, {"fallocate", EDQUOT, "quota"},
               {"pwrite", ENOSPC, "No space"},    {"pwrite", EDQUOT, "quota"},
               {"fsync", ENOSPC, "No space"},     {"fsync", EDQUOT, "quota"}};
  for (const Conversion& conversion : conversions_in(sources)) {
    const Tree source = content_of(conversion.source);
    for (const auto& [call, error_number, text] : cases) {
      const auto error = error_where(conversion, work / "out", call, error_number);
      BOOST_TEST_REQUIRE(error.has_value(), call);
      BOOST_TEST((error->code() == ckpt::ErrorCode::IoFailure), error->what());
      BOOST_TEST(contains(error->problem(), text), error->what());
      BOOST_TEST(tree_of(work.path()).empty());
      BOOST_TEST((content_of(conversion.source) == source));
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
