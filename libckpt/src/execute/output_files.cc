#include "execute/output_files.h"

#include "codec/crc32.h"
#include "io/directory.h"

namespace ckpt {

namespace fs = std::filesystem;

OutputFiles::OutputFiles(fs::path folder, const Plan& plan, const TargetPieces& pieces)
    : folder_(std::move(folder)), plan_(plan), slots_(plan.files.size()) {
  for (uint32_t f = 0; f < plan.files.size(); ++f) {
    const std::string& path = plan.files[f].path;
    const bool is_single = path.empty() && plan.files.size() == 1;
    if (!is_single && !is_safe_relative(path)) {
      throw Error(ErrorCode::InvalidArgument, {path}, "a file name that leads out of the target");
    }
    slots_[f].pieces_left = pieces.piece_count[f];
  }
}

fs::path OutputFiles::path_of(uint32_t file) const {
  const std::string& path = plan_.files[file].path;
  return path.empty() ? folder_ : folder_ / path;
}

std::shared_ptr<const File> OutputFiles::open(uint32_t file) {
  Slot& slot = slots_[file];
  const std::scoped_lock lock(slot.mutex);
  if (!slot.file) {
    const fs::path path = path_of(file);
    make_folders(path.parent_path());
    slot.file = std::make_shared<File>(File::create(path, plan_.files[file].count_bytes));
  }
  return slot.file;
}

void OutputFiles::bytes_written(uint32_t file, uint64_t offset_bytes,
                                std::span<const std::byte> bytes) {
  const uint32_t crc = crc32(bytes);
  Slot& slot = slots_[file];
  const std::scoped_lock lock(slot.mutex);
  slot.checksum.add(offset_bytes, bytes.size(), crc);
}

std::optional<WrittenFile> OutputFiles::piece_done(uint32_t file) {
  Slot& slot = slots_[file];
  const std::scoped_lock lock(slot.mutex);
  if (--slot.pieces_left != 0) return std::nullopt;
  slot.file.reset();
  return WrittenFile{file, plan_.files[file].count_bytes, slot.checksum.whole()};
}

}  // namespace ckpt
