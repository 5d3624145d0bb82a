#include "io/file.h"

#include <fcntl.h>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "io/system_calls.h"
#include "support/temporary_folder.h"

using ckpt::DropBehind;
using ckpt::File;

namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kReadBytes = kMiB / 4;

// Says that every page is in memory (1), is not (0), or nothing (-1); notes what is dropped.
class PageCache final : public ckpt::SystemCalls {
 public:
  explicit PageCache(int answer) : answer_(answer) {}
  int is_cached(int, off_t) override { return answer_; }
  int posix_fadvise(int, off_t offset_bytes, off_t count_bytes, int advice) override {
    BOOST_TEST(advice == POSIX_FADV_DONTNEED);
    dropped_mib.emplace_back(offset_bytes / off_t{kMiB}, count_bytes / off_t{kMiB});
    return 0;
  }
  std::vector<std::pair<off_t, off_t>> dropped_mib;  // from, how many

 private:
  int answer_;
};

class SparseFile {
 public:
  explicit SparseFile(uint64_t count_bytes) {
    test::write_file(folder_ / "f", "");
    std::filesystem::resize_file(folder_ / "f", count_bytes);
  }
  File open() const { return File::open(folder_ / "f"); }

 private:
  test::TemporaryFolder folder_;
};

void pass_all(DropBehind& drop_behind, const File& file) {
  for (uint64_t at = 0; at < file.size_bytes(); at += kReadBytes) {
    drop_behind.passed(file, at, std::min(kReadBytes, file.size_bytes() - at));
  }
}

using Dropped = std::vector<std::pair<off_t, off_t>>;
const Dropped kAllOf80MiB = {{0, 32}, {32, 32}, {64, 16}};

// What is dropped while a file is read to its end.
Dropped dropped_of(uint64_t count_bytes, int is_cached) {
  const SparseFile sparse(count_bytes);
  const File file = sparse.open();
  PageCache cache(is_cached);
  const ckpt::InstalledSystemCalls installed(cache);
  DropBehind drop_behind(file);
  pass_all(drop_behind, file);
  return cache.dropped_mib;
}

struct ColdFile {
  // What is dropped before anything has passed is no part of the tests.
  ColdFile() { cache.dropped_mib.clear(); }

  SparseFile sparse{80 * kMiB};
  File file = sparse.open();
  PageCache cache{0};
  ckpt::InstalledSystemCalls installed{cache};
  DropBehind drop_behind{file};
};

}  // namespace

BOOST_AUTO_TEST_SUITE(drop_behind)

BOOST_AUTO_TEST_CASE(the_pages_that_are_cached_of_a_file_that_hardly_is_leave_first) {
  Dropped expected = kAllOf80MiB;
  expected.insert(expected.begin(), {0, 80});
  BOOST_TEST((dropped_of(80 * kMiB, 0) == expected));
}

BOOST_FIXTURE_TEST_CASE(what_was_not_in_the_page_cache_leaves_it_once, ColdFile) {
  pass_all(drop_behind, file);
  BOOST_TEST((cache.dropped_mib == kAllOf80MiB));
  pass_all(drop_behind, file);
  BOOST_TEST((cache.dropped_mib == kAllOf80MiB));
}

BOOST_FIXTURE_TEST_CASE(parts_may_come_in_any_order_and_cross_the_borders_of_extents, ColdFile) {
  drop_behind.passed(file, 60 * kMiB, 20 * kMiB);  // all of the last extent, 4 of the second
  BOOST_TEST((cache.dropped_mib == Dropped{{64, 16}}));
  drop_behind.passed(file, 0, 60 * kMiB);
  BOOST_TEST((cache.dropped_mib == Dropped{{64, 16}, {0, 32}, {32, 32}}));
}

BOOST_FIXTURE_TEST_CASE(an_extent_stays_while_much_of_it_has_not_passed, ColdFile) {
  drop_behind.passed(file, 0, 31 * kMiB);
  BOOST_TEST(cache.dropped_mib.empty());
  drop_behind.passed(file, 31 * kMiB, 3 * kReadBytes);  // headers between payloads are not read
  BOOST_TEST((cache.dropped_mib == Dropped{{0, 32}}));
}

BOOST_AUTO_TEST_CASE(nothing_is_dropped_that_was_cached_or_may_have_been) {
  for (const int answer : {1, -1}) BOOST_TEST(dropped_of(80 * kMiB, answer).empty());
}

BOOST_FIXTURE_TEST_CASE(a_file_that_has_grown_is_dropped_as_far_as_it_was_known, ColdFile) {
  const SparseFile grown(200 * kMiB);
  drop_behind.passed(grown.open(), 0, 200 * kMiB);
  drop_behind.passed(grown.open(), 190 * kMiB, kMiB);
  BOOST_TEST((cache.dropped_mib == kAllOf80MiB));
}

BOOST_AUTO_TEST_CASE(a_small_file_stays) { BOOST_TEST(dropped_of(31 * kMiB, 0).empty()); }

BOOST_AUTO_TEST_CASE(the_system_says_whether_a_page_is_in_memory) {
  const test::TemporaryFolder folder;
  test::write_file(folder / "f", std::string(3 * kMiB, 'x'));
  const File file = File::open(folder / "f");
  BOOST_TEST(file.is_cached(0));  // just written
  BOOST_TEST(file.is_cached(2 * kMiB + 5));
}

BOOST_AUTO_TEST_SUITE_END()
