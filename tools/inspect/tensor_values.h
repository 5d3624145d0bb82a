#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include <ckpt/checkpoint.h>
#include <common/console.h>

// The elements of a tensor as NumPy prints them, and as nested lists.
namespace tools::inspect {

// A tensor, and what its chunks lie in.
struct TensorSource {
  const ckpt::TensorEntry& tensor;
  const ckpt::PayloadSource& source;
};

// The first `values_max` elements, row-major, in nested brackets; "..." where more follow. What is
// not printed is not read, and memory does not grow with the tensor.
void print_values(Console& console, const TensorSource& from, uint64_t values_max);

// The same as nested lists: numbers, true and false, and as text what JSON has no numbers for: nan,
// inf, -inf, and complex numbers. Throws InvalidArgument for more than 10^7 values.
nlohmann::json values_to_json(const TensorSource& from, uint64_t values_max);

}  // namespace tools::inspect
