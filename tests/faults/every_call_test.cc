// System calls of a conversion fail, one at a time and in every way that they can: each third one,
// and with SHARDWISE_LONG_TESTS every one.
#include <ckpt/error.h>
#include <ckpt/staging.h>

#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <set>

#include "faults/conversions.h"
#include "support/errors.h"
#include "support/faulty_calls.h"
#include "support/sanitizer.h"

using namespace test;

namespace {

// One conversion in one folder, with what must be true after whatever has happened.
class Scene {
 public:
  Scene(const Conversion& conversion, bool replaces)
      : conversion_(conversion), replaces_(replaces), source_(content_of(conversion.source)) {
    conversion_.run(folder_ / "out", on_one_thread());
    expected_ = content_of(folder_ / "out");
    fs::remove_all(folder_ / "out");
  }

  // The error of a run under these calls.
  std::optional<ckpt::Error> run(ckpt::SystemCalls& calls, bool resume) {
    prepare();
    const ckpt::InstalledSystemCalls installed(calls);
    optim::ConvertOptions options = on_one_thread();
    options.base.force = replaces_;
    options.base.resume = resume;
    return error_of([&] { conversion_.run(folder_ / "out", options); });
  }

  void check(const std::optional<ckpt::Error>& error, const std::string& what) {
    const Tree now = content_of(folder_ / "out");
    const bool is_whole = now == expected_;
    const bool is_as_before = now == (replaces_ ? old_ : Tree());
    BOOST_TEST_REQUIRE((is_whole || is_as_before || is_set_aside(now)), what);
    BOOST_TEST_REQUIRE((is_whole || error), what << ": says that it has published");
    BOOST_TEST_REQUIRE((content_of(conversion_.source) == source_), what << ": the source");
    if (is_left_over()) next_run_succeeds(what);
  }

 private:
  void prepare() {
    fs::remove_all(folder_ / "out");
    ckpt::Staging::clean(folder_ / "out");
    if (replaces_) write_file(folder_ / "out/iter_0000001/old", "old");
  }

  bool is_left_over() const {
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      if (entry.path().filename() != "out") return true;
    }
    return false;
  }

  // Between the two steps of a replacement, which the next run finds.
  bool is_set_aside(const Tree& now) const {
    return replaces_ && now.empty() &&
           content_of(folder_ / ".out.shardwise-partial/replaced") == old_;
  }

  // Whatever is left over: --resume completes it, and nothing else is left then.
  void next_run_succeeds(const std::string& what) {
    Hasty calls;
    const ckpt::InstalledSystemCalls installed(calls);
    optim::ConvertOptions options = on_one_thread();
    options.base.force = true;
    options.base.resume = true;
    const auto error = error_of([&] { conversion_.run(folder_ / "out", options); });
    BOOST_TEST_REQUIRE(!error, what << ", then: " << (error ? error->what() : ""));
    BOOST_TEST_REQUIRE((content_of(folder_ / "out") == expected_), what << ", then");
    BOOST_TEST_REQUIRE(!is_left_over(), what << ", then");
  }

  TemporaryFolder folder_;
  const Conversion& conversion_;
  bool replaces_;
  Tree source_, expected_;
  const Tree old_ = {{"iter_0000001", "/"}, {"iter_0000001/old", "old"}};
};

// An iteration that is added to a root, which holds another one.
class RootScene {
 public:
  explicit RootScene(const Conversion& conversion)
      : conversion_(conversion), source_(content_of(conversion.source)) {
    prepare();
    old_ = tree_of(root_);
    conversion_.run(root_, on_one_thread());
    added_ = whole_ = tree_of(root_);
    added_[kTracker] = old_[kTracker];
  }

  std::optional<ckpt::Error> run(ckpt::SystemCalls& calls, bool resume) {
    prepare();
    const ckpt::InstalledSystemCalls installed(calls);
    optim::ConvertOptions options = on_one_thread();
    options.base.resume = resume;
    return error_of([&] { conversion_.run(root_, options); });
  }

  // The tracker never names what is not whole.
  void check(const std::optional<ckpt::Error>& error, const std::string& what) {
    const Tree now = published();
    BOOST_TEST_REQUIRE((now == whole_ || now == added_ || now == old_), what);
    BOOST_TEST_REQUIRE((now == whole_ || error), what << ": says that it has published");
    BOOST_TEST_REQUIRE((content_of(conversion_.source) == source_), what << ": the source");
    if (!error) return;
    Hasty calls;
    const auto next = run_again(calls);
    BOOST_TEST_REQUIRE(!next, what << ", then: " << (next ? next->what() : ""));
    BOOST_TEST_REQUIRE((tree_of(root_) == whole_), what << ", then");
  }

 private:
  static constexpr const char* kTracker = "latest_checkpointed_iteration.txt";

  void prepare() {
    fs::remove_all(root_);
    write_file(root_ / "iter_0000001/old", "old");
    write_file(root_ / kTracker, "1");
  }

  std::optional<ckpt::Error> run_again(ckpt::SystemCalls& calls) {
    const ckpt::InstalledSystemCalls installed(calls);
    optim::ConvertOptions options = on_one_thread();
    options.base.resume = true;
    return error_of([&] { conversion_.run(root_, options); });
  }

  // Without what is hidden beside it while it is made.
  Tree published() const {
    Tree tree = tree_of(root_);
    std::erase_if(tree, [](const auto& entry) { return entry.first.starts_with('.'); });
    return tree;
  }

