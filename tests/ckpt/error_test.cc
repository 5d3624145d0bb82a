#include <ckpt/error.h>

#include <boost/test/unit_test.hpp>

using ckpt::Error;
using ckpt::ErrorCode;
using ckpt::escaped;

BOOST_AUTO_TEST_SUITE(error)

BOOST_AUTO_TEST_CASE(what_is_one_line_of_file_offset_key_and_problem) {
  const Error error(ErrorCode::Corrupt, {"__0_0.distcp", 1048576, "a.weight"}, "is damaged");
  BOOST_TEST(error.what() == "__0_0.distcp @1048576 'a.weight': is damaged");
  BOOST_TEST((error.code() == ErrorCode::Corrupt));
}

BOOST_AUTO_TEST_CASE(what_leaves_out_what_is_not_known) {
  BOOST_TEST(Error(ErrorCode::NotFound, {}, "is missing").what() == "is missing");
  BOOST_TEST(Error(ErrorCode::NotFound, {"f"}, "is missing").what() == "f: is missing");
  BOOST_TEST(Error(ErrorCode::Corrupt, {.file = {}, .key = "k"}, "odd").what() == "'k': odd");
  BOOST_TEST(Error(ErrorCode::Corrupt, {.file = {}, .offset_bytes = 0}, "odd").what() == "@0: odd");
}

BOOST_AUTO_TEST_CASE(a_problem_never_spills_onto_a_second_line) {
  BOOST_TEST(Error(ErrorCode::Corrupt, {"a\nb"}, "x\ny 'z'").what() == "a\\x0ab: x\\x0ay 'z'");
}

BOOST_AUTO_TEST_CASE(an_outer_layer_adds_what_is_unknown_and_overwrites_nothing) {
  Error error(ErrorCode::Corrupt, {.file = {}, .offset_bytes = 7}, "odd");
  error.within({.file = "outer", .offset_bytes = 9, .key = "key"});
  BOOST_TEST(error.what() == "outer @7 'key': odd");
  error.within({.file = "further out", .key = "other"});
  BOOST_TEST(error.what() == "outer @7 'key': odd");
}

BOOST_AUTO_TEST_CASE(an_outer_offset_is_not_mixed_with_an_inner_file) {
  Error error(ErrorCode::Corrupt, {"inner"}, "odd");
  error.within({.file = "outer", .offset_bytes = 9});
  BOOST_TEST(error.what() == "inner: odd");
}

BOOST_AUTO_TEST_CASE(escaping_keeps_printable_text_and_nothing_that_a_terminal_obeys) {
  const std::pair<std::string, std::string> cases[] = {
      {"decoder.layers.0", "decoder.layers.0"},
      {"\xc3\xa4\xe5\xad\x97\xf0\x9f\x98\x80", "\xc3\xa4\xe5\xad\x97\xf0\x9f\x98\x80"},
      {"a\nb\tc", "a\\x0ab\\x09c"},
      {"\x1b[31m", "\\x1b[31m"},
      {"it's \"here\"", "it\\'s \\\"here\\\""},
      {"\\x27", "\\\\x27"},  // a name that looks escaped is not taken for one that was
      {std::string("\0", 1), "\\x00"},
      {"\x7f", "\\x7f"},
      {"\xc2\x9b", "\\x9b"},                         // C1 control
      {"\xe2\x80\xae", "\\u202e"},                   // right-to-left override
      {"\xef\xbb\xbf", "\\ufeff"},                   // byte order mark
      {"\xff", "\\xff"},                             // no UTF-8
      {"\xc0\xaf", "\\xc0\\xaf"},                    // overlong
      {"\xed\xa0\x80", "\\xed\\xa0\\x80"},           // surrogate
      {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},  // beyond U+10FFFF
      {"\xe5\xad", "\\xe5\\xad"},                    // cut
  };
  for (const auto& [name, expected] : cases) BOOST_TEST(escaped(name) == expected);
}

BOOST_AUTO_TEST_CASE(a_hint_is_given_to_an_error_that_has_none) {
  Error error(ErrorCode::Unsupported, {}, "is not read");
  BOOST_TEST(error.hinted("first").hint() == "first");
  BOOST_TEST(error.hinted("second").hint() == "first");
}

BOOST_AUTO_TEST_SUITE_END()
