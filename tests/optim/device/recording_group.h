#pragma once

#include <optim/process_groups.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace optim {

// What one rank does, in order.
using Log = std::vector<std::string>;

// In the place of NCCL, which needs a GPU: a backend that groups operations, as NCCL's does, writes
// down what it is asked for, and lets Gloo do it. NCCL hangs where two ranks ask for different
// things; here their logs differ.
class RecordingBackend final : public c10d::Backend {
 public:
  RecordingBackend(ProcessGroupPtr gloo, std::shared_ptr<Log> log)
      : Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)), log_(std::move(log)) {}

  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  WorkPtr allreduce(std::vector<at::Tensor>& tensors,
                    const c10d::AllreduceOptions& options) override {
    return done("all-reduce", tensors[0], gloo_->allreduce(tensors, options));
  }
  WorkPtr broadcast(std::vector<at::Tensor>& tensors,
                    const c10d::BroadcastOptions& options) override {
    return done("broadcast from " + std::to_string(options.rootRank), tensors[0],
                gloo_->broadcast(tensors, options));
  }
  WorkPtr _allgather_base(at::Tensor& all, at::Tensor& mine,
                          const c10d::AllgatherOptions& options) override {
    return done("all-gather", mine, gloo_->_allgather_base(all, mine, options));
  }
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override {
    log_->push_back("group");
    is_grouping_ = true;
  }
  WorkPtr endCoalescing() override {
    log_->push_back("end of group");
    is_grouping_ = false;
    return c10::make_intrusive<GroupWork>(std::exchange(grouped_, {}));
  }
  const std::string getBackendName() const override { return "recording"; }

 private:
  struct GroupWork final : c10d::Work {
    explicit GroupWork(std::vector<WorkPtr> in_all) : all(std::move(in_all)) {}
    bool wait(std::chrono::milliseconds timeout) override {
      for (const WorkPtr& work : all) work->wait(timeout);
      return true;
    }
    std::vector<WorkPtr> all;
  };

  WorkPtr done(const std::string& name, const at::Tensor& tensor, WorkPtr work) {
    log_->push_back(name + ", " + std::to_string(tensor.nbytes()) + " bytes");
    if (is_grouping_) grouped_.push_back(work);
    return work;
  }

  ProcessGroupPtr gloo_;
  std::shared_ptr<Log> log_;
  bool is_grouping_ = false;
  std::vector<WorkPtr> grouped_;
};

struct RecordedRank {
  ProcessGroupCollection groups;
  std::shared_ptr<Log> log = std::make_shared<Log>();
};

inline std::vector<RecordedRank> make_recorded_groups(int size) {
  std::vector<RecordedRank> ranks;
  GlooOptions options;
  options.network_interface = "lo";
  options.timeout = std::chrono::seconds(60);
  for (const ProcessGroupCollection& gloo : make_in_process_groups(size, options)) {
    RecordedRank rank;
    auto group = c10::make_intrusive<c10d::ProcessGroup>(gloo.dp_cp->getRank(), size);
    group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM,
                      c10::make_intrusive<RecordingBackend>(gloo.dp_cp, rank.log));
    group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
    rank.groups.dp_cp = rank.groups.expt_dp = group;
    ranks.push_back(std::move(rank));
  }
  return ranks;
}

}  // namespace optim
