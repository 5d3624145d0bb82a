#include <ckpt/error.h>
#include <ckpt/staging.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "io/directory.h"
#include "io/publish.h"

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

bool is_there(const fs::path& path) { return kind_of_entry(path) != EntryKind::Absent; }

// Without links, also where the last name is not there.
fs::path resolved_place(const fs::path& path) {
  if (kind_behind(path) != EntryKind::Absent) return resolved(path);
  return resolved(path.parent_path()) / path.filename();
}

bool is_in(const fs::path& inner, const fs::path& outer) {
  return std::ranges::mismatch(outer, inner).in1 == outer.end();
}

void refuse_overlap(const Paths& paths, const std::string& source) {
  if (source.empty()) return;
  const fs::path to = resolved_place(paths.destination);
  const fs::path from = resolved(source);
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
  const bool made = make_folder(holder);
  if (kind_of_entry(holder) != EntryKind::Folder) {
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
    try {
      clean_up();
    } catch (const Error&) {  // the next run finds what is left, and removes it
    }
  }

  void clean_up() {
    if (!lock) {  // what is in it is not ours
      if (made_holder) remove_tree(paths.holder);
      return;
    }
    remove_tree(paths.content);
    remove_tree(paths.replaced);
    remove_tree(paths.lock);
    remove_tree(paths.holder);
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
    } catch (const Error&) {
      rename_to_free_name(paths.replaced, paths.destination);
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
  refuse_overlap(paths, state->options.source);
  refuse_existing(paths, state->options);
  state->made_holder = make_holder(paths.holder);
  state->lock = lock_holder(paths);
  remove_tree(paths.content);  // left over from a process that ended without its destructors
  if (is_there(paths.replaced) && !is_there(paths.destination)) {
    rename_to_free_name(paths.replaced, paths.destination);  // it ended between its two renames
  }
  remove_tree(paths.replaced);
  refuse_existing(paths, state->options);  // it may have come back, or come meanwhile
  if (!state->options.single_file) make_folder(paths.content);
  return Staging(std::move(state));
}

const fs::path& Staging::folder() const { return state_->paths.content; }

void Staging::commit() {
  if (std::exchange(state_->committed, true)) {
    throw Error(ErrorCode::InvalidArgument, {state_->paths.shown}, "was committed before");
  }
  sync_tree(state_->paths.content);
  state_->publish();
  Directory::open(state_->paths.destination.parent_path()).sync();
}

}  // namespace ckpt
