#include "write/archive_state.h"

#include "codec/crc32.h"

namespace ckpt {

WindowMap::WindowMap(std::vector<Piece> pieces, uint64_t window_bytes)
    : pieces_(std::move(pieces)), window_bytes_(window_bytes), first_window_{0} {
  first_window_.reserve(pieces_.size() + 1);
  for (const Piece& piece : pieces_) {
    const uint64_t windows = (piece.bytes.count_bytes + window_bytes - 1) / window_bytes;
    first_window_.push_back(first_window_.back() + std::max<size_t>(1, windows));
  }
}

Window WindowMap::window(size_t index) const {
  const auto next = std::ranges::upper_bound(first_window_, index);
  const auto number = static_cast<size_t>(next - first_window_.begin() - 1);
  const Piece& piece = pieces_[number];
  const uint64_t offset_bytes = (index - first_window_[number]) * window_bytes_;
  const uint64_t left_bytes = piece.bytes.count_bytes - offset_bytes;
  return {number,
          piece.file,
          {piece.bytes.offset_bytes + offset_bytes, std::min(window_bytes_, left_bytes)}};
}

size_t WindowMap::count_before(uint32_t file, uint64_t offset_bytes) const {
  const auto next = std::ranges::lower_bound(
      pieces_, std::pair(file, offset_bytes), {},
      [](const Piece& piece) { return std::pair(piece.file, piece.bytes.offset_bytes); });
  const auto number = static_cast<size_t>(next - pieces_.begin());
  if (number == 0 || pieces_[number - 1].file != file) return first_window_[number];
  const Piece& piece = pieces_[number - 1];
  const uint64_t part_bytes =
      std::min(offset_bytes - piece.bytes.offset_bytes, piece.bytes.count_bytes);
  return first_window_[number - 1] + (part_bytes + window_bytes_ - 1) / window_bytes_;
}

size_t WindowMap::count_over(uint32_t file, ByteRange bytes) const {
  size_t count = 0;
  for (auto piece = std::ranges::lower_bound(pieces_, file, {}, &Piece::file);
       piece != pieces_.end() && piece->file == file; ++piece) {
    const uint64_t start = std::max(piece->bytes.offset_bytes, bytes.offset_bytes);
    const uint64_t end = std::min(piece->bytes.end_bytes(), bytes.end_bytes());
    if (start >= end) continue;
    const uint64_t front_bytes = piece->bytes.offset_bytes;
    count += (end - front_bytes - 1) / window_bytes_ - (start - front_bytes) / window_bytes_ + 1;
  }
  return count;
}

void WaitingRoom::fail(size_t job) {
  const std::scoped_lock lock(mutex_);
  failed_job_ = std::min(failed_job_, job);
  wake();
}

ArchiveState::ArchiveState(const TargetArchive& archive, WaitingRoom& room,
                           std::span<const uint32_t> known_crcs)
    : image_(archive),
      room_(room),
      crcs_(image_.member_count(), 0),
      left_bytes_(image_.member_count(), 0) {
  for (size_t m = 0; m < image_.id_member(); ++m) {
    if (image_.is_record(m) && !known_crcs.empty()) {
      crcs_[m] = known_crcs[ArchiveImage::record_of(m)];
    } else if (image_.is_record(m)) {
      left_bytes_[m] = image_.place(m).count_bytes;
      unknown_count_ += is_known(m) ? 0 : 1;
    } else {
      crcs_[m] = crc32(std::as_bytes(std::span(image_.fixed_content(m))));
    }
  }
}

void ArchiveState::add(size_t member, ByteRange part, uint32_t crc) {
  const uint64_t after_bytes = image_.place(member).count_bytes - part.end_bytes();
  const uint32_t contribution = crc32_before(crc, after_bytes);
  const std::scoped_lock lock(room_.mutex());
  crcs_[member] ^= contribution;
  left_bytes_[member] -= part.count_bytes;
  if (!is_known(member)) return;
  --unknown_count_;
  room_.wake();
}

uint32_t ArchiveState::crc(size_t member, size_t job) {
  std::unique_lock lock(room_.mutex());
  if (member == image_.id_member()) {
    finish_id(lock, job);
  } else {
    room_.wait(lock, job, [&] { return is_known(member); });
  }
  return crcs_[member];
}

const std::vector<uint32_t>& ArchiveState::crcs(size_t job) {
  std::unique_lock lock(room_.mutex());
  finish_id(lock, job);
  return crcs_;
}

const std::string& ArchiveState::serialization_id(size_t job) {
  std::unique_lock lock(room_.mutex());
  finish_id(lock, job);
  return serialization_id_;
}

// It is made from the checksums of all other members.
void ArchiveState::finish_id(std::unique_lock<std::mutex>& lock, size_t job) {
  room_.wait(lock, job, [&] { return unknown_count_ == 0; });
  if (!serialization_id_.empty()) return;
  serialization_id_ = image_.serialization_id(crcs_);
  crcs_[image_.id_member()] = crc32(std::as_bytes(std::span(serialization_id_)));
}

ByteRange OpenArchives::place(uint32_t file, uint32_t archive) const {
  const PlannedFile& planned = plan_.files[file];
  const std::vector<uint64_t>& offsets = planned.archive_offsets;
  const uint64_t end = archive + 1 < offsets.size() ? offsets[archive + 1] : planned.count_bytes;
  return {offsets[archive], end - offsets[archive]};
}

std::span<const RecordPlan> OpenArchives::records_of(uint32_t file, uint32_t archive) const {
  const auto archive_of = [](const RecordPlan& record) {
    return std::pair(record.file, record.archive);
  };
  return equal_run(plan_.records, std::pair(file, archive), archive_of);
}

std::shared_ptr<ArchiveState> OpenArchives::make(const Window& window, uint32_t archive) {
  std::span<const uint32_t> known_crcs;
  if (windows_.pieces()[window.piece].closes) {
    const auto records = records_of(window.file, archive);
    known_crcs = record_crcs_.subspan(static_cast<size_t>(records.data() - plan_.records.data()),
                                      records.size());
  }
  return std::make_shared<ArchiveState>(target_.files[window.file].archives[archive], room_,
                                        known_crcs);
}

std::shared_ptr<ArchiveState> OpenArchives::open(const Window& window, uint32_t archive) {
  const size_t window_count = windows_.count_over(window.file, place(window.file, archive));
  if (window_count == 1) return make(window, archive);
  std::shared_ptr<Shared> shared;
  {
    const std::scoped_lock lock(mutex_);
    std::shared_ptr<Shared>& entry = shared_[{window.file, archive}];
    if (!entry) {
      entry = std::make_shared<Shared>();
      entry->windows_left = window_count;
    }
    shared = entry;
  }
  const std::scoped_lock lock(shared->mutex);
  if (!shared->state) shared->state = make(window, archive);
  return shared->state;
}

void OpenArchives::close(uint32_t file, uint32_t archive) {
  const std::scoped_lock lock(mutex_);
  const auto entry = shared_.find({file, archive});
  if (entry != shared_.end() && --entry->second->windows_left == 0) shared_.erase(entry);
}

}  // namespace ckpt
