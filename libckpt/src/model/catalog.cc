#include <ckpt/catalog.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include <ckpt/error.h>
#include <ckpt/printed.h>

#include "base/checked_math.h"
#include "model/check_catalog.h"
#include "model/overlap_index.h"

namespace ckpt {
namespace {

using Name = std::pair<std::string_view, std::string_view>;

template <class Entry>
Name name_of(const Entry& entry) {
  return {entry.file, entry.key};
}

template <class Entry>
std::vector<uint32_t> sorted_by_name(const std::vector<Entry>& entries) {
  std::vector<uint32_t> numbers(entries.size());
  std::iota(numbers.begin(), numbers.end(), 0u);
  std::ranges::stable_sort(numbers, {}, [&](uint32_t i) { return name_of(entries[i]); });
  return numbers;
}

// The first of that name.
template <class Entry>
const Entry* find_entry(const std::vector<Entry>& entries, const std::vector<uint32_t>& by_name,
                        const Name& name) {
  const auto found =
      std::ranges::lower_bound(by_name, name, {}, [&](uint32_t i) { return name_of(entries[i]); });
  return found != by_name.end() && name_of(entries[*found]) == name ? &entries[*found] : nullptr;
}

constexpr size_t kNamedMax = 40;  // in one error; ckpt-inspect verify names all

std::string others_text(const std::vector<const FileEntry*>& lacking, size_t file_count) {
  if (lacking.size() == 1) return {};
  const size_t others = lacking.size() - 1;
  std::string text = "; " + std::to_string(others) + " more of " + std::to_string(file_count) +
                     " files " + (others == 1 ? "is" : "are") + " missing or truncated: ";
  const size_t end = std::min(lacking.size(), kNamedMax);
  for (size_t i = 1; i < end; ++i) {
    text += (i == 1 ? "" : ", ") + escaped(lacking[i]->path) + " " + lacking[i]->lack;
  }
  if (end < lacking.size()) text += ", and " + std::to_string(lacking.size() - end) + " others";
  return text;
}

[[noreturn]] void corrupt(const std::string& key, std::string problem) {
  throw Error(ErrorCode::Corrupt, {.file = {}, .key = key}, std::move(problem));
}

constexpr uint64_t kSizeMax = std::numeric_limits<int64_t>::max();

// The product from the left, in which only 2^64 overflows: a 0 that follows makes it 0.
bool count_fits(const Extents& shape) {
  std::optional<uint64_t> count = 1;
  for (size_t d = 0; d < shape.size() && count; ++d) count = checked_mul(*count, shape[d]);
  return count && *count <= kSizeMax;
}

// Of the dimensions behind the first; a size of 0 counts as 1.
bool strides_fit(const Extents& shape) {
  uint64_t stride = 1;
  for (size_t d = shape.size(); d-- > 1;) {
    const auto next = checked_mul(stride, std::max<uint64_t>(shape[d], 1));
    if (!next || *next > kSizeMax) return false;
    stride = *next;
  }
  return true;
}

void check_inside(const TensorEntry& tensor, const Box& box) {
  const size_t dims = tensor.shape.size();
  if (box.offsets.size() != dims || box.sizes.size() != dims) {
    corrupt(tensor.key, "a chunk has " + std::to_string(box.offsets.size()) +
                            " dimensions, but the tensor has " + std::to_string(dims));
  }
  if (!lies_inside(box, tensor.shape)) {
    corrupt(tensor.key, "the chunk at " + tuple_text(box.offsets) + " of size " +
                            tuple_text(box.sizes) + " extends beyond the tensor of shape " +
                            tuple_text(tensor.shape));
  }
}

// Chunks in the order of one dimension, none of which starts before the one before it ends.
bool follow_each_other(const std::vector<Chunk>& chunks, size_t dim) {
  uint64_t end = 0;
  for (const Chunk& chunk : chunks) {
    const Box& box = chunk.box;
    if (box.offsets[dim] < end) return false;
    end = box.offsets[dim] + box.sizes[dim];
  }
  return true;
}

// How many boxes of these sizes a shape has room for, along each dimension; nullopt: in all more
// than `max`, or they leave a rest.
std::optional<Extents> grid_of(const Extents& shape, const Extents& sizes, uint64_t max) {
  Extents counts;
  uint64_t cells = 1;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (sizes[d] == 0 || shape[d] < sizes[d] || shape[d] % sizes[d] != 0) return std::nullopt;
    counts.push_back(shape[d] / sizes[d]);
    if (counts[d] > max / cells) return std::nullopt;
    cells *= counts[d];
  }
  return counts;
}

// Equal boxes at multiples of their sizes, no two in one place: what ranks, layers and experts make
// of a tensor that they share evenly.
bool are_cells_of_grid(const TensorEntry& tensor) {
  const Extents& sizes = tensor.chunks.front().box.sizes;
  const auto counts = grid_of(tensor.shape, sizes, tensor.chunks.size());
  if (!counts) return false;
  std::vector<bool> taken(element_count(*counts));
  for (const Chunk& chunk : tensor.chunks) {
    if (chunk.box.sizes != sizes) return false;
    uint64_t cell = 0;
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (chunk.box.offsets[d] % sizes[d] != 0) return false;
      cell = cell * (*counts)[d] + chunk.box.offsets[d] / sizes[d];
    }
    if (taken[cell]) return false;
    taken[cell] = true;
  }
  return true;
}

