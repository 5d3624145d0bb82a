#include "repair/repaired_payloads.h"

#include <algorithm>
#include <cstring>
#include <span>

#include <ckpt/error.h>

#include "grid/placement.h"
#include "repair/flat_chunks.h"
#include "state/rounding.h"

namespace optim {
namespace {

constexpr uint64_t kLostMax = uint64_t{1} << 26;  // elements

}  // namespace

RepairedPayloads::RepairedPayloads(const OpenedTraining& source, const ShiftedState& shifted)
    : source_(source), filler_(filler_file(source)) {
  if (shifted.lost_count > kLostMax) {
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = source.shown_path(), .key = {}},
                      std::to_string(shifted.lost_count) + " elements are in no file, at most " +
                          std::to_string(kLostMax) + " can be replaced");
  }
  const Placement placement(shifted.state, shifted.state.grid);
  masters_.reserve(shifted.lost_count);
  for (const LostRun& run : shifted.lost) {
    const ckpt::TensorEntry& weight = *shifted.state.params[run.param].weight;
    const std::vector<ckpt::Box> boxes = placement.boxes(run.param, run.tensor_rank);
    ckpt::TensorEntry flat{{}, weight.key, weight.dtype, {}, flat_chunks(weight, boxes)};
    flat.shape = {ckpt::element_count(placement.shape_on_rank(run.param))};
    std::vector<uint16_t> weights(run.elements.end - run.elements.begin);
    source.read(flat, {{run.elements.begin}, {weights.size()}},
                std::as_writable_bytes(std::span(weights)));
    for (const uint16_t bits : weights) masters_.push_back(widened(weight.dtype, bits));
  }
}

ckpt::LocatedRegion RepairedPayloads::locate(const ckpt::StorageRegion& region) const {
  return region.file == filler_ ? ckpt::LocatedRegion{region} : source_.locate(region);
}

void RepairedPayloads::read_bytes(const ckpt::StorageRegion& located, uint64_t offset_bytes,
                                  std::span<std::byte> out) const {
  if (located.file != filler_) return source_.read_bytes(located, offset_bytes, out);
  const auto masters = std::as_bytes(std::span(masters_));
  const uint64_t begin = located.bytes.offset_bytes + offset_bytes;
  const uint64_t count =
      begin < masters.size() ? std::min<uint64_t>(out.size(), masters.size() - begin) : 0;
  if (count != 0) std::memcpy(out.data(), masters.data() + begin, count);
  std::ranges::fill(out.subspan(count), std::byte{0});
}

void RepairedPayloads::read_once(const ckpt::StorageRegion& located, uint64_t offset_bytes,
                                 std::span<std::byte> out) const {
  if (located.file != filler_) return source_.read_once(located, offset_bytes, out);
  read_bytes(located, offset_bytes, out);
}

std::string RepairedPayloads::file_name(uint32_t file) const {
  return file == filler_ ? "what replaces lost elements" : source_.file_name(file);
}

}  // namespace optim
