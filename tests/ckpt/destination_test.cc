// What a dry run and a run say of a destination before anything is written.
#include <ckpt/convert.h>
#include <ckpt/error.h>
#include <sys/statvfs.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <string>

#include "io/system_calls.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/temporary_folder.h"

using test::contains;
using test::error_of;
using test::TemporaryFolder;

namespace {

const std::filesystem::path kPlain = test::golden("torch_save_zip/zip.pt");

// A file system that has so many bytes left.
class AlmostFull final : public ckpt::SystemCalls {
 public:
  explicit AlmostFull(uint64_t free_bytes) : free_bytes_(free_bytes) {}
  int statvfs(const char*, struct statvfs& status) override {
    status = {};
    status.f_blocks = 1'000'000;
    status.f_frsize = 1;
    status.f_bavail = free_bytes_;
    return 0;
  }

 private:
  uint64_t free_bytes_;
};

ckpt::ConvertReport convert(const std::filesystem::path& destination, bool dry_run) {
  ckpt::ConvertOptions options;
  options.format = ckpt::Format::TorchDist;
  options.dry_run = dry_run;
  return ckpt::convert(kPlain, destination, options);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(destination)

BOOST_AUTO_TEST_CASE(a_dry_run_warns_of_a_full_disk_where_a_run_fails) {
  const TemporaryFolder folder;
  const uint64_t needed_bytes = convert(folder / "out", true).plan.total_bytes;
  {
    AlmostFull calls(needed_bytes);
    const ckpt::InstalledSystemCalls installed(calls);
    BOOST_TEST(convert(folder / "out", true).warnings.empty());
  }
  AlmostFull calls(needed_bytes - 1);
  const ckpt::InstalledSystemCalls installed(calls);
  const auto warnings = convert(folder / "out", true).warnings;
  BOOST_REQUIRE(warnings.size() == 1u);
  BOOST_TEST(contains(warnings[0], std::to_string(needed_bytes) + " bytes are needed, " +
                                       std::to_string(needed_bytes - 1) + " are free in " +
                                       folder.path().string()));
  AlmostFull nothing_left(0);  // the run asks piece by piece
  const ckpt::InstalledSystemCalls now_installed(nothing_left);
  const auto error = error_of([&] { convert(folder / "out", false); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ckpt::ErrorCode::IoFailure));
  BOOST_TEST(test::tree_of(folder.path()).empty());
}

BOOST_AUTO_TEST_CASE(a_dry_run_refuses_what_a_run_refuses) {
  const TemporaryFolder folder;
  for (const bool dry_run : {true, false}) {
    const auto missing = error_of([&] { convert(folder / "no/out", dry_run); });
    BOOST_REQUIRE(missing);
    BOOST_TEST((missing->code() == ckpt::ErrorCode::NotFound));
    const auto named = error_of([&] { convert(folder / "out.pt", dry_run); });
    BOOST_REQUIRE(named);
    BOOST_TEST((named->code() == ckpt::ErrorCode::InvalidArgument));
    const auto address = error_of([&] { convert("s3://bucket/out", dry_run); });
    BOOST_REQUIRE(address);
    BOOST_TEST((address->code() == ckpt::ErrorCode::Unsupported));
  }
  BOOST_TEST(test::tree_of(folder.path()).empty());
}

BOOST_AUTO_TEST_SUITE_END()
