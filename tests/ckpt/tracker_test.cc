// What latest_checkpointed_iteration.txt may hold, and what is said of the rest.
#include <ckpt/error.h>
#include <ckpt/root.h>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <optional>
#include <ostream>
#include <string>

#include "format/format.h"
#include "support/convention.h"
#include "support/errors.h"
#include "support/temporary_folder.h"

using namespace std::string_literals;
using test::error_of;
using test::TemporaryFolder;

namespace {

const std::string kTracker(test::kConvention.tracker);

struct Named {
  std::string text;
  std::optional<int64_t> iteration;  // none: release
};
std::ostream& operator<<(std::ostream& out, const Named& row) { return out << row.text; }

const Named kNamed[] = {{"3", 3},
                        {"0", 0},
                        {"0000003", 3},
                        {"3\n", 3},
                        {"3\r\n", 3},
                        {"3  \n\n", 3},
                        {"9223372036854775807", 9223372036854775807},
                        {"release", std::nullopt},
                        {"release\n", std::nullopt}};

struct Refused {
  std::string text;
  std::string found, why;
};
std::ostream& operator<<(std::ostream& out, const Refused& row) { return out << row.why; }

const Refused kRefused[] = {
    {"", "found ''", "it is empty"},
    {" \n", "found ''", "it is empty"},
    {"\xEF\xBB\xBF"
     "3",
     R"(found '\ufeff3')", "it begins with a byte order mark"},
    {"\xFF\xFE\x33\x00"s, R"(found '\xff\xfe3\x00')", "it is not plain ASCII text"},
    {"+3", "found '+3'", "the number has a sign"},
    {"-3", "found '-3'", "the number has a sign"},
    {"-0", "found '-0'", "the number has a sign"},
    {"9223372036854775808", "found '9223372036854775808'", "the number is too large"},
    {" 3", "found ' 3'", "it begins with white space"},
    {"\n3", R"(found '\x0a3')", "it begins with white space"},
    {"3 4", "found '3 4'", "more than one word is in it"},
    {"3\n4\n", R"(found '3\x0a4')", "more than one word is in it"},
    {"3\t", R"(found '3\x09')", "more than one word is in it"},
    {"3.0", "found '3.0'", "it is not a number"},
    {"0x3", "found '0x3'", "it is not a number"},
    {"1_000", "found '1_000'", "it is not a number"},
    {"iter_0000003", "found 'iter_0000003'", "it is not a number"},
    {"Release", "found 'Release'", "it is not a number"},
    {"3" + std::string(64, ' '), "found '3 ", "it is longer than any iteration's number"},
};

}  // namespace

BOOST_AUTO_TEST_SUITE(tracker)

BOOST_DATA_TEST_CASE(an_iteration_or_release_is_named, kNamed) {
  BOOST_TEST((ckpt::tracked_iteration(sample.text, test::kConvention) == sample.iteration));
}

BOOST_DATA_TEST_CASE(anything_else_is_refused_with_what_was_found_and_why, kRefused) {
  const auto error = error_of([&] { ckpt::tracked_iteration(sample.text, test::kConvention); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ckpt::ErrorCode::Corrupt));
  BOOST_TEST(test::contains(error->what(), sample.found), error->what());
  BOOST_TEST(test::contains(error->what(), sample.why), error->what());
  BOOST_TEST(test::contains(error->hint(), "3 for iter_0000003"));
}

BOOST_AUTO_TEST_CASE(the_latest_iteration_is_set_and_never_set_back) {
  const TemporaryFolder root;
  ckpt::set_latest(root.path(), "iter_0000003", test::kConvention);
  BOOST_TEST(test::read_file(root / kTracker) == "3");
  ckpt::set_latest(root.path(), "iter_0000002", test::kConvention);
  BOOST_TEST((ckpt::latest_iteration(root.path(), test::kConvention) == 3));
  ckpt::set_latest(root.path(), "iter_0000010", test::kConvention);
  BOOST_TEST((ckpt::latest_iteration(root.path(), test::kConvention) == 10));
}

BOOST_AUTO_TEST_CASE(a_tracker_that_is_not_understood_is_not_replaced) {
  const TemporaryFolder root;
  test::write_file(root / kTracker, "+7");
  const auto error =
      error_of([&] { ckpt::set_latest(root.path(), "iter_0000003", test::kConvention); });
  BOOST_REQUIRE(error);
  BOOST_TEST((error->code() == ckpt::ErrorCode::Corrupt));
  BOOST_TEST(test::read_file(root / kTracker) == "+7");
}

BOOST_AUTO_TEST_CASE(what_a_kill_leaves_of_a_tracker_is_removed) {
  const TemporaryFolder root;
  test::write_file(root / kTracker, "3");
  BOOST_TEST(!ckpt::clean_latest(root.path(), test::kConvention));
  test::write_file(root / ("."s + kTracker + ".new"), "4");
  BOOST_TEST(ckpt::clean_latest(root.path(), test::kConvention));
  BOOST_TEST((test::tree_of(root.path()) == std::map<std::string, std::string>{{kTracker, "3"}}));
}

BOOST_AUTO_TEST_SUITE_END()
