#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ckpt/error.h>
#include <ckpt/plan.h>
#include <ckpt/target.h>

#include "targets/archive_writer.h"

namespace ckpt {

// A part of a target file that is composed in one buffer and written with one call.
struct Window {
  size_t piece = 0;  // index into the pieces
  uint32_t file = 0;
  ByteRange bytes;  // in the file
};

// Pieces of a plan's files, one after the other, cut at multiples of the windows' length. An empty
// piece has one empty window. What the files hold does not depend on the cuts. Immutable.
class WindowMap {
 public:
  // `pieces`: some of cut_into_pieces(), in their order.
  WindowMap(std::vector<Piece> pieces, uint64_t window_bytes);

  const std::vector<Piece>& pieces() const { return pieces_; }

  size_t count() const { return first_window_.back(); }
  size_t count_in(size_t piece) const { return first_window_[piece + 1] - first_window_[piece]; }
  Window window(size_t index) const;
  // Of the windows in files before this one, or in it from before an offset on.
  size_t count_before(uint32_t file, uint64_t offset_bytes) const;
  // How many windows show some of these bytes of a file.
  size_t count_over(uint32_t file, ByteRange bytes) const;

 private:
  std::vector<Piece> pieces_;
  uint64_t window_bytes_;
  std::vector<size_t> first_window_;  // by piece, and one for the end
};

// Where windows wait for what earlier windows find out. Jobs are numbered like their windows and
// start in that order, so whoever is waited for is at work, or done, or has failed.
class WaitingRoom {
 public:
  std::mutex& mutex() { return mutex_; }
  void wake() { changed_.notify_all(); }
  // Ends the waiting of the jobs after this one.
  void fail(size_t job);

  // Waits until is_known(). Throws if an earlier job failed, which is the one that gets reported.
  template <class Condition>
  void wait(std::unique_lock<std::mutex>& lock, size_t job, Condition is_known) {
    changed_.wait(lock, [&] { return failed_job_ < job || is_known(); });
    if (is_known()) return;
    throw Error(ErrorCode::IoFailure, {}, "an earlier part of the work failed");
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t failed_job_ = std::numeric_limits<size_t>::max();  // the lowest one
};

// An archive in the making: its image, and the checksums that its descriptors and its directory
// state. Safe to use from many threads.
class ArchiveState {
 public:
  // `known_crcs`: of its records, where others have found them out; else empty.
  ArchiveState(const TargetArchive& archive, WaitingRoom& room,
               std::span<const uint32_t> known_crcs);

  const ArchiveImage& image() const { return image_; }

  // The CRC-32 of a part of a record; each byte is told once.
  void add(size_t member, ByteRange part, uint32_t crc);

  // These wait for what other windows have not told yet. `job`: the number of who asks.
  uint32_t crc(size_t member, size_t job);
  const std::vector<uint32_t>& crcs(size_t job);  // of all members
  const std::string& serialization_id(size_t job);

 private:
  bool is_known(size_t member) const { return left_bytes_[member] == 0; }
  void finish_id(std::unique_lock<std::mutex>& lock, size_t job);

  ArchiveImage image_;
  WaitingRoom& room_;
  std::vector<uint32_t> crcs_;        // by member; of records, of what was told so far
  std::vector<uint64_t> left_bytes_;  // by member: what was not told yet
  size_t unknown_count_ = 0;          // records of which something was not told yet
  std::string serialization_id_;      // empty until it is known
};

// The archives that windows are working on: a state is made when the first window needs it, shared
// by all that show a part of the archive, and gone after the last. Safe to use from many threads.
class OpenArchives {
 public:
  // `record_crcs`: as ExecuteOptions has them.
  OpenArchives(const Target& target, const Plan& plan, const WindowMap& windows,
               std::span<const uint32_t> record_crcs)
      : target_(target), plan_(plan), windows_(windows), record_crcs_(record_crcs) {}

  WaitingRoom& room() { return room_; }
  const WindowMap& windows() const { return windows_; }
  // The plan's records that an archive has.
  std::span<const RecordPlan> records_of(uint32_t file, uint32_t archive) const;
  ByteRange place(uint32_t file, uint32_t archive) const;

  // Each window that shows some of the archive opens it once, and closes it once.
  std::shared_ptr<ArchiveState> open(const Window& window, uint32_t archive);
  void close(uint32_t file, uint32_t archive);

 private:
  struct Shared {
    std::mutex mutex;
    std::shared_ptr<ArchiveState> state;
    size_t windows_left = 0;
  };
  std::shared_ptr<ArchiveState> make(const Window& window, uint32_t archive);

  const Target& target_;
  const Plan& plan_;
  const WindowMap& windows_;
  const std::span<const uint32_t> record_crcs_;
  WaitingRoom room_;
  std::mutex mutex_;
  std::map<std::pair<uint32_t, uint32_t>, std::shared_ptr<Shared>> shared_;  // by file, archive
};

inline const TargetRecord& record_of(const Target& target, const RecordPlan& plan) {
  return target.files[plan.file].archives[plan.archive].records[plan.record];
}

// The elements of a sorted vector whose projection is equal to `value`. What
// std::ranges::equal_range returns does not compile with clang 14 and libstdc++ 12, by which the
// fuzz targets are built.
template <class Element, class Value, class Projection>
std::span<const Element> equal_run(const std::vector<Element>& sorted, const Value& value,
                                   Projection projection) {
  const auto first = std::ranges::lower_bound(sorted, value, {}, projection);
  const auto last = std::ranges::upper_bound(first, sorted.end(), value, {}, projection);
  return {first, last};
}

}  // namespace ckpt
