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
  return {start - item.offset_bytes,
          memory_.subspan(static_cast<size_t>(start - range_.offset_bytes),
                          static_cast<size_t>(end - start))};
}

void WindowBytes::put(uint64_t offset_bytes, std::string_view text) const {
  const Part part = part_of({offset_bytes, text.size()});
  const std::string_view shown =
      text.substr(static_cast<size_t>(part.offset_bytes), part.memory.size());
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

uint32_t WindowComposer::compose(const Window& window, size_t number, std::span<std::byte> out) {
  bytes_ = WindowBytes(window.bytes, out);
  sum_ = WindowSum(out);
  window_ = window;
  number_ = number;
  const TargetFile& file = job_.target.files[window.file];
  if (file.archives.empty()) {
    bytes_.put(0, file.bytes);
  } else {
    compose_archives(window);
  }
  return sum_.finish();
}

void WindowComposer::compose_archives(const Window& window) {
  const TargetFile& file = job_.target.files[window.file];
  const std::vector<uint64_t>& offsets = job_.plan.files[window.file].archive_offsets;
  const auto next = std::ranges::upper_bound(offsets, window.bytes.offset_bytes);
  for (auto a = static_cast<uint32_t>(next - offsets.begin() - 1);
       a < offsets.size() && offsets[a] < window.bytes.end_bytes(); ++a) {
    const std::shared_ptr<ArchiveState> state = job_.archives.open(window, a);
    compose_archive({*state, offsets[a], file.archives[a].records,
                     job_.archives.records_of(window.file, a)});
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
  const TargetRecord& record = archive.records[r];
  const RecordPlan& plan = archive.plans[r];
  const Piece& piece = job_.archives.windows().pieces()[window_.piece];
  const bool is_foreign =
      static_cast<size_t>(&plan - job_.plan.records.data()) >= piece.end_record;
  RecordReader& reader = is_foreign ? foreign_ : reader_;
  const uint32_t crc = reader.read(record, plan, part.offset_bytes, part.memory);
  sum_.add_summed(part.memory, crc);
  if (is_foreign) return;
  archive.state.add(member, {part.offset_bytes, part.memory.size()}, crc);
  if (plan.offset_bytes < piece.bytes.offset_bytes && is_first_of(piece)) {
    sum_up_head(archive, member, piece.bytes.offset_bytes - plan.offset_bytes);
  }
}

bool WindowComposer::is_first_of(const Piece& piece) const {
  return window_.bytes.offset_bytes == piece.bytes.offset_bytes;
}

// What the piece before has of the record, less than a block.
void WindowComposer::sum_up_head(const Archive& archive, size_t member, uint64_t head_bytes) {
  const size_t r = ArchiveImage::record_of(member);
  std::vector<std::byte> head(static_cast<size_t>(head_bytes));
  const uint32_t crc = reader_.read(archive.records[r], archive.plans[r], 0, head);
  archive.state.add(member, {0, head_bytes}, crc);
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
