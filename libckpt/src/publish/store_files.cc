#include "publish/store_files.h"

#include "codec/crc32.h"
#include "write/read_back.h"

namespace ckpt {

StoreFile write_store_file(const Place& place, std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  File::create(place, bytes.size()).write_at(0, bytes);
  return {bytes.size(), crc32(bytes)};
}

void StoreFileReader::read(std::span<std::byte> next) {
  file_.read_at(position_bytes_, next);
  position_bytes_ += next.size();
  crc32_ = crc32(next, crc32_);
}

void StoreFileReader::check() const {
  if (crc32_ != written_.crc32) throw_not_as_written(path_);
}

}  // namespace ckpt
