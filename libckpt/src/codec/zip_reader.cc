#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/error.h>
#include <ckpt/folder.h>

#include "base/byte_reader.h"
#include "base/checked_math.h"
#include "codec/zip.h"

namespace ckpt::zip {
namespace {

// Reads through one buffer, so that end records and the headers of small members, which lie close
// together, cost few system calls.
class Window {
 public:
  Window(const RandomAccess& file, ByteRange archive) : file_(file), archive_(archive) {}

  // `count_bytes` bytes of the archive; `ahead_bytes` more are read where there are as many.
  ByteReader at(uint64_t offset_bytes, uint64_t count_bytes, uint64_t ahead_bytes = 0) {
    if (!fits(offset_bytes, count_bytes, archive_.count_bytes)) {
      fail(std::min(offset_bytes, archive_.count_bytes), "the zip archive ends early");
    }
    const bool held = offset_bytes >= held_.offset_bytes &&
                      fits(offset_bytes - held_.offset_bytes, count_bytes, held_.count_bytes);
    if (!held) load(offset_bytes, count_bytes, ahead_bytes);
    const uint64_t start = offset_bytes - held_.offset_bytes;
    return ByteReader(std::span(buffer_).subspan(start, count_bytes), file_.file_name(),
                      archive_.offset_bytes + offset_bytes);
  }

  [[noreturn]] void fail(uint64_t offset_bytes, std::string problem,
                         ErrorCode code = ErrorCode::Corrupt) const {
    throw Error(code, {file_.file_name(), archive_.offset_bytes + offset_bytes},
                std::move(problem));
  }

  const ByteRange& archive() const { return archive_; }
  bool fills_file() const { return archive_.count_bytes == file_.size_bytes(); }
  std::string file_name() const { return file_.file_name(); }

 private:
  void load(uint64_t offset_bytes, uint64_t count_bytes, uint64_t ahead_bytes) {
    const uint64_t left_bytes = archive_.count_bytes - offset_bytes;
    held_ = {};
    buffer_.resize(std::min(left_bytes, count_bytes + ahead_bytes));
    file_.read_at(archive_.offset_bytes + offset_bytes, buffer_);
    held_ = {offset_bytes, buffer_.size()};
  }

