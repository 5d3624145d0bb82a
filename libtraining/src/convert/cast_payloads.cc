// Elements in another type, as they are read.
#include "convert/cast_payloads.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <sstream>

#include <ckpt/error.h>

#include "state/remainders.h"
#include "state/rounding.h"

namespace optim {
namespace {

using ckpt::DType;

constexpr size_t kElementsAtATime = 4096;

bool is_float(DType dtype) {
  return dtype == DType::Float32 || dtype == DType::BFloat16 || dtype == DType::Float16;
}

float value_of(DType dtype, const std::byte* stored) {
  if (dtype == DType::Float32) {
    float value;
    std::memcpy(&value, stored, sizeof value);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, stored, sizeof bits);
  return dtype == DType::Int16 ? static_cast<float>(static_cast<int16_t>(bits))
                               : widened(dtype, bits);
}

// A second moment that has become 0 would divide the next update by epsilon alone.
[[noreturn]] void refuse_vanishing(const std::string& key, float value, DType to) {
  std::ostringstream text;
  text << "holds " << value << ", which " << ckpt::name(to)
       << " rounds to 0: the next update of that element would be huge";
  throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = key}, text.str(),
                    "bfloat16 holds numbers as small as float32 does");
}

[[noreturn]] void refuse(const std::string& key, float value, DType to) {
  throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = key},
                    "holds " + std::to_string(value) + ", which is not a value of type " +
                        std::string(ckpt::name(to)),
                    to == DType::Int16 ? ""
                                       : "choose a type that can hold it, or leave this "
                                         "state out of --state-dtype");
}

uint16_t bits_of(float value, DType to, const std::string& key, bool may_vanish) {
  if (to == DType::Int16) {
    if (!is_remainder(value)) refuse(key, value, to);
    return static_cast<uint16_t>(static_cast<int16_t>(value));
  }
  const uint16_t bits = to == DType::BFloat16 ? round_to_bfloat16(value) : round_to_float16(value);
  const uint16_t infinity = to == DType::BFloat16 ? 0x7F80 : 0x7C00;
  if ((bits & 0x7FFF) == infinity && std::isfinite(value)) refuse(key, value, to);
  const bool vanishes = (bits & 0x7FFF) == 0 && std::isnormal(value);
  if (vanishes && !may_vanish) refuse_vanishing(key, value, to);
  return bits;
}

}  // namespace

bool can_cast(DType from, DType to) {
  const bool is_remainder_type = from == DType::Int16 || to == DType::Int16;
  if (is_remainder_type) return from == DType::Float32 || to == DType::Float32;
  return is_float(from) && is_float(to);
}

bool is_widening(DType to) { return to == DType::Float32; }

ckpt::TensorEntry CastPayloads::cast(const ckpt::TensorEntry& tensor, DType to, bool may_vanish) {
  const uint64_t from_bytes = ckpt::bytes_per_element(tensor.dtype);
  const uint64_t to_bytes = ckpt::bytes_per_element(to);
  ckpt::TensorEntry result = tensor;
  result.dtype = to;
  for (ckpt::Chunk& chunk : result.chunks) {
    const auto file = static_cast<uint32_t>(first_file_ + regions_.size());
    regions_.push_back({chunk.region, tensor.dtype, to, tensor.key, may_vanish});
    chunk.region = {.file = file,
                    .bytes = {0, chunk.region.bytes.count_bytes / from_bytes * to_bytes}};
    chunk.payload_offset_bytes = chunk.payload_offset_bytes / from_bytes * to_bytes;
  }
  located_.resize(regions_.size());
  return result;
}

ckpt::LocatedRegion CastPayloads::located_storage(uint32_t file) const {
  std::optional<ckpt::LocatedRegion>& known = located_[file - first_file_];
  const std::lock_guard lock(mutex_);
  if (!known) known = source_.locate(cast_region(file).stored);
  return *known;
}

ckpt::LocatedRegion CastPayloads::locate(const ckpt::StorageRegion& region) const {
  if (region.file < first_file_) return source_.locate(region);
  const CastRegion& cast = cast_region(region.file);
  const ckpt::LocatedRegion stored = located_storage(region.file);
  const uint64_t elements = stored.bytes.count_bytes / ckpt::bytes_per_element(cast.from);
  ckpt::LocatedRegion located{region};
  located.wrapping = ckpt::Wrapping::None;
  located.bytes = {0, elements * ckpt::bytes_per_element(cast.to)};
  located.view = stored.view;
  return located;
}

void CastPayloads::read_bytes(const ckpt::StorageRegion& located, uint64_t offset_bytes,
                              std::span<std::byte> out) const {
  if (located.file < first_file_) return source_.read_bytes(located, offset_bytes, out);
  const CastRegion& cast = cast_region(located.file);
  const ckpt::StorageRegion stored = located_storage(located.file);
  const uint64_t from_bytes = ckpt::bytes_per_element(cast.from);
  const uint64_t to_bytes = ckpt::bytes_per_element(cast.to);
  std::vector<std::byte> values, made;
  // A caller may ask for parts of elements at either end.
  uint64_t begin = located.bytes.offset_bytes + offset_bytes;
  while (!out.empty()) {
    const uint64_t element = begin / to_bytes, within = begin % to_bytes;
    const uint64_t count =
        std::min<uint64_t>(kElementsAtATime, (within + out.size() + to_bytes - 1) / to_bytes);
    values.resize(count * from_bytes);
    made.resize(count * to_bytes);
    source_.read_bytes(stored, element * from_bytes, values);
    for (uint64_t i = 0; i < count; ++i) {
      const float value = value_of(cast.from, &values[i * from_bytes]);
      if (cast.to == DType::Float32) {
        std::memcpy(&made[i * to_bytes], &value, sizeof value);
      } else {
        const uint16_t bits = bits_of(value, cast.to, cast.key, cast.may_vanish);
        std::memcpy(&made[i * to_bytes], &bits, sizeof bits);
      }
    }
    const size_t taken = std::min<uint64_t>(out.size(), made.size() - within);
    std::memcpy(out.data(), made.data() + within, taken);
    out = out.subspan(taken);
    begin += taken;
  }
}

void CastPayloads::read_once(const ckpt::StorageRegion& located, uint64_t offset_bytes,
                             std::span<std::byte> out) const {
  if (located.file < first_file_) return source_.read_once(located, offset_bytes, out);
  read_bytes(located, offset_bytes, out);
}

std::string CastPayloads::file_name(uint32_t file) const {
  return source_.file_name(file < first_file_ ? file : cast_region(file).stored.file);
}

}  // namespace optim
