#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>

#include "io/file.h"

namespace ckpt {

// A file of a DCP folder in the staging, as it was written.
struct StoreFile {
  uint64_t count_bytes = 0;
  uint32_t crc32 = 0;
  bool operator==(const StoreFile&) const = default;
};
using StoreFiles = std::map<std::string, StoreFile>;  // by name in the folder

uint64_t bytes_of(const StoreFiles& files);

// Makes a file with this content.
StoreFile write_store_file(const std::filesystem::path& path, std::string_view text);

// Reads a file that was written from its start to its end.
class StoreFileReader {
 public:
  StoreFileReader(const std::filesystem::path& path, const StoreFile& written)
      : path_(path), written_(written), file_(File::open(path)) {}

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

}  // namespace ckpt
