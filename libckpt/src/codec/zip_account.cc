#include "codec/zip.h"

#include <ckpt/error.h>

#include <algorithm>
#include <numeric>

#include "base/byte_reader.h"

namespace ckpt::zip {
namespace {

using enum ByteLabel;

// Goes through an archive from its first to its last byte; every step says what it passes.
class Walk {
 public:
  Walk(const RandomAccess& file, ByteRange archive)
      : file_(file), position_(archive.offset_bytes), end_(archive.end_bytes()) {}

  uint64_t position() const { return position_; }  // in the file

  void pass(uint64_t count_bytes, ByteLabel label, size_t member = kNoMember) {
    if (count_bytes == 0 && member == kNoMember) return;
    const bool grows = !ranges_.empty() && member == kNoMember &&
                       ranges_.back().member == kNoMember && ranges_.back().label == label;
    if (grows) {
      ranges_.back().bytes.count_bytes += count_bytes;
    } else {
      ranges_.push_back({{position_, count_bytes}, label, member});
    }
    position_ += count_bytes;
  }
  void pass_until(uint64_t offset_bytes, ByteLabel label) {
    if (offset_bytes < position_) fail("two parts of the zip archive overlap");
    pass(offset_bytes - position_, label);
  }

  // The next bytes, without passing them; the reader must not outlive the next call.
  ByteReader look(uint64_t count_bytes) {
    if (count_bytes > left_bytes()) fail("the zip archive ends early");
    buffer_.resize(count_bytes);
    file_.read_at(position_, buffer_);
    return ByteReader(buffer_, file_.file_name(), position_);
  }

  [[noreturn]] void fail(std::string problem) const {
    throw Error(ErrorCode::Corrupt, {file_.file_name(), position_}, std::move(problem));
  }

  uint64_t left_bytes() const { return end_ - position_; }
  std::vector<AccountedRange> take() { return std::move(ranges_); }

