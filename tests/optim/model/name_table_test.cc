#include "huggingface/name_table.h"

#include <ckpt/tensor_stream.h>

#include "huggingface/viewed_tensor.h"
#include "model/expression.h"
#include "optim/expect_error.h"
#include "support/random_tensors.h"

// Tables of names: what their expressions mean, and which elements a view takes.
BOOST_AUTO_TEST_SUITE(name_table)

using ckpt::ErrorCode;
using nlohmann::json;

const json kArgs = json::parse(
    R"({"a": 7, "b": 2, "none": null, "name": "rope", "list": [0, 1, 1], "no": false, "r": 1.5})");

json value_of(const std::string& text) {
  return optim::evaluate(text, [](const std::string& name) { return kArgs.value(name, json()); });
}

BOOST_AUTO_TEST_CASE(expressions_have_the_values_that_python_gives_them) {
  const std::pair<const char*, const char*> rows[] = {
      {"1 + 2 * 3", "7"},
      {"a // b - 1", "2"},
      {"a % b", "1"},
      {"(a + 1) // b", "4"},
      {"not no", "true"},
      {"not not a", "true"},
      {"a == 7 and b != 2 or name", "\"rope\""},
      {"none or 0 or list", "[0,1,1]"},
      {"r < 2 and r >= 1.5", "true"},
      {"a == 7.0", "true"},
      {"1 if none else 2 if no else 3", "3"},
      {"(a if b else 1 // 0)", "7"},
      {"none == None or none[3] > 2", "true"},
      {"'op' in name", "true"},
      {"name not in ['rope', 'yarn']", "false"},
      {"list[1] + list[0]", "1"},
      {"{'type': name, 'factor': 8.0}", R"({"type":"rope","factor":8.0})"},
      {"first(none, nothing, b, a)", "2"},
      {"first(none)", "null"},
      {"frequency(2, 5)", "[1,0,1,0,1]"},
      {"frequency(list, 3)", "[0,1,1]"},
      {"window_layers(2, 3)", "[1,0,1]"},
      {"window_layers(none, 2)", "[1,1]"},
      {"where(list, 1)", "[1,2]"},
      {"leading(list)", "1"},
      {"leading([1, 0])", "null"},
      {"leading([])", "0"},
      {"pick(list, 'x', 'y')", R"(["y","x","x"])"},
      {"letters('M*|-')", R"(["M","*","-"])"},
      {"named(['a', 'x', 1], {'a': 7})", "[7,null,null]"},
      {"True", "true"},
  };
  for (const auto& [text, expected] : rows) {
    BOOST_TEST_CONTEXT(text) { BOOST_TEST(value_of(text) == json::parse(expected)); }
  }
}

BOOST_AUTO_TEST_CASE(what_is_not_an_expression_or_has_no_value_is_refused) {
  const std::pair<const char*, ErrorCode> rows[] = {
      {"", ErrorCode::Corrupt},
      {"1 +", ErrorCode::Corrupt},
      {"a b", ErrorCode::Corrupt},
      {"a == b == 1", ErrorCode::Corrupt},
      {"(a", ErrorCode::Corrupt},
      {"'open", ErrorCode::Corrupt},
      {"a if b", ErrorCode::Corrupt},
      {"a not b", ErrorCode::Corrupt},
      {"{a: 1}", ErrorCode::Corrupt},
      {"1.2.3", ErrorCode::Corrupt},
      {"a.__class__", ErrorCode::Corrupt},
      {"none + 1", ErrorCode::Unsupported},
      {"a // 0", ErrorCode::Unsupported},
      {"9223372036854775807 + 1", ErrorCode::Unsupported},
      {"list[3]", ErrorCode::Unsupported},
      {"a in none", ErrorCode::Unsupported},
      {"name < 3", ErrorCode::Unsupported},
      {"open('file')", ErrorCode::Unsupported},
      {"frequency(0, 2)", ErrorCode::Unsupported},
      {"frequency(1, 2000000000)", ErrorCode::Unsupported},
      {"frequency(list, 2)", ErrorCode::Unsupported},
  };
  for (const auto& [text, code] : rows) {
    expect_error(code, text, [&] { value_of(text); });
  }
  const std::string deep = std::string(100000, '(') + "1";
  expect_error(ErrorCode::Corrupt, deep, [&] { value_of(deep); });
}

