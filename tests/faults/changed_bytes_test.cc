// Bytes that are not what they should be: a source that changes, a device that forgets.
#include <ckpt/error.h>

#include <boost/test/unit_test.hpp>
#include <span>

#include "faults/conversions.h"
#include "support/errors.h"
#include "support/faulty_calls.h"

using namespace test;

namespace {

// Changes one byte of the first long write.
class LyingDevice final : public ckpt::SystemCalls {
 public:
  ssize_t pwrite(int file, const void* bytes, size_t count_bytes, off_t offset_bytes) override {
    const ssize_t count = SystemCalls::pwrite(file, bytes, count_bytes, offset_bytes);
    if (count < 1000 || has_lied_) return count;
    has_lied_ = true;
    char byte = static_cast<const char*>(bytes)[500];
    byte = static_cast<char>(byte ^ 0x10);
    SystemCalls::pwrite(file, &byte, 1, offset_bytes + 500);
    return count;
  }

 private:
  bool has_lied_ = false;
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

}  // namespace

BOOST_AUTO_TEST_SUITE(changed_bytes)

BOOST_AUTO_TEST_CASE(F2_F5_a_source_that_changes_meanwhile_is_an_error_and_nothing_is_published) {
  const TemporaryFolder sources, work;
  for (const Conversion& conversion : conversions_in(sources)) {
    for (const bool resume : {false, true}) {
      optim::ConvertOptions options = on_one_thread();
      options.resume = resume;
      fs::path changed = conversion.source;
      if (fs::is_directory(changed)) {
        for (const auto& entry : fs::recursive_directory_iterator(conversion.source)) {
          if (entry.is_regular_file() && entry.file_size() > 1000) changed = entry.path();
        }
      }
      options.execute.on_progress = [&](const ckpt::Progress&) {
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
        next.resume = true;
        conversion.run(work / "out", next);
      });
      BOOST_REQUIRE(again);
      BOOST_TEST(contains(again->problem(), "a source that has changed"), again->what());
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
    const ckpt::Checkpoint opened = ckpt::Checkpoint::open(conversion.source);
    for (const fs::path& file : opened.files()) {
      const auto before = fs::last_write_time(file);
      write_file(file, read_file(file));
      fs::last_write_time(file, before + std::chrono::seconds(1));
      const auto error = error_of([&] {
        ckpt::ConvertOptions options;
        ckpt::write_target(ckpt::make_target(opened, spec),
                           {opened, conversion.source, &opened}, work / "out", options);
      });
      BOOST_REQUIRE(error);
      BOOST_TEST((error->code() == ckpt::ErrorCode::Corrupt), error->what());
      BOOST_TEST(contains(error->problem(), "changed while it was read"), error->what());
      BOOST_TEST(tree_of(work.path()).empty());
      fs::last_write_time(file, before);
    }
  }
}

BOOST_AUTO_TEST_CASE(verify_finds_a_device_that_gives_back_something_else) {
  const TemporaryFolder sources, work;
  for (const Conversion& conversion : conversions_in(sources)) {
    optim::ConvertOptions options = on_one_thread();
    options.verify = true;
    LyingDevice device;
    const ckpt::InstalledSystemCalls installed(device);
    const auto error = error_of([&] { conversion.run(work / "out", options); });
    BOOST_REQUIRE(error);
    BOOST_TEST((error->code() == ckpt::ErrorCode::IoFailure), error->what());
    BOOST_TEST(contains(error->problem(), "not what was written"), error->what());
    BOOST_TEST(tree_of(work.path()).empty());
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
