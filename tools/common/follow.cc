#include <common/follow.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <ostream>

#include <common/console.h>
#include <common/option_values.h>
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
    throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {},
                      "--follow takes a ROOT of iterations and a DESTINATION for a folder of each; "
                      "it cannot be combined with --iteration, --into, --dry-run, --force, "
                      "--clean, --finish");
  }
}

// Newest of the times in a folder: what was tried once is tried again where it changed.
fs::file_time_type changed_at(const fs::path& folder) {
  std::error_code error;
  fs::file_time_type newest = fs::last_write_time(folder, error);
  for (const auto& entry : fs::recursive_directory_iterator(folder, error)) {
    const auto time = entry.last_write_time(error);
    if (!error) newest = std::max(newest, time);
  }
  return newest;
}

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
    fs::create_directories(conversion_.destination, error);
    while (true) {
      look();
      if (is_done()) return 0;
      if (wait()) return 128 + console_.stop_signal();
    }
  }

 private:
  fs::path destination_of(const ckpt::IterationFolder& folder) const {
    return fs::path(conversion_.destination) / folder.path.filename();
  }

  bool is_wanted(const ckpt::IterationFolder& folder) const {
    if (folder.iteration % options_.every != 0) return false;
    if (options_.until && folder.iteration > *options_.until) return false;
    const auto failed = failed_.find(folder.iteration);
    if (failed != failed_.end() && failed->second == changed_at(folder.path)) return false;
    return !fs::exists(destination_of(folder)) && is_at_rest(folder.path);
  }

  // A tracker is written last; without one, nothing has changed for as long as one waits.
  bool is_at_rest(const fs::path& folder) const {
    if (fs::exists(folder.parent_path() / optim::kMegatronFolders.tracker)) return true;
    const auto age = fs::file_time_type::clock::now() - changed_at(folder);
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
      console_.out() << std::flush;
    } catch (const ckpt::Error& error) {
      if (stop_.stop_requested()) throw;
      failed_[folder.iteration] = changed_at(folder.path);
      console_.warn(ckpt::escaped(folder.path.filename().string()) +
                    " is not converted: " + error.what());
    }
  }

  bool is_done() const {
    const auto last = folders_.find(options_.until.value_or(-1));
    return last != folders_.end() && fs::exists(destination_of({last->first, last->second}));
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
  std::map<int64_t, fs::file_time_type> failed_;
};

}  // namespace

void FollowOptions::declare(CLI::App& app) {
  app.add_flag("--follow", is_on,
               "Of a ROOT that a run writes to: each iteration once, when it is complete, into "
               "DESTINATION/iter_...; until a signal")
      ->group(kGroup);
  app.add_option("--every", every, "--follow: only iterations that are a multiple of N")
      ->check(kSize)
      ->option_text("N")
      ->group(kGroup);
  app.add_option("--until", until, "--follow: end after this iteration")
      ->check(kCount)
      ->option_text("N")
      ->group(kGroup);
  app.add_option("--poll", poll_seconds, "--follow: seconds between two looks (default: 30)")
      ->check(kSize)
      ->option_text("N")
      ->group(kGroup);
}

int follow(const FollowOptions& options, const ConversionOptions& conversion, Console& console,
           const std::function<int(const ConversionOptions&)>& convert) {
  refuse_single_work(conversion);
  return Follower(options, conversion, console, convert).run();
}

}  // namespace tools
