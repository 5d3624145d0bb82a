#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include <ckpt/execute.h>
#include <ckpt/folder.h>
#include <ckpt/plan.h>

#include "staging/destination.h"
#include "staging/job_record.h"
#include "write/archive_state.h"
#include "write/window_composer.h"

namespace ckpt {

// Where a file of the plan lies: `folder` is the staging's, or the file itself where the only one
// has no path.
Place output_path(const Place& folder, const std::string& path);

// Files below a held folder, or the file itself for a plan of one file without a path.
class LocalFiles final : public Destination {
 public:
  explicit LocalFiles(Place folder) : folder_(std::move(folder)) {}
  std::shared_ptr<FileSink> create(const PlannedFile& file, OutputFile::Use use) override;

 private:
  Place folder_;
};

// The files of a target: each is opened when its first window is written and closed after its
// last, so that few are open at a time however many there are. Safe to use from many threads.
class OutputFiles {
 public:
  // Throws InvalidArgument for a path that leads out of the destination.
  OutputFiles(Destination& destination, const Plan& plan, const WindowMap& windows);

  // `blocks`: the window, filled up to whole blocks; `sums`: of the window alone. Returns the piece
  // if that was its last window.
  std::optional<WrittenPiece> write(const Window& window, std::span<const std::byte> blocks,
                                    const WindowSums& sums);

 private:
  struct Slot {
    std::mutex mutex;  // also of its pieces' progress
    std::shared_ptr<FileSink> file;
    size_t pieces_left = 0;
  };
  struct Progress {
    size_t windows_left = 0;
    uint32_t crc = 0;  // of what was written so far
    std::vector<uint32_t> record_crcs = {};
  };
  std::shared_ptr<FileSink> open(const Piece& piece);
  OutputFile::Use use_of(const Piece& piece) const;

  Destination& destination_;
  const Plan& plan_;
  const WindowMap& windows_;
  std::unordered_map<uint32_t, Slot> slots_;  // by index of the file
  std::vector<Progress> progress_;            // by piece
};

struct ReadBackOptions {
  bool cold =
      false;  // from the device: what the system has cached is dropped first, where it can be
  ExecuteOptions execute;  // threads, memory, progress, stop
};

// Files of a destination, by their paths in the plan.
struct WrittenFiles {
  std::function<Folder::Entry(const std::string& path)> entry;
  // `bytes`: those that will be read.
  std::function<std::unique_ptr<OpenedFile>(const std::string& path, ByteRange bytes)> open;
};

// Reads pieces of files of a staging folder (or of the file itself, where the path of the only one
// is empty) and says which of them are, by their checksum, what was written. One that is not there
// is not.
std::vector<bool> are_as_written(const Place& folder, std::span<const FinishedPiece> pieces,
                                 const ReadBackOptions& options);
std::vector<bool> are_as_written(const WrittenFiles& files, std::span<const FinishedPiece> pieces,
                                 const ExecuteOptions& options);

[[noreturn]] void throw_not_as_written(const std::filesystem::path& path);

}  // namespace ckpt
