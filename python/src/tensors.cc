// Tensors that are read when Python asks for their values.
#include <algorithm>
#include <cstdint>
#include <vector>

#include <ckpt/error.h>
#include <ckpt/run_jobs.h>
#include <ckpt/slice.h>
#include <ckpt/tensor_stream.h>

#include "buffer.h"
#include "module.h"

namespace python {

nb::tuple tuple_of(const ckpt::Extents& numbers) {
  nb::list list;
  for (const uint64_t number : numbers) list.append(number);
  return nb::tuple(list);
}

ckpt::Slice slice_of(const nb::tuple& dims) {
  ckpt::Slice slice;
  for (const nb::handle dim : dims) {
    slice.dims.push_back(
        {nb::cast<uint64_t>(dim[0]), nb::cast<uint64_t>(dim[1]), nb::cast<uint64_t>(dim[2])});
  }
  return slice;
}

void check_slice(const ckpt::Slice& slice, const ckpt::TensorEntry& entry, uint64_t count_bytes) {
  bool fits = slice.dims.size() == entry.shape.size();
  for (size_t d = 0; fits && d < slice.dims.size(); ++d) {
    const auto& [start, step, count, is_index] = slice.dims[d];
    const uint64_t size = entry.shape[d];
    fits = step > 0 && (count == 0 || (start < size && (count - 1) <= (size - 1 - start) / step));
  }
  if (fits && ckpt::element_count(slice.shape()) * bytes_per_element(entry.dtype) == count_bytes) {
    return;
  }
  throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {.file = entry.file, .key = entry.key},
                    "the slice or the size of the buffer does not fit the tensor");
}

