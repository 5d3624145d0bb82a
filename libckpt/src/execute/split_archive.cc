#include "execute/split_archive.h"

#include <algorithm>
#include <utility>

#include "codec/crc32.h"

namespace ckpt {

ArchiveInParts::ArchiveInParts(const TargetArchive& archive, uint64_t piece_bytes)
    : image_(archive), piece_bytes_(piece_bytes), crcs_(image_.member_count(), 0) {
  for (size_t m = 0; m < image_.id_member(); ++m) {
    const zip::Place& place = image_.place(m);
    const uint64_t span_bytes = image_.place(m + 1).header_offset_bytes - place.header_offset_bytes;
    if (span_bytes <= piece_bytes) continue;
    const uint64_t slice_count = (place.count_bytes + piece_bytes - 1) / piece_bytes;
    sliced_[m].crcs.resize(static_cast<size_t>(slice_count));
  }
}

void ArchiveInParts::set_member(size_t member, uint32_t crc) {
  const std::scoped_lock lock(mutex_);
  crcs_[member] = crc;
}

void ArchiveInParts::set_slice(size_t member, uint64_t offset_bytes, uint32_t crc,
                               std::optional<SoleSource> sole) {
  const std::scoped_lock lock(mutex_);
  SlicedMember& sliced = sliced_.at(member);
  sliced.crcs[static_cast<size_t>(offset_bytes / piece_bytes_)] = crc;
  if (sole) sliced.sole = std::move(sole);
}

uint32_t ArchiveInParts::whole_crc(size_t member, const SlicedMember& sliced) const {
  uint64_t left_bytes = image_.place(member).count_bytes;
  uint32_t crc = 0;
  for (const uint32_t slice_crc : sliced.crcs) {
    const uint64_t slice_bytes = std::min(left_bytes, piece_bytes_);
    crc = crc32_of_both(crc, slice_crc, slice_bytes);
    left_bytes -= slice_bytes;
  }
  return crc;
}

void ArchiveInParts::add_frame(size_t member, std::vector<Patch>& patches) const {
  const zip::Place& place = image_.place(member);
  patches.push_back({place.header_offset_bytes, image_.layout().local_header(member)});
  patches.push_back({place.data_offset_bytes + place.count_bytes,
                     image_.layout().descriptor(member, crcs_[member])});
}

std::vector<ArchiveInParts::Patch> ArchiveInParts::finish(const PayloadSource& source) {
  const std::scoped_lock lock(mutex_);
  std::vector<Patch> patches;
  for (const auto& [member, sliced] : sliced_) {
    crcs_[member] = whole_crc(member, sliced);
    if (sliced.sole) check_sole_source(*sliced.sole, crcs_[member], source);
    add_frame(member, patches);
  }
  const size_t id = image_.id_member();
  std::string content = image_.serialization_id(crcs_);
  crcs_[id] = crc32(std::as_bytes(std::span(content)));
  add_frame(id, patches);
  patches.push_back({image_.place(id).data_offset_bytes, std::move(content)});
  patches.push_back({image_.layout().directory_offset_bytes(), image_.layout().directory(crcs_)});
  return patches;
}

}  // namespace ckpt
