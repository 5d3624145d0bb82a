// Looks at the end of every flat buffer of a fully_reshardable checkpoint.
#include "issues/remainder_shift.h"

#include <algorithm>

#include <ckpt/flat_range.h>

#include "args/run_args.h"
#include "grid/rank_files.h"
#include "issues/state_buffers.h"
#include "state/remainders.h"

namespace optim {
namespace {

constexpr uint64_t kElementsMax = uint64_t{1} << 16;  // of a parameter's end that are looked at

class EndOfBuffers {
 public:
  EndOfBuffers(const FiledState& state, const OpenedTraining& source)
      : state_(state), source_(source), buffers_(state) {}

  std::string run() const {
    for (const WorldRank& rank : ranks_of(state_.grid)) {
      for (uint32_t optimizer = 0; optimizer < state_.chain.size(); ++optimizer) {
        if (!buffers_.flat.writes(optimizer, rank.at)) continue;
        for (const FlatBuffer& buffer : buffers_.flat.of(optimizer, rank.at)) {
          if (ends_in_zeros(buffer, rank.at)) return name_of(last_of(buffer), buffer);
        }
      }
    }
    return {};
  }

 private:
  static size_t last_of(const FlatBuffer& buffer) {
    const auto& places = buffer.layout.places;
    return static_cast<size_t>(
        std::ranges::max_element(places, {},
                                 [](const FlatPlace& place) { return place.range.begin; }) -
        places.begin());
  }

  const std::string& name_of(size_t held, const FlatBuffer& buffer) const {
    return state_.model[buffer.held[held].entry].name;
  }

  bool ends_in_zeros(const FlatBuffer& buffer, const RankCoordinates& rank) const {
    const size_t last = last_of(buffer);
    const FlatPlace& place = buffer.layout.places[last];
    const uint64_t shift = place.range.begin - buffer.layout.compact_begin(last);
    if (shift == 0 || !buffers_.placement.is_first_copy(buffer.held[last], rank.pp)) return false;
    const uint32_t index = state_.model[buffer.held[last].entry].param;
    const uint64_t elements = place.range.end - place.range.begin;
    const uint64_t count = std::min({shift, elements, kElementsMax});
    const uint32_t tensor_rank = buffers_.placement.tensor_rank(index, rank);
    return std::ranges::all_of(state_.params[index].states, [&](const StateTensor& state) {
      return is_zero(*state.value, {index, tensor_rank, elements - count});
    });
  }

  struct End {
    uint32_t param, tensor_rank;
    uint64_t first;  // of the rank's tensor, flattened
  };

  bool is_zero(const ckpt::TensorEntry& tensor, const End& end) const {
    uint64_t skipped = end.first;
    for (const ckpt::Box& box : buffers_.placement.boxes(end.param, end.tensor_rank)) {
      const uint64_t size = ckpt::element_count(box.sizes);
      const uint64_t begin = std::min(skipped, size);
      skipped -= begin;
      if (begin == size) continue;
      for (const ckpt::Box& part : ckpt::boxes_of_flat_range(box, begin, size - begin)) {
        std::vector<std::byte> bytes(ckpt::element_count(part.sizes) *
                                     ckpt::bytes_per_element(tensor.dtype));
        source_.read(tensor, part, bytes);
        const auto is_nothing = [](std::byte byte) { return byte == std::byte{0}; };
        if (!std::ranges::all_of(bytes, is_nothing)) return false;
      }
    }
    return true;
  }

  const FiledState& state_;
  const OpenedTraining& source_;
  StateBuffers buffers_;
};

}  // namespace

std::string may_be_displaced(const FiledState& state, const OpenedTraining& source) {
  if (state.filed.only() != &kByName || !has_remainders(state)) return {};
  const bool has_one_bucket =
      !is_true(state.args(), "overlap_grad_reduce") && state.grid.sizes.pipeline_parallel == 1;
  return has_one_bucket ? std::string() : EndOfBuffers(state, source).run();
}

}  // namespace optim
