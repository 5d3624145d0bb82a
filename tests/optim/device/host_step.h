#pragma once

#include <kernels/device_step.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "host_copies_twin.h"
#include "kernels/muon_twin.h"
#include "kernels/stats_twin.h"
#include "kernels/update_twin.h"
#include "step_tables.h"

namespace optim {

// A DeviceStep that runs the kernels' CPU twins at once on host memory: what stands for the GPU
// where there is none.
class HostStep : public kernels::DeviceStep {
 public:
  explicit HostStep(kernels::StepPlan plan)
      : plan_(std::move(plan)),
        tables_(kernels::make_param_tables(plan_)),
        batches_(kernels::make_muon_batches(plan_)),
        stats_(std::max(plan_.stats_count, 1U)) {
    for (const kernels::StepGroup& group : plan_.groups) groups_.push_back(group.settings);
    ++made;
  }

  uint64_t device_bytes() const override { return 256; }
  kernels::DeviceStatus bind(void*, kernels::DeviceStream) override { return 0; }
  kernels::DeviceStatus set_rates(const std::vector<kernels::GroupRates>& rates,
                                  kernels::DeviceStream) override {
    for (size_t i = 0; i < rates.size(); ++i) {
      groups_[i].lr = rates[i].lr;
      groups_[i].weight_decay = rates[i].weight_decay;
    }
    return 0;
  }
  kernels::DeviceStatus set_control(const kernels::ControlSettings& settings,
                                    kernels::DeviceStream) override {
    control_.inverse_loss_scale = settings.inverse_loss_scale;
    control_.max_norm = settings.max_norm;
    control_.check_finite = settings.check_finite ? 1 : 0;
    return 0;
  }
  kernels::DeviceStatus read_from(const kernels::DeviceSources& sources) override {
    sources_ = sources;
    return 0;
  }
  kernels::DeviceStatus warm_up() override { return 0; }
  kernels::DeviceStatus queue_stats(kernels::DeviceStream) override {
    for (kernels::GroupSettings& group : groups_) {
      if (sources_.rates == nullptr) break;
      group.lr = sources_.rates[group.rates_index].lr;
      group.weight_decay = sources_.rates[group.rates_index].weight_decay;
    }
    if (sources_.loss_scale != nullptr) {
      control_.inverse_loss_scale = kernels::inverse_of_loss_scale(*sources_.loss_scale);
    }
    std::fill(stats_.begin(), stats_.end(), kernels::TensorStats{0, 0});
    for (const kernels::ParamTable& table : tables_) {
      for (const kernels::TensorSlot& slot : table.slots) {
        if (slot.stats_index == kernels::kNoStats) continue;
        stats_[slot.stats_index] =
            kernels::stats_twin(slot, table.types.grad, control_.inverse_loss_scale);
      }
    }
    return 0;
  }
  kernels::DeviceStatus set_grads(const std::vector<const void*>& grads,
                                  kernels::DeviceStream) override {
    for (kernels::ParamTable& table : tables_) move_grads(table.slots, table.params, grads);
    for (kernels::MuonBatch& batch : batches_) move_grads(batch.matrices, batch.params, grads);
    return 0;
  }
  kernels::DeviceStatus queue_update(uint32_t part, kernels::DeviceStream) override {
    if (part == 0) begin_update();
    if (control_.skip != 0) return 0;
    for (const kernels::ParamTable& table : tables_) {
      if (table.rule == kernels::RuleKind::Muon || table.part != part) continue;
      for (const kernels::TensorSlot& slot : table.slots) {
        const kernels::RuleScalars scalars = kernels::make_scalars(groups_[slot.group]);
        kernels::update_twin({table.types, table.rule, scalars, control_}, slot);
      }
    }
    for (const kernels::MuonBatch& batch : batches_) {
      if (batch.part != part) continue;
      for (const kernels::MuonMatrix& matrix : batch.matrices) update_matrix(batch, matrix);
    }
    return 0;
  }
  kernels::DeviceStatus capture() override {
    ++captures;
    return 0;
  }
  kernels::TensorStats* stats() const override { return stats_.data(); }
  const kernels::StepControl* control() const override { return &control_; }
  const kernels::GroupSettings* groups() const override { return groups_.data(); }

  static inline int captures = 0;  // of all steps
  static inline int made = 0;

 protected:
  void begin_update() {
    kernels::control_twin(control_, stats_);
    if (control_.skip == 0) count_step();
  }
  void count_step() {
    for (kernels::GroupSettings& group : groups_) ++group.step;
  }

 private:
  template <class Entry>
  static void move_grads(std::vector<Entry>& entries, const std::vector<size_t>& params,
                         const std::vector<const void*>& grads) {
    for (size_t i = 0; i < entries.size(); ++i) {
      entries[i].grad = grads[params[i]];
      entries[i].is_aligned = kernels::is_aligned(entries[i]) ? 1 : 0;
    }
  }

  void update_matrix(const kernels::MuonBatch& batch, kernels::MuonMatrix matrix) const {
    const auto count = static_cast<size_t>(kernels::count_of(matrix));
    const auto edge = static_cast<size_t>(std::min(matrix.rows, matrix.columns));
    std::vector<float> iterate(count), next(count), gram(edge * edge), polynomial(gram),
        factor(gram), spare(gram);
    const kernels::NewtonSchulzBuffers buffers = {iterate.data(),    next.data(), gram.data(),
                                                  polynomial.data(), nullptr,     factor.data(),
                                                  spare.data()};
    const auto& coefficients = batch.settings->coefficients;
    matrix.iterate = buffers.iterate;
    matrix.update = kernels::newton_schulz_result(buffers, batch.multiplications());
    const kernels::GroupSettings& group = groups_[matrix.group];
    const kernels::MuonTwin twin = {
        batch.types,
        {kernels::make_scalars(group), control_.inverse_loss_scale, control_.clip, group.nesterov}};
    twin.prepare(matrix);
    kernels::NewtonSchulzShape shape = batch.shape;  // in blocks of 0: in full
    shape.batch = 1;
    kernels::newton_schulz_twin(shape, buffers, coefficients);
    twin.finish(matrix);
  }

  kernels::StepPlan plan_;
  kernels::DeviceSources sources_;
  std::vector<kernels::ParamTable> tables_;
  std::vector<kernels::MuonBatch> batches_;
  std::vector<kernels::GroupSettings> groups_;
  mutable std::vector<kernels::TensorStats> stats_;
  kernels::StepControl control_;
};

inline std::unique_ptr<kernels::DeviceStep> make_host_step(kernels::StepPlan plan,
                                                           kernels::DeviceStatus& status) {
  status = kernels::makes_sense(plan) ? 0 : 1;
  if (status != 0) return nullptr;
  return std::make_unique<HostStep>(std::move(plan));
}

// The api that a DeviceStepper can be given instead of the GPU's.
inline const kernels::DeviceApi& host_api() {
  static const kernels::DeviceApi api = {[]() -> const char* { return nullptr; },
                                         [](kernels::DeviceStatus) { return "refused"; },
                                         make_host_step,
                                         make_copies_twin,
                                         pin_twin,
                                         unpin_twin};
  return api;
}

}  // namespace optim
