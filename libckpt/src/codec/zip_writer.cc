#include <ckpt/error.h>

#include <algorithm>

#include "base/checked_math.h"
#include "codec/zip.h"

namespace ckpt::zip {
namespace {

constexpr uint64_t kArchiveBytesMax = uint64_t{1} << 62;

template <typename T>
void put(std::string& out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(value >> (8 * i) & 0xFF);
}

bool is_large(uint64_t value) { return value >= kSeeZip64; }

// PyTorch's writer marks a member as ZIP64 for its size, and for its place in the archive.
bool needs_zip64(const Place& place) {
  return is_large(place.count_bytes) || is_large(place.header_offset_bytes);
}

// The ZIP64 field states the size twice (uncompressed, compressed) and the place, each only if
// large.
uint64_t zip64_extra_bytes(const Place& place) {
  if (!needs_zip64(place)) return 0;
  return 4 + (is_large(place.count_bytes) ? 16u : 0u) +
         (is_large(place.header_offset_bytes) ? 8u : 0u);
}

// In the local header the compressed size is still 0: it is written before the data.
void put_zip64_extra(std::string& out, const Place& place, uint64_t compressed_bytes) {
  if (!needs_zip64(place)) return;
  put(out, kZip64Extra);
  put(out, static_cast<uint16_t>(zip64_extra_bytes(place) - 4));
  if (is_large(place.count_bytes)) {
    put(out, place.count_bytes);
    put(out, compressed_bytes);
  }
  if (is_large(place.header_offset_bytes)) put(out, place.header_offset_bytes);
}

// An empty member has no descriptor, and its flags say so.
uint16_t flags(const Place& place) {
  return place.count_bytes == 0 ? kFlagUtf8 : kFlagUtf8 | kFlagDescriptor;
}

uint64_t descriptor_bytes(const Place& place) {
  if (place.count_bytes == 0) return 0;
  return needs_zip64(place) ? kZip64DescriptorBytes : kDescriptorBytes;
}

uint32_t clipped(uint64_t value) {
  return static_cast<uint32_t>(std::min<uint64_t>(value, kSeeZip64));
}

}  // namespace

void Layout::add(std::string name, uint64_t count_bytes) {
  if (name.size() > 0xFFFF) {
    throw Error(ErrorCode::InvalidArgument, {.file = {}, .key = name.substr(0, 100)},
                "a name of more than 65535 bytes does not fit into a zip archive");
  }
  // Far above any file system's limit, far below what 64 bits overflow at.
  if (count_bytes > kArchiveBytesMax || directory_offset_bytes_ > kArchiveBytesMax) {
    throw Error(ErrorCode::InvalidArgument, {}, "the archive would be larger than 2^62 bytes");
  }
  Place place{std::move(name), count_bytes, directory_offset_bytes_, 0};
  if (frame_ == Frame::None) {
    place.data_offset_bytes = place.header_offset_bytes;
    directory_offset_bytes_ += count_bytes;
    places_.push_back(std::move(place));
    return;
  }
  const uint64_t unpadded = place.header_offset_bytes + kLocalHeaderBytes + place.name.size() +
                            zip64_extra_bytes(place) + 4;  // 4: the padding field's own header
  place.data_offset_bytes = align_up(unpadded, kAlignmentBytes);
  directory_offset_bytes_ = place.data_offset_bytes + count_bytes + zip::descriptor_bytes(place);
  places_.push_back(std::move(place));
  directory_count_bytes_ += central_header_bytes(places_.size() - 1);
}

uint64_t Layout::count_bytes() const {
  if (frame_ == Frame::None) return directory_offset_bytes_;
  return directory_offset_bytes_ + directory_count_bytes_ + kZip64EndBytes + kZip64EndLocatorBytes +
         kEndBytes;
}

std::string Layout::local_header(size_t member) const {
  if (frame_ == Frame::None) return {};
  const Place& place = places_[member];
  const uint64_t header_bytes = place.data_offset_bytes - place.header_offset_bytes;
  const uint64_t extra_bytes = header_bytes - kLocalHeaderBytes - place.name.size();
  const uint64_t padding_bytes = extra_bytes - zip64_extra_bytes(place) - 4;
  std::string out;
  out.reserve(header_bytes);
  put(out, kLocalHeader);
  put(out, uint16_t{0});  // version needed
  put(out, flags(place));
  put(out, uint16_t{0});  // stored
  put(out, uint32_t{0});  // no time, no date
  put(out, uint32_t{0});  // CRC-32 and sizes: in the descriptor
  put(out, uint64_t{0});
  put(out, static_cast<uint16_t>(place.name.size()));
  put(out, static_cast<uint16_t>(extra_bytes));
  out += place.name;
  put_zip64_extra(out, place, 0);
  put(out, kPaddingExtra);
  put(out, static_cast<uint16_t>(padding_bytes));
  out.append(padding_bytes, 'Z');
  return out;
}

std::string Layout::descriptor(size_t member, uint32_t crc) const {
  if (frame_ == Frame::None) return {};
  const Place& place = places_[member];
  std::string out;
  if (place.count_bytes == 0) return out;
  put(out, kDescriptor);
  put(out, crc);
  if (needs_zip64(place)) {
    put(out, place.count_bytes);
    put(out, place.count_bytes);
  } else {
    put(out, static_cast<uint32_t>(place.count_bytes));
    put(out, static_cast<uint32_t>(place.count_bytes));
  }
  return out;
}

uint64_t Layout::descriptor_bytes(size_t member) const {
  return frame_ == Frame::None ? 0 : zip::descriptor_bytes(places_[member]);
}

uint64_t Layout::central_header_bytes(size_t member) const {
  if (frame_ == Frame::None) return 0;
  const Place& place = places_[member];
  return kCentralHeaderBytes + place.name.size() + zip64_extra_bytes(place);
}

std::string Layout::central_header(size_t member, uint32_t crc) const {
  if (frame_ == Frame::None) return {};
  const Place& place = places_[member];
  std::string out;
  put(out, kCentralHeader);
  put(out, uint32_t{0});  // versions made by and needed
  put(out, flags(place));
  put(out, uint16_t{0});  // stored
  put(out, uint32_t{0});  // no time, no date
  put(out, crc);
  put(out, clipped(place.count_bytes));
  put(out, clipped(place.count_bytes));
  put(out, static_cast<uint16_t>(place.name.size()));
  put(out, static_cast<uint16_t>(zip64_extra_bytes(place)));
  put(out, uint16_t{0});  // no comment
  put(out, uint16_t{0});  // disk
  put(out, uint16_t{0});  // internal attributes
  put(out, uint32_t{0});  // external attributes
  put(out, clipped(place.header_offset_bytes));
  out += place.name;
  put_zip64_extra(out, place, place.count_bytes);
  return out;
}

std::string Layout::end_records() const {
  if (frame_ == Frame::None) return {};
  const uint64_t member_count = places_.size();
  std::string out;
  put(out, kZip64End);
  put(out, kZip64EndBytes - 12);
  put(out, uint16_t{0x031E});  // made by version 3.0 on Unix
  put(out, uint16_t{0x002D});  // needs 4.5: ZIP64
  put(out, uint64_t{0});       // disk numbers
  put(out, member_count);
  put(out, member_count);
  put(out, directory_count_bytes_);
  put(out, directory_offset_bytes_);
  put(out, kZip64EndLocator);
  put(out, uint32_t{0});
  put(out, directory_offset_bytes_ + directory_count_bytes_);
  put(out, uint32_t{1});  // disks
  put(out, kEnd);
  put(out, uint32_t{0});  // disk numbers
  const auto count = static_cast<uint16_t>(std::min<uint64_t>(member_count, kSeeZip64Count));
  put(out, count);
  put(out, count);
  put(out, clipped(directory_count_bytes_));
  put(out, clipped(directory_offset_bytes_));
  put(out, uint16_t{0});  // no comment
  return out;
}

}  // namespace ckpt::zip
