#include "write/read_back.h"

#include <algorithm>

#include "base/checked_math.h"
#include "codec/crc32.h"
#include "io/directory.h"
#include "work/workers.h"

namespace ckpt {
namespace {

constexpr uint64_t kPartBytes = 64 << 20;  // one job

struct PiecePart {
  size_t piece;
  ByteRange bytes;  // of the file
  uint32_t crc = 0;
};

class ReadBack {
 public:
  ReadBack(const WrittenFiles& files, std::span<const FinishedPiece> pieces,
           const ExecuteOptions& options)
      : files_(files), pieces_(pieces), options_(options), is_right_(pieces.size()) {}

  std::vector<bool> run() {
    cut();
    WorkMeter meter(options_, total_bytes_, "reading back");
    run_with_slabs(parts_.size(), options_,
                   [&](size_t job, std::span<std::byte> slab) { read(parts_[job], slab, meter); });
    compare();
    return std::move(is_right_);
  }

 private:
  void cut() {
    for (size_t p = 0; p < pieces_.size(); ++p) {
      const ByteRange bytes = pieces_[p].bytes;
      const auto [kind, state] = files_.entry(pieces_[p].path);
      is_right_[p] =
          kind == EntryKind::File && fits(bytes.offset_bytes, bytes.count_bytes, state.count_bytes);
      if (!is_right_[p]) continue;
      total_bytes_ += bytes.count_bytes;
      for (uint64_t at = bytes.offset_bytes; at < bytes.end_bytes(); at += kPartBytes) {
        parts_.push_back({p, {at, std::min(kPartBytes, bytes.end_bytes() - at)}});
      }
    }
  }

  void read(PiecePart& part, std::span<std::byte> buffer, WorkMeter& meter) {
    const auto file = files_.open(pieces_[part.piece].path, part.bytes);
    ByteRange left = part.bytes;
    while (left.count_bytes != 0) {
      meter.stop_if_requested();
      const auto out = buffer.first(std::min<uint64_t>(buffer.size(), left.count_bytes));
      file->read_once(left.offset_bytes, out);
      part.crc = crc32(out, part.crc);
      left = {left.offset_bytes + out.size(), left.count_bytes - out.size()};
      meter.advance(out.size());
    }
  }

  void compare() {
    std::vector<uint32_t> crcs(pieces_.size());
    for (const PiecePart& part : parts_) {  // in the order of each piece
      uint32_t& crc = crcs[part.piece];
      crc = crc32_of_both(crc, part.crc, part.bytes.count_bytes);
    }
    for (size_t p = 0; p < pieces_.size(); ++p) {
      if (crcs[p] != pieces_[p].crc32) is_right_[p] = false;
    }
  }

  const WrittenFiles& files_;
  std::span<const FinishedPiece> pieces_;
  const ExecuteOptions& options_;
  std::vector<bool> is_right_;
  std::vector<PiecePart> parts_;
  uint64_t total_bytes_ = 0;
};

}  // namespace

namespace fs = std::filesystem;

static_assert(Piece::kBlockBytes % OutputFile::kBlockBytes == 0);

Place output_path(const Place& folder, const std::string& path) {
  return path.empty() ? folder : folder / path;
}

std::shared_ptr<FileSink> LocalFiles::create(const PlannedFile& file, OutputFile::Use use) {
  make_folders(folder_, fs::path(file.path).parent_path());
  return std::make_shared<OutputFile>(output_path(folder_, file.path), file.count_bytes, use);
}

OutputFiles::OutputFiles(Destination& destination, const Plan& plan, const WindowMap& windows)
    : destination_(destination),
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

std::shared_ptr<FileSink> OutputFiles::open(const Piece& piece) {
  Slot& slot = slots_.at(piece.file);
  const std::scoped_lock lock(slot.mutex);
  if (!slot.file) slot.file = destination_.create(plan_.files[piece.file], use_of(piece));
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

std::vector<bool> are_as_written(const Place& folder, std::span<const FinishedPiece> pieces,
                                 const ReadBackOptions& options) {
  const WrittenFiles files{
      [&](const std::string& path) { return entry_at(output_path(folder, path)); },
      [&](const std::string& path, ByteRange bytes) {
        auto file = std::make_unique<File>(File::open(output_path(folder, path)));
        if (options.cold) file->drop_cached(bytes.offset_bytes, bytes.count_bytes);
        return file;
      }};
  return are_as_written(files, pieces, options.execute);
}

std::vector<bool> are_as_written(const WrittenFiles& files, std::span<const FinishedPiece> pieces,
                                 const ExecuteOptions& options) {
  return ReadBack(files, pieces, options).run();
}

void throw_not_as_written(const std::filesystem::path& path) {
  throw Error(ErrorCode::IoFailure, {path.string()},
              "the bytes read back differ from those written",
              "do not rely on this storage device");
}

}  // namespace ckpt
