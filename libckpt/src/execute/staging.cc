#include <ckpt/error.h>
#include <ckpt/staging.h>

#include <algorithm>
#include <optional>
#include <system_error>
#include <utility>

#include "io/directory.h"

namespace ckpt {

namespace fs = std::filesystem;

namespace {

// Beside the destination NAME, on the same file system:
//   .NAME.shardwise-partial/lock      held by the process that writes
//   .NAME.shardwise-partial/content   becomes NAME
//   .NAME.shardwise-partial/replaced  what NAME was before, for an instant, under force
struct Paths {
  std::string shown;  // the destination as the caller wrote it, for errors
  fs::path destination, holder, lock, content, replaced;
};

Paths paths_for(const fs::path& destination) {
  fs::path absolute = fs::absolute(destination);
  if (!absolute.has_filename()) absolute = absolute.parent_path();  // "DST/"
  if (!absolute.has_filename() || absolute.filename() == "." || absolute.filename() == "..") {
    throw Error(ErrorCode::InvalidArgument, {destination.string()}, "cannot be a destination");
  }
  // ".NAME.shardwise-partial", shortened for a name that leaves no room (255 bytes on Linux).
  const std::string name = absolute.filename().string().substr(0, 200);
  const fs::path holder = absolute.parent_path() / ("." + name + ".shardwise-partial");
  return {destination.string(), absolute,           holder,
          holder / "lock",      holder / "content", holder / "replaced"};
}

bool is_there(const fs::path& path) { return fs::exists(fs::symlink_status(path)); }

bool is_in(const fs::path& inner, const fs::path& outer) {
  return std::ranges::mismatch(outer, inner).in1 == outer.end();
}

void refuse_overlap(const Paths& paths, const std::string& source) {
  if (source.empty()) return;
  const fs::path to = fs::weakly_canonical(paths.destination);
  const fs::path from = fs::weakly_canonical(source);
  if (is_in(to, from)) {
    throw Error(ErrorCode::InvalidArgument, {paths.shown}, "the destination lies in the source");
  }
  if (is_in(from, to)) {
    throw Error(ErrorCode::InvalidArgument, {paths.shown},
                "the destination lies around the source");
  }
}

void refuse_existing(const Paths& paths, const StagingOptions& options) {
  if (options.force || !is_there(paths.destination)) return;
  throw Error(ErrorCode::AlreadyExists, {paths.shown}, "the destination exists",
              "--force replaces it");
}

// True if it was not there. A holder that is there is left over, or in use.
bool make_holder(const fs::path& holder) {
  std::error_code error;
  const bool made = fs::create_directory(holder, error);
  if (error) throw_errno(holder.string(), "create", error.value());
  if (!fs::is_directory(fs::symlink_status(holder))) {
    throw Error(ErrorCode::AlreadyExists, {holder.string()}, "is in the way of the staging folder");
  }
  return made;
}

LockFile lock_holder(const Paths& paths) {
  auto lock = LockFile::try_lock(paths.lock);
  if (!lock) {
    throw Error(ErrorCode::AlreadyExists, {paths.holder.string()},
                "another process is writing this destination", "if none is, remove that folder");
  }
  return std::move(*lock);
}

}  // namespace

struct Staging::State {
  State(Paths made_paths, StagingOptions made_options)
      : paths(std::move(made_paths)), options(std::move(made_options)) {}

  ~State() {
    std::error_code ignored;
    if (!lock) {  // what is in it is not ours
      if (made_holder) fs::remove(paths.holder, ignored);
      return;
    }
    fs::remove_all(paths.content, ignored);
    fs::remove_all(paths.replaced, ignored);
    fs::remove(paths.lock, ignored);
    fs::remove(paths.holder, ignored);
  }

  void publish() {
    if (!options.force || !is_there(paths.destination)) {
      return rename_to_free_name(paths.content, paths.destination);
    }
    // After the exchange `content` is what the destination was; the destructor removes it.
    if (!exchange_names(paths.content, paths.destination)) publish_in_two_steps();
  }

  void publish_in_two_steps() {
    rename_to_free_name(paths.destination, paths.replaced);
    try {
      rename_to_free_name(paths.content, paths.destination);
    } catch (...) {
      std::error_code ignored;
      fs::rename(paths.replaced, paths.destination, ignored);
      throw;
    }
  }

  Paths paths;
  StagingOptions options;
  bool made_holder = false;
  std::optional<LockFile> lock;
  bool committed = false;
};

Staging::Staging(std::unique_ptr<State> state) : state_(std::move(state)) {}
Staging::Staging(Staging&&) noexcept = default;
Staging::~Staging() = default;

Staging Staging::create(const fs::path& destination, StagingOptions options) {
  auto state = std::make_unique<State>(paths_for(destination), std::move(options));
  const Paths& paths = state->paths;
  try {
    refuse_overlap(paths, state->options.source);
    refuse_existing(paths, state->options);
    state->made_holder = make_holder(paths.holder);
    state->lock = lock_holder(paths);
    fs::remove_all(paths.content);  // left over from a process that ended without its destructors
    if (is_there(paths.replaced) && !is_there(paths.destination)) {
      fs::rename(paths.replaced, paths.destination);  // it ended between its two renames
    }
    fs::remove_all(paths.replaced);
    refuse_existing(paths, state->options);  // it may have come back, or come meanwhile
    if (!state->options.single_file) fs::create_directory(paths.content);
  } catch (const fs::filesystem_error& error) {
    throw_errno(paths.shown, "write there", error.code().value());
  }
  return Staging(std::move(state));
}

const fs::path& Staging::folder() const { return state_->paths.content; }

void Staging::commit() {
  if (std::exchange(state_->committed, true)) {
    throw Error(ErrorCode::InvalidArgument, {state_->paths.shown}, "was committed before");
  }
  try {
    sync_tree(state_->paths.content);
    state_->publish();
    sync_directory(state_->paths.destination.parent_path());
  } catch (const fs::filesystem_error& error) {
    throw_errno(state_->paths.shown, "publish", error.code().value());
  }
}

}  // namespace ckpt
