// A run is killed in front of each call that changes a name; then each command that
// docs/durability.md names completes what was left, or removes it, and is itself killed in the same
// way.
#include <ckpt/error.h>
#include <ckpt/staging.h>

#include <algorithm>
#include <array>
#include <boost/test/unit_test.hpp>
#include <cstdlib>

#include "faults/conversions.h"
#include "support/errors.h"
#include "support/faulty_calls.h"
#include "support/sanitizer.h"

using namespace test;

namespace {

enum class Command : uint8_t { Again, Resume, Finish, Clean };
constexpr Command kCommands[] = {Command::Again, Command::Resume, Command::Finish, Command::Clean};
constexpr const char* kNames[] = {"again", "--resume", "--finish", "--clean"};

struct Setting {
  bool replaces = false, has_exchange = true;
};

bool changes_names(const std::string& call) {
  constexpr std::array kCalls = {"open",   "mkdir",     "rmdir",    "unlink", "link",
                                 "rename", "renameat2", "setxattr", "flock"};
  return std::ranges::find(kCalls, call) != kCalls.end();
}

class Scene {
 public:
  Scene(const Conversion& conversion, const Setting& setting)
      : conversion_(conversion), setting_(setting) {
    run(Command::Again);
    expected_ = content_of(out_);
    if (setting.replaces) old_ = {{"iter_0000001", "/"}, {"iter_0000001/old", "old"}};
  }

  void prepare() {
    fs::remove_all(folder_.path());
    fs::create_directory(folder_.path());
    if (setting_.replaces) write_file(out_ / "iter_0000001/old", "old");
  }

  // The error of a command. In front of the call with this number it is killed: this call and all
  // that follow do nothing. Returns the names of its calls, too.
  std::optional<ckpt::Error> run(Command command, std::optional<uint64_t> killed_at = {},
                                 std::vector<std::string>* names = nullptr) {
    FaultyCalls calls(killed_at ? Fault{Fault::Kind::FailsForGood, *killed_at, EIO} : Fault{});
    calls.has_exchange = setting_.has_exchange;
    const ckpt::InstalledSystemCalls installed(calls);
    const auto error = error_of([&] { carry_out(command); });
    for (uint64_t i = 0; names != nullptr && i < calls.count(); ++i) {
      names->push_back(calls.name(i));
    }
    return error;
  }

  // Absent, old or whole; or set aside, between the two steps of a replacement.
  bool is_sound() const {
    const Tree now = content_of(out_);
    const Tree stands = now.empty() ? content_of(holder_ / "replaced") : now;
    return stands == expected_ || stands == old_;
  }
  bool is_whole() const { return content_of(out_) == expected_; }
  bool is_left_over() const {
    return std::ranges::any_of(fs::directory_iterator(folder_.path()),
                               [&](const auto& entry) { return entry.path() != out_; });
  }

  // What a first run leaves that is killed there.
  void kill_first(uint64_t number) {
    prepare();
    run(Command::Again, number);
  }

 private:
  void carry_out(Command command) {
    if (command == Command::Clean) {
      ckpt::Staging::clean(out_);
      return;
    }
    optim::ConvertOptions options = on_one_thread();
    options.base.force = setting_.replaces;
    options.base.resume = command == Command::Resume;
    options.base.finish = command == Command::Finish;
    conversion_.run(out_, options);
  }

