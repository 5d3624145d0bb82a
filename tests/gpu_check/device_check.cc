// Compares every kernel with its CPU twin on the GPU of this machine. Needs nothing but the CUDA
// runtime. --quick: fewer sizes, for sanitizers; --device-only: is there a GPU?
// Exit codes: 0 all equal, 1 a difference, 77 no GPU.
#include <cmath>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "gpu_check/check_callers_graph.h"
#include "gpu_check/check_mirrored.h"
#include "gpu_check/check_products.h"
#include "gpu_check/device_tensors.h"
#include "kernels/muon_twin.h"
#include "kernels/stats_twin.h"

namespace gpu_check {
namespace {

using namespace kernels;

constexpr ElementType kNone = ElementType::None, kF32 = ElementType::F32, kBF16 = ElementType::BF16,
                      kF16 = ElementType::F16, kF8 = ElementType::F8E4M3,
                      kSplit = ElementType::SplitF32;

struct UpdateCase {
  const char* name;
  RuleKind rule;
  Decay decay;
  TensorTypes types;
};

const UpdateCase kUpdateCases[] = {
    {"adamw", RuleKind::Adam, Decay::Decoupled, {kF32, kF32, {kF32, kF32}, kBF16}},
    {"adamw, bf16 gradients", RuleKind::Adam, Decay::Decoupled, {kBF16, kF32, {kF32, kF32}, kBF16}},
    {"adam l2, fp16 model", RuleKind::Adam, Decay::L2, {kF16, kF32, {kF32, kF32}, kF16}},
    {"adamw, split master", RuleKind::Adam, Decay::Decoupled, {kF32, kSplit, {kF32, kF32}, kNone}},
    {"adamw, split master, bf16 gradients",
     RuleKind::Adam,
     Decay::Decoupled,
     {kBF16, kSplit, {kF32, kF32}, kNone}},
    {"adamw, bf16 states", RuleKind::Adam, Decay::Decoupled, {kF32, kF32, {kBF16, kBF16}, kBF16}},
    {"adamw, split, bf16 states",
     RuleKind::Adam,
     Decay::Decoupled,
     {kBF16, kSplit, {kBF16, kBF16}, kNone}},
    {"adamw, fp16 states", RuleKind::Adam, Decay::Decoupled, {kBF16, kF32, {kF16, kF16}, kBF16}},
    {"adamw, fp8 states", RuleKind::Adam, Decay::Decoupled, {kBF16, kF32, {kF8, kF8}, kBF16}},
    {"adamw, split, fp8 states",
     RuleKind::Adam,
     Decay::Decoupled,
     {kBF16, kSplit, {kF8, kF8}, kNone}},
    {"adamw, fp8 and bf16 states",
     RuleKind::Adam,
     Decay::Decoupled,
     {kF32, kSplit, {kF8, kBF16}, kNone}},
    {"adamw, bf16 parameters",
     RuleKind::Adam,
     Decay::Decoupled,
     {kBF16, kBF16, {kBF16, kBF16}, kNone}},
    {"adamw, fp16 master", RuleKind::Adam, Decay::Decoupled, {kF32, kF16, {kF32, kF32}, kBF16}},
    {"fused adamw", RuleKind::FusedAdam, Decay::Decoupled, {kBF16, kF32, {kF32, kF32}, kBF16}},
    {"fused adam l2", RuleKind::FusedAdam, Decay::L2, {kF32, kF32, {kF32, kF32}, kNone}},
    {"sgd", RuleKind::Sgd, Decay::L2, {kF32, kF32, {kF32, kNone}, kBF16}},
    {"sgd without momentum", RuleKind::Sgd, Decay::L2, {kBF16, kF32, {kNone, kNone}, kBF16}},
    {"lion", RuleKind::Lion, Decay::Decoupled, {kBF16, kF32, {kF32, kNone}, kBF16}},
    {"lion palm, bf16 state", RuleKind::Lion, Decay::Palm, {kF32, kSplit, {kBF16, kNone}, kNone}},
};

struct Sizes {
  const char* name;
  std::vector<int64_t> counts;
  size_t skew_bytes;
};

const Sizes kSizes[] = {
    {"chunks and tails", {16384, 16387, 5, 0, 100001}, 0},
    {"one element", {1}, 0},
    {"not aligned to 16 bytes", {4099, 20000}, 4},
    // More chunks than any device has blocks (528 on an H100): every loop takes a second turn.
    {"many small tensors", std::vector<int64_t>(1300, 77), 0},
};

// Two steps on the device and by the twins, clipped by the norm.
std::string check_update(const UpdateCase& c, const Sizes& sizes) {
  StepPlan plan = plan_of(settings_of(c.rule, c.decay));
  std::vector<SlotMemory> expected;
  std::vector<DeviceSlot> device;
  for (const int64_t count : sizes.counts) {
    expected.push_back(random_slot(c.types, count, static_cast<unsigned>(expected.size() + 1)));
    device.emplace_back(expected.back(), c.types, sizes.skew_bytes);
    StepParam param = {};
    param.slot = device.back().slot();
    param.slot.stats_index = plan.stats_count++;
    param.types = c.types;
    plan.params.push_back(param);
  }
  GroupSettings settings = plan.groups[0].settings;
  const BoundStep step(plan);
  StepControl control;
  control.inverse_loss_scale = 0.5F;
  control.max_norm = 0.01F;
  require(step->set_control({control.inverse_loss_scale, control.max_norm, true}, nullptr),
          "set_control");
  for (int i = 0; i < 2; ++i) {
    step.run();
    std::vector<TensorStats> stats;
    for (SlotMemory& memory : expected) {
      stats.push_back(stats_twin(memory.slot(c.types), c.types.grad, control.inverse_loss_scale));
    }
    control_twin(control, stats);
    settings.step += 1;
    for (SlotMemory& memory : expected) {
      update_twin({c.types, c.rule, make_scalars(settings), control}, memory.slot(c.types));
    }
  }
  const StepControl found = step.control();
  if (found.grad_norm != control.grad_norm) return "the norm differs";
  if (found.zero_count != control.zero_count) return "the zero count differs";
  if (found.clip != control.clip) return "the clip factor differs";
  for (size_t i = 0; i < device.size(); ++i) {
    const std::string problem = difference(device[i].read(), expected[i]);
    if (!problem.empty()) return "tensor " + std::to_string(i) + ": " + problem;
  }
  return "";
}

// A replayed graph equals launches, and follows rates and scale that change between replays.
std::string check_graph() {
  const TensorTypes types = {kBF16, kF32, {kF32, kF32}, kBF16};
  const SlotMemory start = random_slot(types, 50000, 1);
  std::vector<SlotMemory> results;
  for (const bool captured : {false, true}) {
    DeviceSlot device(start, types);
    StepPlan plan = plan_of(settings_of(RuleKind::Adam, Decay::Decoupled));
    StepParam param = {};
    param.slot = device.slot();
    param.types = types;
    plan.params = {param};
    plan.stats_count = 1;
    const BoundStep step(plan);
    if (captured) require(step->capture(), "capture");
    for (int i = 0; i < 4; ++i) {
      require(step->set_rates({{1e-2 / (i + 1), 0.1 * i}}, nullptr), "set_rates");
      require(step->set_control({1.0F / static_cast<float>(1 << i), 1.0F, true}, nullptr),
              "set_control");
      step.run();
    }
    results.push_back(device.read());
  }
  if (results[0].tensors == start.tensors) return "nothing moved";
  return difference(results[1], results[0]);
}

// A step with an infinite gradient under loss scaling changes nothing and is not counted.
std::string check_skipped() {
  const TensorTypes types = {kF32, kF32, {kF8, kF16}, kBF16};
  SlotMemory start = random_slot(types, 40000, 1);
  store_bits(start.tensors[SlotMemory::Grad].data(), 39999, kF32, bits_of_float(INFINITY));
  DeviceSlot device(start, types);
  StepPlan plan = plan_of(settings_of(RuleKind::Adam, Decay::Decoupled));
  StepParam param = {};
  param.slot = device.slot();
  param.types = types;
  plan.params = {param};
  plan.stats_count = 1;
  const BoundStep step(plan);
  require(step->set_control({1, 1, true}, nullptr), "set_control");
  step.run();
  if (step.control().skip != 1) return "the step was not skipped";
  if (download<GroupSettings>(step->groups(), 1)[0].step != 2) return "the step was counted";
  return difference(device.read(), start);
}

struct MuonCase {
  const char* name;
  int64_t rows, columns;
  uint32_t qkv_rows[3];
  int matrices;
  ElementType iterate;
  bool nesterov;
  Decay decay;
  double tolerance;  // of the parameters' change, relative Frobenius; products sum in other orders
  bool on_gram = false;
};

const MuonCase kMuonCases[] = {
    {"wide bf16", 64, 256, {}, 1, kBF16, false, Decay::Decoupled, 3e-2},
    {"tall bf16, batched", 256, 64, {}, 5, kBF16, true, Decay::Decoupled, 3e-2},
    {"square fp32", 96, 96, {}, 2, kF32, true, Decay::L2, 1e-4},
    {"odd sizes fp32", 37, 53, {}, 3, kF32, false, Decay::Independent, 1e-4},
    {"fused qkv fp32", 96, 48, {8, 2, 2}, 2, kF32, true, Decay::Decoupled, 1e-4},
    {"above 256, bf16", 300, 520, {}, 1, kBF16, true, Decay::Decoupled, 3e-2},
    {"on Gram matrices, bf16", 64, 256, {}, 3, kBF16, true, Decay::Decoupled, 1e-2, true},
    {"on Gram matrices, tall, odd sizes, fp32", 151, 37, {}, 2, kF32, true, Decay::L2, 1e-3, true},
    {"on the Gram matrix, above 256, bf16", 264, 600, {}, 1, kBF16, true, Decay::Palm, 1e-2, true},
};

MuonSettings muon_of(const MuonCase& c) {
  MuonSettings muon;
  muon.coefficients = {{4.0848F, -6.8946F, 2.9270F},
                       {3.9505F, -6.3029F, 2.6377F},
                       {3.7418F, -5.5913F, 2.3037F},
                       {2.8769F, -3.1427F, 1.2046F},
                       {2.8366F, -3.0525F, 1.2012F}};
  muon.type = c.iterate;
  muon.on_gram = c.on_gram;
  muon.mirrored_products = true;
  muon.scale = [](int64_t rows, int64_t columns) {
    return std::sqrt(static_cast<double>(std::max(rows, columns)));
  };
  muon.extra_scale = 0.2;
  return muon;
}

// One Muon step of a weight by the twins: part by part.
void muon_twin(const MuonCase& c, const MuonTwin& twin, const TensorSlot& slot,
               const MuonSettings& settings) {
  const uint32_t group_rows = c.qkv_rows[0] + c.qkv_rows[1] + c.qkv_rows[2];
  uint32_t first_row = 0;
  for (int part = 0; part < (group_rows == 0 ? 1 : 3); ++part) {
    MuonMatrix m = {};
    m.grad = slot.grad;
    m.main = slot.main;
    m.momentum = slot.state[0];
    m.model = slot.model;
    m.columns = c.columns;
    m.part_rows = group_rows == 0 ? static_cast<uint32_t>(c.rows) : c.qkv_rows[part];
    m.group_rows = group_rows == 0 ? static_cast<uint32_t>(c.rows) : group_rows;
    m.rows = c.rows / m.group_rows * m.part_rows;
    m.first_row = first_row;
    first_row += m.part_rows;
    m.scale = static_cast<float>(settings.scale(m.rows, m.columns));
    m.extra_scale = static_cast<float>(settings.extra_scale);
    std::vector<float> iterate(static_cast<size_t>(count_of(m))), next(iterate),
        gram(2 * iterate.size()), polynomial(gram), factor(gram), spare(gram);
    const NewtonSchulzBuffers buffers = {iterate.data(),    next.data(), gram.data(),
                                         polynomial.data(), nullptr,     factor.data(),
                                         spare.data()};
    const NewtonSchulzShape shape = {m.rows, m.columns, 1, twin.types.iterate,
                                     false,  0,         0, c.on_gram};
    const auto steps = static_cast<int>(settings.coefficients.size());
    m.iterate = buffers.iterate;
    m.update = newton_schulz_result(buffers, multiplications_of(shape, steps));
    twin.prepare(m);
    newton_schulz_twin(shape, buffers, settings.coefficients);
    twin.finish(m);
  }
}

std::string compare_change(const SlotMemory& found, const SlotMemory& expected,
                           const SlotMemory& start, double tolerance) {
  if (found.tensors[SlotMemory::State0] != expected.tensors[SlotMemory::State0]) {
    return "the momentum differs";
  }
  double difference = 0, change = 0;
  for (int64_t i = 0; i < start.count; ++i) {
    const auto value = [&](const SlotMemory& memory) {
      return double{decode(kF32, stored_bits(memory.tensors[SlotMemory::Main].data(), i, kF32))};
    };
    difference += std::pow(value(found) - value(expected), 2);
    change += std::pow(value(expected) - value(start), 2);
  }
  const double relative = std::sqrt(difference / change);
  if (relative <= tolerance) return "";
  return "parameters differ by " + std::to_string(relative) + " of their change";
}

// Of gradients, masters, momentum and the model's copy.
const TensorTypes kMuonTypes[] = {{kBF16, kF32, {kF32, kNone}, kBF16},
                                  {kF16, kF32, {kF32, kNone}, kF16},
                                  {kF32, kF32, {kBF16, kNone}, kNone}};

std::string check_muon(const MuonCase& c, const TensorTypes& types) {
  GroupSettings settings = settings_of(RuleKind::Muon, c.decay);
  settings.nesterov = c.nesterov;
  StepPlan plan = plan_of(settings);
  plan.groups[0].muon = muon_of(c);
  std::vector<SlotMemory> start;
  std::vector<DeviceSlot> device;
  for (int i = 0; i < c.matrices; ++i) {
    start.push_back(random_slot(types, c.rows * c.columns, static_cast<unsigned>(i + 1)));
    device.emplace_back(start.back(), types);
    StepParam param = {};
    param.slot = device.back().slot();
    param.slot.stats_index = plan.stats_count++;
    param.types = types;
    param.rows = c.rows;
    param.columns = c.columns;
    std::copy(c.qkv_rows, c.qkv_rows + 3, param.qkv_rows);
    plan.params.push_back(param);
  }
  const BoundStep step(plan);
  step.run();
  for (size_t i = 0; i < start.size(); ++i) {
    SlotMemory expected = start[i];
    const ElementType iterate = c.on_gram && c.iterate == kBF16 ? kF16 : c.iterate;
    const MuonTwin twin = {{types.grad, types.main, types.state[0], types.model, iterate},
                           {make_scalars(settings), 1, 1, c.nesterov}};
    muon_twin(c, twin, expected.slot(types), plan.groups[0].muon);
    const std::string problem = compare_change(device[i].read(), expected, start[i], c.tolerance);
    if (!problem.empty()) return "matrix " + std::to_string(i) + ": " + problem;
  }
  return "";
}

// The same step twice gives the same bits, products by tiles included.
std::string check_determinism() {
  const MuonCase c = {"", 1024, 1024, {}, 16, kBF16, true, Decay::Decoupled, 0};
  const TensorTypes types = {kBF16, kF32, {kF32, kNone}, kBF16};
  std::vector<SlotMemory> start, results;
  for (int i = 0; i < c.matrices; ++i) {
    start.push_back(random_slot(types, c.rows * c.columns, static_cast<unsigned>(i)));
  }
  for (int run = 0; run < 3; ++run) {
    StepPlan plan = plan_of(settings_of(RuleKind::Muon, c.decay));
    plan.groups[0].muon = muon_of(c);
    std::vector<DeviceSlot> device;
    for (const SlotMemory& memory : start) {
      device.emplace_back(memory, types);
      StepParam param = {};
      param.slot = device.back().slot();
      param.slot.stats_index = plan.stats_count++;
      param.types = types;
      param.rows = c.rows;
      param.columns = c.columns;
      plan.params.push_back(param);
    }
    BoundStep(plan).run();
    results.push_back(device.back().read());
    if (auto problem = difference(results.back(), results.front()); !problem.empty())
      return problem;
  }
  return "";
}

enum class Extent { DeviceOnly, Quick, All };

void run_all(Report& report, Extent extent) {
  for (const UpdateCase& c : kUpdateCases) {
    for (const Sizes& sizes : kSizes) {
      report.run(std::string("update: ") + c.name + ", " + sizes.name,
                 [&] { return check_update(c, sizes); });
      if (extent == Extent::Quick) break;
    }
  }
  report.run("graph replay with changing rates and scale", check_graph);
  run_callers_graph_checks(report);
  report.run("skipped step", check_skipped);
  for (const MuonCase& c : kMuonCases) {
    for (const TensorTypes& types : kMuonTypes) {
      const char* const grads = types.grad == kBF16 ? "bf16" : types.grad == kF16 ? "fp16" : "fp32";
      report.run(std::string("muon: ") + c.name + ", " + grads + " gradients",
                 [&] { return check_muon(c, types); });
      if (extent == Extent::Quick) break;
    }
  }
  run_product_checks(report);
  run_mirrored_checks(report, extent == Extent::Quick);
  if (extent == Extent::All) report.run("the same bits in every run", check_determinism);
}

int run_checks(Extent extent) {
  if (const char* const problem = device_api().problem()) {
    std::cout << "SKIP: needs a GPU: " << problem << "\n";
    return 77;
  }
  if (extent == Extent::DeviceOnly) {
    void* memory = nullptr;
    const cudaError_t error = cudaMalloc(&memory, 1);
    cudaFree(memory);
    if (error == cudaSuccess) return 0;
    std::cout << "no memory to be had: " << cudaGetErrorString(error) << "\n";
    return 1;
  }
  Report report;
  run_all(report, extent);
  std::cout << report.passed() << " passed, " << report.failed() << " failed\n";
  return report.failed() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace gpu_check

int main(int argc, char** argv) {
  using gpu_check::Extent;
  const std::string option = argc > 1 ? argv[1] : "";
  if (option == "--device-only") return gpu_check::run_checks(Extent::DeviceOnly);
  return gpu_check::run_checks(option == "--quick" ? Extent::Quick : Extent::All);
}
