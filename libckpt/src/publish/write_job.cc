#include "publish/write_job.h"

#include <algorithm>
#include <bit>
#include <span>

#include <ckpt/cast.h>
#include <ckpt/error.h>
#include <ckpt/hash.h>

#include "codec/hash_functions.h"
#include "io/directory.h"
#include "targets/archive_writer.h"
#include "work/workers.h"
#include "write/read_back.h"

namespace ckpt {
namespace {

// Of everything that decides which bytes a target's files will hold, but for the payload itself:
// paths and sizes, archives, value trees, literal bytes, and where each record comes from; and of
// the pieces that it is written in. Counts before what they count, so that no two targets give the
// same bytes.
class PlanDigester : Sha256Stream {
 public:
  Sha256 digest(const Target& target, const Plan& plan, std::span<const Piece> pieces) {
    put(static_cast<uint64_t>(target.format));
    put(target.files.size());
    for (size_t f = 0; f < target.files.size(); ++f) {
      put(plan.files[f].path);
      put(plan.files[f].count_bytes);
      put(target.files[f]);
    }
    put(pieces.size());
    for (const Piece& piece : pieces) {
      put(piece.bytes.offset_bytes);
      put(piece.own.offset_bytes);
    }
    return finish();
  }

 private:
  using Sha256Stream::put;
  void put(const Extents& extents) {
    put(extents.size());
    for (const uint64_t extent : extents) put(extent);
  }
  void put(const Box& box) {
    put(box.offsets);
    put(box.sizes);
  }

  void put(const TargetFile& file) {
    put(file.bytes);
    put(file.archives.size());
    for (const TargetArchive& archive : file.archives) {
      put(archive.name);
      put(archive.content.index());
      if (const auto* bare = std::get_if<BareTensor>(&archive.content)) {
        put(static_cast<uint64_t>(bare->dtype));
        put(bare->shape);
      } else {
        put(ArchiveImage(archive).fixed_content(0));  // data.pkl
      }
      put(archive.records.size());
      for (const TargetRecord& record : archive.records) put(record);
    }
  }
  void put(const TargetRecord& record) {
    put(record.count_bytes);
    put(record.source.index());
    std::visit([this](const auto& source) { put(source); }, record.source);
  }
  void put(const TensorSource& source) {
    put(source.box);
    if (source.tensor.get() == last_tensor_) return put(uint64_t{0});  // many boxes of one tensor
    last_tensor_ = source.tensor.get();
    put(uint64_t{1} + source.tensor->chunks.size());
    put(source.tensor->file);
    put(source.tensor->key);
    put(static_cast<uint64_t>(source.tensor->dtype));
    put(static_cast<uint64_t>(stored_type(*source.tensor)));
    put(std::bit_cast<uint32_t>(source.tensor->cast ? source.tensor->cast->added : 0.0F));
    put(source.tensor->shape);
    for (const Chunk& chunk : source.tensor->chunks) put(chunk);
  }
  void put(const Chunk& chunk) {
    put(chunk.box);
    put(chunk.region);
    put(chunk.payload_offset_bytes);
    put(chunk.view != nullptr);
    if (chunk.view) put(*chunk.view);
  }
  void put(const StorageSource& source) { put(source.region); }
  void put(const std::vector<Segment>& segments) {
    put(segments.size());
    for (const Segment& segment : segments) {
      put(segment.offset_bytes);
      put(segment.source);
      put(segment.first_element);
      put(segment.element_count);
    }
  }
  void put(const StorageRegion& region) {
    put(region.file);
    put(region.bytes.offset_bytes);
    put(region.bytes.count_bytes);
    put(static_cast<uint64_t>(region.wrapping));
  }
  void put(const StridedView& view) {
    put(view.offset);
    put(view.strides);
  }

  const TensorEntry* last_tensor_ = nullptr;
};

// Whole files where finish_store() replaces files, which nobody must write into after that.
std::vector<Piece> make_pieces(const Target& target, const Plan& plan,
                               const ConvertOptions& options) {
  const bool may_cut = options.share.world_size > 1 && !options.zstd_level;
  return may_cut ? cut_into_pieces(target, plan, options.share.piece_bytes_min) : whole_files(plan);
}

// What changes the files after the plan, equal for all processes.
std::string store_options_text(const ConvertOptions& options) {
  return (options.zstd_level ? " zstd-" + std::to_string(*options.zstd_level) : "") +
         (options.integrity ? " integrity" : "");
}

}  // namespace

SourceFingerprint::SourceFingerprint(const Checkpoint& source)
    : source_(source.source()), folder_(source.folder()), files_(source.files_as_opened()) {}

void SourceFingerprint::check_unchanged() const {
  for (const SourceFile& file : files_) {
    const Folder::Entry now = source_.stat(file.path);
    if (now.kind != EntryKind::Absent && now.state == file.state) continue;
    throw Error(ErrorCode::Corrupt, {file.path.string()}, "changed while it was read",
                "wait until the process that writes it has finished");
  }
}

std::string SourceFingerprint::digest() const {
  Sha256Stream stream;
  for (const auto& [path, state] : files_) {
    const std::string line = path.lexically_relative(folder_).string() + '\0' +
                             std::to_string(state.inode) + ' ' + std::to_string(state.count_bytes) +
                             ' ' + std::to_string(state.modified_ns) + '\n';
    stream.update(line);
  }
  return hex(stream.finish());
}

WriteJob::WriteJob(const Target& of_target, const Plan& of_plan,
                   const std::optional<SourceFingerprint>& source, const ConvertOptions& options)
    : target(of_target), plan(of_plan) {
  for (const Piece& piece : make_pieces(target, plan, options)) {
    const bool is_payload = !piece.closes && !target.files[piece.file].archives.empty();
    (is_payload ? payload : last).push_back(piece);
  }
  identity.processes = options.share.world_size;
  if (!source) return;
  identity.tool = SHARDWISE_VERSION;
  identity.source = source->digest();
  identity.plan = hex(PlanDigester().digest(target, plan, payload)) + store_options_text(options);
}

std::vector<Piece> WriteJob::payload_of(uint32_t rank) const {
  std::vector<uint64_t> sizes;
  for (const Piece& piece : payload) sizes.push_back(piece.bytes.count_bytes);
  const std::vector<uint32_t> owner = deal_by_bytes(sizes, identity.processes);
  std::vector<Piece> own;
  for (size_t p = 0; p < owner.size(); ++p) {
    if (owner[p] == rank) own.push_back(payload[p]);
  }
  return own;
}

bool WriteJob::needs_record_crcs() const { return std::ranges::any_of(last, &Piece::closes); }

bool WriteJob::is_whole(const Piece& piece) const {
  return piece.bytes.count_bytes == plan.files[piece.file].count_bytes;
}

Place WriteJob::path_of(const Place& folder, const Piece& piece) const {
  return output_path(folder, name_of(piece));
}

bool WriteJob::is_there(const Place& folder, const Piece& piece,
                        const FinishedPiece& recorded) const {
  const auto [kind, state] = entry_at(path_of(folder, piece));
  const uint64_t file_bytes = plan.files[piece.file].count_bytes;
  if (recorded.bytes != piece.bytes || kind != EntryKind::File) return false;
  if (is_whole(piece)) return state.count_bytes == file_bytes;
  // While others write it, its last block may be filled up.
  return state.count_bytes >= piece.bytes.end_bytes() &&
         state.count_bytes < file_bytes + Piece::kBlockBytes;
}

}  // namespace ckpt
