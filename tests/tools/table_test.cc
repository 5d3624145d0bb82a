// Tables on terminals that are too narrow for them.
#include "common/table.h"

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <iostream>
#include <ostream>
#include <sstream>

#include "common/text.h"

namespace {

using tools::Align;
using tools::Screen;

// What a command prints to stdout meanwhile.
class Captured {
 public:
  Captured() : before_(std::cout.rdbuf(text_.rdbuf())) {}
  ~Captured() { std::cout.rdbuf(before_); }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::streambuf* before_;
};

std::string printed(tools::Table table, Screen screen) {
  tools::CommonOptions plain;
  plain.color = tools::ColorMode::Never;
  tools::Console console("tool", plain, screen);
  const Captured captured;
  table.print(console);
  return captured.text();
}

tools::Table listing() {
  tools::Table table({{.title = "KEY", .can_shorten = true},
                      {"SHAPE"},
                      {.title = "CHUNKS", .align = Align::Right, .drop_order = 2},
                      {.title = "WHERE", .drop_order = 1}});
  table.add_row(
      {{"decoder.layers.0.mlp.linear_fc1.weight"}, {"[64, 16]"}, {"2"}, {"__0_0.distcp"}});
  table.add_row({{"rng"}, {"-"}, {"-"}, {"common.pt"}});
  return table;
}

struct WidthRow {
  const char* what;
  Screen screen;
  const char* text;
};
std::ostream& operator<<(std::ostream& out, const WidthRow& row) { return out << row.what; }

const WidthRow kWidths[] = {
    {"no terminal: whole",
     {{}, false},
     "KEY                                     SHAPE     CHUNKS  WHERE\n"
     "decoder.layers.0.mlp.linear_fc1.weight  [64, 16]       2  __0_0.distcp\n"
     "rng                                     -              -  common.pt\n"},
    {"exactly as wide: whole",
     {70, true},
     "KEY                                     SHAPE     CHUNKS  WHERE\n"
     "decoder.layers.0.mlp.linear_fc1.weight  [64, 16]       2  __0_0.distcp\n"
     "rng                                     -              -  common.pt\n"},
    {"the first to go",
     {69, true},
     "KEY                                     SHAPE     CHUNKS\n"
     "decoder.layers.0.mlp.linear_fc1.weight  [64, 16]       2\n"
     "rng                                     -              -\n"},
    {"the second to go",
     {55, true},
     "KEY                                     SHAPE\n"
     "decoder.layers.0.mlp.linear_fc1.weight  [64, 16]\n"
     "rng                                     -\n"},
    {"then keys lose their middle",
     {30, true},
     "KEY                   SHAPE\n"
     "decoder.la\xE2\x80\xA6"
     "c1.weight  [64, 16]\n"
     "rng                   -\n"},
    {"in ASCII",
     {30, false},
     "KEY                   SHAPE\n"
     "decoder.l...1.weight  [64, 16]\n"
     "rng                   -\n"},
    {"what is narrower than the least that is useful drops whole columns",
     {18, true},
     "KEY\n"
     "decoder.l\xE2\x80\xA6"
     "1.weight\n"
     "rng\n"},
};

struct MiddleRow {
  std::string text;
  size_t width;
  std::string shortened;
};
std::ostream& operator<<(std::ostream& out, const MiddleRow& row) { return out << row.text; }

const MiddleRow kMiddles[] = {
    {"abcdef", 6, "abcdef"},
    {"abcdefg", 6, "abc~fg"},
    {"\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9", 3, "\xC3\xA9~\xC3\xA9"},
    {"\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E", 4, "\xE6\x97\xA5~"},  // each takes two columns
    {"a\\x1bc_and_the_rest", 4, "a~st"},                           // never "a\\x~"
    {"a\\x1bc_and_the_rest", 9, "a~he_rest"},
    {"    abcdefg", 8, "    ab~g"},
    {"abcdef", 1, "."},
};

struct WrapRow {
  std::string text;
  std::string lines;
};
std::ostream& operator<<(std::ostream& out, const WrapRow& row) { return out << row.text; }

const WrapRow kWraps[] = {
    {"", ""},
    {"one two", "one two"},
    {"one two three four", "one two\n  three\n  four"},
    {"one a/path/that/is/long two", "one\n  a/path/that/is/long\n  two"},
    {"a/path/that/is/long", "a/path/that/is/long"},
    {"one  two", "one  two"},
    {"\033[31mone\033[0m two", "\033[31mone\033[0m two"},
};

}  // namespace

BOOST_AUTO_TEST_SUITE(table)

BOOST_DATA_TEST_CASE(rows_are_as_wide_as_the_terminal, kWidths) {
  BOOST_TEST(printed(listing(), sample.screen) == sample.text);
}

BOOST_AUTO_TEST_CASE(a_name_that_the_locale_cannot_show_is_escaped_on_a_terminal_alone) {
  tools::Table table({{.title = "KEY", .can_shorten = true}});
  table.add_row({{"caf\xC3\xA9"}});
  BOOST_TEST(printed(table, {80, false}) == "KEY\ncaf\\xc3\\xa9\n");
  BOOST_TEST(printed(table, {{}, false}) == "KEY\ncaf\xC3\xA9\n");
}

BOOST_DATA_TEST_CASE(the_middle_goes_between_whole_characters, kMiddles) {
  BOOST_TEST(tools::shortened_in_middle(sample.text, sample.width, "~") == sample.shortened);
  BOOST_TEST(tools::display_width(sample.shortened) <= std::max<size_t>(sample.width, 1));
}

BOOST_DATA_TEST_CASE(text_breaks_at_blanks, kWraps) {
  BOOST_TEST(tools::wrapped(sample.text, 8) == sample.lines);
}

BOOST_AUTO_TEST_SUITE_END()
