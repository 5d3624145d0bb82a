// A slice of a tensor as a tensor of its own, read run by run.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include <ckpt/slice.h>
#include <ckpt/tensor_stream.h>

#include "read/payload_reader.h"

namespace ckpt {
namespace {

// A gap between elements that is cheaper to read than to skip.
constexpr uint64_t kGapBytesMax = 4096;
constexpr uint64_t kScratchBytes = uint64_t{1} << 20;

// From the first to the last index that the slice takes in each dimension.
Box box_around(const Slice& slice) {
  Box box;
  for (const SliceDim& dim : slice.dims) {
    box.offsets.push_back(dim.start);
    box.sizes.push_back(dim.count == 0 ? 0 : (dim.count - 1) * dim.step + 1);
  }
  return box;
}

// The dimensions up to the last one whose indices do not follow each other. What lies in those
// behind it is one run of the box around the slice.
size_t walked_dims(const Slice& slice) {
  size_t walked = slice.dims.size();
  while (walked > 0 && (slice.dims[walked - 1].step == 1 || slice.dims[walked - 1].count <= 1)) {
    --walked;
  }
  return walked;
}

class SliceReader {
 public:
  SliceReader(const TensorEntry& tensor, const Slice& slice, const PayloadSource& source)
      : slice_(slice),
        box_(box_around(slice)),
        strides_(row_major_strides(box_.sizes)),
        reader_(tensor, box_, source),
        walked_(walked_dims(slice)),
        element_bytes_(bytes_per_element(tensor.dtype)) {
    for (size_t d = walked_; d < slice.dims.size(); ++d) run_count_ *= slice.dims[d].count;
    reads_gaps_ = walked_ > 0 && gap_bytes(tensor.shape) <= kGapBytesMax;
  }

  // Elements of the slice, row-major, from `first` on.
  void read(uint64_t first, std::span<std::byte> out) {
    if (walked_ == 0) return read_run(first, out);
    while (!out.empty()) {
      const uint64_t left = out.size() / element_bytes_;
      const uint64_t done = reads_gaps_ ? read_row(first, out) : read_one(first, left, out);
      first += done;
      out = out.subspan(done * element_bytes_);
    }
  }

 private:
  uint64_t run_bytes() const { return run_count_ * element_bytes_; }

  // Of the last walked dimension, where whole runs follow each other in the tensor; else more than
  // any gap that is read.
  uint64_t gap_bytes(const Extents& shape) const {
    for (size_t d = walked_; d < slice_.dims.size(); ++d) {
      if (slice_.dims[d].count != shape[d]) return kGapBytesMax + 1;
    }
    const uint64_t step = slice_.dims[walked_ - 1].step;
    return step > kGapBytesMax ? kGapBytesMax + 1 : step * std::min(run_bytes(), kGapBytesMax + 1);
  }

  void read_run(uint64_t first_in_box, std::span<std::byte> out) {
    reader_.seek(first_in_box * element_bytes_);
    reader_.read(out);
  }

  // Where a run starts in the box.
  uint64_t start_in_box(uint64_t run) const {
    uint64_t start = 0;
    for (size_t d = walked_; d-- > 0;) {
      const SliceDim& dim = slice_.dims[d];
      start += run % dim.count * dim.step * strides_[d];
      run /= dim.count;
    }
    return start;
  }

  // The rest of one run, or what is wanted of it.
  uint64_t read_one(uint64_t first, uint64_t left, std::span<std::byte> out) {
    const uint64_t in_run = first % run_count_;
    const uint64_t count = std::min(left, run_count_ - in_run);
    read_run(start_in_box(first / run_count_) + in_run, out.first(count * element_bytes_));
    return count;
  }

  // Runs of the last walked dimension, with the gaps between them.
  uint64_t read_row(uint64_t first, std::span<std::byte> out) {
    const uint64_t left = out.size() / element_bytes_;
    if (first % run_count_ != 0 || left < run_count_) return read_one(first, left, out);
    const SliceDim& dim = slice_.dims[walked_ - 1];
    const uint64_t run = first / run_count_;
    const uint64_t stride_bytes = dim.step * run_bytes();
    const uint64_t room = std::max<uint64_t>(1, kScratchBytes / stride_bytes);
    const uint64_t runs = std::min({dim.count - run % dim.count, left / run_count_, room});
    scratch_.resize((runs - 1) * stride_bytes + run_bytes());
    read_run(start_in_box(run), scratch_);
    for (uint64_t i = 0; i < runs; ++i) {
      std::memcpy(out.data() + i * run_bytes(), scratch_.data() + i * stride_bytes, run_bytes());
    }
    return runs * run_count_;
  }

