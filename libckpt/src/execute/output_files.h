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

#include "execute/window_map.h"
#include "io/output_file.h"

namespace ckpt {

// The files of a target: each is made when its first window is written and closed after its last,
// so that few are open at a time however many there are. Safe to use from many threads.
class OutputFiles {
 public:
  // `folder`: of the staging, or the file itself for a plan of one file without a path. Throws
  // InvalidArgument for a path that leads out of the folder.
  OutputFiles(std::filesystem::path folder, const Plan& plan, const WindowMap& windows);

  // `blocks`: the window, filled up to whole blocks; `crc`: of the window alone. Returns the file
  // if that was its last window.
  std::optional<WrittenFile> write(const Window& window, std::span<const std::byte> blocks,
                                   uint32_t crc);

 private:
  struct Slot {
    std::mutex mutex;
    std::shared_ptr<OutputFile> file;
    size_t windows_left = 0;
    uint32_t crc = 0;  // of what was written so far
  };
  std::shared_ptr<OutputFile> open(uint32_t file);
  std::filesystem::path path_of(uint32_t file) const;

  std::filesystem::path folder_;
  const Plan& plan_;
  std::vector<Slot> slots_;
};

}  // namespace ckpt
