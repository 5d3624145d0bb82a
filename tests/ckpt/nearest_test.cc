// Which name was meant by a mistyped one.
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <ostream>
#include <string>
#include <vector>

#include <ckpt/nearest.h>

namespace {

struct NearestRow {
  std::string word;
  std::string meant;  // empty: none of them
};
std::ostream& operator<<(std::ostream& out, const NearestRow& row) { return out << row.word; }

const std::vector<std::string> kNames = {"ckpt", "ckpt_dp4", "iter_0000003", "iter_0000030", "a"};

const NearestRow kNearestRows[] = {
    {"ckp", "ckpt"},
    {"cpkt", "ckpt"},  // two neighbours swapped: one mistake
    {"ckpt_dp8", "ckpt_dp4"},
    {"iter_000003", "iter_0000003"},
    {"nowhere", ""},
    {"b", ""},  // another letter is another word
    {"", ""},
    {std::string(300, 'a'), ""},
};

}  // namespace

BOOST_AUTO_TEST_SUITE(nearest)

BOOST_DATA_TEST_CASE(a_mistyped_name_is_near_the_right_one, kNearestRows, row) {
  BOOST_TEST(ckpt::nearest(row.word, kNames).value_or("") == row.meant);
}

BOOST_AUTO_TEST_CASE(distance_counts_mistakes) {
  BOOST_TEST(ckpt::edit_distance("", "abc") == 3u);
  BOOST_TEST(ckpt::edit_distance("abc", "abc") == 0u);
  BOOST_TEST(ckpt::edit_distance("abc", "acb") == 1u);
  BOOST_TEST(ckpt::edit_distance("kitten", "sitting") == 3u);
}

BOOST_AUTO_TEST_SUITE_END()
