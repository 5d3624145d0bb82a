// Which rounds of the parameters' gathering go with which part of an update on a GPU.
#include "step/layer_wise/param_rounds.h"

#include <algorithm>
#include <utility>

namespace optim {

ParamRounds::ParamRounds(std::vector<std::unique_ptr<ParamGather>> gathers)
    : gathers_(std::move(gathers)) {
  for (const std::unique_ptr<ParamGather>& gather : gathers_) {
    for (int64_t round = 0; round < gather->round_count(); ++round) {
      rounds_.push_back({gather.get(), round});
    }
  }
}

size_t ParamRounds::part_count() const { return std::clamp<size_t>(rounds_.size(), 1, kPartsMost); }

std::vector<ParamRounds::Round> ParamRounds::rounds_of(size_t part) const {
  const auto at = [&](size_t i) {
    return rounds_.begin() + static_cast<std::ptrdiff_t>(i * rounds_.size() / part_count());
  };
  return {at(part), at(part + 1)};
}

std::vector<std::vector<uint32_t>> ParamRounds::ids_of_parts() const {
  std::vector<std::vector<uint32_t>> parts(part_count());
  for (size_t part = 0; part < parts.size(); ++part) {
    for (const Round& round : rounds_of(part)) {
      const std::vector<uint32_t> ids = round.gather->needed_for(round.number);
      parts[part].insert(parts[part].end(), ids.begin(), ids.end());
    }
  }
  return parts;
}

void ParamRounds::start(size_t part) {
  for (const Round& round : rounds_of(part)) round.gather->start(round.number);
}

void ParamRounds::finish() {
  for (const std::unique_ptr<ParamGather>& gather : gathers_) gather->finish();
}

}  // namespace optim
