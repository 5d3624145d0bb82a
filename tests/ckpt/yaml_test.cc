// YAML as PyYAML dumps it: values with its types, and what else YAML has is refused by line.
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <ostream>
#include <string>

#include <ckpt/document.h>
#include <ckpt/error.h>
#include <ckpt/files_beside.h>

namespace data = boost::unit_test::data;
using ckpt::Kind;
using ckpt::Value;

namespace {

// As Python's repr has it, nearly.
std::string yaml_shown(const Value& value) {
  std::string text;
  switch (value.kind()) {
    case Kind::None: return "None";
    case Kind::Bool: return value.as_bool() ? "True" : "False";
    case Kind::Int: return std::to_string(value.as_int());
    case Kind::Float: return "f" + std::to_string(value.as_float());
    case Kind::Str: return "'" + std::string(value.text()) + "'";
    case Kind::List:
      for (size_t i = 0; i < value.size(); ++i) text += (i == 0 ? "" : ", ") + yaml_shown(value[i]);
      return "[" + text + "]";
    case Kind::Dict:
      for (size_t i = 0; i < value.item_count(); ++i) {
        const auto [key, item] = value.item(i);
        text += (i == 0 ? "" : ", ") + yaml_shown(key) + ": " + yaml_shown(item);
      }
      return "{" + text + "}";
    default: return ckpt::key_text(value);
  }
}

struct YamlCase {
  const char *text, *value;
};
std::ostream& operator<<(std::ostream& out, const YamlCase& c) { return out << c.text; }

constexpr YamlCase kReadYaml[] = {
    {"", "None"},
    {"a: 1\nb: -2.5\nc: 1.0e-08\n", "{'a': 1, 'b': f-2.500000, 'c': f0.000000}"},
    {"a: null\nb: ~\nc:\nd: ''\n", "{'a': None, 'b': None, 'c': None, 'd': ''}"},
    {"a: true\nb: No\nc: 'true'\n", "{'a': True, 'b': False, 'c': 'true'}"},
    {"a: .inf\nb: -.inf\nc: 1e-8\n", "{'a': finf, 'b': f-inf, 'c': '1e-8'}"},
    {"a: {}\nb: []\n", "{'a': {}, 'b': []}"},
    {"a:\n  b:\n    c: x y\n  d: z\n", "{'a': {'b': {'c': 'x y'}, 'd': 'z'}}"},
    {"a:\n- 1\n- b: 2\n  c: 3\n- - 4\n  - 5\nd: e\n",
     "{'a': [1, {'b': 2, 'c': 3}, [4, 5]], 'd': 'e'}"},
    {"a: one\n  two\n\n  three\nb: c\n", "{'a': 'one two\nthree', 'b': 'c'}"},
    {"a: 'it''s\n  so'\nb: \"x\\ty\\u00e9\\\n  \\ z\"\n",
     "{'a': 'it's so', 'b': 'x\ty\xC3\xA9 z'}"},
    {"a: &id001\n  x: 1\nb: *id001\n", "{'a': {'x': 1}, 'b': {'x': 1}}"},
    {"a: !!python/tuple\n- 1\nb: !!python/object:os.system {}\n",
     "{'a': {'!': '!!python/tuple', '=': [1]}, 'b': {'!': '!!python/object:os.system', '=': {}}}"},
    {"---\n# a comment\na: b # another\n'c: d': e:f\n...\n", "{'a': 'b', 'c: d': 'e:f'}"},
    {"- a\n- -1\n", "['a', -1]"},
    {"'2': x\n3: y\n", "{'2': 'x', 3: 'y'}"},
};

constexpr YamlCase kRefusedYaml[] = {
    {"a: {b: 1}\n", "line 1"},    {"a: 1\nb: [1, 2]\n", "line 2"}, {"a: |\n  text\n", "line 1"},
    {"a: 1\na: 2\n", "line 2"},   {"a: 010\n", "line 1"},          {"a: 1:30\n", "line 1"},
    {"a: 0x1f\n", "line 1"},      {"a: *b\n", "line 1"},           {"a: 'open\n", "line 1"},
    {"a: 1\n  b: 2\n", "line 2"}, {"a:\n\t- 1\n", "line 2"},       {"? a\n: b\n", "line 1"},
    {"a: \"\\q\"\n", "line 1"},   {"a: 1\nb\n", "line 2"},
};

}  // namespace

BOOST_AUTO_TEST_SUITE(yaml)

BOOST_DATA_TEST_CASE(has_the_values_that_pyyaml_gives, data::make(kReadYaml), c) {
  BOOST_TEST(yaml_shown(ckpt::read_yaml(c.text, "file").root()) == c.value);
}

BOOST_DATA_TEST_CASE(refuses_by_line, data::make(kRefusedYaml), c) {
  BOOST_CHECK_EXCEPTION(ckpt::read_yaml(c.text, "file"), ckpt::Error, [&](const ckpt::Error& e) {
    return e.code() == ckpt::ErrorCode::Unsupported && e.where().key == c.value;
  });
}

BOOST_AUTO_TEST_CASE(depth_is_bounded) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "- ";
  BOOST_CHECK_THROW(ckpt::read_yaml(text + "1\n", "file"), ckpt::Error);
}

BOOST_AUTO_TEST_SUITE_END()