namespace {

// What one thread reads at a time; a stop is looked for between two of them.
constexpr uint64_t kJobBytes = uint64_t{8} << 20;

// (offsets, sizes, file, offset_bytes, count_bytes) of each chunk.
nb::list chunks_of(const Tensor& tensor) {
  nb::list chunks;
  for (const ckpt::Chunk& chunk : tensor.entry->chunks) {
    const ckpt::ByteRange& bytes = chunk.region.bytes;
    chunks.append(nb::make_tuple(tuple_of(chunk.box.offsets), tuple_of(chunk.box.sizes),
                                 text(tensor.checkpoint->file_name(chunk.region.file)),
                                 bytes.offset_bytes, bytes.count_bytes));
  }
  return chunks;
}

// Pieces of the box that follow each other in memory, each of about kJobBytes.
std::vector<ckpt::Box> pieces_of(const ckpt::Box& box, uint64_t element_bytes) {
  size_t dim = 0;
  while (dim < box.sizes.size() && box.sizes[dim] == 1) ++dim;
  const uint64_t all_bytes = ckpt::element_count(box.sizes) * element_bytes;
  if (dim == box.sizes.size() || all_bytes <= 2 * kJobBytes) return {box};
  const uint64_t row_bytes = all_bytes / box.sizes[dim];
  const uint64_t rows = std::max<uint64_t>(1, kJobBytes / row_bytes);
  std::vector<ckpt::Box> pieces;
  for (uint64_t first = 0; first < box.sizes[dim]; first += rows) {
    ckpt::Box piece = box;
    piece.offsets[dim] += first;
    piece.sizes[dim] = std::min(rows, box.sizes[dim] - first);
    pieces.push_back(piece);
  }
  return pieces;
}

void throw_if(const std::stop_token& stop) {
  if (stop.stop_requested()) throw ckpt::Error(ckpt::ErrorCode::IoFailure, {}, "cancelled");
}

void read_box(const Tensor& tensor, const ckpt::Box& box, std::span<std::byte> out,
              const std::stop_token& stop) {
  const uint64_t element_bytes = bytes_per_element(tensor.entry->dtype);
  const std::vector<ckpt::Box> pieces = pieces_of(box, element_bytes);
  std::vector<size_t> offsets{0};
  for (const ckpt::Box& piece : pieces) {
    offsets.push_back(offsets.back() + ckpt::element_count(piece.sizes) * element_bytes);
  }
  ckpt::run_jobs(pieces.size(), ckpt::thread_count(0), [&](size_t job, unsigned) {
    throw_if(stop);
    const size_t begin = offsets[job];
    tensor.checkpoint->read(*tensor.entry, pieces[job],
                            out.subspan(begin, offsets[job + 1] - begin));
  });
}

// Elements with gaps between them: in their order, by one thread.
void read_steps(const Tensor& tensor, ckpt::Slice slice, std::span<std::byte> out,
                const std::stop_token& stop) {
  const ckpt::SlicedTensor sliced(*tensor.entry, std::move(slice), *tensor.checkpoint);
  ckpt::TensorStream stream(sliced.entry(), sliced);
  while (!out.empty()) {
    throw_if(stop);
    const std::span<std::byte> part = out.first(std::min<size_t>(out.size(), kJobBytes));
    stream.read(part);
    out = out.subspan(part.size());
  }
}

void read_slice(const Tensor& tensor, const ckpt::Slice& slice, std::span<std::byte> out,
                const std::stop_token& stop) {
  if (out.empty()) return;
  const bool is_box = std::ranges::all_of(
      slice.dims, [](const ckpt::SliceDim& dim) { return dim.step == 1 || dim.count == 1; });
  if (!is_box) return read_steps(tensor, slice, out, stop);
  ckpt::Box box;
  for (const ckpt::SliceDim& dim : slice.dims) {
    box.offsets.push_back(dim.start);
    box.sizes.push_back(dim.count);
  }
  read_box(tensor, box, out, stop);
}

// (path, offset in bytes) of the elements, where they lie in a file as they do in memory.
nb::object location_of(const Tensor& tensor) {
  const ckpt::TensorEntry& entry = *tensor.entry;
  if (entry.chunks.size() != 1 || entry.cast || entry.chunks[0].box != ckpt::whole(entry.shape)) {
    return nb::none();
  }
  const ckpt::Chunk& chunk = entry.chunks[0];
  const ckpt::LocatedRegion region = tensor.checkpoint->locate(chunk.region);
  const auto& files = tensor.checkpoint->catalog().files;
  const uint64_t offset_bytes = region.bytes.offset_bytes + chunk.payload_offset_bytes;
  const bool fits = chunk.payload_offset_bytes + count_bytes(entry) <= region.bytes.count_bytes;
  if (chunk.view || region.view || region.file >= files.size() || !fits) return nb::none();
  const auto path = tensor.checkpoint->folder() / files[region.file].path;
  return nb::make_tuple(text(path.native()), offset_bytes);
}

void read_into(const Tensor& tensor, const nb::tuple& dims, nb::handle buffer) {
  const ckpt::Slice slice = slice_of(dims);
  const Buffer target(buffer);
  check_slice(slice, *tensor.entry, target.bytes().size());
  const auto read = [&](const std::stop_token& stop) {
    read_slice(tensor, slice, target.bytes(), stop);
  };
  if (target.bytes().size() > 2 * kJobBytes) return run_interruptibly(read);
  const nb::gil_scoped_release released;
  read({});
}

}  // namespace

void add_tensors(nb::module_& module) {
  nb::class_<Tensor>(module, "Tensor")
      .def_prop_ro("key", [](const Tensor& tensor) { return text(tensor.entry->key); })
      .def_prop_ro("file", [](const Tensor& tensor) { return text(tensor.entry->file); })
      .def_prop_ro("dtype",
                   [](const Tensor& tensor) { return text(ckpt::name(tensor.entry->dtype)); })
      .def_prop_ro("itemsize",
                   [](const Tensor& tensor) { return bytes_per_element(tensor.entry->dtype); })
      .def_prop_ro("shape", [](const Tensor& tensor) { return tuple_of(tensor.entry->shape); })
      .def_prop_ro("chunks", chunks_of)
      .def_prop_ro("location", location_of)
      .def("read_into", read_into);
}

}  // namespace python
