#include "digest/plan_digest.h"

#include "codec/sha256.h"
#include "targets/archive_writer.h"

namespace ckpt {

namespace {

// Counts before what they count, so that no two targets give the same bytes.
class Digester : Sha256Stream {
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

}  // namespace

Sha256 plan_digest(const Target& target, const Plan& plan, std::span<const Piece> pieces) {
  return Digester().digest(target, plan, pieces);
}

}  // namespace ckpt
