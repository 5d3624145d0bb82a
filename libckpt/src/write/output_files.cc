#include "write/output_files.h"

#include "codec/crc32.h"
#include "io/directory.h"

namespace ckpt {

namespace fs = std::filesystem;

static_assert(Piece::kBlockBytes % OutputFile::kBlockBytes == 0);

Place output_path(const Place& folder, const std::string& path) {
  return path.empty() ? folder : folder / path;
}

OutputFiles::OutputFiles(Place folder, const Plan& plan, const WindowMap& windows)
    : folder_(std::move(folder)),
      plan_(plan),
      windows_(windows),
      progress_(windows.pieces().size()) {
  for (size_t p = 0; p < progress_.size(); ++p) {
    const std::string& path = plan.files[windows.pieces()[p].file].path;
    const bool is_single = path.empty() && plan.files.size() == 1;
    if (!is_single && !is_safe_relative(path)) {
      throw Error(ErrorCode::InvalidArgument, {path}, "the file name points outside the target");
    }
    progress_[p].windows_left = windows.count_in(p);
    ++slots_[windows.pieces()[p].file].pieces_left;
  }
}

OutputFile::Use OutputFiles::use_of(const Piece& piece) const {
  if (piece.closes) return OutputFile::Use::Closed;
  const bool is_whole = piece.bytes.count_bytes == plan_.files[piece.file].count_bytes;
  return is_whole ? OutputFile::Use::Whole : OutputFile::Use::Shared;
}

std::shared_ptr<OutputFile> OutputFiles::open(const Piece& piece) {
  Slot& slot = slots_.at(piece.file);
  const std::scoped_lock lock(slot.mutex);
  if (!slot.file) {
    const auto& [path, count_bytes, archive_offsets] = plan_.files[piece.file];
    make_folders(folder_, fs::path(path).parent_path());
    slot.file =
        std::make_shared<OutputFile>(output_path(folder_, path), count_bytes, use_of(piece));
  }
  return slot.file;
}

std::optional<WrittenPiece> OutputFiles::write(const Window& window,
                                               std::span<const std::byte> blocks,
                                               const WindowSums& sums) {
  const Piece& piece = windows_.pieces()[window.piece];
  // Behind one that closes something others may have written.
  if (piece.closes) blocks = blocks.first(window.bytes.count_bytes);
  open(piece)->write_at(window.bytes.offset_bytes, blocks);
  Slot& slot = slots_.at(piece.file);
  const std::scoped_lock lock(slot.mutex);
  Progress& progress = progress_[window.piece];
  progress.crc ^= crc32_before(sums.crc32, piece.bytes.end_bytes() - window.bytes.end_bytes());
  if (use_of(piece) == OutputFile::Use::Shared) {
    progress.record_crcs.resize(piece.end_record - piece.first_record);
  }
  for (const auto& [record, record_crc] : sums.records) {
    progress.record_crcs[record - piece.first_record] ^= record_crc;
  }
  if (--progress.windows_left != 0) return std::nullopt;
  if (piece.bytes.end_bytes() == plan_.files[piece.file].count_bytes) slot.file->finish();
  if (--slot.pieces_left == 0) slot.file.reset();
  return WrittenPiece{piece, progress.crc, std::move(progress.record_crcs)};
}

}  // namespace ckpt
