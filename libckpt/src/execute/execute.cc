#include <ckpt/error.h>
#include <ckpt/execute.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "base/checked_math.h"
#include "codec/crc32.h"
#include "execute/member_composer.h"
#include "execute/output_files.h"
#include "execute/source_checker.h"
#include "execute/split_archive.h"
#include "execute/target_pieces.h"
#include "io/directory.h"
#include "io/worker_pool.h"

namespace ckpt {

namespace {

constexpr uint64_t kPieceBytesMax = 4 << 20;
constexpr uint64_t kPieceBytesMin = 64 << 10;
constexpr uint64_t kWriteBackBytesMin = 1 << 20;  // shorter writes wait for the commit
constexpr uint64_t kPageBytes = 4096;             // also a multiple of every element's size

// Each worker has a buffer for the piece that it makes, and one to read through.
struct Budget {
  unsigned threads;
  uint64_t piece_bytes;
};

Budget make_budget(const ExecuteOptions& options) {
  const uint64_t buffers = options.memory_bytes_max / 2;
  const uint64_t most_threads = std::max<uint64_t>(1, buffers / kPieceBytesMin);
  const auto threads =
      static_cast<unsigned>(std::min<uint64_t>(thread_count(options.threads), most_threads));
  const uint64_t share = buffers / threads / kPageBytes * kPageBytes;
  return {threads, std::clamp(share, kPieceBytesMin, kPieceBytesMax)};
}

// Counts what is read from the source.
class MeteredSource final : public PayloadSource {
 public:
  explicit MeteredSource(const PayloadSource& source) : source_(source) {}

  StorageRegion locate(const StorageRegion& region) const override {
    return source_.locate(region);
  }
  void read_bytes(const StorageRegion& located, uint64_t offset_bytes,
                  std::span<std::byte> out) const override {
    source_.read_bytes(located, offset_bytes, out);
    read_bytes_.fetch_add(out.size(), std::memory_order_relaxed);
  }
  std::string file_name(uint32_t file) const override { return source_.file_name(file); }

  uint64_t count_bytes() const { return read_bytes_.load(); }

 private:
  const PayloadSource& source_;
  mutable std::atomic<uint64_t> read_bytes_ = 0;
};

struct Worker {
  ScratchBuffer piece;
  ScratchBuffer scratch;
};

// An archive in parts, from its first piece to its last.
struct SplitSlot {
  std::mutex mutex;
  std::shared_ptr<ArchiveInParts> parts;
  uint32_t pieces_left = 0;
};

uint64_t chosen_bytes(const Plan& plan, const std::vector<bool>& files) {
  if (files.empty()) return plan.total_bytes;
  uint64_t sum_bytes = 0;
  for (size_t f = 0; f < files.size(); ++f) sum_bytes += files[f] ? plan.files[f].count_bytes : 0;
  return sum_bytes;
}

uint64_t chosen_count(const Plan& plan, const std::vector<bool>& files) {
  return files.empty() ? plan.files.size() : static_cast<uint64_t>(std::ranges::count(files, true));
}

class Execution {
 public:
  Execution(const Target& target, const Plan& plan, const PayloadSource& source,
            const ExecuteOptions& options)
      : target_(target),
        plan_(plan),
        source_(source),
        options_(options),
        budget_(make_budget(options)),
        checker_(source_),
        pieces_(cut_target(target, budget_.piece_bytes)),
        split_(pieces_.split.size()) {
    for (size_t i = 0; i < split_.size(); ++i) {
      split_[i].pieces_left = pieces_.split[i].piece_count;
    }
    std::erase_if(pieces_.pieces, [&](const Piece& piece) { return !is_chosen(piece.file); });
    progress_.total_bytes = chosen_bytes(plan, options.files);
  }

