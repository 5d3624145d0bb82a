#include "execute/output_files.h"

#include "codec/crc32.h"
#include "io/directory.h"

namespace ckpt {

namespace fs = std::filesystem;

OutputFiles::OutputFiles(fs::path folder, const Plan& plan, const WindowMap& windows)
    : folder_(std::move(folder)), plan_(plan), slots_(plan.files.size()) {
  for (uint32_t f = 0; f < plan.files.size(); ++f) {
    const std::string& path = plan.files[f].path;
    const bool is_single = path.empty() && plan.files.size() == 1;
    if (!is_single && !is_safe_relative(path)) {
      throw Error(ErrorCode::InvalidArgument, {path}, "a file name that leads out of the target");
    }
    slots_[f].windows_left = windows.count_in(f);
  }
}

fs::path OutputFiles::path_of(uint32_t file) const {
  const std::string& path = plan_.files[file].path;
  return path.empty() ? folder_ : folder_ / path;
}

std::shared_ptr<OutputFile> OutputFiles::open(uint32_t file) {
  Slot& slot = slots_[file];
  const std::scoped_lock lock(slot.mutex);
  if (!slot.file) {
    const fs::path path = path_of(file);
    make_folders(path.parent_path());
    slot.file = std::make_shared<OutputFile>(path, plan_.files[file].count_bytes);
  }
  return slot.file;
}

std::optional<WrittenFile> OutputFiles::write(const Window& window,
                                              std::span<const std::byte> blocks, uint32_t crc) {
  const uint64_t file_bytes = plan_.files[window.file].count_bytes;
  open(window.file)->write_at(window.bytes.offset_bytes, blocks);
  Slot& slot = slots_[window.file];
  const std::scoped_lock lock(slot.mutex);
  slot.crc ^= crc32_before(crc, file_bytes - window.bytes.end_bytes());
  if (--slot.windows_left != 0) return std::nullopt;
  slot.file->finish();
  slot.file.reset();
  return WrittenFile{window.file, file_bytes, slot.crc};
}

}  // namespace ckpt
