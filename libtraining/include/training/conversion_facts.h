#pragma once

#include <cstdint>
#include <string>
#include <vector>

// What a conversion states about its result.
namespace optim {

// The elements of one state of all parameters. Experts are counted apart: they are what a change of
// layout loses first.
struct StateCount {
  std::string state;  // "weight", "fp32_param", "exp_avg", ...
  bool is_of_experts = false;
  uint64_t tensor_count = 0, element_count = 0;
  bool operator==(const StateCount&) const = default;
};

// What the next step of a run that goes on from a result will be, beside that of one that goes on
// from its source with the same batch.
enum class NextStep : uint8_t {
  Same,         // bit for bit
  OrderOfSums,  // equal but for roundings: ranks add up gradients and norms in another order
  Different,    // by construction, whatever the precision
};

struct Continuation {
  NextStep next_step = NextStep::Same;
  std::vector<std::string> reasons = {};  // why it is Different, for users
  bool operator==(const Continuation&) const = default;
};

// A parameter whose master rounds to the weights of others, too: its name is right by the deal
// alone.
struct AmbiguousParam {
  std::string name;
  std::vector<std::string> also_fits;  // the first eight of them, in the model's order
  uint64_t also_fits_count = 0;        // all: 10^4 experts may be alike
};

}  // namespace optim
