#include "publish/piece_writer.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "io/directory.h"
#include "write/read_back.h"

namespace ckpt {

PieceWriter::PieceWriter(const WriteAttempt& attempt)
    : attempt_(attempt),
      job_(attempt.job),
      record_crcs_(job_.needs_record_crcs() ? job_.plan().records.size() : 0, 0) {}

std::vector<FinishedPiece> PieceWriter::write_payload(std::vector<Piece> pieces,
                                                      PartRecordWriter& record) {
  return write(std::move(pieces), attempt_.options.execute, &record);
}

// What is last is small: no budget may refuse it after the payload.
std::vector<FinishedPiece> PieceWriter::write_last() {
  ExecuteOptions options = attempt_.options.execute;
  options.threads = 1;
  options.process_bytes_max = 0;
  return write(job_.last(), std::move(options), nullptr);
}

std::vector<FinishedPiece> PieceWriter::write(std::vector<Piece> pieces, ExecuteOptions options,
                                              PartRecordWriter* record) {
  std::vector<FinishedPiece> finished;
  if (pieces.empty()) return finished;
  std::mutex mutex;
  options.pieces = std::move(pieces);
  options.record_crcs = record_crcs_;
  options.on_piece = [&](const WrittenPiece& written) {
    FinishedPiece piece{job_.name_of(written.piece), written.piece.bytes, written.crc32};
    if (!record_crcs_.empty()) piece.record_crcs = written.record_crcs;
    sync_file(job_.path_of(attempt_.staging.place(), written.piece));
    if (record != nullptr) record->add(piece);
    const std::scoped_lock lock(mutex);
    finished.push_back(std::move(piece));
  };
  const ExecuteStats stats =
      execute(job_.target(), job_.plan(), attempt_.source.payloads, attempt_.staging, options);
  attempt_.report.stats.read_bytes += stats.read_bytes;
  attempt_.report.stats.written_bytes += stats.written_bytes;
  attempt_.report.stats.file_count += stats.file_count;
  return finished;
}

void PieceWriter::verify(const std::vector<FinishedPiece>& written) {
  if (!attempt_.options.verify) return;
  const auto is_right =
      are_as_written(attempt_.staging.place(), written, {true, attempt_.options.execute});
  for (size_t i = 0; i < written.size(); ++i) {
    attempt_.report.verified_bytes += written[i].bytes.count_bytes;
    if (!is_right[i]) throw_not_as_written(written[i].path);
  }
}

bool PieceWriter::add_record_crcs(const Piece& piece, const std::vector<uint32_t>& crcs) {
  if (record_crcs_.empty() || job_.is_whole(piece)) return true;
  if (crcs.size() != piece.end_record - piece.first_record) return false;
  for (size_t i = 0; i < crcs.size(); ++i) record_crcs_[piece.first_record + i] ^= crcs[i];
  return true;
}

}  // namespace ckpt
