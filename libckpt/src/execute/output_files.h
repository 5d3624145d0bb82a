#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include <ckpt/execute.h>
#include <ckpt/plan.h>

#include "execute/file_checksum.h"
#include "execute/target_pieces.h"
#include "io/file.h"

namespace ckpt {

// The files of a target: each is made when its first piece is written and closed after its last, so
// that few are open at a time however many there are. Safe to use from many threads.
class OutputFiles {
 public:
  // `folder`: of the staging, or the file itself for a plan of one file without a path. Throws
  // InvalidArgument for a path that leads out of the folder.
  OutputFiles(std::filesystem::path folder, const Plan& plan, const TargetPieces& pieces);

  std::shared_ptr<const File> open(uint32_t file);
  // For the file's checksum: each byte once, in any order.
  void bytes_written(uint32_t file, uint64_t offset_bytes, std::span<const std::byte> bytes);
  // The finished file after its last piece.
  std::optional<WrittenFile> piece_done(uint32_t file);

 private:
  struct Slot {
    std::mutex mutex;
    std::shared_ptr<const File> file;
    FileChecksum checksum;
    uint32_t pieces_left = 0;
  };
  std::filesystem::path path_of(uint32_t file) const;

  std::filesystem::path folder_;
  const Plan& plan_;
  std::vector<Slot> slots_;
};

}  // namespace ckpt
