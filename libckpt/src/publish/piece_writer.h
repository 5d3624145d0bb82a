#pragma once

#include <optional>
#include <vector>

#include <ckpt/convert.h>
#include <ckpt/write_target.h>

#include "publish/part_records.h"
#include "publish/write_job.h"

namespace ckpt {

// A job that one process is at; `report` counts what it does.
struct WriteAttempt {
  const WriteJob& job;
  const ConversionSource& source;
  const std::optional<SourceFingerprint>& fingerprint;  // of the source, as WriteJob had it
  const ConvertOptions& options;
  Staging& staging;
  ConvertReport& report;

  PartRecords records() const { return {staging.notes(), job.identity()}; }
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

}  // namespace ckpt
