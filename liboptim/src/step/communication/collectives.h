#pragma once

#include <ATen/core/Tensor.h>

#include <ckpt/error.h>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <optim/export.h>
#include <optim/param_group.h>
#include <optim/process_groups.h>

namespace optim {

// LibTorch's errors end in a C++ stack trace; the first line says what happened.
[[noreturn]] void throw_c10d_error(const char* operation, const std::exception& error);

// Runs `body`; what LibTorch throws becomes Error(IoFailure) that names the operation.
template <class Body>
auto translate_c10d_errors(const char* operation, Body&& body) {
  try {
    return body();
  } catch (const ckpt::Error&) {
    throw;
  } catch (const std::exception& error) {
    throw_c10d_error(operation, error);
  }
}

// The collective operations that the optimizer uses, over one group; on a null group they change
// nothing. All ranks must call in the same order. Tensors on a device for which the group has no
// backend (NCCL knows no CPU, in-process groups no GPU) are copied to one that it has, and back.
// After a failure ranks no longer agree, so that the object refuses every further operation and
// says why (IoFailure).
class Collectives {
 public:
  OPTIM_EXPORT explicit Collectives(const ProcessGroupPtr& group);
  // Only tensors on `devices` travel as they are, by default all: for tests.
  Collectives(const ProcessGroupPtr& group, std::optional<std::vector<at::DeviceType>> devices);
  Collectives(Collectives&&) noexcept;  // out of line, where c10d::ProcessGroup is complete
  OPTIM_EXPORT ~Collectives();

  // A failure of one is a failure of both: for groups of one optimizer.
  void share_failures_with(const Collectives& other) { failure_ = other.failure_; }

  // Whether tensors of such a device travel as they are, without a copy and without waiting.
  bool takes(at::DeviceType type) const;

  int rank() const { return rank_.rank; }
  int size() const { return rank_.size; }

  // In place. Sums of values of which all but one are zero are exact whatever the order.
  OPTIM_EXPORT void all_reduce_sum(at::Tensor& tensor);

  OPTIM_EXPORT void all_reduce_max(at::Tensor& tensor);

  // `all` has size() times the elements of `mine`; both contiguous, of one type.
  void all_gather(at::Tensor& all, at::Tensor& mine);
  OPTIM_EXPORT std::vector<std::string> all_gather(const std::string& mine);

  // Of size() equal parts, in the order of ranks: the r-th of `sent` goes to rank r, the r-th of
  // `received` came from it. Contiguous, of one size and type.
  void all_to_all(at::Tensor& received, at::Tensor& sent);

  OPTIM_EXPORT void broadcast(at::Tensor& tensor, int root);

  // The same without waiting: call what they return, once, before touching the tensors.
  using Wait = std::function<void()>;
  Wait start_all_gather(at::Tensor all, at::Tensor mine);
  Wait start_broadcast(at::Tensor tensor, int root);
  // One behind the other, but as one operation of a backend that groups them, as NCCL does: each by
  // itself would cost a launch and, with other roots, could not share the links.
  struct Broadcast {
    at::Tensor tensor;
    int root;
  };
  Wait start_broadcasts(const std::vector<Broadcast>& all);

 private:
  void all_reduce(at::Tensor& tensor, bool is_max);
  at::Tensor travelling(const at::Tensor& tensor) const;
  bool can_group(at::DeviceType type) const;
  void check_usable() const;
  template <class Body>
  void run(const char* operation, Body&& body);
  template <class Body>
  Wait start(const char* operation, const at::Tensor& tensor, Body&& body);

  ProcessGroupPtr group_;
  ProcessRank rank_;
  std::optional<std::vector<at::DeviceType>> devices_;
  std::shared_ptr<std::string> failure_ = std::make_shared<std::string>();  // empty: none yet
};

// One number of all ranks.
int64_t sum_of(int64_t mine, Collectives& collectives);
int64_t max_of(int64_t mine, Collectives& collectives);

class MatrixRanks;
// A failure of one is a failure of both.
std::shared_ptr<MatrixRanks> make_matrix_ranks(const ProcessGroupPtr& group,
                                               const Collectives& other);

// The keys of all ranks' groups, in rank order: with them every rank makes the same groups in the
// same order, those of which it has no parameter included. Collective. Throws
// Error(InvalidArgument) for a rank that runs another version.
std::vector<GroupKey> gather_group_keys(const ProcessGroupPtr& world,
                                        const std::vector<GroupKey>& mine);

}  // namespace optim
