#include "publish/piece_writer.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include <ckpt/error.h>

#include "io/directory.h"
#include "io/publish.h"
#include "staging/staging_holder.h"
#include "write/read_back.h"
#include "write/source_checker.h"

namespace ckpt {
namespace {

using PiecePlace = std::pair<std::string, uint64_t>;  // path, offset

// One process's share of what a conversion writes.
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
    attempt_.check_source();
    // What is compressed is read again, and compared, by who publishes.
    if (!attempt_.options.zstd_level) writer_.verify(written);
    if (attempt_.source.before_publishing) attempt_.source.before_publishing();
    record.complete();
  }

 private:
  // Files that several processes write, and that are not there although a record speaks of them:
  // nobody would notice what is lost once they are there again.
  void refuse_lost_files() const {
    std::vector<std::string> absent;
    for (const Piece& piece : job_.payload) {
      const bool is_listed = !absent.empty() && absent.back() == job_.name_of(piece);
      if (job_.is_whole(piece) || is_listed) continue;
      const bool is_there = kind_of_entry(job_.path_of(folder_, piece)) == EntryKind::File;
      if (!is_there) absent.push_back(job_.name_of(piece));
    }
    for (uint32_t rank = 0; !absent.empty() && rank < job_.identity.processes; ++rank) {
      for (const FinishedPiece& piece : attempt_.records().finished_by(rank)) {
        if (std::ranges::find(absent, piece.path) == absent.end()) continue;
        // Looked at again: it may have come since.
        if (kind_of_entry(output_path(folder_, piece.path)) == EntryKind::File) continue;
        throw Error(ErrorCode::AlreadyExists, {attempt_.staging.notes().path().string()},
                    "what other processes wrote of " +
                        (piece.path.empty() ? "the file" : "'" + escaped(piece.path) + "'") +
                        " is gone",
                    "--clean removes the rest");
      }
    }
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
    check_sources(job_.target, job_.plan, kept_pieces, *attempt_.source.checkpoint,
                  attempt_.options.execute);
  }

  // What an earlier attempt has noted, where it is as it was written.
  std::map<PiecePlace, FinishedPiece> read_finished() const {
    std::map<PiecePlace, FinishedPiece> sound;
    if (!attempt_.options.resume && job_.identity.processes == 1) return sound;
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

namespace fs = std::filesystem;

// Every piece is recorded, and there; takes down the checksums of its records. Returns them in
// their order.
std::vector<FinishedPiece> take_payload(const WriteAttempt& attempt, PieceWriter& writer,
                                        const std::vector<FinishedPiece>& recorded) {
  const Place& folder = attempt.staging.place();
  std::map<PiecePlace, const FinishedPiece*> by_place;
  for (const FinishedPiece& piece : recorded) {
    by_place[{piece.path, piece.bytes.offset_bytes}] = &piece;
  }
  std::vector<FinishedPiece> payload;
  for (const Piece& piece : attempt.job.payload) {
    const auto found = by_place.find({attempt.job.name_of(piece), piece.bytes.offset_bytes});
    if (found == by_place.end() || !attempt.job.is_there(folder, piece, *found->second) ||
        !writer.add_record_crcs(piece, found->second->record_crcs)) {
      throw Error(ErrorCode::IoFailure, {attempt.job.path_of(folder, piece).path().string()},
                  "differs from what the part records say was written");
    }
    payload.push_back(*found->second);
  }
  return payload;
}

// Nothing is published that is not planned: what an earlier attempt at publishing has left is
// removed, and what is not ours is refused.
void remove_strangers(const WriteAttempt& attempt) {
  const Place& folder = attempt.staging.place();
  if (kind_of_entry(folder) != EntryKind::Folder) return;
  std::set<fs::path> planned{folder.path()};
  for (const Piece& piece : attempt.job.payload) {
    for (fs::path path = attempt.job.path_of(folder, piece).path(); planned.insert(path).second;) {
      path = path.parent_path();
    }
  }
  FolderTree tree =
      tree_of_ours(folder, files_of_output(attempt.report.plan, attempt.source, attempt.options));
  for (auto* places : {&tree.folders, &tree.files}) {
    std::erase_if(*places, [&](const Place& place) { return planned.contains(place.path()); });
  }
  remove(tree);
}

void add_links(const WriteAttempt& attempt) {
  for (const LinkedFile& link : attempt.source.links) {
    make_folders(attempt.staging.place(), fs::path(link.path).parent_path());
    link_file(link.source, attempt.staging.place() / link.path);
  }
}

}  // namespace

PieceWriter::PieceWriter(const WriteAttempt& attempt)
    : attempt_(attempt),
      job_(attempt.job),
      record_crcs_(job_.needs_record_crcs() ? job_.plan.records.size() : 0, 0) {}

std::vector<FinishedPiece> PieceWriter::write_payload(std::vector<Piece> pieces,
                                                      PartRecordWriter& record) {
  return write(std::move(pieces), attempt_.options.execute, &record);
}

// What is last is small: no budget may refuse it after the payload.
std::vector<FinishedPiece> PieceWriter::write_last() {
  ExecuteOptions options = attempt_.options.execute;
  options.threads = 1;
  options.process_bytes_max = 0;
  return write(job_.last, std::move(options), nullptr);
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
      execute(job_.target, job_.plan, attempt_.source.payloads, attempt_.staging, options);
  attempt_.report.stats.read_bytes += stats.read_bytes;
  attempt_.report.stats.written_bytes += stats.written_bytes;
  attempt_.report.stats.file_count += stats.file_count;
  std::ranges::copy(stats.overflows, std::back_inserter(attempt_.report.stats.overflows));
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

std::vector<FinishedPiece> PartRecords::finished_by(uint32_t rank) const {
  auto record = read_part_record(place_of(rank));
  if (!record || record->job != job_.text()) return {};
  return std::move(record->pieces);
}

PartRecords::Parts PartRecords::whole_parts() const {
  Parts parts;
  for (uint32_t rank = 0; rank < job_.processes; ++rank) {
    auto record = read_part_record(place_of(rank));
    if (record && record->job != job_.text()) {
      throw Error(ErrorCode::AlreadyExists, {place_of(rank).path().string()},
                  "belongs to another job");
    }
    if (record && record->is_complete) {
      std::ranges::move(record->pieces, std::back_inserter(parts.pieces));
    } else {
      ++parts.missing;
    }
  }
  return parts;
}

void write_part(const WriteAttempt& attempt, PieceWriter& writer) { Part(attempt, writer).write(); }

void publish_parts(const WriteAttempt& attempt, PieceWriter& writer,
                   const std::vector<FinishedPiece>& recorded) {
  std::vector<FinishedPiece> written = take_payload(attempt, writer, recorded);
  remove_strangers(attempt);
  add_links(attempt);
  if (attempt.source.complete) attempt.source.complete(attempt.target);
  std::vector<FinishedPiece> last = writer.write_last();
  written.insert(written.end(), last.begin(), last.end());
  std::vector<FinishedPiece> changed = finish_store(attempt.staging.place(), attempt.options,
                                                    std::move(written), attempt.report.plan);
  std::erase_if(last, [&](const FinishedPiece& piece) {
    return std::ranges::find(changed, piece.path, &FinishedPiece::path) != changed.end();
  });
  writer.verify(last);
  writer.verify(changed);
  const auto& check_result = attempt.source.check_result;
  if (check_result) attempt.report.carried = check_result(attempt.staging.folder());
  attempt.check_source();
  attempt.staging.commit();
  attempt.report.outcome = Outcome::Published;
}

}  // namespace ckpt