  const RandomAccess& file_;
  ByteRange archive_;
  ByteRange held_;  // within the archive
  std::vector<std::byte> buffer_;
};

// What the central directory says about a member. Offsets count from the start of the archive.
struct Entry {
  std::string_view name;
  uint16_t flags = 0;
  uint32_t crc = 0;
  uint64_t count_bytes = 0;
  uint64_t header_offset_bytes = 0;
  uint64_t data_offset_bytes = 0;   // known once the local header was read
  uint64_t entry_offset_bytes = 0;  // of its central header, for errors
};

struct Directory {
  ByteRange bytes;  // within the archive
  uint64_t member_count = 0;
};

constexpr uint64_t kSmallArchiveBytes = 64 << 10;  // read at once
constexpr uint64_t kTailBytes = 4 << 10;           // holds the directory of one tensor's archive
constexpr uint64_t kReadAheadBytes = 16 << 10;

// --- End records ---------------------------------------------------------------------------------

// The ZIP64 end record: everything in it is the truth; the end record must agree where it can.
Directory read_zip64_end(Window& window, uint64_t locator_offset_bytes) {
  ByteReader locator = window.at(locator_offset_bytes, kZip64EndLocatorBytes);
  locator.skip(4);
  const uint32_t disk = locator.u32();
  const uint64_t end_offset_bytes = locator.u64();
  const uint32_t disk_count = locator.u32();
  if (disk != 0 || disk_count > 1)
    window.fail(locator_offset_bytes, "the zip archive spans several disks");
  if (checked_add(end_offset_bytes, kZip64EndBytes) != locator_offset_bytes) {
    window.fail(locator_offset_bytes, "the ZIP64 end record is not where its locator says");
  }
  ByteReader end = window.at(end_offset_bytes, kZip64EndBytes);
  if (end.u32() != kZip64End) window.fail(end_offset_bytes, "expected the ZIP64 end record here");
  if (end.u64() != kZip64EndBytes - 12)
    window.fail(end_offset_bytes, "the ZIP64 end record has an unexpected size");
  end.skip(4);  // versions
  if (end.u64() != 0) window.fail(end_offset_bytes, "the zip archive spans several disks");
  Directory directory;
  directory.member_count = end.u64();
  if (end.u64() != directory.member_count)
    window.fail(end_offset_bytes, "the zip end record gives two different member counts");
  directory.bytes.count_bytes = end.u64();
  directory.bytes.offset_bytes = end.u64();
  return directory;
}

template <typename T>
void agree(const Window& window, uint64_t offset_bytes, uint64_t truth, T stated) {
  if (stated != truth && stated != static_cast<T>(~T{0})) {
    window.fail(offset_bytes, "the zip end record and the ZIP64 end record disagree");
  }
}

// Where an end record without a comment starts, if one lies in the last bytes of the archive.
std::optional<uint64_t> find_end(Window& window) {
  constexpr uint64_t kSearchedBytes = 64 << 10;
  const uint64_t count_bytes = window.archive().count_bytes;
  const uint64_t start = count_bytes - std::min(count_bytes, kSearchedBytes);
  ByteReader reader = window.at(start, count_bytes - start);
  const std::string_view tail = reader.text(count_bytes - start);
  const size_t found = tail.rfind("PK\5\6");
  if (found == tail.npos || tail.size() - found < kEndBytes) return std::nullopt;
  return start + found;
}

// An archive that fills its file and has a beginning, but no end, was cut off.
[[noreturn]] void fail_without_end(Window& window) {
  const ByteRange archive = window.archive();
  const auto end = find_end(window);
  const bool has_start = archive.count_bytes >= 4 && window.at(0, 4).u32() == kLocalHeader;
  if (has_start && !end && archive.offset_bytes == 0 && window.fills_file()) {
    throw truncated({window.file_name(), archive.count_bytes}, archive.count_bytes);
  }
  if (archive.count_bytes < kEndBytes) window.fail(0, "too short to be a zip archive");
  std::string problem = "no zip end record at the end of the archive";
  if (end)
    problem += ": " + std::to_string(archive.count_bytes - *end - kEndBytes) + " bytes follow it";
  window.fail(archive.count_bytes - kEndBytes, std::move(problem));
}

// The last bytes of an archive that nothing follows: PyTorch writes no comment.
Directory read_end(Window& window) {
  const uint64_t count_bytes = window.archive().count_bytes;
  if (count_bytes < kEndBytes) fail_without_end(window);
  const uint64_t tail_bytes =
      std::min(count_bytes, count_bytes <= kSmallArchiveBytes ? kSmallArchiveBytes : kTailBytes);
  window.at(count_bytes - tail_bytes, tail_bytes);
  const uint64_t end_offset_bytes = count_bytes - kEndBytes;
  ByteReader end = window.at(end_offset_bytes, kEndBytes);
  if (end.u32() != kEnd) fail_without_end(window);
  if (end.u32() != 0) window.fail(end_offset_bytes, "the zip archive spans several disks");
  const uint16_t member_count_here = end.u16();
  const uint16_t member_count = end.u16();
  const uint32_t directory_bytes = end.u32();
  const uint32_t directory_offset_bytes = end.u32();
  if (end.u16() != 0) {
    window.fail(end_offset_bytes,
                "the zip archive ends in a comment, which torch.save never writes");
  }
  if (member_count_here != member_count)
    window.fail(end_offset_bytes, "the zip end record gives two different member counts");

  Directory directory{{directory_offset_bytes, directory_bytes}, member_count};
  uint64_t directory_end_bytes = end_offset_bytes;
  const uint64_t zip64_bytes = kZip64EndBytes + kZip64EndLocatorBytes;
  if (end_offset_bytes >= zip64_bytes &&
      window.at(end_offset_bytes - kZip64EndLocatorBytes, 4).u32() == kZip64EndLocator) {
    directory = read_zip64_end(window, end_offset_bytes - kZip64EndLocatorBytes);
    directory_end_bytes -= zip64_bytes;
    agree(window, end_offset_bytes, directory.member_count, member_count);
    agree(window, end_offset_bytes, directory.bytes.count_bytes, directory_bytes);
    agree(window, end_offset_bytes, directory.bytes.offset_bytes, directory_offset_bytes);
  }
  if (checked_add(directory.bytes.offset_bytes, directory.bytes.count_bytes) !=
      directory_end_bytes) {
    window.fail(end_offset_bytes, "the zip directory does not end where the end records begin");
  }
  return directory;
}

// --- Central directory ---------------------------------------------------------------------------

// ZIP64 field of an entry: holds only the numbers that the header itself has no room for.
void read_extra(ByteReader extra, Entry& entry, uint64_t& compressed_bytes) {
  while (!extra.at_end()) {
    const uint16_t id = extra.u16();
    const uint16_t count_bytes = extra.u16();
    if (id != kZip64Extra) {
      extra.skip(count_bytes);
      continue;
    }
    const size_t end = extra.position() + count_bytes;
    if (entry.count_bytes == kSeeZip64) entry.count_bytes = extra.u64();
    if (compressed_bytes == kSeeZip64) compressed_bytes = extra.u64();
    if (entry.header_offset_bytes == kSeeZip64) entry.header_offset_bytes = extra.u64();
    if (extra.position() > end) extra.fail("the ZIP64 field is too short");
    extra.seek(end);
  }
}

Entry read_entry(ByteReader& reader, const Window& window) {
  Entry entry;
  const size_t start = reader.position();
  entry.entry_offset_bytes = reader.file_offset_bytes() - window.archive().offset_bytes;
  if (reader.u32() != kCentralHeader) reader.fail_at(start, "expected a zip directory entry here");
  reader.skip(4);  // versions
  entry.flags = reader.u16();
  const uint16_t method = reader.u16();
  reader.skip(4);  // time and date
  entry.crc = reader.u32();
  uint64_t compressed_bytes = reader.u32();
  entry.count_bytes = reader.u32();
  const uint16_t name_bytes = reader.u16();
  const uint16_t extra_bytes = reader.u16();
  const uint16_t comment_bytes = reader.u16();
  if (reader.u16() != 0) reader.fail_at(start, "the zip archive spans several disks");
  reader.skip(6);  // attributes
  entry.header_offset_bytes = reader.u32();
  entry.name = reader.text(name_bytes);
  read_extra(reader.part(extra_bytes), entry, compressed_bytes);
  reader.skip(comment_bytes);

  if (entry.flags & kFlagsEncrypted) {
    window.fail(entry.entry_offset_bytes, "an encrypted zip member", ErrorCode::Unsupported);
  }
  if (method != 0) {
    window.fail(entry.entry_offset_bytes, "a compressed zip member", ErrorCode::Unsupported);
  }
  if (compressed_bytes != entry.count_bytes) {
    window.fail(entry.entry_offset_bytes, "a stored zip member has two different sizes");
  }
  return entry;
}

std::vector<Entry> read_entries(ByteReader reader, const Window& window,
                                const Directory& directory) {
  std::vector<Entry> entries;
  entries.reserve(reader.count_of(directory.member_count, kCentralHeaderBytes));
  std::set<std::string_view> names;  // ordered: see base/text.h
  for (uint64_t i = 0; i < directory.member_count; ++i) {
    entries.push_back(read_entry(reader, window));
    const Entry& entry = entries.back();
    if (!names.insert(entry.name).second) {
      window.fail(entry.entry_offset_bytes,
                  "two zip members are named '" + escaped(entry.name) + "'");
    }
  }
  if (!reader.at_end()) reader.fail("the zip directory has bytes that belong to no member");
  return entries;
}

// --- Local headers -------------------------------------------------------------------------------

[[noreturn]] void fail_member(const Window& window, const Entry& entry, std::string_view problem) {
  // A name that cannot be read as it is would only be noise beside the place.
  const std::string name = escaped(entry.name);
  const std::string member =
      name == entry.name ? "zip member '" + name + "' " : "the zip member here ";
  window.fail(entry.header_offset_bytes, member + std::string(problem));
}

// A size in a local header: 0 where a descriptor states it, all ones where a ZIP64 field does.
bool is_silent(const Entry& entry, uint32_t stated) {
  return stated == kSeeZip64 || (stated == 0 && (entry.flags & kFlagDescriptor));
}

// `ahead_bytes`: what is worth reading beyond this header because the next ones are there.
void read_local_header(Window& window, Entry& entry, uint64_t ahead_bytes) {
  ByteReader header = window.at(entry.header_offset_bytes, kLocalHeaderBytes, ahead_bytes);
  if (header.u32() != kLocalHeader) fail_member(window, entry, "has no local header");
  header.skip(2);  // version
  const uint16_t flags = header.u16();
  const uint16_t method = header.u16();
  header.skip(4);  // time and date
  const uint32_t crc = header.u32();
  const uint32_t compressed_bytes = header.u32();
  const uint32_t count_bytes = header.u32();
  const uint16_t name_bytes = header.u16();
  const uint16_t extra_bytes = header.u16();
  const bool has_descriptor = entry.flags & kFlagDescriptor;
  if (flags != entry.flags || method != 0)
    fail_member(window, entry, "has different flags or methods in its header and in the directory");
  if (crc != entry.crc && !(crc == 0 && has_descriptor)) {
    fail_member(window, entry, "has different checksums in its header and in the directory");
  }
  for (const uint32_t stated : {compressed_bytes, count_bytes}) {
    if (stated != entry.count_bytes && !is_silent(entry, stated)) {
      fail_member(window, entry, "has different sizes in its header and in the directory");
    }
  }
  const uint64_t name_offset_bytes = entry.header_offset_bytes + kLocalHeaderBytes;
  if (window.at(name_offset_bytes, name_bytes, ahead_bytes).text(name_bytes) != entry.name) {
    fail_member(window, entry, "has different names in its header and in the directory");
  }
  entry.data_offset_bytes = name_offset_bytes + name_bytes + extra_bytes;
}

// The descriptor behind the data repeats what the directory says. `gap_bytes`: up to the next
// member.
void check_descriptor(Window& window, const Entry& entry, uint64_t gap_bytes,
                      uint64_t ahead_bytes) {
  if (!(entry.flags & kFlagDescriptor) || gap_bytes < kDescriptorBytes) return;
  const uint64_t offset_bytes = entry.data_offset_bytes + entry.count_bytes;
  const bool zip64 = gap_bytes >= kZip64DescriptorBytes;
  ByteReader descriptor =
      window.at(offset_bytes, zip64 ? kZip64DescriptorBytes : kDescriptorBytes, ahead_bytes);
  if (descriptor.u32() != kDescriptor) return;  // the signature is optional (APPNOTE 4.3.9.3)
  if (descriptor.u32() != entry.crc)
    fail_member(window, entry, "has different checksums in its header and in the directory");
  const size_t sizes = descriptor.position();
  const bool agrees_short =
      descriptor.u32() == entry.count_bytes && descriptor.u32() == entry.count_bytes;
  descriptor.seek(sizes);
  const bool agrees_long =
      zip64 && descriptor.u64() == entry.count_bytes && descriptor.u64() == entry.count_bytes;
  if (!agrees_short && !agrees_long)
    fail_member(window, entry, "has different sizes in its header and in the directory");
}

// Members in the order of their headers must follow each other without overlap, up to the
// directory.
void read_local_headers(Window& window, std::vector<Entry>& entries,
                        uint64_t directory_offset_bytes) {
  std::vector<uint32_t> order(entries.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::sort(order, {}, [&](uint32_t i) { return entries[i].header_offset_bytes; });
  for (size_t k = 0; k < order.size(); ++k) {
    Entry& entry = entries[order[k]];
    const uint64_t end_bytes =
        k + 1 < order.size() ? entries[order[k + 1]].header_offset_bytes : directory_offset_bytes;
    // Small members lie close together: read many headers at once, and few bytes of large members.
    const uint64_t span_bytes =
        end_bytes > entry.header_offset_bytes ? end_bytes - entry.header_offset_bytes : 0;
    const uint64_t ahead_bytes = span_bytes < kReadAheadBytes / 4 ? kReadAheadBytes : 512;
    read_local_header(window, entry, ahead_bytes);
    if (entry.data_offset_bytes > end_bytes ||
        entry.count_bytes > end_bytes - entry.data_offset_bytes) {
      const uint64_t after_bytes = window.archive().count_bytes;
      fail_member(window, entry,
                  fits(entry.data_offset_bytes, entry.count_bytes, after_bytes)
                      ? "overlaps what follows it"
                      : "extends beyond the end of the archive");
    }
    check_descriptor(window, entry, end_bytes - entry.data_offset_bytes - entry.count_bytes,
                     ahead_bytes);
  }
}

}  // namespace

std::vector<Member> read_directory(const RandomAccess& file, ByteRange archive,
                                   const Limits& limits) {
  Window window(file, archive);
  if (!fits(archive.offset_bytes, archive.count_bytes, file.size_bytes())) {
    window.fail(0, "the zip archive extends beyond the end of the file");
  }
  const Directory directory = read_end(window);
  if (directory.member_count > limits.zip_entries_max ||
      directory.bytes.count_bytes > limits.zip_directory_bytes_max) {
    window.fail(directory.bytes.offset_bytes, "the zip directory is larger than the limits allow");
  }
  // The entries refer to the names in these bytes; the window moves on.
  const ByteReader held = window.at(directory.bytes.offset_bytes, directory.bytes.count_bytes);
  ByteReader copy_from = held;
  const auto content = copy_from.bytes(directory.bytes.count_bytes);
  const std::vector<std::byte> bytes(content.begin(), content.end());
  ByteReader reader(bytes, file.file_name(), held.file_offset_bytes());
  std::vector<Entry> entries = read_entries(reader, window, directory);
  read_local_headers(window, entries, directory.bytes.offset_bytes);

  std::vector<Member> members;
  members.reserve(entries.size());
  for (const Entry& entry : entries) {
    const bool checksum_absent = entry.crc == 0 && entry.count_bytes != 0;
    members.push_back({std::string(entry.name),
                       {archive.offset_bytes + entry.data_offset_bytes, entry.count_bytes},
                       checksum_absent ? std::nullopt : std::optional(entry.crc),
                       archive.offset_bytes + entry.header_offset_bytes});
  }
  return members;
}

std::vector<std::string> member_names(const RandomAccess& file, ByteRange archive,
                                      uint64_t count_max) {
  constexpr uint64_t kNameAtBytes = 28, kNamesBytesMax = 16 << 20;
  Window window(file, archive);
  const Directory directory = read_end(window);
  ByteReader reader = window.at(directory.bytes.offset_bytes,
                                std::min(directory.bytes.count_bytes, kNamesBytesMax));
  std::vector<std::string> names;
  const uint64_t count = std::min(directory.member_count, count_max);
  while (names.size() < count && reader.left_bytes() >= kCentralHeaderBytes) {
    const size_t start = reader.position();
    if (reader.u32() != kCentralHeader) reader.fail_at(start, "no zip directory entry here");
    reader.seek(start + kNameAtBytes);
    const uint16_t name_bytes = reader.u16();
    const uint16_t extra_bytes = reader.u16();
    const uint16_t comment_bytes = reader.u16();
    reader.seek(start + kCentralHeaderBytes);
    names.emplace_back(reader.text(name_bytes));
    reader.skip(extra_bytes);
    reader.skip(comment_bytes);
  }
  return names;
}

uint64_t directory_offset_bytes(const RandomAccess& file, ByteRange archive) {
  Window window(file, archive);
  return archive.offset_bytes + read_end(window).bytes.offset_bytes;
}

}  // namespace ckpt::zip