BOOST_AUTO_TEST_CASE(every_table_of_the_program_is_read) {
  const std::vector<std::string> expected = {
      "deepseek_v3", "gemma3_text", "glm4_moe", "gpt_oss", "llama",     "mistral",
      "mixtral",     "nemotron_h",  "qwen2",    "qwen3",   "qwen3_moe", "qwen3_next"};
  BOOST_TEST(optim::known_tables() == expected, boost::test_tools::per_element());
  for (const std::string& name : expected) {
    const optim::NameTable table = optim::find_table(name);
    BOOST_TEST(table.model_type == name);
    BOOST_TEST(table.tensors.size() > 10);
  }
  expect_error(ErrorCode::Unsupported, "", [] { optim::find_table("gpt2"); });
}

// A tensor of 4-byte elements that count from 0, in chunks cut along its rows or columns.
struct Numbered {
  test::MemoryPayloads payloads;
  std::shared_ptr<ckpt::TensorEntry> entry = std::make_shared<ckpt::TensorEntry>();

  Numbered(const ckpt::Extents& shape, size_t dim, std::initializer_list<uint64_t> cuts) {
    entry->key = "tensor";
    entry->shape = shape;
    uint64_t first = 0;
    std::string content;
    for (int32_t i = 0; i < static_cast<int32_t>(ckpt::element_count(shape)); ++i) {
      content.append(reinterpret_cast<const char*>(&i), sizeof i);
    }
    for (const uint64_t end : cuts) {
      ckpt::Box box = ckpt::whole(shape);
      box.offsets[dim] = first;
      box.sizes[dim] = end - first;
      entry->chunks.push_back(
          {box, payloads.add_storage(test::cut_box(content, shape, box, sizeof(int32_t)))});
      first = end;
    }
  }
};

std::vector<int32_t> numbers_of(const ckpt::TensorEntry& entry, const Numbered& source) {
  std::vector<int32_t> numbers(ckpt::element_count(entry.shape));
  ckpt::TensorStream(entry, source.payloads).read(std::as_writable_bytes(std::span(numbers)));
  return numbers;
}

struct ViewCase {
  const char *view, *as;
  std::map<std::string, std::string> slice;
  ckpt::Extents shape;  // of the target
  std::vector<int32_t> numbers;
  std::string rows = {};
};

