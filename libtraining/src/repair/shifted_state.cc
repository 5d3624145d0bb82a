// What is stored of a buffer, put together again, is a buffer as distrib_optim.pt has it, with
// gaps.
#include "repair/shifted_state.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>

#include "grid/layer_wise_view.h"
#include "layouts/parts/flat_states.h"
#include "repair/flat_chunks.h"

namespace optim {
namespace {

using ckpt::Chunk;
using ckpt::TensorEntry;

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
        if (is_displaced(param) && !note(param)) return std::nullopt;
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

  static bool is_displaced(const WindowedParam& param) {
    return param.is_stored && param.shift != 0;
  }

  // False where it cannot be moved.
  bool note(const WindowedParam& param) {
    const TrainedParam& of = state_.params[param.param];
    if (!of.sharing.is_known || !of.master || of.master->dtype != ckpt::DType::Float32) {
      return false;
    }
    // Sections of columns do not lie one behind the other in a rank's tensor.
    const auto& split = of.sharing.split;
    if (split && split->dim != 0 && split->sections.size() != 1) return false;
    const bool is_first = shifted_.displaced.empty();
    shifted_.displaced.push_back(param.param);
    shifted_.least = is_first ? param.shift : std::min(shifted_.least, param.shift);
    shifted_.most = std::max(shifted_.most, param.shift);
    shifted_.element_count += param.window.end - param.window.begin;
    return true;
  }

  void find_lost() {
    for (const WindowedBuffer& buffer : windows_.buffers()) {
      for (const WindowedParam& param : buffer.params) {
        if (!is_displaced(param)) continue;
        for (const ElementRange& gap : uncovered(buffer, param)) {
          const uint64_t begin = param.own().begin, count = gap.end - gap.begin;
          shifted_.lost.push_back({param.param,
                                   buffer.tensor_rank,
                                   {gap.begin - begin, gap.end - begin},
                                   shifted_.lost_count});
          shifted_.lost_count += count;
          shifted_.longest_lost = std::max(shifted_.longest_lost, count);
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
      if (!is_displaced(param)) continue;
      for (const ElementRange& gap : uncovered(buffer, param)) fill(gap, tensors);
    }
    FlatTensors& flat = flat_.emplace_back();
    for (const auto& [name, tensor] : tensors) flat.emplace(name, FlatTensor(tensor));
    for (const WindowedParam& param : buffer.params) {
      if (is_displaced(param)) states_.add(param.param, {buffer.at, flat, param.own().begin});
    }
  }

  void add_window(const WindowedBuffer& buffer, const WindowedParam& param,
                  BufferTensors& tensors) const {
    const std::vector<ckpt::Box> boxes =
        windows_.placement().boxes(param.param, buffer.tensor_rank);
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

}  // namespace

std::optional<ShiftedState> shift_back(const FiledState& state, const OpenedTraining& source) {
  return Shifting(state, source).run();
}

}  // namespace optim
