#include <common/follow.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <ostream>
#include <set>

#include <ckpt/folder.h>
#include <ckpt/staging.h>
#include <common/console.h>
#include <common/option_values.h>
#include <common/run_tool.h>
#include <training/latest.h>
#include <training/megatron_folders.h>
#include <CLI/CLI.hpp>

namespace tools {
namespace {

namespace fs = std::filesystem;

constexpr const char* kGroup = "A run that goes on";

void refuse_single_work(const ConversionOptions& conversion) {
  const bool is_single = conversion.iteration || !conversion.into.empty() || conversion.dry_run ||
                         conversion.clean || conversion.finish || conversion.force ||
                         conversion.lists_repairs;
  if (is_single || conversion.destination.empty()) {
    refuse_usage(
        "--follow takes a ROOT of iterations and a DESTINATION for a folder of each; "
        "it cannot be combined with --iteration, --into, --dry-run, --force, "
        "--clean, --finish");
  }
}

// Newest of the times in a folder, since 1970: what was tried once is tried again where it changed.
int64_t changed_at(const ckpt::Folder& source, const fs::path& folder) {
  const ckpt::Folder::Entry entry = source.stat_entry(folder);
  int64_t newest_ns = entry.state.modified_ns;
  if (entry.kind != ckpt::EntryKind::Folder) return newest_ns;
  for (const std::string& name : source.list(folder)) {
    newest_ns = std::max(newest_ns, changed_at(source, folder / name));
  }
  return newest_ns;
}

// What goes while it is looked at has changed, too.
int64_t changed_at(const fs::path& folder) {
  try {
    return changed_at(*ckpt::source_of(folder), folder);
  } catch (const ckpt::Error& error) {
    if (error.code() != ckpt::ErrorCode::NotFound) throw;
    return 0;
  }
}

bool is_address(const fs::path& path) { return !ckpt::scheme_of(path.native()).empty(); }

class Follower {
 public:
  Follower(const FollowOptions& options, const ConversionOptions& conversion, Console& console,
           const std::function<int(const ConversionOptions&)>& convert)
      : options_(options),
        conversion_(conversion),
        console_(console),
        convert_(convert),
        stop_(console.stop_token()) {}

  int run() {
    std::error_code error;
    if (!is_address(conversion_.destination)) {
      fs::create_directories(conversion_.destination, error);
    }
    while (true) {
      look_at_remote_places();
      look();
      if (is_done()) return 0;
      if (wait()) return 128 + console_.stop_signal();
    }
  }

 private:
  fs::path destination_of(const ckpt::IterationFolder& folder) const {
    return fs::path(conversion_.destination) / folder.path.filename();
  }

  // An object store shows the files of a result before the last one, which makes it whole.
  bool is_made(const ckpt::IterationFolder& folder) {
    const fs::path destination = destination_of(folder);
    if (made_.contains(folder.iteration)) return true;
    if (ckpt::kind_at(destination) == ckpt::EntryKind::Absent) return false;
    if (is_address(destination) && ckpt::Staging::is_left(destination)) return false;
    return made_.insert(folder.iteration).second;
  }

  bool is_wanted(const ckpt::IterationFolder& folder) {
    if (folder.iteration % options_.every != 0) return false;
    if (options_.until && folder.iteration > *options_.until) return false;
    const auto failed = failed_.find(folder.iteration);
    if (failed != failed_.end() && failed->second == changed_at(folder.path)) return false;
    return !is_made(folder) && is_at_rest(folder.path);
  }

  // A tracker is written last; without one, nothing has changed for as long as one waits.
  bool is_at_rest(const fs::path& folder) const {
    const fs::path tracker = folder.parent_path() / optim::kMegatronFolders.tracker;
    if (ckpt::kind_at(tracker) != ckpt::EntryKind::Absent) return true;
    const auto age = std::chrono::system_clock::now().time_since_epoch() -
                     std::chrono::nanoseconds(changed_at(folder));
    return age >= std::chrono::seconds(options_.poll_seconds);
  }

  void look() {
    const auto found = optim::find_finished(conversion_.source, conversion_.limits,
                                            [&](const ckpt::IterationFolder& folder) {
                                              folders_[folder.iteration] = folder.path;
                                              return is_wanted(folder);
                                            });
    for (const auto& skipped : found.skipped) {
      failed_[skipped.folder.iteration] = changed_at(skipped.folder.path);
      console_.warn(ckpt::escaped(skipped.folder.path.filename().string()) +
                    " is not converted: " + skipped.reason);
    }
    for (const ckpt::IterationFolder& folder : found.finished) {
      convert_one({folder.iteration, folders_[folder.iteration]}, folder.path);
    }
  }

  void convert_one(const ckpt::IterationFolder& folder, const fs::path& source) {
    ConversionOptions one = conversion_;
    one.source = source.string();
    one.destination = destination_of(folder).string();
    one.resume = true;  // what an earlier run had finished of it
    try {
      convert_(one);
      made_.insert(folder.iteration);
      console_.out() << std::flush;
    } catch (const ckpt::Error& error) {
      if (stop_.stop_requested()) throw;
      failed_[folder.iteration] = changed_at(folder.path);
      console_.warn(ckpt::escaped(folder.path.filename().string()) +
                    " is not converted: " + error.what());
    }
  }

  bool is_done() {
    const auto last = folders_.find(options_.until.value_or(-1));
    return last != folders_.end() && is_made({last->first, last->second});
  }

  // Whether a signal came.
  bool wait() {
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable_any wake;
    wake.wait_for(lock, stop_, std::chrono::seconds(options_.poll_seconds), [] { return false; });
    return stop_.stop_requested();
  }

  const FollowOptions& options_;
  const ConversionOptions& conversion_;
  Console& console_;
  const std::function<int(const ConversionOptions&)>& convert_;
  std::stop_token stop_;
  std::map<int64_t, fs::path> folders_;
  std::map<int64_t, int64_t> failed_;  // when what cannot be converted was changed
  std::set<int64_t> made_;
};

}  // namespace

void FollowOptions::declare(CLI::App& app) {
  const InGroup group(app, kGroup);
  app.add_flag("--follow", is_on,
               "Of a ROOT that a run writes to: each iteration once, when it is complete, into "
               "DESTINATION/iter_...; until a signal");
  add_value(app, "--every N", every, "--follow: only iterations that are a multiple of N")
      ->check(kSize);
  add_value(app, "--until N", until, "--follow: end after this iteration")->check(kCount);
  add_value(app, "--poll N", poll_seconds, "--follow: seconds between two looks (default: 30)")
      ->check(kSize);
}

int follow(const FollowOptions& options, const ConversionOptions& conversion, Console& console,
           const std::function<int(const ConversionOptions&)>& convert) {
  refuse_single_work(conversion);
  return Follower(options, conversion, console, convert).run();
}

}  // namespace tools