 private:
  const RandomAccess& file_;
  uint64_t position_, end_;  // in the file
  std::vector<std::byte> buffer_;
  std::vector<AccountedRange> ranges_;
};

// Fields of {id, size, content}. A ZIP64 field holds sizes that were compared; whatever else there
// is pads.
void pass_extra(Walk& walk, uint64_t count_bytes) {
  const uint64_t end = walk.position() + count_bytes;
  while (walk.position() < end) {
    if (end - walk.position() < 4) walk.fail("a zip header's extra field is cut short");
    ByteReader header = walk.look(4);
    const uint16_t id = header.u16();
    const uint16_t size = header.u16();
    if (size > end - walk.position() - 4)
      walk.fail("a zip header's extra field is longer than the header says");
    const bool is_zip64 = id == kZip64Extra;
    walk.pass(2, is_zip64 ? Repeated : Padding);
    walk.pass(2, Repeated);
    walk.pass(size, is_zip64 ? Repeated : Padding);
  }
}

// 4.3.7: signature, version, flags, method, time, date, CRC-32, two sizes, two lengths, name,
// extra. True where the flags promise a descriptor.
bool pass_local_header(Walk& walk) {
  ByteReader header = walk.look(kLocalHeaderBytes);
  header.skip(6);
  const bool has_descriptor = header.u16() & kFlagDescriptor;
  header.skip(6);
  const uint32_t crc = header.u32();
  const uint32_t compressed_bytes = header.u32();
  const uint32_t count_bytes = header.u32();
  const uint16_t name_bytes = header.u16();
  const uint16_t extra_bytes = header.u16();
  // With a descriptor all three stand here or none; a reader need not care.
  const bool is_half_said =
      (compressed_bytes == 0) != (count_bytes == 0) || (crc != 0 && compressed_bytes == 0);
  if (has_descriptor && is_half_said)
    walk.fail("a local zip header gives only some of sizes and CRC-32, expected all or none");
  walk.pass(4, Repeated);
  walk.pass(2, Padding);  // version needed
  walk.pass(4, Repeated);
  walk.pass(4, Padding);  // time and date
  walk.pass(16 + name_bytes, Repeated);
  pass_extra(walk, extra_bytes);
  return has_descriptor;
}

// Signature, CRC-32, two sizes of 4 or 8 bytes: compared with the directory by read_directory(). An
// empty member may have none.
void pass_descriptor(Walk& walk, const Member& member, uint64_t gap_bytes) {
  const bool has_room = gap_bytes >= kDescriptorBytes;
  ByteReader descriptor = walk.look(has_room ? kDescriptorBytes : 0);
  if (!has_room || descriptor.u32() != kDescriptor) {
    if (member.data.count_bytes == 0) return;
    walk.fail("the data descriptor of zip member '" + escaped(member.name) + "' is missing");
  }
  descriptor.skip(4);
  const uint64_t count_bytes = member.data.count_bytes;
  const bool is_short = descriptor.u32() == count_bytes && descriptor.u32() == count_bytes &&
                        gap_bytes != kZip64DescriptorBytes;
  const bool is_long = !is_short && gap_bytes >= kZip64DescriptorBytes;
  walk.pass(is_long ? kZip64DescriptorBytes : kDescriptorBytes, Repeated);
}

// 4.3.12: signature, two versions, flags, method, time, date, CRC-32, two sizes, three lengths,
// disk, attributes, header offset, name, extra, comment.
void pass_entry(Walk& walk) {
  ByteReader entry = walk.look(kCentralHeaderBytes);
  entry.skip(28);
  const uint16_t name_bytes = entry.u16();
  const uint16_t extra_bytes = entry.u16();
  const uint16_t comment_bytes = entry.u16();
  walk.pass(4, Repeated);
  walk.pass(4, Padding);  // versions
  walk.pass(4, Repeated);
  walk.pass(4, Padding);    // time and date
  walk.pass(20, Repeated);  // up to and with the disk
  walk.pass(6, Padding);    // attributes
  walk.pass(4 + name_bytes, Repeated);
  pass_extra(walk, extra_bytes);
  walk.pass(comment_bytes, Padding);
}

// 4.3.14 and 4.3.15.
void pass_zip64_end(Walk& walk) {
  walk.pass(12, Repeated);  // signature, size
  walk.pass(4, Padding);    // versions
  walk.pass(40, Repeated);
  ByteReader locator = walk.look(kZip64EndLocatorBytes);
  locator.skip(16);
  if (locator.u32() != 1)
    walk.fail("the ZIP64 locator does not say that the archive is on one disk");
  walk.pass(kZip64EndLocatorBytes, Repeated);
}

void pass_members(Walk& walk, std::span<const Member> members, uint64_t directory_offset_bytes) {
  std::vector<size_t> order(members.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) { return members[i].header_offset_bytes; });
  for (size_t k = 0; k < order.size(); ++k) {
    const Member& member = members[order[k]];
    const uint64_t next =
        k + 1 < order.size() ? members[order[k + 1]].header_offset_bytes : directory_offset_bytes;
    walk.pass_until(member.header_offset_bytes, Unclaimed);
    const bool has_descriptor = pass_local_header(walk);
    if (walk.position() != member.data.offset_bytes) {
      walk.fail("a zip member's data does not follow its header");
    }
    walk.pass(member.data.count_bytes, member.crc32 ? Checksummed : Unprotected, order[k]);
    if (has_descriptor) pass_descriptor(walk, member, next - walk.position());
  }
  walk.pass_until(directory_offset_bytes, Unclaimed);
}

}  // namespace

std::vector<AccountedRange> account_archive(const RandomAccess& file, ByteRange archive,
                                            std::span<const Member> members) {
  Walk walk(file, archive);
  pass_members(walk, members, directory_offset_bytes(file, archive));
  for (size_t i = 0; i < members.size(); ++i) pass_entry(walk);
  if (walk.left_bytes() > kEndBytes) pass_zip64_end(walk);
  if (walk.left_bytes() != kEndBytes)
    walk.fail("the zip archive has unexpected bytes between its directory and the end record");
  walk.pass(kEndBytes, Repeated);
  return walk.take();
}

}  // namespace ckpt::zip
