#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

  // Throws AlreadyExists where a record speaks of one of these files, which several processes write
  // and which are not there: what was written of it is lost, and nobody would notice once the file
  // is there again. `content`: Staging::place().
  void refuse_lost(const std::vector<std::string>& absent, const Place& content) const;

 private:
  static std::string name_of(uint32_t rank) { return "part-" + std::to_string(rank); }
  Place place_of(uint32_t rank) const { return notes_ / name_of(rank); }

  Place notes_;
  const JobIdentity& job_;
};

}  // namespace ckpt
