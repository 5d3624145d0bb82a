// Writes what dist_metadata.cc reads: the archives of each rank's .distcp file and .metadata.

#include <ckpt/target.h>
#include <ckpt/torch_dist_target.h>

#include "targets/archive_layouts.h"
#include "targets/dist_metadata_writer.h"

namespace ckpt {
namespace {

uint64_t bytes_of(const DistSpec& spec, const DistChunk& chunk) {
  return element_count(chunk.box.sizes) * bytes_per_element(spec.tensors[chunk.tensor].dtype);
}

// Where everything lies: in the .distcp files of all ranks, objects before tensors as torch writes
// them, unless it has a place already.
DistPlaces places_of(const DistSpec& spec) {
  DistPlaces places;
  for (uint32_t rank = 0; rank < spec.rank_count; ++rank) {
    places.paths.push_back("__" + std::to_string(rank) + "_0.distcp");
  }
  ArchiveLayouts layouts;
  std::vector<uint64_t> sizes(spec.rank_count);
  const auto add = [&](const TargetArchive& archive, uint32_t rank) {
    const uint64_t bytes = layouts.of(archive).count_bytes;
    sizes[rank] += bytes;
    return ByteRange{sizes[rank] - bytes, bytes};
  };
  for (const DistObject& object : spec.objects) {
    places.objects.push_back(object.place
                                 ? object.place->bytes
                                 : add({"archive", object.tree, object.records}, object.rank));
  }
  TargetArchive bare{"archive", {}, {{}}};
  places.chunks.reserve(spec.chunks.size());
  for (const DistChunk& chunk : spec.chunks) {
    bare.content = BareTensor{spec.tensors[chunk.tensor].dtype, chunk.box.sizes};
    bare.records[0].count_bytes = bytes_of(spec, chunk);
    places.chunks.push_back(chunk.place ? chunk.place->bytes : add(bare, chunk.rank));
  }
  return places;
}

// Takes what the files hold out of `spec`.
std::vector<TargetFile> take_files(DistSpec& spec, const std::vector<std::string>& paths) {
  std::vector<TargetFile> files(spec.rank_count);
  std::vector<size_t> counts(spec.rank_count);
  for (const DistObject& object : spec.objects) counts[object.rank] += !object.place;
  for (const DistChunk& chunk : spec.chunks) counts[chunk.rank] += !chunk.place;
  for (uint32_t rank = 0; rank < spec.rank_count; ++rank) {
    files[rank].path = paths[rank];
    files[rank].archives.reserve(counts[rank]);
  }
  for (DistObject& object : spec.objects) {
    if (object.place) continue;
    files[object.rank].archives.push_back(
        {"archive", std::move(object.tree), std::move(object.records)});
  }
  for (; !spec.chunks.empty(); spec.chunks.pop_front()) {
    DistChunk& chunk = spec.chunks.front();
    if (chunk.place) continue;
    const uint64_t bytes = bytes_of(spec, chunk);
    BareTensor tensor{spec.tensors[chunk.tensor].dtype, std::move(chunk.box.sizes)};
    files[chunk.rank].archives.push_back({"archive", std::move(tensor), {}});
    files[chunk.rank].archives.back().records.push_back({bytes, std::move(chunk.source)});
  }
  std::erase_if(files, [](const TargetFile& file) { return file.archives.empty(); });
  return files;
}

}  // namespace

std::vector<TargetFile> make_torch_dist_files(DistSpec spec) {
  DistPlaces places = places_of(spec);
  std::string metadata = write_dist_metadata(spec, places);
  places.chunks = std::vector<ByteRange>();
  std::vector<TargetFile> files = take_files(spec, places.paths);
  files.push_back({".metadata", {}, std::move(metadata)});
  return files;
}

}  // namespace ckpt
