// What follows the writing: each step tells how far it is and ends when it is asked to.
#include <boost/test/unit_test.hpp>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "faults/conversions.h"
#include "support/errors.h"

using namespace test;

namespace {

struct Case {
  Conversion conversion;
  optim::ConvertOptions options;
  std::set<std::string> steps;  // "": the writing
};

std::vector<Case> cases_in(const TemporaryFolder& sources) {
  const std::vector<Conversion> conversions = conversions_in(sources);
  optim::ConvertOptions all = on_one_thread();
  all.base.zstd_level = 1;
  all.base.integrity = true;
  all.base.verify = true;
  optim::ConvertOptions dry = on_one_thread();
  dry.base.dry_run = true;
  const std::set<std::string> of_all = {"",          "compressing", "hashing", "reading back",
                                        "verifying", "comparing"};
  return {{conversions[0], all, of_all},
          {conversions[2], dry, {"proving"}}};  // masters that did not pass with the writing
}

}  // namespace

BOOST_AUTO_TEST_SUITE(steps)

BOOST_AUTO_TEST_CASE(each_counts_its_bytes_up_to_the_last) {
  const TemporaryFolder sources, work;
  for (auto& [conversion, options, steps] : cases_in(sources)) {
    std::map<std::string, ckpt::Progress> last;
    options.base.execute.on_progress = [&](const ckpt::Progress& progress) {
      BOOST_TEST(progress.done_bytes <= progress.total_bytes);
      last[std::string(progress.step)] = progress;
    };
    conversion.run(work / "out", options);
    std::set<std::string> seen;
    for (const auto& [step, progress] : last) {
      seen.insert(step);
      BOOST_TEST(progress.total_bytes > 0);
      BOOST_TEST(progress.done_bytes == progress.total_bytes, step);
    }
    BOOST_TEST(seen == steps, boost::test_tools::per_element());
    fs::remove_all(work / "out");
  }
}

BOOST_AUTO_TEST_CASE(a_stop_ends_each_and_leaves_nothing) {
  const TemporaryFolder sources, work;
  for (const auto& [conversion, options, steps] : cases_in(sources)) {
    for (const std::string& step : steps) {
      std::stop_source stop;
      optim::ConvertOptions stopped = options;
      stopped.base.execute.stop = stop.get_token();
      stopped.base.execute.on_progress = [&](const ckpt::Progress& progress) {
        if (progress.step == step) stop.request_stop();
      };
      const auto error = error_of([&] { conversion.run(work / "out", stopped); });
      BOOST_TEST_REQUIRE(error.has_value(), step);
      BOOST_TEST(error->problem() == "cancelled", error->what());
      BOOST_TEST(tree_of(work.path()).empty());
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