void check_disjoint(const TensorEntry& tensor) {
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    if (follow_each_other(tensor.chunks, d)) return;
  }
  if (!tensor.chunks.empty() && are_cells_of_grid(tensor)) return;
  const OverlapIndex index(tensor.chunks);
  for (const Chunk& chunk : tensor.chunks) {
    const auto found = index.find(chunk.box);
    if (found.size() < 2) continue;
    const Box *first = &tensor.chunks[found[0].box].box, *second = &tensor.chunks[found[1].box].box;
    if (second->offsets < first->offsets) std::swap(first, second);
    corrupt(tensor.key, "the chunks at " + tuple_text(first->offsets) + " and " +
                            tuple_text(second->offsets) + " overlap");
  }
}

struct Placed {
  const StorageRegion* region;
  const std::string* key;
};

// Regions that follow each other in every file, as a writer that appends leaves them: the check
// that costs neither memory nor sorting.
bool regions_follow_each_other(const Catalog& catalog) {
  std::vector<uint64_t> ends(catalog.files.size());
  bool follow = true;
  for_each_region(catalog, [&](const StorageRegion& region, const std::string&) {
    const uint32_t file = region.file;
    const ByteRange bytes = region.bytes;
    follow = follow && bytes.offset_bytes >= ends[file] && bytes.count_bytes > 0 &&
             fits(bytes.offset_bytes, bytes.count_bytes, catalog.files[file].count_bytes);
    if (follow) ends[file] = bytes.end_bytes();
  });
  return follow;
}

void check_region(const Placed& placed, const FileEntry& file) {
  const ByteRange bytes = placed.region->bytes;
  if (fits(bytes.offset_bytes, bytes.count_bytes, file.count_bytes)) return;
  throw Error(ErrorCode::Corrupt, {file.path, bytes.offset_bytes, *placed.key},
              std::to_string(bytes.count_bytes) + " bytes expected here, but the file has only " +
                  std::to_string(file.count_bytes));
}

// Two neighbours of one file, the one that starts first first.
void check_neighbours(const Placed& before, const Placed& placed, const FileEntry& file) {
  const ByteRange first = before.region->bytes, second = placed.region->bytes;
  if (first.end_bytes() > second.offset_bytes) {
    throw Error(ErrorCode::Corrupt, {file.path, second.offset_bytes, *placed.key},
                "shares bytes with '" + escaped(*before.key) + "'");
  }
}

}  // namespace

const TensorEntry* Catalog::find_tensor(std::string_view key, std::string_view file) const {
  return find_entry(tensors, tensors_by_name_, {file, key});
}

