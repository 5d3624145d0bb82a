#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <optim/optimized_param.h>
#include <optim/process_groups.h>
#include <optim/update_rule.h>

#include "step/communication/collectives.h"

// Which parameters are parts of matrices that tensor-parallel ranks update together.
namespace optim {

// Of a parameter: for experts the group of their own, where there is one.
const ProcessGroupPtr& tensor_parallel_group(const ParamInfo& info,
                                             const ProcessGroupCollection& groups);

// Whether another tensor-parallel rank counts its gradient: one that is not split is the same on
// all of them, and the first counts it. The same on all processes that share the parameter.
bool is_duplicate(const ParamInfo& info, const ProcessGroupCollection& groups);

// Of one process. Methods are collective over tp and expt_tp, but for Blockwise, where no parameter
// is shared and nothing is sent.
class MatrixSplits {
 public:
  // Sets the `split` of all parameters that are shared: parts of matrices of rules with tp_modes
  // whose group has several processes. `all`: the groups with all parameters, not only those that
  // this process will own. Throws Error(InvalidArgument), with the parameter's name, where the
  // ranks of a group have other parameters, where shapes do not fit each other, and for a part
  // without partition_dim.
  MatrixSplits(const std::vector<OptimizerGroup*>& all, MuonTpMode mode,
               const ProcessGroupCollection& groups, const Collectives& failures);

  // By which owners are dealt: the shape that the first tensor-parallel rank has.
  std::vector<int64_t> dealt_shape(const ParamInfo& info) const;

  // Throws Error(InvalidArgument) where other ranks of a group update other parts than this one.
  void check_owners(const std::vector<OptimizedParam*>& updated_here);
  // The name of a part, updated here, of which some ranks have a gradient and some have not.
  std::optional<std::string> part_without_grad(const std::vector<OptimizedParam*>& updated_here);

  bool are_shared() const { return !ranks_.empty(); }

 private:
  struct Ranks {                  // of a group with several processes
    const void* group = nullptr;  // its address
    Collectives collectives;
    std::shared_ptr<MatrixRanks> matrix_ranks;
  };
  void share(const std::vector<OptimizerGroup*>& all, MuonTpMode mode, Ranks& ranks);
  std::vector<OptimizedParam*> shared_by(const Ranks& ranks,
                                         const std::vector<OptimizedParam*>& params) const;

  ProcessGroupCollection groups_;
  std::vector<Ranks> ranks_;
  std::map<std::string, std::vector<int64_t>> first_shapes_;  // by name
};

}  // namespace optim
