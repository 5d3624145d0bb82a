#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <training/convert.h>

namespace optim {

// What steps change in a LayerWise checkpoint.
struct LayerWiseUpdate {
  int64_t iteration = 0;  // after the steps
  std::optional<int64_t> scheduler_num_steps =
      std::nullopt;  // samples, opt_param_scheduler.num_steps

  // Row-major little-endian bytes of every tensor of the training state, by its key. Only referred
  // to: they must outlive the call.
  std::map<std::string, std::span<const std::byte>> tensors = {};

  // By optimizer of the chain: how often it has stepped (unused where it keeps no count), and by
  // group numbers to set: {"lr", 0.0081}, {"weight_decay", 0.1}.
  struct Optimizer {
    int64_t step = 0;
    std::vector<std::map<std::string, double>> groups = {};
  };
  std::vector<Optimizer> optimizers = {};
};

// Writes `base` with these values as a new checkpoint of the same kind. Throws InvalidArgument
// where a tensor is missing or has another size than the state says, and what convert() throws.
TRAINING_EXPORT ConvertReport save_layer_wise(const FiledState& base, const OpenedTraining& source,
                                              const LayerWiseUpdate& update,
                                              const std::filesystem::path& destination,
                                              const ConvertOptions& options);

}  // namespace optim