  ExecuteStats run(const std::filesystem::path& folder) {
    OutputFiles files(folder, plan_, pieces_);
    files_ = &files;
    std::vector<Worker> workers;
    for (unsigned i = 0; i < budget_.threads; ++i) {
      const auto bytes = static_cast<size_t>(budget_.piece_bytes);
      workers.push_back({ScratchBuffer(bytes), ScratchBuffer(bytes)});
    }
    run_jobs(pieces_.pieces.size(), budget_.threads, [&](size_t job, unsigned worker) {
      stop_if_requested();
      write_piece(pieces_.pieces[job], workers[worker]);
    });
    return {source_.count_bytes(), progress_.done_bytes, chosen_count(plan_, options_.files)};
  }

 private:
  bool is_chosen(uint32_t file) const { return options_.files.empty() || options_.files[file]; }

  void stop_if_requested() const {
    if (options_.stop.stop_requested()) throw Error(ErrorCode::IoFailure, {}, "cancelled");
  }

  void write_piece(const Piece& piece, Worker& worker) {
    auto file = files_->open(piece.file);
    switch (piece.kind) {
      case Piece::Kind::Bytes:
        write_bytes(piece, *file);
        break;
      case Piece::Kind::Archives:
        write_archives(piece, worker, *file);
        break;
      case Piece::Kind::Members:
      case Piece::Kind::Slice:
        write_part(piece, worker, *file);
        break;
    }
    file.reset();
    const auto finished = files_->piece_done(piece.file);
    if (finished && options_.on_file) options_.on_file(*finished);
  }

  void write_bytes(const Piece& piece, const File& file) {
    write(piece.file, file, 0, std::as_bytes(std::span(target_.files[piece.file].bytes)));
  }

  void write_archives(const Piece& piece, Worker& worker, const File& file) {
    const auto buffer = worker.piece.bytes().first(static_cast<size_t>(piece.bytes.count_bytes));
    auto rest = buffer;
    for (uint32_t a = piece.archive; a < piece.archive + piece.count; ++a) {
      const ArchiveImage image(target_.files[piece.file].archives[a]);
      const auto archive_bytes = static_cast<size_t>(image.layout().count_bytes());
      compose_archive(archive_to_write(piece.file, a, image), worker, rest.first(archive_bytes));
      rest = rest.subspan(archive_bytes);
    }
    write(piece.file, file, piece.bytes.offset_bytes, buffer);
  }

  void compose_archive(const ArchiveToWrite& archive, Worker& worker, std::span<std::byte> out) {
    const ReadContext context{source_, checker_, worker.scratch};
    const MemberComposer composer(archive, context);
    std::vector<uint32_t> crcs;
    for (size_t m = 0; m < archive.image.member_count(); ++m) {
      const uint64_t offset_bytes = archive.image.place(m).header_offset_bytes;
      crcs.push_back(composer.compose(m, crcs, out.subspan(static_cast<size_t>(offset_bytes))));
    }
    const std::string directory = archive.image.layout().directory(crcs);
    std::ranges::copy(std::as_bytes(std::span(directory)), out.last(directory.size()).begin());
  }

  // Members, or a slice of one, of an archive that other pieces make as well.
  void write_part(const Piece& piece, Worker& worker, const File& file) {
    const std::shared_ptr<ArchiveInParts> parts = open_split(piece);
    const ArchiveToWrite archive = archive_to_write(piece.file, piece.archive, parts->image());
    const ReadContext context{source_, checker_, worker.scratch};
    const MemberComposer composer(archive, context);
    const auto buffer = worker.piece.bytes().first(static_cast<size_t>(piece.bytes.count_bytes));
    if (piece.kind == Piece::Kind::Slice) {
      auto sole = composer.read_data(piece.member, piece.slice_offset_bytes, buffer);
      parts->set_slice(piece.member, piece.slice_offset_bytes, crc32(buffer), std::move(sole));
    } else {
      const uint64_t start_bytes = parts->image().place(piece.member).header_offset_bytes;
      for (size_t m = piece.member; m < piece.member + piece.count; ++m) {
        const uint64_t offset_bytes = parts->image().place(m).header_offset_bytes - start_bytes;
        parts->set_member(
            m, composer.compose(m, {}, buffer.subspan(static_cast<size_t>(offset_bytes))));
      }
    }
    write(piece.file, file, piece.bytes.offset_bytes, buffer);
    if (is_last_part(piece)) finish(piece, *parts, file);
  }

