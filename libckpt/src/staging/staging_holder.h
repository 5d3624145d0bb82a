#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/directory.h"
#include "io/file.h"
#include "io/publish.h"
#include "staging/job_record.h"

namespace ckpt {

// A file or folder that is made in a staging folder, with everything below it. `files`: as
// StagingOptions has them. Throws AlreadyExists where something else is there.
FolderTree tree_of_ours(const Place& content, const std::vector<std::string>& files);

// A destination NAME, and .NAME.shardwise-partial beside it, where it is made (staging_holder.h).
class StagingPlace {
 public:
  // Opens nothing. Throws InvalidArgument for what names nothing.
  explicit StagingPlace(const std::filesystem::path& destination);

  // As the caller wrote it, for errors; absolute; and the folder beside it.
  const std::string& shown() const { return shown_; }
  const std::filesystem::path& path() const { return path_; }
  const std::filesystem::path& holder_path() const { return holder_path_; }

  // The folder of both, held open from the first call on. Throws NotFound, IoFailure.
  const Place& parent() const;
  Place destination() const { return parent() / path_.filename(); }
  Place holder() const { return parent() / holder_path_.filename(); }

  // Throws InvalidArgument where the destination is in `source`, around it, or it.
  void refuse_overlap(const std::filesystem::path& source) const;
  // The same where the destination is one of a source's files, or holds one: they may be several of
  // a folder, and some may lie elsewhere, behind links.
  void refuse_files(const std::vector<std::filesystem::path>& files) const;

 private:
  std::string shown_;
  std::filesystem::path path_, holder_path_;
  mutable std::optional<Place> parent_;
};

// The folder in which a destination NAME is made, held open:
//   lock         held by the process that writes, or that commits
//   leader       the domain of the lock of the one of several that commits: only it may
//   job          what is written (StagingRecord): there before `content`, and gone after it
//   content      becomes NAME
//   part-R       what process R has finished
//   part-R.lock  held by process R of several
//   publishing   the inode of `content`, while it becomes NAME, where NAME is being replaced or
//                others may come back
//   replaced     what NAME was before, where two names cannot be swapped
// what is renamed to one of these when it is whole, and what a network file system keeps of removed
// files until they are closed. Anything else is not ours: whoever opens
// the folder is told its name (AlreadyExists), and nothing is changed.
class StagingHolder {
 public:
  // None where nothing is there.
  static std::optional<StagingHolder> open(const StagingPlace& place);
  // Makes it where it is not there; second: it was not.
  static std::pair<StagingHolder, bool> make(const StagingPlace& place);
  // Removes what a run left that was killed between publishing and tidying up, and nothing that
  // could be continued. Does nothing where a process is at work.
  static void tidy(const StagingPlace& place);
  // The job that can be continued; empty where there is none.
  static std::string left_job(const StagingPlace& place);

  Place parent, destination, folder, lock, content, publishing, replaced;
  Place part_lock(uint32_t rank) const;
  std::optional<StagingRecord> record() const;

  // The lock; none where another process holds it, or where the folder has just gone.
  std::optional<LockFile> try_lock() const;
  // It and those of all parts, which keep every other process out; none where one is at work, or
  // where nothing is left.
  std::vector<LockFile> try_lock_all() const;
  // Undoes or completes what ended while it replaced the destination.
  void recover() const;
  // Removes all but `lock`; in an order in which recover() can always tell what happened. Of
  // `content` only what the record names.
  void remove_work() const;
  // Lets go of `lock`, and others, which the caller holds. Removes the folder if nothing else is in
  // it.
  void leave(LockFile held, std::vector<LockFile> others = {}) const;
  void remove_unlocked() const;  // if nothing is in it

 private:
  StagingHolder(const StagingPlace& place, Place held);
  bool is_published() const;
  void refuse_foreign_entries() const;
  std::string foreign_reason(const std::string& name) const;
  void remove_content() const;

  Place name_;  // in the folder that it is in
};

}  // namespace ckpt
