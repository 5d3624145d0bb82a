// The kernels as C functions, for ctypes: bench.py and golden.py call them on tensors of torch.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>

#include <kernels/multi_tensor_update.h>

#include "gpu_check/c_api.h"

namespace {

using namespace kernels;

// Fields as ctypes sees them; kernels.py has the same in the same order.
struct CParam {
  void *grad, *main, *remainder, *state[2], *model, *scale[3];
  int64_t count, rows, columns;
  uint32_t group, stats_index, qkv_rows[3];
  uint8_t grad_type, main_type, state_type[2], model_type;
};

struct Session {
  StepPlan plan;
  std::unique_ptr<DeviceStep> step;
};

double muon_scale(int32_t mode, int64_t rows, int64_t columns) {
  const auto out = static_cast<double>(rows), in = static_cast<double>(columns);
  if (mode == 1) return std::sqrt(out / in);
  if (mode == 2) return std::sqrt(std::max(1.0, out / in));
  return std::sqrt(std::max(out, in));
}

StepParam param_of(const CParam& c) {
  StepParam param = {};
  param.slot.grad = c.grad;
  param.slot.main = c.main;
  param.slot.remainder = c.remainder;
  param.slot.model = c.model;
  for (int i = 0; i < 2; ++i) param.slot.state[i] = c.state[i];
  for (int i = 0; i < 3; ++i) param.slot.scale[i] = static_cast<StateScale*>(c.scale[i]);
  param.slot.count = c.count;
  param.slot.group = c.group;
  param.slot.stats_index = c.stats_index;
  param.types.grad = static_cast<ElementType>(c.grad_type);
  param.types.main = static_cast<ElementType>(c.main_type);
  for (int i = 0; i < 2; ++i) param.types.state[i] = static_cast<ElementType>(c.state_type[i]);
  param.types.model = static_cast<ElementType>(c.model_type);
  param.rows = c.rows;
  param.columns = c.columns;
  std::copy(c.qkv_rows, c.qkv_rows + 3, param.qkv_rows);
  return param;
}

}  // namespace

StepGroup group_of(const CGroup& c) {
  StepGroup group;
  group.settings = {c.lr,
                    c.weight_decay,
                    c.beta1,
                    c.beta2,
                    c.eps,
                    c.step,
                    static_cast<RuleKind>(c.rule),
                    static_cast<Decay>(c.decay),
                    c.bias_correction != 0,
                    c.nesterov != 0};
  for (int i = 0; i < std::min(c.ns_steps, kStepsMax); ++i) {
    const auto& k = c.coefficients[i];
    group.muon.coefficients.push_back({k[0], k[1], k[2]});
  }
  group.muon.type = static_cast<ElementType>(c.ns_type);
  group.muon.tf32 = c.tf32 != 0;
  group.muon.mirrored_products = true;
  group.muon.extra_scale = c.extra_scale;
  const int32_t mode = c.scale_mode;
  group.muon.scale = [mode](int64_t rows, int64_t columns) {
    return muon_scale(mode, rows, columns);
  };
  return group;
}

NewtonSchulzShape shape_of(const int64_t* numbers, int type) {
  NewtonSchulzShape shape = {numbers[0], numbers[1], numbers[2], static_cast<ElementType>(type),
                             false};
  shape.allows_mirrored = true;
  if (numbers[3] < -1) {
    shape.gram_by = shape.polynomial_by =
        numbers[3] == -2 ? SymmetricBy::TilesAlone : SymmetricBy::TilesInPairs;
    return shape;
  }
  shape.gram_block = shape.polynomial_block = numbers[3];
  if (numbers[3] >= 0) return shape;
  choose_blocks({}, {}, {}, shape);  // an H100's; on a device its own
  return shape;
}

SymmetricShape gram_of(const NewtonSchulzShape& shape) {
  return {std::min(shape.rows, shape.columns),
          std::max(shape.rows, shape.columns),
          shape.batch,
          shape.type,
          shape.tf32,
          {},
          true};
}

void model_of(const DeviceRates& rates, const SymmetricShape& gram, int64_t block,
              double* numbers) {
  numbers[0] = product_seconds(rates, gram, gram.edge, gram.edge);
  numbers[1] = block == 0 ? numbers[0] : cut_seconds(rates, gram, block);
  numbers[2] = mirrored_seconds(rates, gram, TileDeal::Alone);
  numbers[3] = mirrored_seconds(rates, gram, TileDeal::Pairs);
  numbers[4] = static_cast<double>(gram.tile.rows);
  numbers[5] = static_cast<double>(gram.tile.columns);
}

CKPT_C_API const char* sw_problem() { return device_api().problem(); }
CKPT_C_API const char* sw_status_text(int status) { return device_api().status_text(status); }

CKPT_C_API uint64_t sw_group_bytes() { return sizeof(CGroup); }
CKPT_C_API uint64_t sw_param_bytes() { return sizeof(CParam); }

CKPT_C_API Session* sw_new() { return new Session; }
CKPT_C_API void sw_free(Session* session) { delete session; }
CKPT_C_API void sw_add_group(Session* session, const CGroup* group) {
  session->plan.groups.push_back(group_of(*group));
}
CKPT_C_API void sw_add_param(Session* session, const CParam* param) {
  session->plan.params.push_back(param_of(*param));
  if (param->stats_index != kNoStats) {
    session->plan.stats_count = std::max(session->plan.stats_count, param->stats_index + 1);
  }
}
CKPT_C_API int sw_make(Session* session, uint64_t* bytes) {
  DeviceStatus status = 0;
  session->step = device_api().make_step(session->plan, status);
  if (session->step) *bytes = session->step->device_bytes();
  return status;
}
CKPT_C_API int sw_bind(Session* session, void* memory, void* stream) {
  return session->step->bind(memory, stream);
}
CKPT_C_API int sw_set_control(Session* session, float inverse_scale, float max_norm, void* stream) {
  return session->step->set_control({inverse_scale, max_norm, false}, stream);
}
CKPT_C_API int sw_stats(Session* session, void* stream) {
  return session->step->queue_stats(stream);
}
CKPT_C_API int sw_update(Session* session, void* stream) {
  return session->step->queue_update(0, stream);
}
// Host seconds of a step's four calls; < 0: one of them failed.
CKPT_C_API double sw_queue_seconds(Session* session, void* stream) {
  const std::vector<GroupRates> rates(session->plan.groups.size(), {1e-3, 0.1});
  const auto begin = std::chrono::steady_clock::now();
  const bool is_queued = session->step->set_rates(rates, stream) == 0 &&
                         session->step->set_control({1, 1, false}, stream) == 0 &&
                         session->step->queue_stats(stream) == 0 &&
                         session->step->queue_update(0, stream) == 0;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  return is_queued ? took.count() : -1;
}
CKPT_C_API int sw_capture(Session* session) { return session->step->capture(); }
