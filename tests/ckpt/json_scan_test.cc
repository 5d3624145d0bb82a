// JSON as Python writes it, told from what was cut off and from what is none.
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <ostream>
#include <string>

#include "codec/strict_json.h"

namespace data = boost::unit_test::data;
using ckpt::JsonFault;

namespace {

struct ScanCase {
  const char* text;
  JsonFault fault;
  uint64_t offset_bytes;
};
std::ostream& operator<<(std::ostream& out, const ScanCase& c) { return out << c.text; }

constexpr ScanCase kCases[] = {
    {R"({"a": [1, -2.5e+3, NaN, -Infinity, true, null], "b": {}})", JsonFault::None, 56},
    {"\xEF\xBB\xBF[]\n", JsonFault::None, 6},
    {R"("a\"b")", JsonFault::None, 6},
    {"", JsonFault::Cut, 0},
    {R"({"a": [1, 2)", JsonFault::Cut, 11},
    {R"({"a)", JsonFault::Cut, 3},
    {R"({"a\)", JsonFault::Cut, 4},
    {R"([tr)", JsonFault::Cut, 3},
    {R"({"a": 1,)", JsonFault::Cut, 8},
    {R"({"a" 1})", JsonFault::Malformed, 5},
    {R"([1 2])", JsonFault::Malformed, 3},
    {R"([1}])", JsonFault::Malformed, 2},
    {R"({1: 2})", JsonFault::Malformed, 1},
    {R"([trve])", JsonFault::Malformed, 1},
    {"[] []", JsonFault::Malformed, 3},
    {"[\"a\nb\"]", JsonFault::Malformed, 3},
};

}  // namespace

BOOST_AUTO_TEST_SUITE(json_scan)

BOOST_DATA_TEST_CASE(tells_what_is_json, data::make(kCases), c) {
  const ckpt::JsonScan scan = ckpt::scan_json(c.text);
  BOOST_TEST((scan.fault == c.fault));
  BOOST_TEST(scan.offset_bytes == c.offset_bytes);
}

BOOST_AUTO_TEST_CASE(depth_costs_no_stack) {
  const std::string open(1'000'000, '['), close(1'000'000, ']');
  BOOST_TEST((ckpt::scan_json(open + close).fault == JsonFault::None));
  BOOST_TEST((ckpt::scan_json(open).fault == JsonFault::Cut));
}

BOOST_AUTO_TEST_SUITE_END()
