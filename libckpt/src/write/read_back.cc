#include "write/read_back.h"

#include <algorithm>

#include "base/checked_math.h"
#include "codec/crc32.h"
#include "io/directory.h"
#include "work/slab_workers.h"
#include "work/work_meter.h"
#include "write/output_files.h"

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
  ReadBack(const Place& folder, std::span<const FinishedPiece> pieces,
           const ReadBackOptions& options)
      : folder_(folder), pieces_(pieces), options_(options), is_right_(pieces.size()) {}

  std::vector<bool> run() {
    cut();
    WorkMeter meter(options_.execute, total_bytes_, "reading back");
    run_with_slabs(parts_.size(), options_.execute,
                   [&](size_t job, std::span<std::byte> slab) { read(parts_[job], slab, meter); });
    compare();
    return std::move(is_right_);
  }

 private:
  Place path_of(const FinishedPiece& piece) const { return output_path(folder_, piece.path); }

  void cut() {
    for (size_t p = 0; p < pieces_.size(); ++p) {
      const ByteRange bytes = pieces_[p].bytes;
      const auto [kind, state] = entry_at(path_of(pieces_[p]));
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
    const File file = File::open(path_of(pieces_[part.piece]));
    if (options_.cold) file.drop_cached(part.bytes.offset_bytes, part.bytes.count_bytes);
    ByteRange left = part.bytes;
    while (left.count_bytes != 0) {
      meter.stop_if_requested();
      const auto out = buffer.first(std::min<uint64_t>(buffer.size(), left.count_bytes));
      file.read_at(left.offset_bytes, out);
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

  const Place& folder_;
  std::span<const FinishedPiece> pieces_;
  const ReadBackOptions& options_;
  std::vector<bool> is_right_;
  std::vector<PiecePart> parts_;
  uint64_t total_bytes_ = 0;
};

}  // namespace

std::vector<bool> are_as_written(const Place& folder, std::span<const FinishedPiece> pieces,
                                 const ReadBackOptions& options) {
  return ReadBack(folder, pieces, options).run();
}

void throw_not_as_written(const std::filesystem::path& path) {
  throw Error(ErrorCode::IoFailure, {path.string()},
              "the bytes read back differ from those written",
              "do not rely on this storage device");
}

}  // namespace ckpt