  TemporaryFolder folder_;
  fs::path out_ = folder_ / "out", holder_ = folder_ / ".out.shardwise-partial";
  const Conversion& conversion_;
  Setting setting_;
  Tree expected_, old_;
};

// What a command promises that was not killed.
void check_end(Scene& scene, Command command, bool was_whole,
               const std::optional<ckpt::Error>& error, const std::string& what) {
  const std::string told = what + ": " + (error ? error->what() : "success");
  const bool is_whole = scene.is_whole();
  BOOST_TEST_REQUIRE(scene.is_sound(), told);
  BOOST_TEST_REQUIRE((is_whole || !was_whole), told << ": it was whole");
  if (command == Command::Clean) {
    BOOST_TEST_REQUIRE((!error && !scene.is_left_over()), told);
    return;
  }
  BOOST_TEST_REQUIRE((is_whole || error), told << ": and is not there");
  BOOST_TEST_REQUIRE((!error || error->code() == ckpt::ErrorCode::AlreadyExists ||
                      (command == Command::Finish && error->code() == ckpt::ErrorCode::NotFound)),
                     told);
  // What was published needs nothing but to be tidied up, and every command does that.
  BOOST_TEST_REQUIRE((!is_whole || !scene.is_left_over()), told << ": something is left over");
  if (command == Command::Resume) BOOST_TEST_REQUIRE((is_whole), told);
}

void complete(Scene& scene, Command command, const std::string& what) {
  const bool was_whole = scene.is_whole();
  check_end(scene, command, was_whole, scene.run(command), what);
  BOOST_TEST_REQUIRE(!scene.run(Command::Clean), what << ", then --clean");
  BOOST_TEST_REQUIRE((scene.is_sound() && !scene.is_left_over()), what << ", then --clean");
}

// Kills the command that follows a first kill, at every `step`-th of its calls that change names.
void kill_next(Scene& scene, uint64_t first, Command command, uint64_t step,
               const std::string& what) {
  std::vector<std::string> names;
  scene.kill_first(first);
  scene.run(command, std::nullopt, &names);
  for (uint64_t number = 0, seen = 0; number < names.size(); ++number) {
    if (!changes_names(names[number]) || seen++ % step != 0) continue;
    scene.kill_first(first);
    scene.run(command, number);
    const std::string then = what + ", which is killed at call " + std::to_string(number) + ", " +
                             names[number] + ", then --clean";
    BOOST_TEST_REQUIRE(scene.is_sound(), then);
    complete(scene, Command::Clean, then);
  }
}

// How many of the calls are tried; of commands that are killed themselves.
const uint64_t kStep = sample_step(5, 37);
uint64_t second_step() { return is_long() ? 1 : 37; }

void kill_everywhere(const Conversion& conversion, const Setting& setting) {
  Scene scene(conversion, setting);
  std::vector<std::string> names;
  scene.prepare();
  BOOST_REQUIRE(!scene.run(Command::Again, std::nullopt, &names));
  uint64_t kills = 0;
  for (uint64_t number = 0, seen = 0; number < names.size(); ++number) {
    if (!changes_names(names[number]) || seen++ % kStep != 0) continue;
    for (const Command command : kCommands) {
      const std::string what = conversion.name + " is killed at call " + std::to_string(number) +
                               ", " + names[number] + ", then " +
                               kNames[static_cast<size_t>(command)];
      kill_next(scene, number, command, second_step(), what);
      scene.kill_first(number);
      BOOST_TEST_REQUIRE(scene.is_sound(), what);
      complete(scene, command, what);
      ++kills;
    }
  }
  BOOST_TEST_MESSAGE(conversion.name << ": " << kills << " kills and what follows");
}

void kill_everywhere(const Conversion& conversion) {
  kill_everywhere(conversion, {});
  kill_everywhere(conversion, {.replaces = true});
  kill_everywhere(conversion, {.replaces = true, .has_exchange = false});
}

}  // namespace

BOOST_AUTO_TEST_SUITE(killed)

BOOST_AUTO_TEST_CASE(one_process_leaves_what_every_command_can_deal_with) {
  const TemporaryFolder sources;
  for (const Conversion& conversion : conversions_in(sources)) {
    if (is_long() || conversion.name == "torch to torch_dist") kill_everywhere(conversion);
  }
}

BOOST_AUTO_TEST_CASE(one_of_several_processes_leaves_what_every_command_can_deal_with) {
  const TemporaryFolder sources;
  kill_everywhere(shared_conversion_in(sources));
}

BOOST_AUTO_TEST_SUITE_END()
