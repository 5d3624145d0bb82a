#include "common/text.h"

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <ostream>
#include <vector>

#include "common/json.h"
#include "common/source_options.h"

namespace {

struct SizeRow {
  uint64_t count_bytes;
  const char* text;
};
std::ostream& operator<<(std::ostream& out, const SizeRow& row) { return out << row.text; }

const SizeRow kSizes[] = {
    {0, "0 B"},
    {1023, "1023 B"},
    {1024, "1.0 KiB"},
    {1536, "1.5 KiB"},
    {(1 << 20) - 1, "1.0 MiB"},  // never "1024.0 KiB"
    {uint64_t{5} << 30, "5.0 GiB"},
    {UINT64_MAX, "16.0 EiB"},
};

struct NameRow {
  const char* what;
  std::string name;
  std::string json;
};
std::ostream& operator<<(std::ostream& out, const NameRow& row) { return out << row.what; }

const NameRow kNames[] = {
    {"ASCII", "a.b/c", "a.b/c"},
    {"quotes and backslashes are JSON's to escape", "a\"\\", "a\"\\"},
    {"two, three and four bytes", "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80",
     "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"},
    {"a byte that starts nothing", "a\xFF", "a\\xff"},
    {"an overlong slash", "\xC0\xAF", "\\xc0\\xaf"},
    {"a lone surrogate", "\xED\xA0\x80", "\\xed\\xa0\\x80"},
    {"a sequence that ends early", "\xE2\x82", "\\xe2\\x82"},
    {"above U+10FFFF", "\xF4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},
};

}  // namespace

BOOST_AUTO_TEST_SUITE(text)

BOOST_DATA_TEST_CASE(sizes_are_for_people, kSizes) {
  BOOST_TEST(tools::size_text(sample.count_bytes) == sample.text);
}

BOOST_AUTO_TEST_CASE(numbers_read_back_exactly) {
  BOOST_TEST(tools::number_text(0.1) == "0.1");
  BOOST_TEST(std::stod(tools::number_text(M_PI)) == M_PI);
  BOOST_TEST(tools::number_text(-INFINITY) == "-inf");
}

BOOST_AUTO_TEST_CASE(width_is_counted_in_characters) {
  BOOST_TEST(tools::display_width("\xC3\xA9t\xC3\xA9") == 3u);
  BOOST_TEST(tools::shortened("\xC3\xA9t\xC3\xA9", 3) == "\xC3\xA9t\xC3\xA9");
  BOOST_TEST(tools::shortened("\xC3\xA9t\xC3\xA9s!", 4) == "\xC3\xA9...");
  BOOST_TEST(tools::shortened("abcdef", 2) == "...");
}

BOOST_AUTO_TEST_CASE(paths_are_words_of_a_shell) {
  BOOST_TEST(tools::shell_word("ckpt/iter_0000003") == "ckpt/iter_0000003");
  BOOST_TEST(tools::shell_word("a b") == "'a b'");
  BOOST_TEST(tools::shell_word("$(rm)") == "'$(rm)'");
  BOOST_TEST(tools::shell_word("it's") == "$'it\\'s'");
  BOOST_TEST(tools::shell_word("a\nb") == "$'a\\x0ab'");
  BOOST_TEST(tools::shell_word("") == "''");
}

BOOST_AUTO_TEST_CASE(counts_have_a_plural) {
  BOOST_TEST(tools::count_text(1, "tensor") == "1 tensor");
  BOOST_TEST(tools::count_text(0, "tensor") == "0 tensors");
}

BOOST_DATA_TEST_CASE(json_holds_names_that_are_utf8_and_escapes_others, kNames) {
  BOOST_TEST(tools::json_text(sample.name) == sample.json);
  BOOST_TEST(!nlohmann::json(tools::json_text(sample.name)).dump().empty());  // throws on bad UTF-8
}

BOOST_AUTO_TEST_CASE(filters_take_globs_over_keys_and_files) {
  const auto accepts = [](const tools::KeyFilter& filter, const char* file, const char* key) {
    ckpt::KeySelection selection = filter.selection();
    const std::vector<ckpt::KeyName> names{{file, key}};
    selection.resolve(names);
    return selection.accepts(file, key);
  };
  tools::KeyFilter filter;
  BOOST_TEST(accepts(filter, "", "any.key/at\nall"));
  filter.include = {"*.weight", "rank_0.pt:*"};
  filter.exclude = {"model.*"};
  BOOST_TEST(accepts(filter, "", "a.b/c.weight"));
  BOOST_TEST(accepts(filter, "rank_0.pt", "/0"));
  BOOST_TEST(!accepts(filter, "rank_1.pt", "/0"));
  BOOST_TEST(!accepts(filter, "", "model.weight"));
  BOOST_TEST(filter.text() == "--include '*.weight' --include 'rank_0.pt:*' --exclude 'model.*'");
}

BOOST_AUTO_TEST_SUITE_END()
