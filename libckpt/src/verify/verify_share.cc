// Which process looks at which pieces of the files.

#include <algorithm>

#include "model/check_catalog.h"
#include "verify/verify_files.h"
#include "work/deal_by_bytes.h"

namespace ckpt {
namespace {

// Where files may be cut: in front of each storage, or entry, that the catalog knows of them.
std::vector<std::vector<uint64_t>> starts_by_file(const Catalog& catalog) {
  std::vector<std::vector<uint64_t>> starts(catalog.files.size());
  for_each_region(catalog, [&](const StorageRegion& region, const std::string&) {
    starts[region.file].push_back(region.bytes.offset_bytes);
  });
  for (std::vector<uint64_t>& of_file : starts) std::ranges::sort(of_file);
  return starts;
}

// What is read as a whole stays whole: also a torch.save file that is not an archive.
bool is_read_in_parts(const VerifiedFile& file) {
  const bool has_parts = file.role == FileRole::Archive || file.role == FileRole::Entries ||
                         file.role == FileRole::Safetensors;
  return has_parts && file.index && !file.manifest_hash;
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
                           start < file.count_bytes && file.count_bytes - start >= piece_bytes_min;
    if (is_enough) end_piece_at(start);
  }
  end_piece_at(file.count_bytes);
  return pieces;
}

}  // namespace

void deal_files(std::vector<VerifiedFile>& files, const Catalog& catalog, const Share& share) {
  check_share(share);
  struct FilePiece {
    VerifiedFile* file;
    ByteRange bytes;
  };
  std::vector<FilePiece> pieces;
  std::vector<uint64_t> sizes;
  const auto starts =
      share.world_size == 1 ? std::vector<std::vector<uint64_t>>() : starts_by_file(catalog);
  const uint64_t piece_bytes_min = std::max<uint64_t>(share.piece_bytes_min, 1);
  for (VerifiedFile& file : files) {
    const bool may_cut = !starts.empty() && is_read_in_parts(file);
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
