#include "convert/cast_states.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include <ckpt/checkpoint.h>
#include <ckpt/dtype.h>
#include <ckpt/error.h>
#include <ckpt/payload_source.h>

#include "model/tensor_names.h"
#include "state/remainders.h"
#include "state/rounding.h"

namespace optim {
namespace {

using ckpt::DType;
using ckpt::Error;
using ckpt::ErrorCode;

// The payloads of another source, and regions of them in other types, each a file of its own by
// number. Safe to read from many threads: what locate() found of a region is kept under a lock.
class CastPayloads final : public ckpt::PayloadSource {
 public:
  // `first_file`: a number that no file of `source` has, nor any above it.
  CastPayloads(const ckpt::PayloadSource& source, uint32_t first_file)
      : source_(source), first_file_(first_file) {}

  // The tensor in another type. Reading throws Unsupported where a number is too large for it, or
  // becomes 0 and must not. Not while others read.
  ckpt::TensorEntry cast(const ckpt::TensorEntry& tensor, ckpt::DType to, bool may_vanish);

  ckpt::LocatedRegion locate(const ckpt::StorageRegion& region) const override;
  void read_bytes(const ckpt::StorageRegion& located, uint64_t offset_bytes,
                  std::span<std::byte> out) const override;
  void read_once(const ckpt::StorageRegion& located, uint64_t offset_bytes,
                 std::span<std::byte> out) const override;
  std::string file_name(uint32_t file) const override;

 private:
  struct CastRegion {
    ckpt::StorageRegion stored;
    ckpt::DType from, to;
    std::string key;
    bool may_vanish;
  };
  const CastRegion& cast_region(uint32_t file) const { return regions_[file - first_file_]; }
  ckpt::LocatedRegion located_storage(uint32_t file) const;

  const ckpt::PayloadSource& source_;
  uint32_t first_file_;
  std::vector<CastRegion> regions_;
  mutable std::mutex mutex_;
  mutable std::vector<std::optional<ckpt::LocatedRegion>> located_;  // [file - first_file_]
};

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

bool can_cast(DType from, DType to) {
  const bool is_remainder_type = from == DType::Int16 || to == DType::Int16;
  if (is_remainder_type) return from == DType::Float32 || to == DType::Float32;
  return is_float(from) && is_float(to);
}

// Whether it holds every value of each type that can be cast to it.
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

std::string text(DType dtype) { return std::string(ckpt::name(dtype)); }

void require_cast(const FiledState& state, const StateType& asked) {
  const std::string option = "--state-dtype " + ckpt::escaped(asked.name) + ": ";
  if (asked.name == kRemainderState) {
    throw Error(ErrorCode::InvalidArgument, {},
                option + "remainders of masters have the type of the form that they are filed in");
  }
  bool is_known = false;
  for (const TrainedParam& param : state.params) {
    for (const StateTensor& of_param : param.states) {
      if (of_param.name != asked.name) continue;
      is_known = true;
      const DType from = of_param.value->dtype;
      const bool is_number = asked.dtype != DType::Int16;  // that is of remainders alone
      if (from == asked.dtype || (is_number && can_cast(from, asked.dtype))) continue;
      throw Error(
          ErrorCode::InvalidArgument, {.file = {}, .key = of_param.value->key},
          option + "it is of type " + text(from) + ", which cannot become " + text(asked.dtype));
    }
  }
  if (!is_known) {
    throw Error(ErrorCode::InvalidArgument, {},
                option + "no parameter has a state of this name; masters keep their type",
                "ckpt-inspect groups lists the states");
  }
}

const StateType* type_for(const std::vector<StateType>& types, const StateTensor& state) {
  const auto found = std::ranges::find(types, state.name, &StateType::name);
  const bool changes = found != types.end() && state.value->dtype != found->dtype;
  return changes ? &*found : nullptr;
}

// Checksums of storages, each once: many tensors may lie in one.
class CheckedRegions {
 public:
  CheckedRegions(const OpenedTraining& source, const std::stop_token& stop)
      : source_(source), stop_(stop) {}

  void check(const ckpt::TensorEntry& tensor) {
    for (const ckpt::Chunk& chunk : tensor.chunks) {
      if (stop_.stop_requested()) throw Error(ErrorCode::IoFailure, {}, "cancelled");
      const ckpt::StorageRegion& region = chunk.region;
      const bool is_new =
          known_.emplace(region.file, region.bytes.offset_bytes, region.bytes.count_bytes).second;
      if (is_new) source_.check_crc({{}, tensor.key, tensor.dtype, tensor.shape, {chunk}});
    }
  }

 private:
  const OpenedTraining& source_;
  const std::stop_token& stop_;
  std::set<std::tuple<uint32_t, uint64_t, uint64_t>> known_;  // file, offset, bytes
};

}  // namespace

bool changes_any(const FiledState& state, const std::vector<StateType>& types) {
  return std::ranges::any_of(state.params, [&](const TrainedParam& param) {
    return std::ranges::any_of(
        param.states, [&](const StateTensor& one) { return type_for(types, one) != nullptr; });
  });
}

namespace {

void add_once(std::vector<std::string>& lines, std::string line) {
  if (std::ranges::find(lines, line) == lines.end()) lines.push_back(std::move(line));
}

}  // namespace

std::vector<StateType> types_of_target(const FiledState& state, const FiledAs& target,
                                       const std::vector<StateType>& asked) {
  std::vector<StateType> types = asked;
  for (const StateType& one : asked) {
    if (std::ranges::count(asked, one.name, &StateType::name) > 1) {
      throw Error(ErrorCode::InvalidArgument, {},
                  "--state-dtype " + ckpt::escaped(one.name) + ": is given more than one type");
    }
    require_cast(state, one);
  }
  // Megatron gathers them as float32 in all forms but this one.
  const bool is_int16 = target.only() == &kBuckets;
  types.push_back({std::string(kRemainderState), is_int16 ? DType::Int16 : DType::Float32});
  return types;
}

CastStates cast_states(const FiledState& state, const CastSource& from_source,
                       const std::vector<StateType>& types) {
  const auto& [source, payloads, stop] = from_source;
  CastStates made;
  auto filed = std::make_shared<FiledState>(state);
  // The number after the files of the checkpoint is that of a filler (repair/shifted_state.h).
  const auto first_file = static_cast<uint32_t>(source.catalog().files.size() + 1);
  auto cast = std::make_shared<CastPayloads>(payloads, first_file);
  CheckedRegions checked(source, stop);
  for (TrainedParam& param : filed->params) {
    for (StateTensor& one : param.states) {
      const StateType* const type = type_for(types, one);
      if (type == nullptr) continue;
      const DType from = one.value->dtype;
      checked.check(*one.value);
      one.value = std::make_shared<ckpt::TensorEntry>(
          cast->cast(*one.value, type->dtype, !is_second_moment_name(one.name)));
      if (one.name == kRemainderState) continue;
      add_once(is_widening(type->dtype) ? made.widened : made.rounded,
               one.name + ": " + text(from) + " to " + text(type->dtype));
    }
  }
  made.state = std::move(filed);
  made.payloads = std::move(cast);
  return made;
}

}  // namespace optim
