#pragma once

#include <kernels/device_step.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "fake_cuda.h"

// Plans over tensors in host memory, for steps on the fake and by the twins.
namespace plans {

using kernels::ElementType;
using kernels::RuleKind;

// A fixture: the fake as a GPU of 132 multiprocessors that only remembers calls.
struct Fresh {
  Fresh() {
    fake_cuda::reset();
    fake_cuda::set_executes(false);
    fake_cuda::set_multiprocessors(132);
  }
};

// A fixture: one that runs the kernels' twins.
struct Executing {
  Executing() {
    fake_cuda::reset();
    fake_cuda::set_multiprocessors(2);
    fake_cuda::set_executes(true);
  }
  ~Executing() { fake_cuda::set_executes(false); }
};

// Beside one of these: memory so slow that the kernel that reads least is the fastest by the model,
// which of small matrices is our own.
struct SlowMemory {
  SlowMemory() { fake_cuda::set_memory_kilohertz(1); }
  ~SlowMemory() { fake_cuda::set_memory_kilohertz(2619000); }
};

// All tensors of a plan, with the same values in every object that is made in the same way.
class Model {
 public:
  kernels::StepPlan plan;

  uint32_t add_group(RuleKind rule, ElementType products = ElementType::F32) {
    kernels::StepGroup group;
    kernels::GroupSettings& settings = group.settings;
    settings.rule = rule;
    settings.lr = 0.01;
    settings.weight_decay = 0.1;
    settings.beta1 = 0.9;
    settings.beta2 = 0.95;
    settings.eps = 1e-8;
    settings.rates_index = static_cast<uint32_t>(plan.groups.size());
    group.muon.type = products;
    group.muon.coefficients.assign(2, {3.4445F, -4.775F, 2.0315F});
    group.muon.scale = [](int64_t rows, int64_t columns) {
      return std::sqrt(static_cast<double>(std::max(rows, columns)));
    };
    plan.groups.push_back(group);
    return static_cast<uint32_t>(plan.groups.size() - 1);
  }

  void add(uint32_t group, int64_t rows, int64_t columns, kernels::TensorTypes types) {
    kernels::StepParam param;
    param.types = types;
    param.rows = rows;
    param.columns = columns;
    kernels::TensorSlot& slot = param.slot;
    slot.count = rows * columns;
    slot.group = group;
    slot.stats_index = plan.stats_count++;
    slot.grad = tensor(slot.count, types.grad, 1);
    slot.main = tensor(slot.count, types.main, 1);
    for (int i = 0; i < 2; ++i) {
      slot.state[i] = tensor(slot.count, types.state[i], 0);
      slot.scale[1 + i] = scale_of(types.state[i]);
    }
    if (types.main == ElementType::SplitF32) slot.remainder = tensor(slot.count, types.main, 0);
    slot.model = tensor(slot.count, types.model, 0);
    plan.params.push_back(param);
  }

  // The same gradients at other addresses.
  std::vector<const void*> moved_grads() {
    std::vector<const void*> grads;
    for (const kernels::StepParam& param : plan.params) {
      const auto bytes =
          static_cast<size_t>(param.slot.count) * kernels::bytes_of(param.types.grad);
      void* const copy = room(bytes + 4);
      void* const unaligned = static_cast<std::byte*>(copy) + 4;
      std::memcpy(unaligned, param.slot.grad, bytes);
      grads.push_back(unaligned);
    }
    return grads;
  }

  std::vector<kernels::GroupRates> rates(double lr) const {
    return std::vector<kernels::GroupRates>(plan.groups.size(), {lr, 0.1});
  }

  // All bytes but those of gradients that were moved to later.
  std::vector<std::vector<uint64_t>> contents() const { return {memory_.begin(), memory_.end()}; }

 private:
  void* room(size_t bytes) {
    memory_.emplace_back((bytes + 15) / 16 * 2);
    return memory_.back().data();
  }

  void* tensor(int64_t count, ElementType type, float deviation) {
    if (type == ElementType::None) return nullptr;
    const auto bytes = static_cast<size_t>(kernels::bytes_of(type));
    auto* const values = static_cast<std::byte*>(room(static_cast<size_t>(count) * bytes));
    std::normal_distribution<float> normal(0, 1);
    for (int64_t i = 0; deviation > 0 && i < count; ++i) {
      const float value = deviation * normal(random_);
      uint32_t bits = 0;
      std::memcpy(&bits, &value, sizeof bits);
      if (bytes == 2) bits >>= 16;  // bf16, cut off; the upper half of SplitF32
      std::memcpy(values + static_cast<size_t>(i) * bytes, &bits, bytes);
    }
    return values;
  }

  kernels::StateScale* scale_of(ElementType type) {
    if (!kernels::is_scaled(type)) return nullptr;
    auto* const scale = static_cast<kernels::StateScale*>(room(sizeof(kernels::StateScale)));
    *scale = {1, 0};
    return scale;
  }

