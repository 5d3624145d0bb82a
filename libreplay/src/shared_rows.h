#pragma once

#include <ATen/ops/zeros.h>

#include <cstring>
#include <type_traits>

#include "step/communication/collectives.h"

namespace optim {

// A table that several processes fill in: each the rows of what it owns, once.
template <class Row>
class SharedRows {
  static_assert(std::is_trivially_copyable_v<Row> && sizeof(Row) % sizeof(int64_t) == 0);

 public:
  explicit SharedRows(size_t count)
      : words_(
            at::zeros({static_cast<int64_t>(count * sizeof(Row) / sizeof(int64_t))}, at::kLong)) {}

  void set(size_t row, const Row& value) { std::memcpy(begin() + row, &value, sizeof value); }
  // What nobody has set is of zero bytes.
  const Row& operator[](size_t row) const { return begin()[row]; }
  // Whole numbers of which all but one are zero add up exactly. Collective.
  void share(Collectives& collectives) { collectives.all_reduce_sum(words_); }

 private:
  Row* begin() const { return static_cast<Row*>(words_.mutable_data_ptr()); }

  at::Tensor words_;
};

}  // namespace optim