// Axes g = 2, p = 3, d = 1, h = 2 of a tensor of shape [6, 2].
BOOST_AUTO_TEST_CASE(a_view_takes_the_elements_that_its_axes_name_however_chunks_are_cut) {
  const ViewCase cases[] = {
      {"(g p) h", "(g p) h", {}, {6, 2}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}},
      {"(g p) h", "(g p) h", {{"p", "0:2"}}, {4, 2}, {0, 1, 2, 3, 6, 7, 8, 9}},
      {"(g p) h", "(g p) h", {{"p", "2:3"}}, {2, 2}, {4, 5, 10, 11}},
      {"(g p) h", "h (g p)", {}, {2, 6}, {0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11}},
      {"(g p) h", "(p g) h", {}, {6, 2}, {0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11}},
      {"(p g) h", "(g p) h", {}, {6, 2}, {0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11}},
      {"(g p d) h", "g (h p d)", {{"g", "1:2"}}, {1, 6}, {6, 8, 10, 7, 9, 11}},
      {"rows h", "rows h", {{"rows", "0:p + 2"}}, {5, 2}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}},
      {"p h", "p h", {}, {3, 2}, {4, 5, 6, 7, 8, 9}, "2:p + 2:rows"},
      {"(g d) h", "h (g d)", {}, {2, 2}, {2, 4, 3, 5}, "1:3:6"},
  };
  const optim::NameTable table{
      "test", "Test", "test", {{"g", "2"}, {"p", "3"}, {"d", "1"}, {"h", "2"}, {"rows", "6"}},
      {},     {},     {}};
  const optim::NameScope scope(table, json::object(), json::object());
  for (const size_t dim : {0, 1}) {
    const Numbered source = dim == 0 ? Numbered({6, 2}, 0, {1, 4, 6}) : Numbered({6, 2}, 1, {1, 2});
    for (const ViewCase& one : cases) {
      BOOST_TEST_CONTEXT(one.view << " as " << one.as << ", cut along " << dim) {
        const optim::TensorRow row{
            "target", "True", {}, {{{"tensor"}, one.view, one.as, one.slice, one.rows}}};
        const auto made = optim::view_tensor(row, scope, {{source.entry}});
        BOOST_TEST((made.shape == one.shape));
        BOOST_TEST(numbers_of(*made.entry, source) == one.numbers,
                   boost::test_tools::per_element());
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(parts_are_stacked_and_other_shapes_and_axes_are_refused) {
  const optim::NameTable table{"test", "Test", "test", {{"a", "2"}, {"b", "2"}, {"c", "3"}},
                               {},     {},     {}};
  const optim::NameScope scope(table, json::object(), json::object());
  const Numbered source({2, 2}, 0, {1, 2});
  const optim::TensorRow stacked{"target", "True", {}, {{{"tensor"}, "a b", "experts b a"}}};
  const auto made = optim::view_tensor(stacked, scope, {{source.entry, 0}, {source.entry, 1}});
  BOOST_TEST((made.shape == ckpt::Extents{2, 2, 2}));
  BOOST_TEST(numbers_of(*made.entry, source) == (std::vector<int32_t>{0, 2, 1, 3, 0, 2, 1, 3}),
             boost::test_tools::per_element());
  const auto view = [&](const char* axes, const char* as,
                        std::map<std::string, std::string> slice) {
    optim::view_tensor({"target", "True", {}, {{{"tensor"}, axes, as, std::move(slice)}}}, scope,
                       {{source.entry}});
  };
  expect_error(ErrorCode::Unsupported, "tensor", [&] { view("a c", "a c", {}); });
  expect_error(ErrorCode::Unsupported, "tensor", [&] { view("(a b)", "(a b)", {}); });
  expect_error(ErrorCode::Unsupported, "target", [&] { view("a b", "a b", {{"b", "1:3"}}); });
  expect_error(ErrorCode::Unsupported, "nothing", [&] { view("a nothing", "a nothing", {}); });
  for (const char* const as : {"a", "a a", "a c", "", "(a b", "a b)", "((a b))"}) {
    expect_error(ErrorCode::Corrupt, "target", [&] { view("a b", as, {}); });
  }
  expect_error(ErrorCode::Corrupt, "target", [&] { view("a b", "a b", {{"c", "0:1"}}); });
  expect_error(ErrorCode::Corrupt, "target", [&] { view("a b", "a b", {{"b", "1"}}); });
}

// Segments of unequal size, each dealt to two heads, and what does not fit together.
BOOST_AUTO_TEST_CASE(parts_follow_each_other_along_the_marked_axis) {
  const optim::NameTable table{
      "test", "Test", "test", {{"g", "2"}, {"d", "1"}, {"w", "2"}, {"columns", "2"}}, {}, {}, {}};
  const optim::NameScope scope(table, json::object(), json::object());
  using Part = optim::RowPart;
  const auto joined = [&](const Numbered& source, const Part& first, const Part& second) {
    return optim::view_tensor({"target", "True", {}, {first, second}}, scope,
                              {{source.entry, 0, 0}, {source.entry, 0, 1}});
  };
  const auto part = [](const char* view, const char* as, const char* rows) {
    return Part{{"tensor"}, view, as, {}, rows};
  };
  const Part narrow = part("(g d) w", "(g d+) w", "0:2:6");
  for (const size_t dim : {0, 1}) {
    const Numbered source = dim == 0 ? Numbered({6, 2}, 0, {1, 4, 6}) : Numbered({6, 2}, 1, {1, 2});
    const auto unequal = joined(source, narrow, part("(g w) columns", "(g w+) columns", "2:6:6"));
    BOOST_TEST((unequal.shape == ckpt::Extents{6, 2}));
    BOOST_TEST(numbers_of(*unequal.entry, source) ==
                   (std::vector<int32_t>{0, 1, 4, 5, 6, 7, 2, 3, 8, 9, 10, 11}),
               boost::test_tools::per_element());
    const auto counted = joined(source, part("(g d) w", "(g + d) w", "0:2:6"),
                                part("(g d) w", "(g + d) w", "4:6:6"));
    BOOST_TEST(
        numbers_of(*counted.entry, source) == (std::vector<int32_t>{0, 1, 8, 9, 2, 3, 10, 11}),
        boost::test_tools::per_element());
    expect_error(ErrorCode::Corrupt, "target",
                 [&] { joined(source, narrow, part("g w", "g w", "0:2:6")); });
    expect_error(ErrorCode::Corrupt, "target",
                 [&] { joined(source, narrow, part("(g d) w", "(g+ d+) w", "0:2:6")); });
    expect_error(ErrorCode::Unsupported, "tensor",
                 [&] { joined(source, narrow, part("(g d) w", "(g d+) w", "0:2:7")); });
    expect_error(ErrorCode::Unsupported, "target",
                 [&] { joined(source, narrow, part("(g d) w", "(g d+) w", "0:3:6")); });
  }
}

BOOST_AUTO_TEST_SUITE_END()