  const Slice& slice_;
  Box box_;
  Extents strides_;
  BoxReader reader_;
  size_t walked_;
  uint64_t element_bytes_;
  uint64_t run_count_ = 1;  // elements of a run
  bool reads_gaps_ = false;
  std::vector<std::byte> scratch_;
};

TensorEntry entry_of(const TensorEntry& tensor, const Slice& slice) {
  TensorEntry entry{.file = tensor.file,
                    .key = tensor.key,
                    .dtype = tensor.dtype,
                    .shape = slice.shape(),
                    .chunks = {}};
  const uint64_t bytes = count_bytes(entry);
  if (bytes != 0) entry.chunks.push_back({whole(entry.shape), {.bytes = {0, bytes}}});
  return entry;
}

}  // namespace

struct SlicedTensor::State {
  TensorEntry tensor;
  Slice slice;
  const PayloadSource& source;
  TensorEntry entry;
};

SlicedTensor::SlicedTensor(TensorEntry tensor, Slice slice, const PayloadSource& source) {
  TensorEntry entry = entry_of(tensor, slice);
  state_ =
      std::make_unique<State>(State{std::move(tensor), std::move(slice), source, std::move(entry)});
}
SlicedTensor::SlicedTensor(SlicedTensor&&) noexcept = default;
SlicedTensor::~SlicedTensor() = default;

const TensorEntry& SlicedTensor::entry() const { return state_->entry; }

LocatedRegion SlicedTensor::locate(const StorageRegion& region) const { return {region}; }

// Readers of whole elements ask for whole elements.
void SlicedTensor::read_bytes(const StorageRegion& located, uint64_t offset_bytes,
                              std::span<std::byte> out) const {
  const uint64_t element_bytes = bytes_per_element(state_->tensor.dtype);
  SliceReader(state_->tensor, state_->slice, state_->source)
      .read((located.bytes.offset_bytes + offset_bytes) / element_bytes, out);
}

std::string SlicedTensor::file_name(uint32_t) const {
  const std::vector<Chunk>& chunks = state_->tensor.chunks;
  return chunks.empty() ? std::string() : state_->source.file_name(chunks[0].region.file);
}

struct TensorStream::State {
  State(TensorEntry entry, const PayloadSource& source)
      : tensor(std::move(entry)), reader(tensor, whole(tensor.shape), source) {}
  TensorEntry tensor;
  BoxReader reader;
};

TensorStream::TensorStream(TensorEntry tensor, const PayloadSource& source)
    : state_(std::make_unique<State>(std::move(tensor), source)) {}
TensorStream::TensorStream(TensorStream&&) noexcept = default;
TensorStream::~TensorStream() = default;

uint64_t TensorStream::left_bytes() const { return state_->reader.left_bytes(); }
void TensorStream::read(std::span<std::byte> out) { state_->reader.read(out); }

bool same_bytes(const TensorEntry& a, const PayloadSource& source_a, const TensorEntry& b,
                const PayloadSource& source_b) {
  constexpr uint64_t kPieceBytes = uint64_t{1} << 20;
  if (count_bytes(a) != count_bytes(b)) return false;
  TensorStream stream_a(a, source_a), stream_b(b, source_b);
  std::vector<std::byte> bytes_a(std::min(kPieceBytes, count_bytes(a))), bytes_b(bytes_a.size());
  while (stream_a.left_bytes() > 0) {
    const size_t piece = std::min<uint64_t>(stream_a.left_bytes(), bytes_a.size());
    stream_a.read(std::span(bytes_a).first(piece));
    stream_b.read(std::span(bytes_b).first(piece));
    if (std::memcmp(bytes_a.data(), bytes_b.data(), piece) != 0) return false;
  }
  return true;
}

}  // namespace ckpt
