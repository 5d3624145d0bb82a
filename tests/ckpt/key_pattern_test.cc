// The language of keys: docs/formats/keys.md.
#include <ckpt/key_pattern.h>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "support/errors.h"

namespace ckpt {
std::ostream& operator<<(std::ostream& out, KeyMatch match) {
  static constexpr const char* kNames[] = {"none", "glob", "spelling", "exact"};
  return out << kNames[static_cast<size_t>(match)];
}
}  // namespace ckpt

namespace {

using ckpt::KeyMatch;

struct PatternRow {
  const char* why;
  std::string typed, file, key;
  KeyMatch match;
};
std::ostream& operator<<(std::ostream& out, const PatternRow& row) { return out << row.why; }

const PatternRow kRows[] = {
    {"as it is stored", "model.0.weight", "", "model.0.weight", KeyMatch::Exact},
    {"a pointer typed with dots", "state_dict.0.weight", "", "/state_dict/0.weight",
     KeyMatch::Spelling},
    {"a key with dots typed as a pointer", "/model/0/weight", "", "model.0.weight",
     KeyMatch::Spelling},
    {"no separator in front", "args/lr", "", "/args/lr", KeyMatch::Spelling},
    {"an attribute without its @", "args.lr", "", "/args/@lr", KeyMatch::Spelling},
    {"an @ that nobody stored", "@args.@lr", "", "args.lr", KeyMatch::Spelling},
    {"an @ inside a step stays", "user@host", "", "userhost", KeyMatch::None},
    {"a slash in a pointer's step", "a/b.w", "", "/a~1b/w", KeyMatch::Spelling},
    {"an object's part, all dots", "rng_state.shard_0.0_1.1", "", "rng_state/shard_0.0_1.1",
     KeyMatch::Spelling},
    {"a separator too few", "modelweight", "", "model.weight", KeyMatch::None},
    {"a front is no match", "model.0", "", "model.0.weight", KeyMatch::None},
    {"case counts", "Model.w", "", "model.w", KeyMatch::None},
    {"what ls prints of a quote", "it\\'s", "", "it's", KeyMatch::Exact},
    {"what ls prints of a bad byte, other separators", "a/\\xff", "", "a.\xff", KeyMatch::Spelling},
    {"what ls prints of a blank in front", "\\x20w", "", " w", KeyMatch::Exact},
    {"a blank in front as it is", " w", "", " w", KeyMatch::Exact},
    {"what ls prints of the root", "(root)", "", "", KeyMatch::Exact},
    {"the root by its pointer", "", "", "", KeyMatch::Exact},
    {"a file in front", "a.pt:/args", "a.pt", "/args", KeyMatch::Exact},
    {"a file in front, other separators", "a.pt:args", "a.pt", "/args", KeyMatch::Spelling},
    {"the file's root", "a.pt:(root)", "a.pt", "", KeyMatch::Exact},
    {"another file", "b.pt:/args", "a.pt", "/args", KeyMatch::None},
    {"a star crosses separators", "*weight", "", "model.0/weight", KeyMatch::Glob},
    {"a glob typed with dots", "model.*.weight", "", "/model/0/weight", KeyMatch::Glob},
    {"a glob typed as a pointer", "/model/*", "", "model.0.weight", KeyMatch::Glob},
    {"a glob with an @ in it", "*@lr", "", "/args/@lr", KeyMatch::Glob},
    {"a glob over files", "*_0.pt:/0/*", "mp_rank_00/x_0.pt", "/0/state", KeyMatch::Glob},
    {"a glob over printed names", "it\\'*", "", "it's", KeyMatch::Glob},
    {"one character of UTF-8", "caf?", "", "caf\xC3\xA9", KeyMatch::Glob},
    {"a set", "layers.[0-2].w", "", "layers.1.w", KeyMatch::Glob},
    {"none of a set", "layers.[!0-2].w", "", "layers.1.w", KeyMatch::None},
    {"none of a set, as shells write it", "layers.[^0-2].w", "", "layers.3.w", KeyMatch::Glob},
    {"a key that is spelled as a glob", "w[0]", "", "w[0]", KeyMatch::Exact},
    {"what it matches as a glob", "w[0]", "", "w0", KeyMatch::Glob},
    {"a bracket that is not closed", "w[0", "", "w[0", KeyMatch::Exact},
    {"a NUL in a key ends nothing", "*b", "", std::string("a\0b", 3), KeyMatch::Glob},
};

// Which of the keys a pattern stands for, where all of them are there.
std::vector<std::string> selected(const std::vector<std::string>& include,
                                  const std::vector<std::string>& exclude,
                                  const std::vector<std::string>& keys) {
  ckpt::KeySelection selection(include, exclude);
  std::vector<ckpt::KeyName> names;
  for (const std::string& key : keys) names.push_back({"", key});
  selection.resolve(names);
  selection.refuse_missing(names);
  std::vector<std::string> accepted;
  for (const std::string& key : keys) {
    if (selection.accepts("", key)) accepted.push_back(key);
  }
  return accepted;
}

using Keys = std::vector<std::string>;

struct RenameRow {
  const char* why;
  std::string from, to, key, renamed;
};
std::ostream& operator<<(std::ostream& out, const RenameRow& row) { return out << row.why; }

const RenameRow kRenames[] = {
    {"a front and its dot", "model", "net", "model.w", "net.w"},
    {"nothing in its place", "model", "", "model.w", "w"},
    {"a dot behind it", "model.", "", "model.w", "w"},
    {"no front of a step", "model", "net", "models.w", "models.w"},
    {"the whole key", "model", "net", "model", "net"},
    {"in front of all", "", "model.", "w", "model.w"},
    {"not inside", "model", "net", "a.model.w", "a.model.w"},
    {"as a pointer", "/model/0", "/net/1", "model.0.w", "net.1.w"},
    {"a slash in the key", "model.0", "net", "model/0/w", "net/w"},
    {"a pointer's slash in a step", "/a~1b/", "", "a/b.w", "w"},
    {"a slash in the new name", "model", "x/y", "model.w", "x/y.w"},
};

}  // namespace

