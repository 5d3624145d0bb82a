#include <algorithm>

#include "execute/verify_files.h"
#include "plan/deal_by_bytes.h"

namespace ckpt {
namespace {

// Where files may be cut: in front of each storage, or entry, that the catalog knows of them.
std::vector<std::vector<uint64_t>> starts_by_file(const Catalog& catalog) {
  std::vector<std::vector<uint64_t>> starts(catalog.files.size());
  for (const TensorEntry& tensor : catalog.tensors) {
    for (const Chunk& chunk : tensor.chunks) {
      starts[chunk.region.file].push_back(chunk.region.bytes.offset_bytes);
    }
  }
  for (const ObjectEntry& object : catalog.objects) {
    if (object.region) starts[object.region->file].push_back(object.region->bytes.offset_bytes);
  }
  for (std::vector<uint64_t>& of_file : starts) std::ranges::sort(of_file);
  return starts;
}

std::vector<ByteRange> cut(const VerifiedFile& file, std::span<const uint64_t> starts,
                           uint64_t piece_bytes_min) {
  std::vector<ByteRange> pieces;
  uint64_t piece_start = 0;
  const auto end_piece_at = [&](uint64_t end) {
    pieces.push_back({piece_start, end - piece_start});
    piece_start = end;
  };
  for (const uint64_t start : starts) {
    const bool is_enough = start >= piece_start && start - piece_start >= piece_bytes_min &&
                           start < file.count_bytes &&
                           file.count_bytes - start >= piece_bytes_min;
    if (is_enough) end_piece_at(start);
  }
  end_piece_at(file.count_bytes);
  return pieces;
}

}  // namespace

bool VerifiedFile::owns(uint64_t offset_bytes) const {
  if (own.empty()) return false;
  const bool is_behind_end = offset_bytes >= count_bytes;
  return is_behind_end ? own.back().end_bytes() == count_bytes : contains(own, offset_bytes);
}

uint64_t VerifiedFile::own_bytes() const {
  uint64_t total_bytes = 0;
  for (const ByteRange& piece : own) total_bytes += piece.count_bytes;
  return total_bytes;
}

void deal_files(std::vector<VerifiedFile>& files, const Catalog& catalog, const Share& share) {
  check_share(share);
  struct FilePiece {
    VerifiedFile* file;
    ByteRange bytes;
  };
  std::vector<FilePiece> pieces;
  std::vector<uint64_t> sizes;
  const auto starts = share.world_size == 1 ? std::vector<std::vector<uint64_t>>()
                                            : starts_by_file(catalog);
  const uint64_t piece_bytes_min = std::max<uint64_t>(share.piece_bytes_min, 1);
  for (VerifiedFile& file : files) {
    const bool may_cut = file.index && !starts.empty() && !file.manifest_hash;
    for (const ByteRange& piece :
         cut(file, may_cut ? starts[*file.index] : std::span<const uint64_t>(), piece_bytes_min)) {
      pieces.push_back({&file, piece});
      sizes.push_back(piece.count_bytes);
    }
  }
  const std::vector<uint32_t> owner = deal_by_bytes(sizes, share.world_size);
  for (size_t p = 0; p < pieces.size(); ++p) {
    if (owner[p] == share.rank) pieces[p].file->own.push_back(pieces[p].bytes);
  }
}

}  // namespace ckpt
