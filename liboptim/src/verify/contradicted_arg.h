#pragma once

#include <cstdint>
#include <string>

namespace optim {

// An argument of the run that the tensors of its model contradict.
struct ContradictedArg {
  // What goes wrong where the argument is followed. Shapes: what a tensor is like, which a wrong
  // way of joining its parts contradicts, too. Cut: names of parameters, or where they are cut.
  enum class Decides : uint8_t { Modules, Shapes, Cut };

  std::string name;     // num_layers
  std::string problem;  // "is 4, but the model has 3 decoder layers"
  Decides decides = Decides::Modules;
};

}  // namespace optim
