#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ckpt/statistics.h>
#include <common/console.h>

// What the elements of tensors are like, one row each.
namespace tools::inspect {

struct NamedStatistics {
  std::string key;  // for people
  std::string type, shape;
  ckpt::Statistics statistics;
};

// By what rows are sorted, the largest first. Nan: the count of NaNs and infinities; Max: the
// largest magnitude.
enum class StatisticsSort : uint8_t { None, Norm, Nan, Std, Max };
// Places of the rows, sorted; equal ones stay as they are, and those without numbers are last.
std::vector<size_t> sorted_places(std::span<const ckpt::Statistics> rows, StatisticsSort sort);

using NumberText = std::string (*)(double);
// As kNumberNames names them, infinities included, 64-bit integers in full; "-" for none, or where
// no element is finite, "overflows" where a moment is more than a double holds.
std::vector<std::string> number_texts(const ckpt::Statistics& statistics, NumberText text);
inline constexpr const char* kNumberNames[] = {"min", "max", "mean", "std", "norm"};

// Smallest and largest value, mean, standard deviation, L2 norm, how many zeros, NaNs, infinities.
// On a narrow terminal columns are left out, but not the one that rows were sorted by.
void print_statistics(Console& console, std::span<const NamedStatistics> rows, StatisticsSort sort);
// The same for programs (RFC 4180), with all digits and a line of titles.
void print_statistics_csv(Console& console, std::span<const NamedStatistics> rows);

}  // namespace tools::inspect
