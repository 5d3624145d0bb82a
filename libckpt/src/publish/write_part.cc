// One process's share of what a conversion writes.
#include <map>
#include <utility>

#include "io/directory.h"
#include "publish/piece_writer.h"
#include "write/read_back.h"
#include "write/source_checker.h"

namespace ckpt {
namespace {

using PiecePlace = std::pair<std::string, uint64_t>;  // path, offset

class Part {
 public:
  Part(const WriteAttempt& attempt, PieceWriter& writer)
      : attempt_(attempt),
        job_(attempt.job),
        folder_(attempt.staging.place()),
        rank_(attempt.options.share.rank),
        writer_(writer) {}

  void write() {
    refuse_lost_files();
    keep_finished();
    PartRecordWriter record = attempt_.records().writer(rank_, kept_);
    std::vector<FinishedPiece> written = writer_.write_payload(std::move(missing_), record);
    written.insert(written.end(), kept_.begin(), kept_.end());
    if (attempt_.fingerprint) attempt_.fingerprint->check_unchanged();
    // What is compressed is read again, and compared, by who publishes.
    if (!attempt_.options.zstd_level) writer_.verify(written);
    if (attempt_.source.before_publishing) attempt_.source.before_publishing();
    record.complete();
  }

 private:
  void refuse_lost_files() const {
    std::vector<std::string> absent;
    for (const Piece& piece : job_.payload()) {
      const bool is_listed = !absent.empty() && absent.back() == job_.name_of(piece);
      if (job_.is_whole(piece) || is_listed) continue;
      const bool is_there = kind_of_entry(job_.path_of(folder_, piece)) == EntryKind::File;
      if (!is_there) absent.push_back(job_.name_of(piece));
    }
    attempt_.records().refuse_lost(absent, folder_);
  }

  void keep_finished() {
    std::map<PiecePlace, FinishedPiece> sound = read_finished();
    std::vector<Piece> kept_pieces;
    for (const Piece& piece : job_.payload_of(rank_)) {
      const auto found = sound.find({job_.name_of(piece), piece.bytes.offset_bytes});
      if (found != sound.end() && job_.is_there(folder_, piece, found->second)) {
        attempt_.report.kept_bytes += piece.bytes.count_bytes;
        kept_.push_back(std::move(found->second));
        kept_pieces.push_back(piece);
      } else {
        remove_remains_of(piece);
        missing_.push_back(piece);
      }
    }
    if (kept_.empty()) return;
    check_sources(job_.target(), job_.plan(), kept_pieces, *attempt_.source.checkpoint,
                  attempt_.options.execute);
  }

  // What an earlier attempt has noted, where it is as it was written.
  std::map<PiecePlace, FinishedPiece> read_finished() const {
    std::map<PiecePlace, FinishedPiece> sound;
    if (!attempt_.options.resume && job_.identity().processes == 1) return sound;
    std::vector<FinishedPiece> noted = attempt_.records().finished_by(rank_);
    const auto is_sound = are_as_written(folder_, noted, {false, attempt_.options.execute});
    for (size_t i = 0; i < noted.size(); ++i) {
      PiecePlace place(noted[i].path, noted[i].bytes.offset_bytes);
      if (is_sound[i]) sound[std::move(place)] = std::move(noted[i]);
    }
    return sound;
  }

  // Of a file that others write, too, nothing.
  void remove_remains_of(const Piece& piece) const {
    const Place place = job_.path_of(folder_, piece);
    const EntryKind kind = kind_of_entry(place);
    if (kind != EntryKind::File && kind != EntryKind::Absent) {
      refuse_foreign(place.path(), "is not a file, where one of the output goes");
    }
    if (job_.is_whole(piece)) remove_file(place);
  }

  const WriteAttempt& attempt_;
  const WriteJob& job_;
  const Place folder_;
  const uint32_t rank_;
  PieceWriter& writer_;
  std::vector<FinishedPiece> kept_;
  std::vector<Piece> missing_;
};

}  // namespace

void write_part(const WriteAttempt& attempt, PieceWriter& writer) { Part(attempt, writer).write(); }

}  // namespace ckpt
