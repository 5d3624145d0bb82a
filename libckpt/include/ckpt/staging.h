#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <ckpt/target.h>

namespace ckpt {

class Place;

// Which part of the work is this process's.
struct Share {
  uint32_t rank = 0;
  uint32_t world_size = 1;
  // The least that a process writes, or verifies, of a file: larger files are cut, equally for
  // every world size.
  uint64_t piece_bytes_min = uint64_t{256} << 20;
};

struct StagingOptions {
  bool force = false;        // replace an existing destination
  bool single_file = false;  // the target is one file, not a folder
  std::string source = {};  // path of the source: a destination inside it, or around it, is refused
  // What is being written, equal for every attempt and every process. Empty: an attempt that was
  // interrupted cannot be continued, and what it left is removed without being asked for.
  std::string job = {};
  // Continue what an interrupted attempt at the same job left, if one did; and without commit()
  // leave to the next one what is finished.
  bool resume = false;
  // With a world_size above 1 several processes fill one staging folder; it stays until one of them
  // commits.
  Share share = {};
  // Paths below folder() of all files that any attempt may make there ("" for the file itself): the
  // rest is somebody else's, and is neither removed nor published. Empty: everything is ours.
  std::vector<std::string> files = {};
};

// A destination in the making: a folder (or file) beside it on the same file system,
// ".NAME.shardwise-partial". commit() syncs and renames it into place; without commit() the
// destructor removes it, but for what StagingOptions keeps. A destination is absent, the old one,
// or complete, whenever the process or the machine stops; see docs/durability.md. What stands where
// that folder or its files go and is not of this program (a link, a folder, a file) is never
// followed, written to or removed: AlreadyExists names it (docs/security.md).
class CKPT_EXPORT Staging {
 public:
  // Throws AlreadyExists (the destination; what an interrupted attempt at a job left; another
  // process at work; what is not ours), InvalidArgument (destination in source or around it),
  // IoFailure.
  static Staging create(const std::filesystem::path& destination, StagingOptions options = {});
  // To commit what the processes of a job left: throws NotFound where nothing is.
  CKPT_PRIVATE static Staging attach(const std::filesystem::path& destination,
                                     StagingOptions options);
  // Removes what interrupted attempts left, and undoes one that ended while it replaced the
  // destination. False where nothing was. Throws AlreadyExists where a process is at work.
  static bool clean(const std::filesystem::path& destination);
  // A run was interrupted, or is at work: what it left lies beside the destination.
  CKPT_PRIVATE static bool is_left(const std::filesystem::path& destination);
  // The destination is what several processes have made of this job. False also where the file
  // system cannot tell: it keeps no extended attributes.
  CKPT_PRIVATE static bool is_published(const std::filesystem::path& destination,
                                        const std::string& job);

  Staging(Staging&&) noexcept;
  ~Staging();

  const std::filesystem::path& folder() const;  // write here (the file itself, for a single file)
  // folder(), and what it lies in, where a job notes down what it does: held open, for libckpt's
  // own writers. Names of notes start with "part-".
  CKPT_PRIVATE const Place& place() const;
  CKPT_PRIVATE const Place& notes() const;

  // Of several processes: what is written is, so that this process may be started again.
  CKPT_PRIVATE void leave_part();
  // And the one that may commit. Yes: until the end no other one can begin or continue a part.
  enum class Lead : uint8_t { Yes, No, OthersAreAtWork };  // No: another one is at it, or has been
  CKPT_PRIVATE Lead try_lead();
  void commit();

 private:
  struct State;
  CKPT_PRIVATE explicit Staging(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace ckpt
