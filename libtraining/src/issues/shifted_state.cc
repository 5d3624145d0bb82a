// What is stored of a buffer, put together again, is a buffer as distrib_optim.pt has it, with
// gaps.
#include "issues/shifted_state.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <span>
#include <vector>

#include <ckpt/tensor_stream.h>

#include "grid/build_state.h"
#include "grid/placement.h"
#include "issues/bucket_windows.h"
#include "layouts/parts/flat_states.h"
#include "state/remainders.h"
#include "state/words.h"

namespace optim {
namespace {

// The file of the filler, by the number that no file of the checkpoint has.
uint32_t filler_file(const OpenedTraining& source) {
  return static_cast<uint32_t>(source.catalog().files.size());
}

// Of a buffer: the state's tensors of one dimension, by name.
using BufferTensors = std::map<std::string, TensorEntry>;

class Shifting {
 public:
  Shifting(const FiledState& state, const OpenedTraining& source)
      : state_(state),
        filler_(filler_file(source)),
        windows_(state),
        shifted_(unshifted(state)),
        states_(source, windows_.layout(), shifted_.state) {}

  std::optional<ShiftedState> run() {
    for (const WindowedBuffer& buffer : windows_.buffers()) {
      for (const WindowedParam& param : buffer.params) {
        if (param.is_displaced() && !note(param)) return std::nullopt;
      }
    }
    if (shifted_.displaced.empty()) return std::nullopt;
    std::vector<uint32_t>& displaced = shifted_.displaced;
    std::ranges::sort(displaced);
    displaced.erase(std::unique(displaced.begin(), displaced.end()), displaced.end());
    find_lost();
    for (const WindowedBuffer& buffer : windows_.buffers()) add(buffer);
    for (const uint32_t param : shifted_.displaced) {
      shifted_.state.params[param].master.reset();
      shifted_.state.params[param].states.clear();
    }
    states_.join();
    return std::move(shifted_);
  }

 private:
  static ShiftedState unshifted(const FiledState& state) {
    ShiftedState unshifted;
    unshifted.state = state;
    return unshifted;
  }

  // False where it cannot be moved.
  bool note(const WindowedParam& param) {
    const TrainedParam& of = state_.params[param.param];
    if (!of.sharing.is_known || !of.master || of.master->dtype != DType::Float32) {
      return false;
    }
    // Sections of columns do not lie one behind the other in a rank's tensor.
    const auto& split = of.sharing.split;
    if (split && split->dim != 0 && split->sections.size() != 1) return false;
    const bool is_first = shifted_.displaced.empty();
    shifted_.displaced.push_back(param.param);
    shifted_.least = is_first ? param.shift : std::min(shifted_.least, param.shift);
    shifted_.most = std::max(shifted_.most, param.shift);
    return true;
  }

  void find_lost() {
    for (const WindowedBuffer& buffer : windows_.buffers()) {
      for (const WindowedParam& param : buffer.params) {
        if (!param.is_displaced()) continue;
        for (const ElementRange& gap : uncovered(buffer, param)) {
          const uint64_t begin = param.own().begin;
          shifted_.lost.push_back({param.param,
                                   buffer.tensor_rank,
                                   {gap.begin - begin, gap.end - begin},
                                   shifted_.lost_count});
          shifted_.lost_count += gap.end - gap.begin;
        }
      }
    }
  }

  void add(const WindowedBuffer& buffer) {
    BufferTensors& tensors = buffers_.emplace_back();
    for (const WindowedParam& param : buffer.params) {
      if (param.is_stored) add_window(buffer, param, tensors);
    }
    for (const WindowedParam& param : buffer.params) {
      if (!param.is_displaced()) continue;
      for (const ElementRange& gap : uncovered(buffer, param)) fill(gap, tensors);
    }
    FlatTensors& flat = flat_.emplace_back();
    for (const auto& [name, tensor] : tensors) flat.emplace(name, FlatTensor(tensor));
    for (const WindowedParam& param : buffer.params) {
      if (param.is_displaced()) states_.add(param.param, {buffer.at, flat, param.own().begin});
    }
  }

