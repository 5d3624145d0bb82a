#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include <training/training_state.h>

// Which stacks of layers a model has, out of its names in the files of torch or torch_dist. Of the
// decoder args say how many layers it has; of others only the names do.
namespace optim {

class LayerStacks {
 public:
  enum class From : uint8_t { StateDicts, Store };
  explicit LayerStacks(From from) : from_(from) {}
  // A name of a state dict, or a key of torch_dist; of one that is stacked over layers their count.
  void add(std::string_view name, uint64_t stacked_layers = 0);
  // Into the facts, whose args are known. Throws Unsupported for keys of one stack that are stacked
  // and others that are not.
  void settle(TrainingState& state) const;

 private:
  struct Seen {
    std::string stacked, unstacked;  // the last key that is
    uint64_t layers = 0;
    bool has_norms = false;  // under their own names
  };
  From from_;
  std::map<std::string, Seen, std::less<>> seen_;  // by prefix
};

}  // namespace optim
