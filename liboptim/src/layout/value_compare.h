#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ckpt/value.h>

namespace optim {

// Tensors that stand in the same place of two trees: the nodes, and their pointer.
struct TensorPair {
  ckpt::NodeId a, b;
};

// nullopt when both values say the same, else where they differ (an RFC 6901 pointer; "" for the
// values themselves). Dictionaries must agree in order, too: Megatron zips them. Tensors are equal
// when dtype and shape are; with `tensors` they are collected. No recursion.
std::optional<std::string> first_difference(const ckpt::Value& a, const ckpt::Value& b,
                                            std::vector<TensorPair>* tensors = nullptr);

}  // namespace optim
