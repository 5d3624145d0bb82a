#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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

// Each argument once: what is found of it first.
class ContradictedArgs {
 public:
  void add(std::optional<ContradictedArg> wrong) {
    if (!wrong) return;
    const bool is_known = std::ranges::any_of(
        found_, [&](const ContradictedArg& known) { return known.name == wrong->name; });
    if (!is_known) found_.push_back(std::move(*wrong));
  }
  void add(std::vector<ContradictedArg> wrong) {
    for (ContradictedArg& one : wrong) add(std::optional(std::move(one)));
  }
  std::vector<ContradictedArg> take() { return std::move(found_); }

 private:
  std::vector<ContradictedArg> found_;
};

}  // namespace optim
