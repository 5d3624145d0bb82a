#include <set>
#include <string>

#include <boost/test/unit_test.hpp>

#include "issues/issue.h"

using namespace optim;

BOOST_AUTO_TEST_SUITE(issues)

BOOST_AUTO_TEST_CASE(every_kind_of_repair_has_a_row_at_its_place) {
  BOOST_REQUIRE_EQUAL(known_issues().size(), kRepairKinds.size());
  std::set<std::string_view> names;
  for (size_t i = 0; i < kRepairKinds.size(); ++i) {
    const Issue& issue = *known_issues()[i];
    BOOST_TEST((issue.kind == kRepairKinds[i]));
    BOOST_TEST(issue.name == name(kRepairKinds[i]));
    BOOST_TEST(names.insert(issue.name).second);
  }
}

BOOST_AUTO_TEST_CASE(what_is_mended_is_found_first) {
  for (const Issue* const issue : known_issues()) {
    BOOST_TEST((issue->find != nullptr) == (issue->mend != nullptr), issue->name);
  }
}

BOOST_AUTO_TEST_SUITE_END()
