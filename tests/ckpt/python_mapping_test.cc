// Mappings as Python makes them of what a pickle says.
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <ckpt/document.h>

#include "codec/pickle.h"
#include "format/values/nesting.h"
#include "support/errors.h"
#include "support/memory_payloads.h"

namespace data = boost::unit_test::data;
using namespace std::string_literals;

namespace {

const std::string kOrdered = "ccollections\nOrderedDict\n";
const std::string kDefault = "ccollections\ndefaultdict\n";
const std::string kCounter = "ccollections\nCounter\n";
const std::string kDict = "cbuiltins\ndict\n";
const std::string kPair = "(K\x01K\x02t";  // (1, 2)
const std::string kItem = "K\x03K\x04s";   // [3] = 4
const std::string kOne = "}K\x01K\x02s";   // {1: 2}

ckpt::ValueTree read_dict(const std::string& body) {
  const std::string bytes = "\x80\x02" + body + ".";
  ckpt::ByteReader reader(test::bytes_of(bytes));
  return ckpt::pickle::read(reader);
}

// "1:2 3:4", keys and values of the mapping at the root.
std::string pairs_of(const std::string& body) {
  const ckpt::ValueTree tree = read_dict(body);
  const auto mapping = ckpt::as_mapping(tree.root());
  if (!mapping) return "no mapping";
  std::string text;
  for (const auto& [key, value] : ckpt::items_of(*mapping)) {
    text += (text.empty() ? "" : " ") + key_text(key) + ":" + key_text(value);
  }
  return text;
}

struct MappingRow {
  const char* name;
  std::string body, expected;
};
std::ostream& operator<<(std::ostream& out, const MappingRow& row) { return out << row.name; }

const MappingRow kMade[] = {
    {"dict of pairs", kDict + "(](" + kPair + "etR", "1:2"},
    {"dict of a dict", kDict + "(" + kOne + "tR" + kItem, "1:2 3:4"},
    {"dict made new", kDict + ")\x81" + kItem, "3:4"},
    {"OrderedDict of pairs, then items", kOrdered + "(](" + kPair + "etR" + kItem, "1:2 3:4"},
    {"OrderedDict of a tuple of pairs", kOrdered + "((" + kPair + "ttR", "1:2"},
    {"OrderedDict of an OrderedDict", kOrdered + "(" + kOrdered + ")R" + kItem + "tR", "3:4"},
    {"defaultdict of a mapping", kDefault + "(N" + kOne + "tR" + kItem, "1:2 3:4"},
    {"defaultdict of a factory", kDefault + "(Ncbuiltins\nlist\n0tR", ""},
    {"Counter of a mapping, then items", kCounter + "(" + kOne + "tR" + kItem, "1:2 3:4"},
    {"Counter of nothing, then items", kCounter + ")R" + kItem, "3:4"},
    {"Counter of a Counter", kCounter + "(" + kCounter + "(" + kOne + "tRtR", "1:2"},
    {"a copy is no alias", kOne + "q\x01" + "0" + kOrdered + "(h\x01tRh\x01" + kItem + "0", "1:2"},
    {"INST calls as well", "(" + kOne + "icollections\nOrderedDict\n", "1:2"},
    {"OBJ calls as well", "(" + kOrdered + kOne + "o", "1:2"},
    {"the last value of equal keys", "}K\x01K\x05s\x88K\x06sG\x3f\xf0\0\0\0\0\0\0K\x07s"s, "1:7"},
    {"zeros are equal", "}G\x80\0\0\0\0\0\0\0K\x05s\x89K\x06s"s, "-0.0:6"},
    {"in an OrderedDict, too", kOrdered + ")RK\x01K\x05sK\x02K\x05sK\x01K\x06s", "1:6 2:5"},
    {"numbers beyond 64 bits", "}\x8a\x09\0\0\0\0\0\0\0\0\x01K\x05sG\x43\xf0\0\0\0\0\0\0K\x06s"s,
     "18446744073709551616:6"},
    {"text is no number",
     "}K\x01K\x05sU\x01"
     "1K\x06s",
     "1:5 1:6"},
    {"tuples by their elements", "}(K\x01\x89tK\x05s(\x88K\x00tK\x06s"s, "(1, False):6"},
    {"NaN equals itself alone",
     "}G\x7f\xf8\0\0\0\0\0\0q\x01K\x05sG\x7f\xf8\0\0\0\0\0\0K\x06sh\x01K\x07s"s, "nan:7 nan:6"},
};

const MappingRow kRefused[] = {
    {"three in a pair", kDict + "((K\x01K\x02K\x03ttR", "dict is called with a sequence"},
    {"two arguments", kOrdered + "(" + kOne + kOne + "tR", "too many arguments"},
    {"no factory", kDefault + "(" + kOne + "tR", "neither a callable nor None"},
    {"elements counted",
     kCounter + "(](K\x01"
                "etR",
     "something other than a mapping"},
    {"NEWOBJ with arguments", kOrdered + "(" + kOne + "t\x81", "which Python ignores"},
    {"NEWOBJ_EX with arguments", kOrdered + ")" + kOne + "\x92", "which Python ignores"},
    {"appended elements",
     kOrdered + ")RK\x01"
                "a",
     "elements to a mapping"},
    {"added elements", kOrdered + ")R(K\x01\x90", "elements to a mapping"},
    {"a state that is no dict",
     kOrdered + ")RK\x01"
                "b",
     "attributes are not given as a dict"},
    {"a list inside a key",
     "}(](K\x01"
     "etK\x01s",
     "a key that Python cannot hash"},
    {"a mapping as a key", "}" + kOrdered + ")RK\x01s", "a key that Python cannot hash"},
};

}  // namespace

BOOST_AUTO_TEST_SUITE(python_mapping)

BOOST_DATA_TEST_CASE(pairs_are_those_that_python_has, data::make(kMade), row) {
  BOOST_TEST(pairs_of(row.body) == row.expected);
}

BOOST_DATA_TEST_CASE(what_python_cannot_make_or_would_change_is_refused, data::make(kRefused),
                     row) {
  BOOST_CHECK_EXCEPTION(read_dict(row.body), ckpt::Error, [&](const ckpt::Error& error) {
    return error.problem().find(row.expected) != std::string::npos;
  });
}

// 2^64 numbers by sharing, 10^5 levels: neither costs time or stack.
BOOST_AUTO_TEST_CASE(keys_that_cannot_be_looked_into_are_equal_to_themselves) {
  std::string shared = "K\x01", deep = "K\x01";
  for (int i = 0; i < 64; ++i) shared += "q\x01h\x01\x86";
  for (int i = 0; i < 100'000; ++i) deep += "\x85";
  for (const std::string& key : {shared, deep}) {
    const ckpt::ValueTree tree = read_dict("}" + key + "q\x02K\x05sh\x02K\x06s" + key + "K\x07s");
    BOOST_TEST(tree.root().item_count() == 2U);
    BOOST_TEST(tree.root().item(0).second.as_int() == 6);
  }
}

BOOST_AUTO_TEST_SUITE_END()