  void finish(const Piece& piece, ArchiveInParts& parts, const File& file) {
    const uint64_t archive_bytes = pieces_.archives[piece.file][piece.archive].offset_bytes;
    for (const auto& patch : parts.finish(source_)) {
      const auto bytes = std::as_bytes(std::span(patch.bytes));
      write(piece.file, file, archive_bytes + patch.offset_bytes, bytes);
    }
  }

  ArchiveToWrite archive_to_write(uint32_t file, uint32_t archive,
                                  const ArchiveImage& image) const {
    const ArchivePlace& place = pieces_.archives[file][archive];
    const TargetArchive& target = target_.files[file].archives[archive];
    return {target, image,
            std::span(plan_.records).subspan(place.first_record, target.records.size())};
  }

  std::shared_ptr<ArchiveInParts> open_split(const Piece& piece) {
    SplitSlot& slot = split_[piece.split];
    const std::scoped_lock lock(slot.mutex);
    if (!slot.parts) {
      const TargetArchive& archive = target_.files[piece.file].archives[piece.archive];
      slot.parts = std::make_shared<ArchiveInParts>(archive, budget_.piece_bytes);
    }
    return slot.parts;
  }

  bool is_last_part(const Piece& piece) {
    SplitSlot& slot = split_[piece.split];
    const std::scoped_lock lock(slot.mutex);
    if (--slot.pieces_left != 0) return false;
    slot.parts.reset();  // what the caller holds is the last of it
    return true;
  }

  void write(uint32_t index, const File& file, uint64_t offset_bytes,
             std::span<const std::byte> bytes) {
    file.write_at(offset_bytes, bytes);
    files_->bytes_written(index, offset_bytes, bytes);
    if (bytes.size() >= kWriteBackBytesMin) file.start_writing_back(offset_bytes, bytes.size());
    const std::scoped_lock lock(progress_mutex_);
    progress_.done_bytes += bytes.size();
    if (options_.on_progress) options_.on_progress(progress_);
  }

  const Target& target_;
  const Plan& plan_;
  MeteredSource source_;
  const ExecuteOptions& options_;
  Budget budget_;
  SourceChecker checker_;
  TargetPieces pieces_;
  std::vector<SplitSlot> split_;
  OutputFiles* files_ = nullptr;
  std::mutex progress_mutex_;
  Progress progress_;
};

void check_request(const Target& target, const Plan& plan, const std::vector<bool>& files) {
  size_t record_count = 0;
  for (const TargetFile& file : target.files) {
    for (const TargetArchive& archive : file.archives) record_count += archive.records.size();
  }
  if (plan.files.size() != target.files.size() || plan.records.size() != record_count ||
      (!files.empty() && files.size() != plan.files.size())) {
    throw Error(ErrorCode::InvalidArgument, {}, "a plan that was made for another target");
  }
}

void check_room(uint64_t wanted_bytes, const std::filesystem::path& folder) {
  const auto room_bytes = free_bytes(folder);
  if (room_bytes && wanted_bytes > *room_bytes) {
    throw Error(ErrorCode::IoFailure, {folder.string()},
                std::to_string(wanted_bytes) + " bytes are needed, " +
                    std::to_string(*room_bytes) + " are free");
  }
}

}  // namespace

ExecuteStats execute(const Target& target, const Plan& plan, const PayloadSource& source,
                     Staging& staging, const ExecuteOptions& options) {
  check_request(target, plan, options.files);
  check_room(chosen_bytes(plan, options.files), staging.folder().parent_path());
  return Execution(target, plan, source, options).run(staging.folder());
}

}  // namespace ckpt
