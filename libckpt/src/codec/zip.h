#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/limits.h>
#include <ckpt/random_access.h>

// Zip archives as PyTorch writes them: members are stored, never compressed; sizes and checksums
// stand in the central directory and in a descriptor behind the data; a padding field in each local
// header aligns the data; a ZIP64 end record is always there. Field names follow PKWARE's
// APPNOTE 6.3.10, sections 4.3 to 4.5; what PyTorch does beyond it was measured on its files.
namespace ckpt::zip {

struct Member {
  std::string name;
  ByteRange data;                    // in the file, not in the archive
  std::optional<uint32_t> crc32;     // absent: 0 beside data (torch.save without checksums)
  uint64_t header_offset_bytes = 0;  // of its local header, in the file
};

// Reads the central directory of the archive that fills `archive` of the file, in its order, and
// checks it against every local header. Throws Error(Corrupt) with the offset in the file for
// anything that two readers could read in two ways (overlaps, duplicates, disagreeing sizes, bytes
// behind the end), Error(Unsupported) for compressed or encrypted members.
std::vector<Member> read_directory(const RandomAccess& file, ByteRange archive,
                                   const Limits& limits = {});

// What the central directory calls the members of any zip archive, up to `count_max` of them;
// nothing else is checked. To tell what an archive is that read_directory() refuses. Throws
// Error(Corrupt) where there is no directory.
std::vector<std::string> member_names(const RandomAccess& file, ByteRange archive,
                                      uint64_t count_max);

// Where the central directory of such an archive starts in the file.
uint64_t directory_offset_bytes(const RandomAccess& file, ByteRange archive);

// Where the members of an archive in the making go. Offsets count from the start of the archive.
struct Place {
  std::string name;
  uint64_t count_bytes = 0;
  uint64_t header_offset_bytes = 0;
  uint64_t data_offset_bytes = 0;
};

class Layout {
 public:
  static constexpr uint64_t kAlignmentBytes = 64;  // torch.save's default, of every member's data

  // None: data only, back to back, without any header, padding or directory.
  enum class Frame : uint8_t { Zip, None };
  explicit Layout(Frame frame = Frame::Zip) : frame_(frame) {}
  Frame frame() const { return frame_; }

  // Names are at most 65,535 bytes long: Error(InvalidArgument).
  void add(std::string name, uint64_t count_bytes);

  const std::vector<Place>& places() const { return places_; }
  uint64_t directory_offset_bytes() const { return directory_offset_bytes_; }
  uint64_t count_bytes() const;  // of the whole archive

  // All of these are exactly as long as the layout left room for.
  std::string local_header(size_t member) const;
  std::string descriptor(size_t member, uint32_t crc) const;  // empty for an empty member
  uint64_t descriptor_bytes(size_t member) const;

  // The directory: a header for each member, then the end records.
  uint64_t central_header_bytes(size_t member) const;
  std::string central_header(size_t member, uint32_t crc) const;
  std::string end_records() const;

 private:
  Frame frame_;
  std::vector<Place> places_;
  uint64_t directory_offset_bytes_ = 0;
  uint64_t directory_count_bytes_ = 0;  // without the end records
};

}  // namespace ckpt::zip
