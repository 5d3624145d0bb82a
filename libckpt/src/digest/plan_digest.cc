#include "digest/plan_digest.h"

#include <array>

#include "codec/sha256.h"
#include "target/archive_writer.h"

namespace ckpt {

namespace {

// Counts before what they count, so that no two targets give the same bytes.
class Digester {
 public:
  Sha256 digest(const Target& target, const Plan& plan, std::span<const Piece> pieces) {
    add(static_cast<uint64_t>(target.format));
    add(target.files.size());
    for (size_t f = 0; f < target.files.size(); ++f) {
      add(plan.files[f].path);
      add(plan.files[f].count_bytes);
      add(target.files[f]);
    }
    add(pieces.size());
    for (const Piece& piece : pieces) {
      add(piece.bytes.offset_bytes);
      add(piece.own.offset_bytes);
    }
    return stream_.finish();
  }

 private:
  void add(uint64_t number) {
    std::array<std::byte, 8> bytes;
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(number >> (8 * i));
    stream_.update(bytes);
  }
  void add(std::string_view text) {
    add(text.size());
    stream_.update(text);
  }
  void add(const Extents& extents) {
    add(extents.size());
    for (const uint64_t extent : extents) add(extent);
  }
  void add(const Box& box) {
    add(box.offsets);
    add(box.sizes);
  }

  void add(const TargetFile& file) {
    add(file.bytes);
    add(file.archives.size());
    for (const TargetArchive& archive : file.archives) {
      add(archive.name);
      add(archive.content.index());
      if (const auto* bare = std::get_if<BareTensor>(&archive.content)) {
        add(static_cast<uint64_t>(bare->dtype));
        add(bare->shape);
      } else {
        add(ArchiveImage(archive).fixed_content(0));  // data.pkl
      }
      add(archive.records.size());
      for (const TargetRecord& record : archive.records) add(record);
    }
  }
  void add(const TargetRecord& record) {
    add(record.count_bytes);
    add(record.source.index());
    std::visit([this](const auto& source) { add(source); }, record.source);
  }
  void add(const TensorSource& source) {
    add(source.box);
    if (source.tensor.get() == last_tensor_) return add(uint64_t{0});  // many boxes of one tensor
    last_tensor_ = source.tensor.get();
    add(uint64_t{1} + source.tensor->chunks.size());
    add(source.tensor->file);
    add(source.tensor->key);
    add(static_cast<uint64_t>(source.tensor->dtype));
    add(source.tensor->shape);
    for (const Chunk& chunk : source.tensor->chunks) add(chunk);
  }
  void add(const Chunk& chunk) {
    add(chunk.box);
    add(chunk.region);
    add(chunk.payload_offset_bytes);
    add(chunk.view != nullptr);
    if (chunk.view) add(*chunk.view);
  }
  void add(const StorageSource& source) { add(source.region); }
  void add(const std::vector<Segment>& segments) {
    add(segments.size());
    for (const Segment& segment : segments) {
      add(segment.offset_bytes);
      add(segment.source);
      add(segment.first_element);
      add(segment.element_count);
    }
  }
  void add(const StorageRegion& region) {
    add(region.file);
    add(region.bytes.offset_bytes);
    add(region.bytes.count_bytes);
    add(static_cast<uint64_t>(region.wrapping));
  }
  void add(const StridedView& view) {
    add(view.offset);
    add(view.strides);
  }

  Sha256Stream stream_;
  const TensorEntry* last_tensor_ = nullptr;
};

}  // namespace

Sha256 plan_digest(const Target& target, const Plan& plan, std::span<const Piece> pieces) {
  return Digester().digest(target, plan, pieces);
}

}  // namespace ckpt
