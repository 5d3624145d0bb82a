#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "inspect/overview.h"

// The lines of the page about a checkpoint, as pure text.
namespace tools::inspect {

// A label and what is said under it, in pieces that stay together on a line.
struct Fact {
  std::string label;
  std::vector<std::string> pieces;
};

// In the order of the page; what has nothing to say is left out.
std::vector<Fact> facts_of(const Overview& overview);

// Lines of at most `width` columns where the pieces allow it: a piece that does not fit on a line
// starts the next one.
std::vector<std::string> fact_lines(const Fact& fact, size_t width);

// "###", `count` of `count_max` at full width; empty where it is less than half a character.
std::string bar(uint64_t count, uint64_t count_max);
inline constexpr size_t kBarWidth = 19;

}  // namespace tools::inspect
