// What the page about a checkpoint says, and how it is put into lines.
#include "inspect/page_text.h"

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <ostream>

#include "common/text.h"

namespace {

using tools::inspect::balance_text;
using tools::inspect::optimizer_text;

struct AmountRow {
  uint64_t count;
  const char* text;
};
std::ostream& operator<<(std::ostream& out, const AmountRow& row) { return out << row.text; }

const AmountRow kAmounts[] = {{0, "0"},
                              {999, "999"},
                              {1000, "1.0 K"},
                              {9152, "9.2 K"},
                              {999'949, "999.9 K"},
                              {999'950, "1.0 M"},
                              {7'000'000'000, "7.0 B"},
                              {UINT64_MAX, "18446744.1 T"}};

}  // namespace

BOOST_AUTO_TEST_SUITE(page_text)

BOOST_DATA_TEST_CASE(amounts_are_for_people, kAmounts) {
  BOOST_TEST(tools::amount_text(sample.count) == sample.text);
}

BOOST_AUTO_TEST_CASE(bars_are_in_proportion) {
  BOOST_TEST(tools::inspect::bar(10, 10) == std::string(19, '#'));
  BOOST_TEST(tools::inspect::bar(5, 19) == "#####");
  BOOST_TEST(tools::inspect::bar(1, 1000) == "");
  BOOST_TEST(tools::inspect::bar(0, 0) == "");
}

BOOST_AUTO_TEST_CASE(pieces_that_do_not_fit_start_a_line) {
  const tools::inspect::Fact fact{"size", {"aaaa,", "bbbb,", "cc"}};
  const auto lines = tools::inspect::fact_lines(fact, 23);
  BOOST_REQUIRE(lines.size() == 2u);
  BOOST_TEST(lines[0] == "size       aaaa, bbbb,");
  BOOST_TEST(lines[1] == "           cc");
}

BOOST_AUTO_TEST_CASE(an_optimizer_is_said_with_its_rates) {
  const optim::OptimizerFacts adam{"Adam", 30, {0.0081451}, {0.1, 0.0}};
  BOOST_TEST(optimizer_text(adam, true) == "Adam 30 parameters, lr 0.00815, wd 0.1 / 0");
  BOOST_TEST(optimizer_text(adam, false) == "Adam 30, lr 0.00815, wd 0.1 / 0");
  BOOST_TEST(optimizer_text({"Muon", {}, {}, {}}, true) == "Muon");
}

BOOST_AUTO_TEST_CASE(balance_of_many_ranks_is_a_range) {
  BOOST_TEST(balance_text({}) == "");
  BOOST_TEST(balance_text({1.2, 0.8}) == "balance 1.20 / 0.80 of the mean work");
  BOOST_TEST(balance_text({0.5, 0.5, 0.5, 0.5, 3}) == "balance 0.50 to 3.00 of the mean work");
}

BOOST_AUTO_TEST_SUITE_END()