  void add_window(const WindowedBuffer& buffer, const WindowedParam& param,
                  BufferTensors& tensors) const {
    const std::vector<Box> boxes = windows_.placement().boxes(param.param, buffer.tensor_rank);
    const auto add_state = [&](const std::string& name, const TensorEntry& stored) {
      const auto at = tensors.try_emplace(
          name, TensorEntry{{}, stored.key, stored.dtype, {buffer.element_count}, {}});
      for (Chunk& chunk : flat_chunks(stored, boxes)) {
        uint64_t &begin = chunk.box.offsets[0], &count = chunk.box.sizes[0];
        begin += param.window.begin;
        if (begin >= buffer.element_count) continue;
        count = std::min(count, buffer.element_count - begin);
        at.first->second.chunks.push_back(std::move(chunk));
      }
    };
    const TrainedParam& of = state_.params[param.param];
    if (of.master) add_state(std::string(kDistributedMaster), *of.master);
    for (const StateTensor& state : of.states) add_state(state.name, *state.value);
  }

  // The runs of `lost` come in this order.
  void fill(const ElementRange& gap, BufferTensors& tensors) {
    const LostRun& run = shifted_.lost[filled_++];
    const uint64_t count = gap.end - gap.begin;
    for (auto& [name, tensor] : tensors) {
      const bool is_master = name == kDistributedMaster;
      const uint64_t bytes = ckpt::bytes_per_element(tensor.dtype);
      const uint64_t masters_bytes = shifted_.lost_count * sizeof(float);
      Chunk chunk{{{gap.begin}, {count}}, {}};
      chunk.region.file = filler_;
      chunk.region.bytes = is_master ? ckpt::ByteRange{run.filler_begin * bytes, count * bytes}
                                     : ckpt::ByteRange{masters_bytes, count * bytes};
      tensor.chunks.push_back(std::move(chunk));
    }
  }

  const FiledState& state_;
  uint32_t filler_;
  BucketWindows windows_;
  ShiftedState shifted_;
  FlatStates states_;
  std::deque<BufferTensors> buffers_;
  std::deque<FlatTensors> flat_;
  size_t filled_ = 0;
};

constexpr uint64_t kLostMax = uint64_t{1} << 26;  // elements

// The files of a checkpoint, and the filler of a shifted state: lost masters are the weights, lost
// states 0.
class RepairedPayloads final : public ckpt::PayloadSource {
 public:
  // Reads the weights of lost elements. `source` must outlive it.
  RepairedPayloads(const OpenedTraining& source, const ShiftedState& shifted)
      : source_(source), filler_(filler_file(source)) {
    if (shifted.lost_count > kLostMax) {
      throw Error(ErrorCode::Unsupported, {.file = source.shown_path(), .key = {}},
                  std::to_string(shifted.lost_count) + " elements are in no file, at most " +
                      std::to_string(kLostMax) + " can be replaced");
    }
    const Placement placement(shifted.state, shifted.state.grid);
    masters_.reserve(shifted.lost_count);
    for (const LostRun& run : shifted.lost) {
      const TensorEntry& weight = *shifted.state.params[run.param].weight;
      const std::vector<Box> boxes = placement.boxes(run.param, run.tensor_rank);
      TensorEntry flat{{}, weight.key, weight.dtype, {}, flat_chunks(weight, boxes)};
      flat.shape = {ckpt::element_count(placement.shape_on_rank(run.param))};
      std::vector<uint16_t> weights(run.elements.end - run.elements.begin);
      source.read(flat, {{run.elements.begin}, {weights.size()}},
                  std::as_writable_bytes(std::span(weights)));
      for (const uint16_t bits : weights) masters_.push_back(widened(weight.dtype, bits));
    }
  }

  ckpt::LocatedRegion locate(const ckpt::StorageRegion& region) const override {
    return region.file == filler_ ? ckpt::LocatedRegion{region} : source_.locate(region);
  }

