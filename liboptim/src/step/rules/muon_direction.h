#pragma once

#include <functional>
#include <optional>

#include <optim/rule_config.h>
#include <optim/update_rule.h>

// What Muon and adaptive Muon have in common: the direction before it is orthogonalised, and the
// split of fused qkv weights.
namespace optim {

// Decays, averages the gradient into momentum_buffer, and gives the direction: that buffer itself,
// or with Nesterov a tensor of its own.
at::Tensor muon_direction(const UpdateItem& item, const MuonRule& rule);

// A matrix to be orthogonalised, or this rank's part of one.
struct MatrixPart {
  at::Tensor values;
  const MatrixSplit* split = nullptr;  // null: it is whole

  int64_t whole_size(int dim) const;  // over all ranks
};
at::Tensor orthogonalize(const MatrixPart& part, const NewtonSchulzOptions& options);
// With the scale of its own size, over all ranks.
at::Tensor scaled_orthogonal(const MatrixPart& part, const MuonRule& rule);

// The rows of a fused qkv weight repeat [query, key, value] once per query group. Each of the three
// is one matrix over all groups, and over all ranks where they share the weight. `orthogonalized`
// is called once for a matrix that is not fused.
at::Tensor for_each_part(const UpdateTarget& target, const at::Tensor& matrix,
                         const std::optional<QkvSplit>& qkv,
                         const std::function<at::Tensor(const MatrixPart&)>& orthogonalized);

// Throw Error(InvalidArgument).
void check_split(const QkvSplit& split);
void check_matrix(const UpdateTarget& target, const char* rule);

// update_one(item) for each, states created before: matrices of one tile by one thread each, larger
// ones by all threads together; the products' tiles are the same either way. Those that ranks share
// come first, one after the other, in the order of the list.
void update_matrices(const UpdateRule& rule, std::span<const UpdateItem> items,
                     const std::function<void(const UpdateItem&)>& update_one);

}  // namespace optim
