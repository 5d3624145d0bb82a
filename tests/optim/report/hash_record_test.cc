// Recorded hashes: read back, put together from shares, compared.
#include <training/hash_record.h>

#include <boost/test/unit_test.hpp>

#include "support/errors.h"

namespace {

using optim::RecordDifference;

constexpr ckpt::Share kWhole = {};

ckpt::Sha256 hash_of(uint8_t byte) {
  ckpt::Sha256 hash;
  hash.bytes.fill(byte);
  return hash;
}

// A tensor in a file, and an object with a tensor in it.
ckpt::Hashes some_hashes() {
  ckpt::Hashes hashes;
  hashes.tensors.push_back({"a.pt", "w", ckpt::DType::BFloat16, {2, 16}, hash_of(1)});
  hashes.objects.push_back({"", "state", hash_of(2), {}});
  hashes.objects[0].tensors.push_back({"", "/0", ckpt::DType::Float32, {}, hash_of(3)});
  hashes.digest = digest_of(hashes);
  return hashes;
}

// What `ckpt-inspect hash` prints of these lines.
std::string text_of(const ckpt::Hashes& hashes) {
  std::string text = "SHA-256  DTYPE  SHAPE  KEY\n";
  for (const optim::HashLine& line : optim::lines_of(hashes)) {
    if (!line.is_own) continue;
    text += hex(*line.sha256) + "  " + line.dtype + "  " + line.shape + "  " + line.name + "\n";
  }
  return text + hex(hashes.digest) + "  digest of 1 tensor and 1 object\n";
}

ckpt::Hashes without_hashes(ckpt::Hashes hashes) {
  hashes.digest = hashes.tensors[0].sha256 = hashes.objects[0].sha256 = {};
  hashes.objects[0].tensors[0].sha256 = {};
  return hashes;
}

template <class Call>
void check_error(Call call, std::string_view problem) {
  const auto error = test::error_of(call);
  BOOST_REQUIRE(error.has_value());
  BOOST_TEST((error->code() == ckpt::ErrorCode::Corrupt));
  BOOST_TEST(test::contains(error->problem(), std::string(problem)));
}

optim::HashRecord entries(std::vector<std::pair<std::string, std::string>> list) {
  optim::HashRecord record;
  record.entries.insert(list.begin(), list.end());
  return record;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(hash_record)

BOOST_AUTO_TEST_CASE(lines_are_tensors_then_objects_with_what_is_in_them) {
  const ckpt::Hashes hashes = some_hashes();
  const auto lines = optim::lines_of(hashes);
  BOOST_REQUIRE(lines.size() == 3u);
  BOOST_TEST(lines[0].name == "a.pt:w");
  BOOST_TEST(lines[0].dtype == "bfloat16");
  BOOST_TEST(lines[0].shape == "[2, 16]");
  BOOST_TEST(lines[1].name == "state");
  BOOST_TEST(lines[1].dtype == "object");
  BOOST_TEST(lines[2].name == "state /0");
  BOOST_TEST(lines[2].shape == "[]");
}

BOOST_AUTO_TEST_CASE(text_is_read_back) {
  const ckpt::Hashes hashes = some_hashes();
  const optim::HashRecord read = optim::parse_hash_record(text_of(hashes));
  BOOST_TEST((read.entries == optim::record_of(hashes).entries));
  BOOST_TEST(read.digest == hex(hashes.digest));
  BOOST_TEST(read.selection == "");
}

BOOST_AUTO_TEST_CASE(json_is_read_back) {
  const ckpt::Hashes hashes = some_hashes();
  const auto quoted = [](const ckpt::Sha256& hash) { return "\"" + hex(hash) + "\""; };
  const std::string json =
      R"({"tensors": [{"file": "a.pt", "key": "w", "dtype": "bfloat16", )"
      R"("shape": [2, 16], "sha256": )" +
      quoted(hash_of(1)) + R"(}], "objects": [{"key": "state", "sha256": )" + quoted(hash_of(2)) +
      R"(, "tensors": [{"key": "/0", "dtype": "float32", "shape": [], "sha256": )" +
      quoted(hash_of(3)) + R"(}]}], "selection": "--include 'w'", "digest": )" +
      quoted(hashes.digest) + "}";
  const optim::HashRecord read = optim::parse_hash_record(json);
  BOOST_TEST((read.entries == optim::record_of(hashes).entries));
  BOOST_TEST(read.digest == hex(hashes.digest));
  BOOST_TEST(read.selection == "--include 'w'");
}

BOOST_AUTO_TEST_CASE(a_digest_alone_and_its_selection_are_a_record) {
  const std::string digest = hex(hash_of(7));
  BOOST_TEST(optim::parse_hash_record(digest + "\n").digest == digest);
  BOOST_TEST(optim::parse_hash_record(digest + "  digest of 1 tensor and 0 objects, selected by "
                                               "--include 'w'\n")
                 .selection == "--include 'w'");
}

BOOST_AUTO_TEST_CASE(names_of_older_outputs_are_read_as_they_are_written_now) {
  const std::string line = hex(hash_of(1)) + "  int64  -  it\\x27s \\x22a\\x5cb\\\\x27\n";
  const auto record = optim::parse_hash_record(line);
  BOOST_REQUIRE(record.entries.size() == 1u);
  BOOST_TEST(record.entries.begin()->first == "it\\'s \\\"a\\\\b\\\\x27");
}

BOOST_AUTO_TEST_CASE(what_is_no_output_is_refused_as_a_whole) {
  for (const char* text : {"", "{", "[1]", "not hashes\n", "{\"digest\": 3}"}) {
    const auto record = optim::parse_hash_record(text);
    BOOST_TEST(record.entries.empty());
    check_error([&] { optim::require_whole(record, "f"); }, "holds no digest of the whole");
  }
}

BOOST_AUTO_TEST_CASE(shares_are_put_together_to_the_digest_of_the_whole) {
  const ckpt::Hashes hashes = some_hashes();
  ckpt::Hashes first = hashes, second = hashes;
  first.objects[0].is_own = first.objects[0].tensors[0].is_own = false;
  second.tensors[0].is_own = false;
  ckpt::Hashes filled = without_hashes(hashes);
  optim::fill(filled, {optim::record_of(first), optim::record_of(second)});
  BOOST_TEST((filled.digest == hashes.digest));

  ckpt::Hashes again = without_hashes(hashes);
  check_error([&] { optim::fill(again, {optim::record_of(first)}); }, "is in none of the outputs");
  again = without_hashes(hashes);
  check_error(
      [&] {
        optim::fill(again, {optim::record_of(hashes), optim::record_of(second)});
      },
      "more often than in the checkpoint");
  again = without_hashes(hashes);
  again.tensors[0].shape = {16, 2};
  check_error([&] { optim::fill(again, {optim::record_of(hashes)}); },
              "is something else in the outputs");
}

BOOST_AUTO_TEST_CASE(a_share_is_compared_with_its_part_and_the_first_with_what_is_gone) {
  ckpt::Hashes hashes = some_hashes();
  hashes.tensors[0].is_own = false;
  const auto recorded = entries({{"a.pt:w", "1"}, {"state", "2"}, {"state /0", "3"}, {"old", "4"}});
  const auto names = [](const optim::HashRecord& record) {
    std::string text;
    for (const auto& [name, entry] : record.entries) text += name + ";";
    return text;
  };
  BOOST_TEST(names(optim::part_of(recorded, hashes, {0, 2})) == "old;state;state /0;");
  BOOST_TEST(names(optim::part_of(recorded, hashes, {1, 2})) == "state;state /0;");
}

BOOST_AUTO_TEST_CASE(differences_are_changed_missing_and_new) {
  auto found =
      entries({{"same", "1"}, {"other", "2"}, {"twice", "3"}, {"twice", "4"}, {"new", "5"}});
  auto recorded =
      entries({{"same", "1"}, {"other", "9"}, {"twice", "4"}, {"twice", "3"}, {"gone", "6"}});
  found.digest = "a";
  recorded.digest = "b";
  const auto result = optim::compare_records(found, recorded, kWhole);
  BOOST_TEST(!result.is_equal);
  BOOST_TEST(result.compared_count == 5u);
  const std::map<std::string, RecordDifference> expected = {{"other", RecordDifference::Changed},
                                                            {"gone", RecordDifference::Missing},
                                                            {"new", RecordDifference::New}};
  BOOST_TEST((result.different == expected));
}

BOOST_AUTO_TEST_CASE(rows_decide_beside_the_digest) {
  optim::HashRecord found = entries({{"w", "1"}, {"x", "2"}}), recorded = entries({{"w", "1"}});
  found.digest = recorded.digest = "a";
  BOOST_TEST(!optim::compare_records(found, recorded, kWhole).is_equal);
  recorded.entries.emplace("x", "2");
  BOOST_TEST(optim::compare_records(found, recorded, kWhole).is_equal);
  recorded.digest = "b";
  BOOST_TEST(!optim::compare_records(found, recorded, kWhole).is_equal);
}

BOOST_AUTO_TEST_CASE(a_record_that_contradicts_itself_is_refused) {
  const ckpt::Hashes hashes = some_hashes();
  const std::string text = text_of(hashes);
  optim::check_hash_record(text, hashes, "f");
  const auto line = [&](size_t number) {
    size_t begin = 0;
    for (size_t i = 1; i < number; ++i) begin = text.find('\n', begin) + 1;
    return text.substr(begin, text.find('\n', begin) + 1 - begin);
  };
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string other = text;
    return other.replace(other.find(from), from.size(), to);
  };
  const std::pair<std::string, std::string> rows[] = {
      {text + text, "line 10: a second digest"},
      {replaced(line(2), ""), "line 4: the digest is"},
      {replaced(line(2), line(2) + line(2)), "line 3: the row of 'a.pt:w' is there twice"},
      {replaced(line(4), line(4) + line(4)), "line 5: the row of 'state /0' is there twice"},
      {replaced("bfloat16", "int8"), "line 5: the digest is"},
      {replaced("bfloat16", "bfloat17"), "line 2: 'bfloat17' is not a type"},
      {replaced("[2, 16]", "[16, 2]"), "line 5: the digest is"},
      {replaced("[2, 16]", "[2,16]"), "line 2: '[2,16]' is not the shape"},
      {replaced(":w", ":v"), "line 5: the digest is"},
  };
  for (const auto& [record, problem] : rows) {
    check_error([&] { optim::check_hash_record(record, hashes, "f"); }, problem);
  }
}

BOOST_AUTO_TEST_CASE(names_that_may_mean_several_things_contradict_nothing) {
  ckpt::Hashes other = some_hashes();
  other.tensors[0].file = "other.pt";  // or a key without a file
  other.digest = digest_of(other);
  optim::check_hash_record(text_of(other), some_hashes(), "f");
  ckpt::Hashes alike = some_hashes();  // FILE:KEY, and a key that is written alike
  alike.tensors.insert(alike.tensors.begin(), {"", "a.pt:w", ckpt::DType::Int8, {}, hash_of(4)});
  alike.digest = digest_of(alike);
  optim::check_hash_record(text_of(alike), alike, "f");
}

BOOST_AUTO_TEST_CASE(a_digest_alone_says_only_whether_all_is_equal) {
  optim::HashRecord found = entries({{"w", "1"}}), recorded;
  found.digest = recorded.digest = "a";
  BOOST_TEST(optim::compare_records(found, recorded, kWhole).is_equal);
  recorded.digest = "b";
  const auto result = optim::compare_records(found, recorded, kWhole);
  BOOST_TEST(!result.is_equal);
  BOOST_TEST(result.different.empty());
}

BOOST_AUTO_TEST_SUITE_END()
