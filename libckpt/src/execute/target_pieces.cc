#include "execute/target_pieces.h"

#include <algorithm>

#include "format/archive_writer.h"

namespace ckpt {

namespace {

class Cutter {
 public:
  Cutter(const Target& target, uint64_t piece_bytes) : target_(target) {
    result_.piece_bytes = piece_bytes;
  }

  TargetPieces cut() {
    for (file_ = 0; file_ < target_.files.size(); ++file_) cut_file(target_.files[file_]);
    return std::move(result_);
  }

 private:
  void cut_file(const TargetFile& file) {
    result_.archives.emplace_back();
    result_.piece_count.push_back(0);
    offset_bytes_ = 0;
    if (file.archives.empty()) add({.bytes = {0, file.bytes.size()}});
    for (uint32_t a = 0; a < file.archives.size(); ++a) {
      result_.archives.back().push_back({offset_bytes_, record_count_});
      cut_archive(a, ArchiveImage(file.archives[a]));
      record_count_ += file.archives[a].records.size();
    }
    flush_archives();
  }

  void cut_archive(uint32_t archive, const ArchiveImage& image) {
    const uint64_t count_bytes = image.layout().count_bytes();
    if (pending_.bytes.count_bytes + count_bytes > result_.piece_bytes) flush_archives();
    if (count_bytes <= result_.piece_bytes) {
      if (pending_.count == 0) {
        pending_ = {.kind = Piece::Kind::Archives, .archive = archive, .bytes = {offset_bytes_, 0}};
      }
      pending_.count += 1;
      pending_.bytes.count_bytes += count_bytes;
    } else {
      cut_members(archive, image);
    }
    offset_bytes_ += count_bytes;
  }

  // Runs of members that fit into one piece; a member that does not is sliced.
  void cut_members(uint32_t archive, const ArchiveImage& image) {
    result_.split.push_back({file_, archive, 0});
    Piece run = piece_of(archive, 0, offset_bytes_);
    for (uint32_t m = 0; m < image.id_member(); ++m) {
      const zip::Place& place = image.place(m);
      const uint64_t end_bytes = image.place(m + 1).header_offset_bytes;
      const uint64_t span_bytes = end_bytes - place.header_offset_bytes;
      if (run.bytes.count_bytes + span_bytes > result_.piece_bytes) {
        add_split(run);
        run = piece_of(archive, m, offset_bytes_ + place.header_offset_bytes);
      }
      if (span_bytes <= result_.piece_bytes) {
        run.count += 1;
        run.bytes.count_bytes += span_bytes;
      } else {
        slice(piece_of(archive, m, offset_bytes_ + place.data_offset_bytes), place.count_bytes);
        run = piece_of(archive, m + 1, offset_bytes_ + end_bytes);
      }
    }
    add_split(run);
  }

  Piece piece_of(uint32_t archive, uint32_t member, uint64_t offset_bytes) const {
    return {.kind = Piece::Kind::Members,
            .archive = archive,
            .member = member,
            .split = static_cast<uint32_t>(result_.split.size() - 1),
            .bytes = {offset_bytes, 0}};
  }

  void slice(Piece piece, uint64_t data_bytes) {
    piece.kind = Piece::Kind::Slice;
    piece.count = 1;
    const uint64_t data_offset_bytes = piece.bytes.offset_bytes;
    for (uint64_t done_bytes = 0; done_bytes < data_bytes; done_bytes += result_.piece_bytes) {
      piece.slice_offset_bytes = done_bytes;
      piece.bytes = {data_offset_bytes + done_bytes,
                     std::min(result_.piece_bytes, data_bytes - done_bytes)};
      add_split(piece);
    }
  }

  void add_split(const Piece& piece) {
    if (piece.count == 0) return;
    result_.split[piece.split].piece_count += 1;
    add(piece);
  }

  void flush_archives() {
    if (pending_.count != 0) add(pending_);
    pending_ = {};
  }

  void add(Piece piece) {
    piece.file = file_;
    result_.piece_count.back() += 1;
    result_.pieces.push_back(piece);
  }

  const Target& target_;
  TargetPieces result_;
  uint32_t file_ = 0;
  uint64_t offset_bytes_ = 0;  // of the next archive in the file
  uint64_t record_count_ = 0;  // of all archives before
  Piece pending_;              // whole archives, not yet added
};

}  // namespace

TargetPieces cut_target(const Target& target, uint64_t piece_bytes) {
  return Cutter(target, piece_bytes).cut();
}

}  // namespace ckpt
