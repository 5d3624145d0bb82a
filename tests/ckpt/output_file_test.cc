#include "io/file.h"

#include <fcntl.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>

#include <ckpt/run_jobs.h>

#include "io/system_calls.h"
#include "read/payload_reader.h"
#include "support/errors.h"
#include "support/random_tensors.h"
#include "support/temporary_folder.h"

using ckpt::OutputFile;
using test::TemporaryFolder;

namespace {

constexpr uint64_t kWindowBytes = 256 << 10;

// Writes a file of these bytes in windows, on four threads; returns what is then in it.
std::string written(const std::string& content) {
  const TemporaryFolder folder;
  OutputFile file(folder / "f", content.size());
  const size_t window_count = (content.size() + kWindowBytes - 1) / kWindowBytes;
  ckpt::run_jobs(window_count, 4, [&](size_t window, unsigned) {
    const std::string part = content.substr(window * kWindowBytes, kWindowBytes);
    ckpt::ScratchBuffer buffer(kWindowBytes);
    std::ranges::copy(std::as_bytes(std::span(part)), buffer.bytes().begin());
    const size_t blocks = (part.size() + OutputFile::kBlockBytes - 1) / OutputFile::kBlockBytes;
    file.write_at(window * kWindowBytes, buffer.bytes().first(blocks * OutputFile::kBlockBytes));
  });
  file.finish();
  return test::read_file(folder / "f");
}

// A file system that knows no O_DIRECT.
class NeverDirect : public ckpt::SystemCalls {
 public:
  int set_flags(int file, int flags) override {
    if ((flags & O_DIRECT) == 0) return ckpt::SystemCalls::set_flags(file, flags);
    errno = EINVAL;
    return -1;
  }
};

// One that takes O_DIRECT and then wants larger blocks than any write has.
class NoBlockLargeEnough : public ckpt::SystemCalls {
 public:
  int set_flags(int file, int flags) override {
    is_direct = (flags & O_DIRECT) != 0;
    return ckpt::SystemCalls::set_flags(file, flags);
  }
  ssize_t pwrite(int file, const void* bytes, size_t count_bytes, off_t offset_bytes) override {
    if (!is_direct) return ckpt::SystemCalls::pwrite(file, bytes, count_bytes, offset_bytes);
    ++refused;
    errno = EINVAL;
    return -1;
  }
  std::atomic<bool> is_direct = false;
  std::atomic<int> refused = 0;
};

// Writes end early, within a block.
class ShortWrites : public ckpt::SystemCalls {
 public:
  ssize_t pwrite(int file, const void* bytes, size_t count_bytes, off_t offset_bytes) override {
    const size_t part = std::min<size_t>(count_bytes, 50'001);
    return ckpt::SystemCalls::pwrite(file, bytes, part, offset_bytes);
  }
};

class FullDisk : public ckpt::SystemCalls {
 public:
  ssize_t pwrite(int, const void*, size_t, off_t) override {
    errno = ENOSPC;
    return -1;
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(output_file)

BOOST_AUTO_TEST_CASE(the_same_bytes_arrive_past_and_through_the_page_cache) {
  test::Random random(41);
  for (const size_t size : {0, 1, 4096, 1 << 20, (1 << 20) + 1, 3'333'333, 8 << 20}) {
    const std::string content = test::random_bytes(random, size);
    BOOST_TEST((written(content) == content), size);
    {
      NeverDirect calls;
      const ckpt::InstalledSystemCalls installed(calls);
      BOOST_TEST((written(content) == content), size);
    }
    {
      NoBlockLargeEnough calls;
      const ckpt::InstalledSystemCalls installed(calls);
      BOOST_TEST((written(content) == content), size);
      BOOST_TEST((size < 1 << 20 || calls.refused > 0));
    }
    ShortWrites calls;
    const ckpt::InstalledSystemCalls installed(calls);
    BOOST_TEST((written(content) == content), size);
  }
}

BOOST_AUTO_TEST_CASE(a_write_that_fails_is_told_with_the_file) {
  FullDisk calls;
  const ckpt::InstalledSystemCalls installed(calls);
  const auto error = test::error_of([] { written(std::string(2 << 20, 'x')); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ckpt::ErrorCode::IoFailure));
  BOOST_TEST(test::contains(error->what(), "cannot write: No space left on device"));
}

BOOST_AUTO_TEST_CASE(a_file_that_exists_is_never_overwritten) {
  const TemporaryFolder folder;
  test::write_file(folder / "f", "abc");
  const auto error = test::error_of([&] { OutputFile(folder / "f", 2 << 20); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ckpt::ErrorCode::AlreadyExists));
  BOOST_TEST(test::read_file(folder / "f") == "abc");
}

BOOST_AUTO_TEST_SUITE_END()
