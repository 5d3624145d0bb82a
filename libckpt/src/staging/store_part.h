// What one of several processes leaves beside a destination in an object store when its part is
// whole: the next one that is asked for it, and the one that publishes, go on from there.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "remote/s3_writer.h"
#include "staging/job_record.h"

namespace ckpt {

// A file whose parts are all sent, and which is no object yet.
struct SentFile {
  FinishedPiece piece;  // all of the file
  S3Writer::Upload upload;
  S3Writer::Parts parts;
};

struct StorePart {
  std::string job;  // JobIdentity::text()
  std::vector<SentFile> files;

  std::string text() const;
  static std::optional<StorePart> parse(const std::string& text);  // what text() gave
};

}  // namespace ckpt
