#pragma once

#include <deque>
#include <vector>

#include <optim/optimizer.h>

namespace optim {

// Updates of ranges of parameters, with the bits of updates of whole ones. ATen rounds differently
// in the remainder behind its vectors, so that each element must lie at the same place among
// vectors as in the whole parameter: what is left of a block of 64 elements at the ends of a range
// is updated in a block of its own, whose other elements are zeros.
class RangeItems {
 public:
  // `item`: of `param`, whose states exist. Throws nothing; tensors are views of the parameter's.
  void add(const UpdateItem& item, const OptimizedParam& param);
  std::vector<UpdateItem>& items() { return items_; }
  void write_back();  // once the items are updated

 private:
  struct Edge {
    UpdateItem of_param;
    int64_t from = 0, count = 0;  // elements of the parameter's range
    int64_t at = 0;               // in the block
    ParamState state = {};
    size_t item = 0;
  };
  void add_middle(const UpdateItem& item, int64_t from, int64_t count);
  void add_edge(const UpdateItem& item, const OptimizedParam& param, int64_t from, int64_t count);

  std::vector<UpdateItem> items_;
  std::deque<ParamState> middle_states_;  // stay where they are
  std::deque<Edge> edges_;
};

}  // namespace optim
