// What is proposed for a mistyped word.
#include "common/text.h"

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <ostream>

namespace {

const std::vector<std::string> kCommands = {"ls",   "show", "tree",   "verify",
                                            "hash", "diff", "groups", "latest"};

struct Row {
  std::string word;
  std::string meant;  // empty: nothing is near
};
std::ostream& operator<<(std::ostream& out, const Row& row) { return out << row.word; }

const Row kRows[] = {
    {"verfy", "verify"},
    {"verifyy", "verify"},
    {"evrify", "verify"},
    {"vreify", "verify"},
    {"lss", "ls"},
    {"sl", "ls"},
    {"hsah", "hash"},
    {"groupes", "groups"},
    {"late", "latest"},
    {"ver", "verify"},
    {"gr", "groups"},
    {"verify", "verify"},
    {"", ""},
    {"x", ""},
    {"convert", ""},
    {"checkpoint", ""},
    {"a/folder/verify", ""},
};

}  // namespace

BOOST_AUTO_TEST_SUITE(nearest_word)

BOOST_DATA_TEST_CASE(the_nearest_command_is_meant, kRows) {
  BOOST_TEST(tools::nearest_word(sample.word, kCommands).value_or("") == sample.meant);
}

BOOST_AUTO_TEST_CASE(of_equally_near_words_the_first) {
  BOOST_TEST(tools::nearest_word("abcd", {"abxd", "abyd"}).value() == "abxd");
}

BOOST_AUTO_TEST_CASE(what_was_begun_is_completed_only_where_one_word_fits) {
  BOOST_TEST(!tools::nearest_word("de", {"decoder.a", "decoder.b"}));
  BOOST_TEST(tools::nearest_word("em", {"decoder.a", "embedding"}).value() == "embedding");
}

BOOST_AUTO_TEST_CASE(the_question_escapes_names_of_files) {
  BOOST_TEST(tools::did_you_mean("keey", {"key\n"}) == "");
  BOOST_TEST(tools::did_you_mean("keyyyy\n", {"keyyy\n"}) == "; did you mean 'keyyy\\x0a'?");
}

BOOST_AUTO_TEST_SUITE_END()
