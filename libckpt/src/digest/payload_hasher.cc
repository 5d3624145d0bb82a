#include "digest/payload_hasher.h"

#include <algorithm>

#include <ckpt/error.h>

#include "codec/sha256.h"
#include "read/passing_source.h"
#include "read/payload_reader.h"
#include "work/slab_workers.h"
#include "work/work_meter.h"

namespace ckpt {
namespace {

// Tensors with equal identities have equal bytes: one chunk, cut from the same storage the same
// way. Empty for tensors of several chunks.
std::string identity_of(const TensorEntry& tensor) {
  if (tensor.chunks.size() != 1) return {};
  const Chunk& chunk = tensor.chunks.front();
  std::string identity(name(tensor.dtype));
  const auto put = [&](uint64_t number) { identity += " " + std::to_string(number); };
  put(chunk.region.file);
  put(chunk.region.bytes.offset_bytes);
  put(static_cast<uint64_t>(chunk.region.wrapping));
  put(chunk.payload_offset_bytes);
  for (const uint64_t size : tensor.shape) put(size);
  if (!chunk.view) return identity;
  identity += " view";
  put(chunk.view->offset);
  for (const uint64_t stride : chunk.view->strides) put(stride);
  return identity;
}

Sha256 hash_tensor(const TensorEntry& tensor, const PayloadSource& source,
                   std::span<std::byte> slab, WorkMeter& meter) {
  BoxReader reader(tensor, whole(tensor.shape), source);
  Sha256Stream stream;
  for (uint64_t left = count_bytes(tensor); left != 0;) {
    const auto piece = slab.first(std::min<uint64_t>(left, slab.size()));
    reader.read(piece);
    stream.update(piece);
    left -= piece.size();
    meter.advance(piece.size());
  }
  return stream.finish();
}

}  // namespace

size_t PayloadHasher::add(TensorEntry tensor) {
  const size_t number = tensors_.size();
  const std::string identity = identity_of(tensor);
  if (!identity.empty()) {
    const auto [known, is_new] = known_.try_emplace(identity, number);
    if (!is_new) return known->second;
  }
  tensors_.push_back(std::move(tensor));
  return number;
}

uint64_t PayloadHasher::payload_bytes(size_t number) const { return count_bytes(tensors_[number]); }

void PayloadHasher::run(const PayloadSource& source, const ExecuteOptions& options,
                        const std::vector<bool>& wanted) {
  std::vector<size_t> order;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (wanted.empty() || wanted[i]) order.push_back(i);
  }
  std::ranges::stable_sort(order, std::ranges::greater(),
                           [this](size_t number) { return payload_bytes(number); });
  uint64_t total_bytes = 0;
  for (const size_t number : order) total_bytes += payload_bytes(number);
  WorkMeter meter(options, total_bytes);
  const PassingSource passing(source);
  digests_.resize(tensors_.size());
  run_with_slabs(order.size(), options, [&](size_t index, std::span<std::byte> slab) {
    const TensorEntry& tensor = tensors_[order[index]];
    try {
      digests_[order[index]] = hash_tensor(tensor, passing, slab, meter);
    } catch (Error& error) {
      throw error.within({.file = tensor.file, .key = tensor.key});
    }
  });
}

}  // namespace ckpt
