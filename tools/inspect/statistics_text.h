#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ckpt/statistics.h>
#include <common/console.h>
#include <nlohmann/json.hpp>

// What the elements of tensors are like, as a table and as bars.
namespace tools::inspect {

struct NamedStatistics {
  std::string key;  // for people
  std::string type, shape;
  ckpt::Statistics statistics;
};

// One row a tensor: its smallest and largest value, mean, standard deviation, L2 norm, and how many
// zeros, NaNs and infinities.
void print_statistics(Console& console, std::span<const NamedStatistics> rows);

// Magnitudes in powers of two, from the lowest value to the highest, as bars of '#'; at most 24
// rows, the terminal's width.
void print_histogram(Console& console, const ckpt::Statistics& statistics);

nlohmann::json histogram_to_json(const ckpt::Statistics& statistics);

using NumberText = std::string (*)(double);
// The smallest and the largest element, infinities included; 64-bit integers in full; "-" for none.
std::pair<std::string, std::string> ends_text(const ckpt::Statistics& statistics, NumberText text);
// Of a tensor with moments: one end. Infinities are strings, which JSON has no numbers for.
nlohmann::json end_json(const ckpt::Statistics& statistics, bool is_min);
// A mean, a standard deviation or a norm: "-" where no element is finite, "overflows" where it is
// more than a double holds.
std::string moment_text(double value, NumberText text);

}  // namespace tools::inspect
