#include <step_replay/processes.h>

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include <common/console.h>

namespace tools::step_replay {
namespace {

namespace fs = std::filesystem;

// Set for processes that --spawn starts; the store file lies in a folder that the parent removes.
constexpr const char* kSpawnRank = "SHARDWISE_SPAWN_RANK";
constexpr const char* kSpawnSize = "SHARDWISE_SPAWN_SIZE";
constexpr const char* kSpawnStore = "SHARDWISE_SPAWN_STORE";
constexpr const char* kSpawnParent = "SHARDWISE_SPAWN_PARENT";

constexpr int kProcessesMax = 1 << 16;

optim::ProcessRank rank_from(const char* rank_variable, const char* size_variable) {
  optim::ProcessRank rank;
  rank.size = number_variable(size_variable, 1, kProcessesMax);
  rank.rank = number_variable(rank_variable, 0, rank.size - 1);
  return rank;
}

bool is_this_machine(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

optim::ProcessMesh torchrun_mesh() {
  optim::ProcessMesh mesh;
  mesh.rank = rank_from("RANK", "WORLD_SIZE");
  if (mesh.rank.size == 1) return mesh;
  optim::TcpRendezvous rendezvous;
  rendezvous.address = *variable("MASTER_ADDR");
  rendezvous.port = static_cast<uint16_t>(number_variable("MASTER_PORT", 1, 65535));
  // torchrun's agent serves the store; restarted workers must not see the keys of the last attempt.
  rendezvous.store_is_hosted = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  rendezvous.prefix = "shardwise/" + variable("TORCHELASTIC_RESTART_COUNT").value_or("0");
  mesh.gloo.network_interface =
      variable("GLOO_SOCKET_IFNAME").value_or(is_this_machine(rendezvous.address) ? "lo" : "");
  mesh.rendezvous = rendezvous;
  return mesh;
}

[[noreturn]] void fail(const std::string& what, int error) {
  throw ckpt::Error(ckpt::ErrorCode::IoFailure, {}, what + ": " + std::strerror(error));
}

// A folder of our own for the store and what processes print; gone at the end.
class Workplace {
 public:
  Workplace() {
    std::string pattern = (fs::temp_directory_path() / "shardwise-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) fail("no temporary folder", errno);
    folder_ = pattern;
  }
  ~Workplace() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;

  fs::path store() const { return folder_ / "store"; }
  fs::path output(int rank) const { return folder_ / ("out" + std::to_string(rank)); }
  fs::path errors(int rank) const { return folder_ / ("err" + std::to_string(rank)); }

 private:
  fs::path folder_;
};

std::string content(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (std::string& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

struct Child {
  pid_t id = -1;
  int rank = 0;
  std::optional<int> exit_code = {};  // nullopt while it runs
  int signal = 0;                     // that ended it; 0: none
  bool was_told_to_stop = false;
};

Child start(std::vector<std::string> arguments, optim::ProcessRank rank, const Workplace& place) {
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) variables.emplace_back(*entry);
  variables.push_back(std::string(kSpawnRank) + "=" + std::to_string(rank.rank));
  variables.push_back(std::string(kSpawnSize) + "=" + std::to_string(rank.size));
  variables.push_back(std::string(kSpawnStore) + "=" + place.store().string());
  variables.push_back(std::string(kSpawnParent) + "=" + std::to_string(getpid()));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC;
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, place.output(rank.rank).c_str(), kFlags,
                                   0600);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, place.errors(rank.rank).c_str(), kFlags,
                                   0600);
  posix_spawnattr_t attributes;  // signals that this process waits for end the others
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  Child child;
  child.rank = rank.rank;
  const int error = posix_spawn(&child.id, "/proc/self/exe", &actions, &attributes,
                                pointers(arguments).data(), pointers(variables).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) fail("no process can be started", error);
  return child;
}

// How a process ended. A program that undoes something before a signal ends it says so by its exit
// code, as the shell does.
void note_end(Child& child, int status) {
  constexpr int kSignalled = 128;
  child.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : kSignalled + WTERMSIG(status);
  child.signal = std::max(0, *child.exit_code - kSignalled);
}

ckpt::Error killed_error(const Child& child, size_t count) {
  const char* const name = sigabbrev_np(child.signal);
  return {ckpt::ErrorCode::IoFailure,
          {},
          "process " + std::to_string(child.rank) + " of " + std::to_string(count) +
              " was killed by signal " + std::to_string(child.signal) +
              (name != nullptr ? " (SIG" + std::string(name) + ")" : ""),
          child.signal == SIGKILL
              ? "the system kills processes where memory runs out; its log would say so"
              : ""};
}

// The processes of one run. None outlives it.
class Children {
 public:
  ~Children() {
    for (Child& child : children_) {
      if (child.exit_code) continue;
      kill(child.id, SIGKILL);
      int status = 0;
      waitpid(child.id, &status, 0);
    }
  }

  void add(Child child) { children_.push_back(child); }

  // Waits until all have ended, or for kTimeToUndo after they were told to.
  void wait(const std::stop_token& stop) {
    using Clock = std::chrono::steady_clock;
    std::optional<Clock::time_point> failed, told;
    while (collect()) {
      const Clock::time_point now = Clock::now();
      const Child* const first = first_failed();
      if (first != nullptr && !failed) failed = now;
      const bool is_over = stop.stop_requested() || (first != nullptr && first->signal != 0) ||
                           (failed && now > *failed + kTimeToNotice);
      if (is_over && !told) {
        told = now;
        tell_to_stop();
      }
      if (told && now > *told + kTimeToUndo) return;
      std::this_thread::sleep_for(kPause);
    }
  }

  size_t count() const { return children_.size(); }

  bool have_succeeded() const {
    return std::ranges::all_of(children_, [](const Child& child) { return child.exit_code == 0; });
  }

  // Of several failures one by a signal, or else one that is not about a lost connection: that came
  // first. None of those that were told to stop.
  const Child* first_failed() const {
    const auto weight = [](const Child& child) {
      constexpr int kIoFailure = 5;
      return child.signal != 0 ? 2 : *child.exit_code != kIoFailure ? 1 : 0;
    };
    const Child* found = nullptr;
    for (const Child& child : children_) {
      if (!child.exit_code || *child.exit_code == 0 || child.was_told_to_stop) continue;
      if (found == nullptr || weight(child) > weight(*found)) found = &child;
    }
    return found;
  }

 private:
  static constexpr std::chrono::milliseconds kPause{20};
  static constexpr std::chrono::seconds kTimeToNotice{5};
  static constexpr std::chrono::seconds kTimeToUndo{30};

  void tell_to_stop() {
    for (Child& child : children_) {
      if (child.exit_code) continue;
      child.was_told_to_stop = true;
      kill(child.id, SIGTERM);
      kill(child.id, SIGCONT);  // one that is suspended would not see it
    }
  }

  bool collect() {
    bool some_run = false;
    for (Child& child : children_) {
      if (child.exit_code) continue;
      int status = 0;
      if (waitpid(child.id, &status, WNOHANG) == child.id) {
        note_end(child, status);
      } else {
        some_run = true;
      }
    }
    return some_run;
  }

  std::vector<Child> children_;
};

// The system ends this process with its parent, which its peers would wait for.
void end_with_parent() {
  constexpr int kProcessIdMax = 1 << 22;  // of Linux
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() == number_variable(kSpawnParent, 1, kProcessIdMax)) return;
  throw ckpt::Error(ckpt::ErrorCode::IoFailure, {}, "the process that started this one is gone");
}

}  // namespace

bool is_spawned() { return variable(kSpawnRank).has_value(); }

optim::ProcessMesh find_processes() {
  if (is_spawned()) {
    end_with_parent();
    optim::ProcessMesh mesh;
    mesh.rank = rank_from(kSpawnRank, kSpawnSize);
    mesh.rendezvous = variable(kSpawnStore).value_or("");
    mesh.gloo.network_interface = "lo";
    return mesh;
  }
  const bool is_launched = variable("RANK") && variable("WORLD_SIZE") && variable("MASTER_ADDR") &&
                           variable("MASTER_PORT");
  return is_launched ? torchrun_mesh() : optim::ProcessMesh{};
}

SpawnResult spawn_processes(const std::vector<std::string>& arguments, int count,
                            std::stop_token stop) {
  const Workplace place;
  Children children;
  for (int rank = 0; rank < count; ++rank) children.add(start(arguments, {rank, count}, place));
  children.wait(stop);
  if (stop.stop_requested() && !children.have_succeeded()) {
    throw ckpt::Error(ckpt::ErrorCode::IoFailure, {}, "cancelled");
  }
  const Child* const failed = children.first_failed();
  if (failed == nullptr) return {0, content(place.output(0)), content(place.errors(0))};
  SpawnResult result;
  result.exit_code = *failed->exit_code;
  result.errors = content(place.errors(failed->rank));
  if (failed->signal != 0) {
    result.killed.emplace(killed_error(*failed, children.count()));
  } else {
    result.out = content(place.output(failed->rank));
  }
  return result;
}

}  // namespace tools::step_replay
