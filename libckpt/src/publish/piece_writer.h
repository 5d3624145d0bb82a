#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "publish/finish_store.h"
#include "publish/write_job.h"
#include "staging/job_record.h"

namespace ckpt {

// The part records that the processes of a job leave beside what they write.
class PartRecords {
 public:
  // `notes`: Staging::notes().
  PartRecords(Place notes, const JobIdentity& job) : notes_(std::move(notes)), job_(job) {}

  // Of this process, in place of what an earlier attempt has left; `finished`: carried over from
  // it.
  PartRecordWriter writer(uint32_t rank, const std::vector<FinishedPiece>& finished) const {
    return {notes_, name_of(rank), job_, finished};
  }

  // What this process has finished in an earlier attempt at the same job.
  std::vector<FinishedPiece> finished_by(uint32_t rank) const;

  struct Parts {
    std::vector<FinishedPiece> pieces;  // of the parts that are whole
    uint32_t missing = 0;               // parts that are not
  };
  // Throws AlreadyExists where a record belongs to another job.
  Parts whole_parts() const;

 private:
  static std::string name_of(uint32_t rank) { return "part-" + std::to_string(rank); }
  Place place_of(uint32_t rank) const { return notes_ / name_of(rank); }

  Place notes_;
  const JobIdentity& job_;
};

// A job that is written into a staging folder.
struct WriteAttempt : JobRun {
  Staging& staging;

  PartRecords records() const { return {staging.notes(), job.identity}; }
};

// Writes pieces into the staging folder and syncs each; those that state checksums of records last.
class PieceWriter {
 public:
  explicit PieceWriter(const WriteAttempt& attempt);  // must outlive it

  // Notes each piece in the part record when it is on the device.
  std::vector<FinishedPiece> write_payload(std::vector<Piece> pieces, PartRecordWriter& record);
  std::vector<FinishedPiece> write_last();
  // Reads back what was written, where options.verify asks for it: throws IoFailure if the device
  // gives back something else.
  void verify(const std::vector<FinishedPiece>& written);
  // What write_last() states: to be called once for each piece that was recorded. False for another
  // number of checksums than it has records.
  bool add_record_crcs(const Piece& piece, const std::vector<uint32_t>& crcs);

 private:
  std::vector<FinishedPiece> write(std::vector<Piece> pieces, ExecuteOptions options,
                                   PartRecordWriter* record);

  const WriteAttempt& attempt_;
  const WriteJob& job_;
  std::vector<uint32_t> record_crcs_;  // of all records, where the job needs them
};

// Writes the share of options.share.rank, and its part record: what an earlier attempt has left
// finished and sound is kept. Throws what execute() and PieceWriter::verify() throw, AlreadyExists
// where what other parts have written is lost, Corrupt where the source has changed meanwhile.
void write_part(const WriteAttempt& attempt, PieceWriter& writer);

// Completes a staging folder in which all payload lies, and puts it in the destination's place:
// files that nobody planned go, links and what is last come, and are synced. `recorded`: what the
// parts say was written. Throws IoFailure, and changes no destination, where it is not there.
void publish_parts(const WriteAttempt& attempt, PieceWriter& writer,
                   const std::vector<FinishedPiece>& recorded);

}  // namespace ckpt
