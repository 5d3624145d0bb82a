#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "io/publish.h"

namespace ckpt {

// Where a destination NAME is made, beside it on the same file system:
//   .NAME.shardwise-partial/lock         held by the process that writes, or that commits
//   .NAME.shardwise-partial/job          what is written, where that can be continued
//   .NAME.shardwise-partial/content      becomes NAME
//   .NAME.shardwise-partial/part-R       what process R has finished
//   .NAME.shardwise-partial/part-R.lock  held by process R of several
//   .NAME.shardwise-partial/publishing   the inode of `content`, while it becomes NAME, where
//                                        NAME is being replaced or others may come back
//   .NAME.shardwise-partial/replaced     what NAME was before, where two names cannot be swapped
struct StagingPlace {
  explicit StagingPlace(const std::filesystem::path& destination);

  std::string shown;  // the destination as the caller wrote it, for errors
  std::filesystem::path destination, holder, lock, job, content, publishing, replaced;

  std::filesystem::path part_lock(uint32_t rank) const;

  // Throws InvalidArgument where the destination is in `source`, around it, or it.
  void refuse_overlap(const std::filesystem::path& source) const;
  // The same where the destination is one of a source's files, or holds one: they may be several of
  // a folder, and some may lie elsewhere, behind links.
  void refuse_files(const std::vector<std::filesystem::path>& files) const;

  // The lock; none where another process holds it, or where the holder has just gone.
  std::optional<LockFile> try_lock() const;
  // It and those of all parts, which keep every other process out; none where one is at work, or
  // where nothing is left.
  std::vector<LockFile> try_lock_all() const;
  // Undoes or completes what ended while it replaced the destination.
  void recover() const;
  // Removes all but `lock`; in an order in which recover() can always tell what happened.
  void remove_work() const;
  // Removes the holder if nothing but `lock`, which the caller holds, is in it.
  void remove_if_empty() const;
  // Removes what a run left that was killed between publishing and tidying up, and nothing that
  // could be continued. Does nothing where a process is at work.
  void tidy() const;
};

}  // namespace ckpt
