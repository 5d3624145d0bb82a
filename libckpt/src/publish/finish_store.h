#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <ckpt/execute.h>
#include <ckpt/write_target.h>

#include "io/file.h"
#include "staging/job_record.h"

namespace ckpt {

// A file of a DCP folder in the staging, as it was written.
struct StoreFile {
  uint64_t count_bytes = 0;
  uint32_t crc32 = 0;
  bool operator==(const StoreFile&) const = default;
};
using StoreFiles = std::map<std::string, StoreFile>;  // by name in the folder

// What a compressed file is called until it takes the place of the other.
constexpr const char* kCompressedSuffix = ".zstd-partial";

// Makes a file with this content.
StoreFile write_store_file(const Place& place, std::string_view text);

// Reads a file that was written from its start to its end.
class StoreFileReader {
 public:
  StoreFileReader(const Place& place, const StoreFile& written)
      : path_(place.path()), written_(written), file_(File::open(place)) {}

  uint64_t left_bytes() const { return written_.count_bytes - position_bytes_; }
  uint64_t position_bytes() const { return position_bytes_; }
  void read(std::span<std::byte> next);
  // After the last byte: throws IoFailure where what was read is not what was written.
  void check() const;

 private:
  std::filesystem::path path_;
  StoreFile written_;
  File file_;
  uint64_t position_bytes_ = 0;
  uint32_t crc32_ = 0;
};

// Throws InvalidArgument where options ask for something that the target's format cannot hold.
void check_store_options(const Target& target, const ConvertOptions& options);

// All files that a conversion makes in its staging folder, if only for a while.
std::vector<std::string> files_of_output(const Plan& plan, const ConversionSource& source,
                                         const ConvertOptions& options);

// What is done to a torch_dist folder once all of it lies in the staging: compression, and the
// manifest of hashes. `written`: all pieces of all files. Corrects the plan's sizes, and returns
// the files that are new or were replaced, each as one piece.
std::vector<FinishedPiece> finish_store(const Place& staging, const ConvertOptions& options,
                                        std::vector<FinishedPiece> written, Plan& plan);

}  // namespace ckpt
