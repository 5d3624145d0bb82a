#include "write/window_composer.h"

#include <algorithm>
#include <utility>

#include "codec/crc32.h"

namespace ckpt {
namespace {

constexpr size_t kLongPartBytes = 64 << 10;  // shorter ones are summed sooner than joined

}  // namespace

WindowBytes::Part WindowBytes::part_of(ByteRange item) const {
  const uint64_t start = std::max(item.offset_bytes, range_.offset_bytes);
  const uint64_t end = std::min(item.end_bytes(), range_.end_bytes());
  if (start >= end) return {};
  return {start - item.offset_bytes, memory_.subspan(start - range_.offset_bytes, end - start)};
}

void WindowBytes::put(uint64_t offset_bytes, std::string_view text) const {
  const Part part = part_of({offset_bytes, text.size()});
  const std::string_view shown = text.substr(part.offset_bytes, part.memory.size());
  std::ranges::copy(std::as_bytes(std::span(shown)), part.memory.begin());
}

void WindowSum::sum_up_to(size_t end) {
  crc_ = crc32(memory_.subspan(summed_bytes_, end - summed_bytes_), crc_);
  summed_bytes_ = end;
}

void WindowSum::add_summed(std::span<const std::byte> part, uint32_t crc) {
  if (part.size() < kLongPartBytes) return;
  sum_up_to(static_cast<size_t>(part.data() - memory_.data()));
  crc_ = crc32_of_both(crc_, crc, part.size());
  summed_bytes_ += part.size();
}

uint32_t WindowSum::finish() {
  sum_up_to(memory_.size());
  return crc_;
}

WindowSums WindowComposer::compose(const Window& window, size_t number, std::span<std::byte> out) {
  bytes_ = WindowBytes(window.bytes, out);
  sum_ = WindowSum(out);
  sums_ = {};
  window_ = window;
  number_ = number;
  const TargetFile& file = job_.target.files[window.file];
  if (file.archives.empty()) {
    bytes_.put(0, file.bytes);
  } else {
    compose_archives(window);
    if (is_first_of_piece()) sum_up_tail();
  }
  sums_.crc32 = sum_.finish();
  return std::move(sums_);
}

void WindowComposer::compose_archives(const Window& window) {
  const TargetFile& file = job_.target.files[window.file];
  const std::vector<uint64_t>& offsets = job_.plan.files[window.file].archive_offsets;
  const auto next = std::ranges::upper_bound(offsets, window.bytes.offset_bytes);
  for (auto a = static_cast<uint32_t>(next - offsets.begin() - 1);
       a < offsets.size() && offsets[a] < window.bytes.end_bytes(); ++a) {
    const std::shared_ptr<ArchiveState> state = job_.archives.open(window, a);
    const Archive archive{*state, offsets[a], file.archives[a].records,
                          job_.archives.records_of(window.file, a)};
    if (is_first_of_piece() && offsets[a] < window.bytes.offset_bytes) sum_up_head(archive);
    compose_archive(archive);
    job_.archives.close(window.file, a);
  }
}

void WindowComposer::compose_archive(const Archive& archive) {
  const std::vector<zip::Place>& places = archive.state.image().layout().places();
  const uint64_t start_bytes =
      std::max(bytes_.range().offset_bytes, archive.offset_bytes) - archive.offset_bytes;
  const uint64_t end_bytes = bytes_.range().end_bytes() - archive.offset_bytes;
  const auto next =
      std::ranges::upper_bound(places, start_bytes, {}, &zip::Place::header_offset_bytes);
  for (auto m = static_cast<size_t>(next - places.begin() - 1);
       m < places.size() && places[m].header_offset_bytes < end_bytes; ++m) {
    put_member(archive, m);
  }
  put_directory(archive);
}

void WindowComposer::put_member(const Archive& archive, size_t member) {
  const zip::Layout& layout = archive.state.image().layout();
  const zip::Place& place = layout.places()[member];
  const uint64_t header_bytes = place.data_offset_bytes - place.header_offset_bytes;
  const uint64_t header_offset_bytes = archive.offset_bytes + place.header_offset_bytes;
  if (!bytes_.part_of({header_offset_bytes, header_bytes}).memory.empty()) {
    bytes_.put(header_offset_bytes, layout.local_header(member));
  }
  put_data(archive, member);
  const uint64_t descriptor_offset_bytes =
      archive.offset_bytes + place.data_offset_bytes + place.count_bytes;
  const uint64_t descriptor_bytes = layout.descriptor_bytes(member);
  if (!bytes_.part_of({descriptor_offset_bytes, descriptor_bytes}).memory.empty()) {
    const uint32_t crc = archive.state.crc(member, number_);
    bytes_.put(descriptor_offset_bytes, layout.descriptor(member, crc));
  }
}

void WindowComposer::put_data(const Archive& archive, size_t member) {
  const ArchiveImage& image = archive.state.image();
  const zip::Place& place = image.place(member);
  const uint64_t data_offset_bytes = archive.offset_bytes + place.data_offset_bytes;
  const WindowBytes::Part part = bytes_.part_of({data_offset_bytes, place.count_bytes});
  if (part.memory.empty()) return;
  if (member == image.id_member()) {
    bytes_.put(data_offset_bytes, archive.state.serialization_id(number_));
  } else if (!image.is_record(member)) {
    bytes_.put(data_offset_bytes, image.fixed_content(member));
  } else {
    put_record(archive, member, part);
  }
}

void WindowComposer::put_record(const Archive& archive, size_t member, WindowBytes::Part part) {
  const size_t r = ArchiveImage::record_of(member);
  const RecordPlan& plan = archive.plans[r];
  const uint64_t part_offset_bytes = plan.offset_bytes + part.offset_bytes;
  const uint64_t own_end_bytes = piece().closes ? 0 : piece().own.end_bytes();
  const uint64_t own_bytes =
      std::min(std::max(own_end_bytes, part_offset_bytes) - part_offset_bytes, part.memory.size());
  const auto own = part.memory.first(own_bytes);
  if (!own.empty()) {
    const ByteRange bytes = {part.offset_bytes, own.size()};
    const uint32_t crc = reader_.read(archive.records[r], plan, part.offset_bytes, own);
    sum_.add_summed(own, crc);
    archive.state.add(member, bytes, crc);
    add_sum(plan, bytes, crc);
  }
  const auto rest = part.memory.subspan(own.size());
  if (!rest.empty()) foreign_.read(archive.records[r], plan, part.offset_bytes + own_bytes, rest);
}

// Tells what a piece has of a record, in bytes of the record, to those who state its checksum.
void WindowComposer::add_sum(const RecordPlan& plan, ByteRange part, uint32_t crc) {
  const bool is_whole_file = piece().own.count_bytes == job_.plan.files[window_.file].count_bytes;
  if (is_whole_file) return;
  const uint64_t after_bytes = record_of(job_.target, plan).count_bytes - part.end_bytes();
  sums_.records.push_back(
      {static_cast<size_t>(&plan - job_.plan.records.data()), crc32_before(crc, after_bytes)});
}

bool WindowComposer::is_first_of_piece() const {
  return window_.bytes.offset_bytes == piece().bytes.offset_bytes;
}

// What the piece before writes of the piece's own: in the archive that the piece starts in.
void WindowComposer::sum_up_head(const Archive& archive) {
  const uint64_t end_bytes = piece().bytes.offset_bytes;
  for (size_t r = 0; r < archive.plans.size(); ++r) {
    const RecordPlan& plan = archive.plans[r];
    const TargetRecord& record = archive.records[r];
    const uint64_t start = std::max(plan.offset_bytes, piece().own.offset_bytes);
    const uint64_t end = std::min(plan.offset_bytes + record.count_bytes, end_bytes);
    if (start >= end) continue;
    const ByteRange part = {start - plan.offset_bytes, end - start};
    std::vector<std::byte> head(part.count_bytes);
    const uint32_t crc = reader_.read(record, plan, part.offset_bytes, head);
    archive.state.add(ArchiveImage::member_of(r), part, crc);
    add_sum(plan, part, crc);
  }
}

// What the piece behind, which closes a record, writes of the piece's own: whole records.
void WindowComposer::sum_up_tail() {
  const std::span<const RecordPlan> records = job_.plan.records;
  for (size_t r = piece().end_record;
       r > piece().first_record && records[r - 1].offset_bytes >= piece().bytes.end_bytes(); --r) {
    const TargetRecord& record = record_of(job_.target, records[r - 1]);
    if (record.count_bytes == 0) continue;
    std::vector<std::byte> tail(record.count_bytes);
    const uint32_t crc = reader_.read(record, records[r - 1], 0, tail);
    add_sum(records[r - 1], {0, record.count_bytes}, crc);
  }
}

// The directory may be long, so that only what the window shows is made.
void WindowComposer::put_directory(const Archive& archive) {
  const zip::Layout& layout = archive.state.image().layout();
  uint64_t offset_bytes = archive.offset_bytes + layout.directory_offset_bytes();
  if (offset_bytes >= bytes_.range().end_bytes()) return;
  const std::vector<uint32_t>& crcs = archive.state.crcs(number_);
  for (size_t m = 0; m < layout.places().size(); ++m) {
    const uint64_t header_bytes = layout.central_header_bytes(m);
    if (!bytes_.part_of({offset_bytes, header_bytes}).memory.empty()) {
      bytes_.put(offset_bytes, layout.central_header(m, crcs[m]));
    }
    offset_bytes += header_bytes;
  }
  bytes_.put(offset_bytes, layout.end_records());
}

}  // namespace ckpt