  void read_bytes(const ckpt::StorageRegion& located, uint64_t offset_bytes,
                  std::span<std::byte> out) const override {
    if (located.file != filler_) return source_.read_bytes(located, offset_bytes, out);
    const auto masters = std::as_bytes(std::span(masters_));
    const uint64_t begin = located.bytes.offset_bytes + offset_bytes;
    const uint64_t count =
        begin < masters.size() ? std::min<uint64_t>(out.size(), masters.size() - begin) : 0;
    if (count != 0) std::memcpy(out.data(), masters.data() + begin, count);
    std::ranges::fill(out.subspan(count), std::byte{0});
  }

  void read_once(const ckpt::StorageRegion& located, uint64_t offset_bytes,
                 std::span<std::byte> out) const override {
    if (located.file != filler_) return source_.read_once(located, offset_bytes, out);
    read_bytes(located, offset_bytes, out);
  }

  std::string file_name(uint32_t file) const override {
    return file == filler_ ? "what replaces lost elements" : source_.file_name(file);
  }

 private:
  const OpenedTraining& source_;
  uint32_t filler_;
  std::vector<float> masters_;
};

constexpr uint64_t kPieceElements = uint64_t{1} << 16;

// Elements of which master and weight agree.
uint64_t count_matching(const TrainedParam& param, const ckpt::PayloadSource& source) {
  const DType dtype = param.weight->dtype;
  const auto rounds_to = dtype == DType::Float16 ? rounds_to_float16 : rounds_to_bfloat16;
  std::vector<float> masters(kPieceElements);
  std::vector<uint16_t> weights(kPieceElements);
  ckpt::TensorStream master_stream(*param.master, source), weight_stream(*param.weight, source);
  uint64_t matching = 0;
  while (weight_stream.left_bytes() > 0) {
    const auto count = std::min(kPieceElements, weight_stream.left_bytes() / sizeof(uint16_t));
    master_stream.read(std::as_writable_bytes(std::span(masters).first(count)));
    weight_stream.read(std::as_writable_bytes(std::span(weights).first(count)));
    for (size_t i = 0; i < count; ++i) matching += rounds_to(masters[i], weights[i]) ? 1 : 0;
  }
  return matching;
}

bool are_halves(const FiledState& state, const std::vector<uint32_t>& params) {
  return std::ranges::all_of(params, [&](uint32_t param) {
    const DType dtype = state.params[param].weight->dtype;
    return dtype == DType::BFloat16 || dtype == DType::Float16;
  });
}

}  // namespace

std::string first_displaced(const FiledState& state) {
  uint32_t first = static_cast<uint32_t>(state.params.size());
  const BucketWindows windows(state);
  for (const WindowedBuffer& buffer : windows.buffers()) {
    for (const WindowedParam& param : buffer.params) {
      if (param.is_displaced()) first = std::min(first, param.param);
    }
  }
  return first < state.params.size() ? state.params[first].info.name : std::string();
}

std::optional<FoundShift> find_bucket_shift(const FiledState& state, const OpenedTraining& source) {
  if (has_remainders(state)) return std::nullopt;  // which show no place
  if (state.filed.only() != &kByName) return std::nullopt;
  auto shifted = Shifting(state, source).run();
  if (!shifted || !are_halves(state, shifted->displaced)) return std::nullopt;
  FoundShift found{std::move(*shifted), nullptr};
  found.payloads = std::make_shared<const RepairedPayloads>(source, found.shifted);
  for (const uint32_t param : found.shifted.displaced) {
    found.element_count += ckpt::element_count(state.params[param].weight->shape);
    found.stored_matching += count_matching(state.params[param], source);
    found.matching_count += count_matching(found.shifted.state.params[param], *found.payloads);
  }
  // What replaces lost masters rounds to the weights that it is made of.
  found.matching_count -= std::min(found.matching_count, found.shifted.lost_count);
  return found;
}

}  // namespace optim
