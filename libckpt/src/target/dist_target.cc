// Writes what dist_metadata.cc reads: the archives of each rank's .distcp file and .metadata.

#include <ckpt/target.h>
#include <ckpt/torch_dist_target.h>

#include "target/archive_layouts.h"
#include "target/dist_metadata_writer.h"

namespace ckpt {
namespace {

std::string distcp_name(uint32_t rank) { return "__" + std::to_string(rank) + "_0.distcp"; }

using Place = DistPlace;

// The .distcp files of all ranks, objects before tensors as torch writes them, and where each lies.
class FileBuilder {
 public:
  explicit FileBuilder(const DistSpec& spec) : files_(spec.rank_count), sizes_(spec.rank_count) {
    for (uint32_t rank = 0; rank < spec.rank_count; ++rank) files_[rank].path = distcp_name(rank);
    for (const DistObject& object : spec.objects) {
      if (object.place) {
        object_places_.push_back(*object.place);
        continue;
      }
      object_places_.push_back(add({"archive", object.tree, object.records}, object.rank));
    }
    for (const DistChunk& chunk : spec.chunks) {
      if (chunk.place) {
        chunk_places_.push_back(*chunk.place);
        continue;
      }
      const uint64_t bytes = element_count(chunk.box.sizes) * bytes_per_element(chunk.dtype);
      chunk_places_.push_back(
          add({"archive", BareTensor{chunk.dtype, chunk.box.sizes}, {{bytes, chunk.source}}},
              chunk.rank));
    }
  }

  DistPlaces places() const { return {object_places_, chunk_places_}; }

  std::vector<TargetFile> take_files() {
    std::erase_if(files_, [](const TargetFile& file) { return file.archives.empty(); });
    return std::move(files_);
  }

 private:
  Place add(TargetArchive archive, uint32_t rank) {
    const uint64_t bytes = layouts_.of(archive).count_bytes;
    const Place place{files_[rank].path, {sizes_[rank], bytes}};
    sizes_[rank] += bytes;
    files_[rank].archives.push_back(std::move(archive));
    return place;
  }

  ArchiveLayouts layouts_;
  std::vector<TargetFile> files_;
  std::vector<uint64_t> sizes_;
  std::vector<Place> object_places_, chunk_places_;
};

}  // namespace

std::vector<TargetFile> make_torch_dist_files(const DistSpec& spec) {
  FileBuilder builder(spec);
  std::string metadata = write_dist_metadata(spec, builder.places());
  std::vector<TargetFile> files = builder.take_files();
  files.push_back({".metadata", {}, std::move(metadata)});
  return files;
}

}  // namespace ckpt