  TemporaryFolder folder_;
  fs::path root_ = folder_ / "root";
  const Conversion& conversion_;
  Tree source_, old_, whole_, added_;
};

struct Way {
  std::string name;
  Fault::Kind kind;
  int error_number;
};
const Way kWays[] = {{"EIO", Fault::Kind::Fails, EIO},
                     {"ENOSPC", Fault::Kind::Fails, ENOSPC},
                     {"EINTR", Fault::Kind::Fails, EINTR},
                     {"short", Fault::Kind::Short, 0},
                     {"EIO for good", Fault::Kind::FailsForGood, EIO}};

// What a full disk can refuse.
bool takes_room(const std::string& call) {
  const std::set<std::string> calls = {"open",  "pwrite", "fallocate", "ftruncate", "fsync",
                                       "mkdir", "link",   "rename",    "renameat2"};
  return calls.contains(call);
}

// Reshards make many calls: all ways take minutes.
bool is_for_long_tests(const Conversion& conversion, const Way& way) {
  return conversion.name.starts_with("reshard") && way.name != "EIO" && way.name != "short";
}

// In long runs every call fails.
const uint64_t kStep = sample_step(3, 13);

struct Setting {
  bool replaces = false, has_exchange = true, resume = false;
};

template <typename AnyScene>
void fail_every_call(AnyScene&& scene, const Conversion& conversion, const Setting& setting) {
  FaultyCalls clean;
  clean.has_exchange = setting.has_exchange;
  BOOST_REQUIRE(!scene.run(clean, setting.resume));
  scene.check(std::nullopt, "no fault");
  uint64_t survived = 0;
  for (const Way& way : kWays) {
    if (is_for_long_tests(conversion, way) && !is_long()) continue;
    for (uint64_t number = 0; number < clean.count(); number += kStep) {
      if (way.kind == Fault::Kind::Short && !clean.can_be_short(number)) continue;
      if (way.error_number == ENOSPC && !takes_room(clean.name(number))) continue;
      FaultyCalls calls({way.kind, number, way.error_number});
      calls.has_exchange = setting.has_exchange;
      const auto error = scene.run(calls, setting.resume);
      const std::string what = conversion.name + ": " + way.name + " in call " +
                               std::to_string(number) + ", " + clean.name(number);
      BOOST_TEST_REQUIRE(calls.has_struck(), what);
      const bool must_succeed = way.kind == Fault::Kind::Short || way.error_number == EINTR;
      BOOST_TEST_REQUIRE((!must_succeed || !error),
                         what << " is no reason to fail: " << (error ? error->what() : ""));
      scene.check(error, what);
      survived += !error;
    }
  }
  BOOST_TEST_MESSAGE(conversion.name << ": " << clean.count() << " calls, " << survived
                                     << " faults were survived");
}

void fail_every_call(const Conversion& conversion, const Setting& setting) {
  fail_every_call(Scene(conversion, setting.replaces), conversion, setting);
}

void in_every_direction(const Setting& setting) {
  const TemporaryFolder sources;
  for (const Conversion& conversion : conversions_in(sources)) {
    const bool is_new = !setting.replaces && !setting.resume;  // the others: one direction
    if (is_new || is_long() || conversion.name == "torch to torch_dist") {
      fail_every_call(conversion, setting);
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(every_call)

BOOST_AUTO_TEST_CASE(F3_of_a_new_destination_fails_and_nothing_half_is_left) {
  in_every_direction({});
}

BOOST_AUTO_TEST_CASE(of_processes_that_share_a_file_fails_and_the_next_ones_complete_it) {
  const TemporaryFolder sources;
  const Conversion conversion = shared_conversion_in(sources);
  fail_every_call(conversion, {});
  fail_every_call(conversion, {.replaces = true});
  fail_every_call(conversion, {.replaces = true, .has_exchange = false});
}

BOOST_AUTO_TEST_CASE(of_processes_whose_files_are_compressed_fails_and_nothing_wrong_is_published) {
  const TemporaryFolder sources;
  fail_every_call(shared_conversion_in(sources, true), {});
}

BOOST_AUTO_TEST_CASE(of_what_follows_the_writing_fails_and_nothing_half_is_left) {
  const TemporaryFolder sources;
  for (const Conversion& conversion : other_conversions_in(sources)) {
    fail_every_call(conversion, {});
    fail_every_call(conversion, {.replaces = true, .resume = true});
  }
}

BOOST_AUTO_TEST_CASE(of_an_iteration_for_a_root_fails_and_the_tracker_names_what_is_whole) {
  const TemporaryFolder sources;
  const Conversion conversion = adding_conversion_in(sources);
  fail_every_call(RootScene(conversion), conversion, {});
  if (is_long()) fail_every_call(RootScene(conversion), conversion, {.resume = true});
}

BOOST_AUTO_TEST_CASE(of_a_replaced_destination_fails_and_it_is_the_old_or_the_new_one) {
  in_every_direction({.replaces = true});
}

BOOST_AUTO_TEST_CASE(of_a_replacement_in_two_steps_fails_and_the_next_run_recovers) {
  in_every_direction({.replaces = true, .has_exchange = false});
}

BOOST_AUTO_TEST_CASE(of_a_run_that_keeps_what_is_finished_fails_and_the_next_run_completes_it) {
  in_every_direction({.replaces = true, .resume = true});
}

BOOST_AUTO_TEST_SUITE_END()