const ObjectEntry* Catalog::find_object(std::string_view key, std::string_view file) const {
  return find_entry(objects, objects_by_name_, {file, key});
}

void Catalog::index() {
  tensors_by_name_ = sorted_by_name(tensors);
  objects_by_name_ = sorted_by_name(objects);
}

std::vector<const FileEntry*> lacking_files(const Catalog& catalog) {
  std::vector<const FileEntry*> lacking;
  for (const FileEntry& file : catalog.files) {
    if (!file.lack.empty()) lacking.push_back(&file);
  }
  std::ranges::sort(lacking, {}, &FileEntry::path);
  return lacking;
}

void refuse_incomplete(const Catalog& catalog, const Limits& limits, Where where) {
  const std::vector<const FileEntry*> lacking = lacking_files(catalog);
  if (lacking.empty() || limits.allow_missing_data) return;
  if (where.file.empty()) where.file = lacking[0]->path;
  throw Error(ErrorCode::Corrupt, std::move(where),
              lacking[0]->lack + others_text(lacking, catalog.files.size()),
              "the checkpoint is incomplete: copy what is missing again")
      .mark_incomplete();
}

void check_bytes(const Extents& shape, DType dtype) {
  const auto bytes = checked_mul(element_count(shape), bytes_per_element(dtype));
  if (bytes && *bytes <= kSizeMax) return;
  throw Error(ErrorCode::Unsupported, {},
              "a tensor of shape " + tuple_text(shape) + " and type " + std::string(name(dtype)) +
                  " has more than 2^63 - 1 bytes");
}

void check_shape(const Extents& shape) {
  const bool are_sizes = std::ranges::all_of(shape, [](uint64_t size) { return size <= kSizeMax; });
  if (are_sizes && count_fits(shape) && strides_fit(shape)) return;
  throw Error(ErrorCode::Corrupt, {},
              "the shape " + tuple_text(shape) +
                  " is too large: sizes, and their products on either "
                  "side of a 0, may be at most 2^63 - 1");
}

bool lies_inside(const Box& box, const Extents& shape) {
  bool is_inside = box.offsets.size() == shape.size() && box.sizes.size() == shape.size();
  for (size_t d = 0; is_inside && d < shape.size(); ++d) {
    is_inside = fits(box.offsets[d], box.sizes[d], shape[d]);
  }
  return is_inside;
}

void check_chunks(const TensorEntry& tensor) {
  within({}, tensor.key, [&] {
    check_shape(tensor.shape);
    check_bytes(tensor.shape, tensor.dtype);
  });
  uint64_t covered = 0;
  const uint64_t total = element_count(tensor.shape);
  for (const Chunk& chunk : tensor.chunks) {
    check_inside(tensor, chunk.box);
    covered += element_count(chunk.box.sizes);
    if (covered > total) break;
  }
  if (covered != total) {
    corrupt(tensor.key, covered > total
                            ? "its chunks hold more than its " + std::to_string(total) + " elements"
                            : "its chunks hold only " + std::to_string(covered) + " of " +
                                  std::to_string(total) + " elements");
  }
  check_disjoint(tensor);
}

void check_regions(const Catalog& catalog) {
  if (regions_follow_each_other(catalog)) return;
  std::vector<Placed> placed;
  for_each_region(catalog, [&](const StorageRegion& region, const std::string& key) {
    placed.push_back({&region, &key});
  });
  std::ranges::sort(placed, {}, [](const Placed& one) {
    const ByteRange bytes = one.region->bytes;
    return std::tuple(one.region->file, bytes.offset_bytes, bytes.end_bytes());
  });
  for (size_t i = 0; i < placed.size(); ++i) {
    const uint32_t file = placed[i].region->file;
    check_region(placed[i], catalog.files[file]);
    if (i > 0 && placed[i - 1].region->file == file) {
      check_neighbours(placed[i - 1], placed[i], catalog.files[file]);
    }
  }
}

}  // namespace ckpt