  std::mt19937 random_{7};
  std::deque<std::vector<uint64_t>> memory_;
};

constexpr ElementType kNone = ElementType::None, kF32 = ElementType::F32, kBF16 = ElementType::BF16;
constexpr kernels::TensorTypes kMixed = {kBF16, kF32, {kF32, kF32}, kBF16};
constexpr kernels::TensorTypes kMomentum = {kBF16, kF32, {kF32, kNone}, kBF16};

inline void add_adam(Model& model) {
  const uint32_t group = model.add_group(RuleKind::Adam);
  for (const int64_t count : {37, 20000, 64}) model.add(group, 1, count, kMixed);
}

inline void add_fp8(Model& model) {
  const uint32_t group = model.add_group(RuleKind::FusedAdam);
  for (const int64_t count : {40, 333}) {
    model.add(group, 1, count,
              {kBF16, ElementType::SplitF32, {ElementType::F8E4M3, ElementType::F16}, kNone});
  }
}

inline void add_muon(Model& model, ElementType products) {
  const uint32_t group = model.add_group(RuleKind::Muon, products);
  for (int i = 0; i < 3; ++i) model.add(group, 12, 20, kMomentum);
  model.add(group, 24, 10, kMomentum);
  model.plan.params.back().qkv_rows[0] = 4;
  model.plan.params.back().qkv_rows[1] = model.plan.params.back().qkv_rows[2] = 2;
}

// Long matrices, iterated on their Gram matrices, and one that is not long enough; parts of a fused
// one that are.
inline void add_gram(Model& model, ElementType products) {
  const uint32_t group = model.add_group(RuleKind::Muon, products);
  kernels::MuonSettings& muon = model.plan.groups[group].muon;
  muon.on_gram = true;
  muon.coefficients.resize(4, {2, -1.5F, 0.5F});
  muon.coefficients.push_back({2.5F, -1.5F, 0});
  for (const auto& [rows, columns] : {std::pair{12, 30}, {12, 30}, {30, 12}, {12, 20}}) {
    model.add(group, rows, columns, kMomentum);
  }
  model.add(group, 24, 26, kMomentum);
  model.plan.params.back().qkv_rows[0] = 4;
  model.plan.params.back().qkv_rows[1] = model.plan.params.back().qkv_rows[2] = 2;
}

inline std::unique_ptr<Model> whole_model() {
  auto model = std::make_unique<Model>();
  add_adam(*model);
  add_fp8(*model);
  add_muon(*model, kF32);
  return model;
}

// Whose symmetric products a kernel of our own may compute; of one shape it cannot.
inline std::unique_ptr<Model> mirrored_model() {
  auto model = std::make_unique<Model>();
  const uint32_t group = model->add_group(RuleKind::Muon, kBF16);
  model->plan.groups[group].muon.mirrored_products = true;
  for (int i = 0; i < 2; ++i) model->add(group, 136, 72, kMomentum);
  model->add(group, 72, 136, kMomentum);
  model->add(group, 12, 20, kMomentum);
  return model;
}

// Deals the parameters to so many parts in turn.
inline void deal_to_parts(Model& model, uint32_t parts) {
  model.plan.part_count = parts;
  for (size_t i = 0; i < model.plan.params.size(); ++i) {
    model.plan.params[i].part = static_cast<uint32_t>(i % parts);
  }
}

// A step on the fake with its device memory.
class FakeStep {
 public:
  // A status that is not 0 ends it: what failed first, and nothing is called after it.
  kernels::DeviceStatus status = 0;

  explicit FakeStep(const kernels::StepPlan& plan) {
    step_ = kernels::device_api().make_step(plan, status);
    if (status != 0) return;
    size_t room = step_->device_bytes() + kAlignment;
    memory_ = std::make_unique_for_overwrite<std::byte[]>(room);
    void* place = memory_.get();
    then(step_->bind(std::align(kAlignment, step_->device_bytes(), place, room), nullptr));
    part_count_ = plan.part_count;
  }

  void capture() {
    if (status == 0) then(step_->capture());
  }
  void take(const std::vector<kernels::GroupRates>& rates,
            const kernels::ControlSettings& settings = {},
            const std::vector<const void*>& grads = {}) {
    if (status == 0) then(step_->set_rates(rates, nullptr));
    if (status == 0) then(step_->set_control(settings, nullptr));
    if (status == 0 && !grads.empty()) then(step_->set_grads(grads, nullptr));
    if (status == 0) then(step_->queue_stats(nullptr));
    for (uint32_t part = 0; part < part_count_ && status == 0; ++part) {
      then(step_->queue_update(part, nullptr));
    }
  }
  kernels::DeviceStep& step() { return *step_; }
  std::string text() const { return kernels::device_api().status_text(status); }

 private:
  static constexpr size_t kAlignment = 256;
  void then(kernels::DeviceStatus found) { status = found; }

  std::unique_ptr<kernels::DeviceStep> step_;
  std::unique_ptr<std::byte[]> memory_;
  uint32_t part_count_ = 1;
};

}  // namespace plans