BOOST_AUTO_TEST_SUITE(key_pattern)

BOOST_DATA_TEST_CASE(a_typed_key_names_a_stored_one, kRows) {
  BOOST_TEST(ckpt::KeyPattern(sample.typed).match({sample.file, sample.key}) == sample.match);
}

BOOST_DATA_TEST_CASE(what_is_printed_can_be_pasted, kRows) {
  const std::string printed = ckpt::printed_key(sample.key);
  BOOST_TEST(ckpt::KeyPattern(printed).match({"", sample.key}) == KeyMatch::Exact);
}

BOOST_AUTO_TEST_CASE(the_best_spelling_counts) {
  BOOST_TEST(selected({"a.b"}, {}, {"a.b", "a/b"}) == Keys{"a.b"},
             boost::test_tools::per_element());
  BOOST_TEST(selected({"a.b"}, {}, {"/a.b", "a/b"}).size() == 2u);
  BOOST_TEST(selected({"w[0]"}, {}, {"w0", "w[0]"}) == Keys{"w[0]"},
             boost::test_tools::per_element());
  BOOST_TEST(selected({"w[0]"}, {}, {"w0", "w1"}) == Keys{"w0"}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(exclude_wins_over_include) {
  const Keys keys{"model.w", "model.b", "optimizer.w"};
  BOOST_TEST(selected({"*.w"}, {"/optimizer/*"}, keys) == Keys{"model.w"},
             boost::test_tools::per_element());
  BOOST_TEST(selected({}, {"*b"}, keys).size() == 2u);
  BOOST_TEST(selected({}, {}, keys).size() == 3u);
}

BOOST_AUTO_TEST_CASE(an_included_key_that_is_not_there_is_refused_with_the_nearest) {
  const auto error = test::error_of([] {
    selected({"decoder.layers.0.mlp.linear_fc.weight"}, {},
             {"embedding.weight", "decoder.layers.0.mlp.linear_fc1.weight"});
  });
  BOOST_TEST_REQUIRE(error.has_value());
  BOOST_TEST((error->code() == ckpt::ErrorCode::NotFound));
  BOOST_TEST(error->hint() == "did you mean 'decoder.layers.0.mlp.linear_fc1.weight'?");
}

BOOST_AUTO_TEST_CASE(a_glob_may_match_nothing_and_is_told) {
  ckpt::KeySelection selection({"*.w", "*.x"}, {"y"});
  const std::vector<ckpt::KeyName> names{{"", "a.w"}};
  selection.resolve(names);
  BOOST_TEST(selection.unmatched() == (Keys{"*.x", "y"}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(the_nearest_key_is_one_that_holds_it_or_is_almost_it) {
  const std::vector<ckpt::KeyName> names{{"", "/model/decoder.layers.0.mlp.linear_fc1.weight"},
                                         {"", "embedding.weight"},
                                         {"a.pt", "/args"}};
  const auto nearest = [&](const char* typed) {
    return ckpt::nearest_key(typed, names).value_or("");
  };
  BOOST_TEST(nearest("linear_fc1") == "/model/decoder.layers.0.mlp.linear_fc1.weight");
  BOOST_TEST(nearest("mlp/linear_fc1") == "/model/decoder.layers.0.mlp.linear_fc1.weight");
  BOOST_TEST(nearest("embeding.wieght") == "embedding.weight");
  BOOST_TEST(nearest("/embedding/weigth") == "embedding.weight");
  BOOST_TEST(nearest("a.pt:agrs") == "a.pt:/args");
  BOOST_TEST(nearest("something.else") == "");
  BOOST_TEST(nearest("a.pt:fp8s") == "");  // every letter of the last step is another
  BOOST_TEST(nearest("") == "");
}

BOOST_AUTO_TEST_CASE(of_several_keys_that_hold_it_the_nearest_ends_with_it_and_is_the_shortest) {
  const std::vector<ckpt::KeyName> names{{"", "optimizer.state.exp_avg.mlp.linear_fc1.weight"},
                                         {"", "mlp.linear_fc1.weight_scale"},
                                         {"", "mlp.linear_fc1.weight"}};
  BOOST_TEST(ckpt::nearest_key("linear_fc1.weight", names).value_or("") == "mlp.linear_fc1.weight");
}

BOOST_DATA_TEST_CASE(a_front_is_renamed_where_it_ends_at_a_step, kRenames) {
  const ckpt::KeyRename rename(sample.from, sample.to);
  BOOST_TEST(rename.renamed(sample.key).value_or(sample.key) == sample.renamed);
}

BOOST_AUTO_TEST_CASE(a_front_that_is_spelled_exactly_renames_no_other_spelling) {
  ckpt::KeyRename rename("a.b", "c");
  const std::vector<ckpt::KeyName> names{{"", "a.b.w"}, {"", "a/b.w"}};
  rename.resolve(names);
  BOOST_TEST(rename.renamed("a.b.w").value_or("") == "c.w");
  BOOST_TEST(!rename.renamed("a/b.w").has_value());
}

BOOST_AUTO_TEST_CASE(a_front_of_no_key_is_refused) {
  ckpt::KeyRename rename("modle", "net");
  const std::vector<ckpt::KeyName> names{{"", "model.w"}};
  const auto error = test::error_of([&] { rename.resolve(names); });
  BOOST_TEST_REQUIRE(error.has_value());
  BOOST_TEST((error->code() == ckpt::ErrorCode::NotFound));
}

BOOST_AUTO_TEST_SUITE_END()
