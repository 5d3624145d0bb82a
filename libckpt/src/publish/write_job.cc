#include "publish/write_job.h"

#include <algorithm>

#include "digest/plan_digest.h"
#include "io/directory.h"
#include "work/deal_by_bytes.h"
#include "write/output_files.h"

namespace ckpt {
namespace {

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

WriteJob::WriteJob(const Target& target, const Plan& plan,
                   const std::optional<SourceFingerprint>& source, const ConvertOptions& options)
    : target_(target), plan_(plan) {
  for (const Piece& piece : make_pieces(target, plan, options)) {
    const bool is_payload = !piece.closes && !target.files[piece.file].archives.empty();
    (is_payload ? payload_ : last_).push_back(piece);
  }
  identity_.processes = options.share.world_size;
  if (!source) return;
  identity_.tool = SHARDWISE_VERSION;
  identity_.source = source->digest();
  identity_.plan = hex(plan_digest(target, plan, payload_)) + store_options_text(options);
}

std::vector<Piece> WriteJob::payload_of(uint32_t rank) const {
  std::vector<uint64_t> sizes;
  for (const Piece& piece : payload_) sizes.push_back(piece.bytes.count_bytes);
  const std::vector<uint32_t> owner = deal_by_bytes(sizes, identity_.processes);
  std::vector<Piece> own;
  for (size_t p = 0; p < owner.size(); ++p) {
    if (owner[p] == rank) own.push_back(payload_[p]);
  }
  return own;
}

bool WriteJob::needs_record_crcs() const { return std::ranges::any_of(last_, &Piece::closes); }

bool WriteJob::is_whole(const Piece& piece) const {
  return piece.bytes.count_bytes == plan_.files[piece.file].count_bytes;
}

Place WriteJob::path_of(const Place& folder, const Piece& piece) const {
  return output_path(folder, name_of(piece));
}

bool WriteJob::is_there(const Place& folder, const Piece& piece,
                        const FinishedPiece& recorded) const {
  const auto [kind, state] = entry_at(path_of(folder, piece));
  const uint64_t file_bytes = plan_.files[piece.file].count_bytes;
  if (recorded.bytes != piece.bytes || kind != EntryKind::File) return false;
  if (is_whole(piece)) return state.count_bytes == file_bytes;
  // While others write it, its last block may be filled up.
  return state.count_bytes >= piece.bytes.end_bytes() &&
         state.count_bytes < file_bytes + Piece::kBlockBytes;
}

}  // namespace ckpt
