// The power fails at every moment of a conversion.
#include "support/power_loss.h"

#include <ckpt/error.h>
#include <ckpt/staging.h>

#include <boost/test/unit_test.hpp>
#include <random>

#include "faults/conversions.h"
#include "support/errors.h"
#include "support/sanitizer.h"

using namespace test;

namespace {

const Tree kOld = {{"iter_0000001", "/"}, {"iter_0000001/old", "old"}};

// In long runs at every one.
const uint64_t kStep = sample_step(3, 13);

struct Expected {
  Tree whole, before;
  bool may_be_aside = false;  // between the two steps of a replacement
};

std::vector<Conversion> conversions_from_files_in(const TemporaryFolder& folder) {
  std::vector<Conversion> conversions = conversions_in(folder);
  // Its files are the source's, which lies where nothing is lost.
  std::erase_if(conversions, [](const Conversion& c) { return c.name == "reshard linked"; });
  return conversions;
}

// After the power is back: the destination is what it was, or whole; and a next run completes it.
void check_image(const Conversion& conversion, const fs::path& image, const Expected& expected,
                 const std::string& what) {
  const Tree now = content_of(image / "out");
  const bool is_aside = expected.may_be_aside && now.empty() &&
                        content_of(image / ".out.shardwise-partial/replaced") == expected.before;
  BOOST_TEST_REQUIRE((now == expected.whole || now == expected.before || is_aside), what);
  optim::ConvertOptions options = on_one_thread();
  options.base.force = true;
  options.base.resume = true;
  Hasty calls;
  const ckpt::InstalledSystemCalls installed(calls);
  const auto error = error_of([&] {
    try {
      conversion.run(image / "out", options);
    } catch (const ckpt::Error& left) {
      // The note of what the job was did not survive as it should be: nothing can be continued.
      if (left.code() != ckpt::ErrorCode::AlreadyExists) throw;
      ckpt::Staging::clean(image / "out");
      conversion.run(image / "out", options);
    }
  });
  BOOST_TEST_REQUIRE(!error, what << ", then: " << (error ? error->what() : ""));
  BOOST_TEST_REQUIRE((content_of(image / "out") == expected.whole), what << ", then");
}

void lose_power_at_every_moment(const Conversion& conversion, bool replaces,
                                bool has_exchange = true) {
  const TemporaryFolder work;
  const fs::path root = work / "root";
  fs::create_directory(root);
  Expected expected;
  conversion.run(root / "out", on_one_thread());
  expected.whole = content_of(root / "out");
  fs::remove_all(root / "out");
  if (replaces) write_file(root / "out/iter_0000001/old", "old");
  expected.before = replaces ? kOld : Tree();
  expected.may_be_aside = !has_exchange;

  PowerLoss power(root);
  power.has_exchange = has_exchange;
  {
    const ckpt::InstalledSystemCalls installed(power);
    optim::ConvertOptions options = on_one_thread();
    options.base.force = replaces;
    conversion.run(root / "out", options);
  }
  std::mt19937_64 random(61);
  for (uint64_t moment = 0; moment <= power.change_count(); moment += kStep) {
    const std::pair<std::string, PowerLoss::Survives> ways[] = {
        {"nothing unsynced survives", [](uint64_t) { return false; }},
        {"some survives", [&](uint64_t) { return random() % 2 == 0; }},
        {"most survives", [&](uint64_t) { return random() % 8 != 0; }}};
    for (const auto& [name, survives] : ways) {
      const fs::path image = work / "image";
      power.write_image(moment, survives, image);
      check_image(conversion, image, expected,
                  conversion.name + ": power fails before change " + std::to_string(moment) +
                      " of " + std::to_string(power.change_count()) + ", " + name);
      fs::remove_all(image);
    }
  }
  // Who is told that it is published finds it published.
  power.write_image(
      power.change_count(), [](uint64_t) { return false; }, work / "image");
  BOOST_TEST((content_of(work / "image/out") == expected.whole), conversion.name);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(power_loss)

BOOST_AUTO_TEST_CASE(leaves_a_new_destination_absent_or_whole) {
  const TemporaryFolder sources;
  for (const Conversion& conversion : conversions_from_files_in(sources)) {
    lose_power_at_every_moment(conversion, false);
  }
}

BOOST_AUTO_TEST_CASE(leaves_what_processes_share_absent_or_whole_old_or_whole) {
  const TemporaryFolder sources;
  const Conversion conversion = shared_conversion_in(sources);
  lose_power_at_every_moment(conversion, false);
  lose_power_at_every_moment(conversion, true);
}

BOOST_AUTO_TEST_CASE(leaves_a_replacement_in_two_steps_old_or_set_aside_or_whole) {
  const TemporaryFolder sources;
  lose_power_at_every_moment(conversions_in(sources).front(), true, false);
  lose_power_at_every_moment(shared_conversion_in(sources), true, false);
}

BOOST_AUTO_TEST_CASE(leaves_a_replaced_destination_old_or_whole) {
  const TemporaryFolder sources;
  for (const Conversion& conversion : conversions_from_files_in(sources)) {
    lose_power_at_every_moment(conversion, true);
  }
}

BOOST_AUTO_TEST_SUITE_END()
