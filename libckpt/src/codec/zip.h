#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/folder.h>
#include <ckpt/limits.h>
#include <ckpt/verify.h>

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

// A run of an archive's bytes. `member`: whose data it is, as an index; kNoMember elsewhere.
inline constexpr size_t kNoMember = SIZE_MAX;
struct AccountedRange {
  ByteRange bytes;  // in the file
  ByteLabel label = ByteLabel::Padding;
  size_t member = kNoMember;
};

// Labels every byte of an archive that read_directory() accepted, in order and without holes, and
// is stricter than any reader needs to be: extra fields must fill their place, a promised
// descriptor must be there. Throws Error(Corrupt) with the offset in the file.
std::vector<AccountedRange> account_archive(const RandomAccess& file, ByteRange archive,
                                            std::span<const Member> members);

// Signatures, sizes and flags of zip records that the reader and the writer share.
inline constexpr uint32_t kLocalHeader = 0x04034b50;      // APPNOTE 4.3.7
inline constexpr uint32_t kDescriptor = 0x08074b50;       // 4.3.9
inline constexpr uint32_t kCentralHeader = 0x02014b50;    // 4.3.12
inline constexpr uint32_t kZip64End = 0x06064b50;         // 4.3.14
inline constexpr uint32_t kZip64EndLocator = 0x07064b50;  // 4.3.15
inline constexpr uint32_t kEnd = 0x06054b50;              // 4.3.16

inline constexpr uint64_t kLocalHeaderBytes = 30;
inline constexpr uint64_t kDescriptorBytes = 16;
inline constexpr uint64_t kZip64DescriptorBytes = 24;
inline constexpr uint64_t kCentralHeaderBytes = 46;
inline constexpr uint64_t kZip64EndBytes = 56;
inline constexpr uint64_t kZip64EndLocatorBytes = 20;
inline constexpr uint64_t kEndBytes = 22;

inline constexpr uint16_t kFlagDescriptor = 0x0008;  // sizes and CRC-32 follow the data
inline constexpr uint16_t kFlagUtf8 = 0x0800;
inline constexpr uint16_t kFlagsEncrypted = 0x2041;  // encrypted, strongly, or with a masked header

inline constexpr uint16_t kZip64Extra = 0x0001;    // 4.5.3
inline constexpr uint16_t kPaddingExtra = 0x4246;  // "FB", PyTorch's own

inline constexpr uint32_t kSeeZip64 = 0xFFFFFFFF;  // the number stands in a ZIP64 field
inline constexpr uint16_t kSeeZip64Count = 0xFFFF;

}  // namespace ckpt::zip
