// One contestant of scripts/bench_optim.py: optim_bench KIND SIZE THREADS prepares itself, prints
// "ready", and for each line that it reads runs once and prints the seconds that it took, on the
// clock and of the processor.
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/mm.h>
#include <optim/layer_wise_optimizer.h>
#include <optim/newton_schulz.h>

#include <chrono>
#include <ctime>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "bench/same_mix_copy.h"
#include "step/rules/soap_basis.h"

namespace {

constexpr int64_t kTensors = 25;

at::Tensor filled(const std::vector<int64_t>& shape, double scale) {
  return at::empty(shape, at::kFloat).normal_(0, scale);
}

// AdamW on fp32 parameters, gradients and states of SIZE elements in all.
std::function<void()> adam(int64_t size, optim::AdamArithmetic arithmetic) {
  const std::shared_ptr<optim::UpdateRule> rule =
      optim::make_rule(optim::AdamRule{.arithmetic = arithmetic});
  auto info = std::make_shared<optim::ParamInfo>();
  auto states = std::make_shared<std::vector<optim::ParamState>>(kTensors);
  std::vector<optim::UpdateItem> items;
  for (optim::ParamState& state : *states) {
    items.push_back(
        {{info.get(), filled({size / kTensors}, 0.02), filled({size / kTensors}, 1e-3), &state},
         {.lr = 1e-3, .weight_decay = 0.01}});
  }
  return [rule, info, states, items]() mutable {
    for (optim::UpdateItem& item : items) ++item.context.step;
    rule->update_all(items);
  };
}

// The whole step of bf16 parameters: norm, clipping, AdamW, rounding.
std::function<void()> whole_step(int64_t size, optim::AdamArithmetic arithmetic) {
  std::vector<optim::Param> params;
  for (int64_t i = 0; i < kTensors; ++i) {
    optim::Param param;
    param.info.name = "p" + std::to_string(i);
    param.info.shape = {size / kTensors};
    param.param = filled(param.info.shape, 0.02).to(at::kBFloat16);
    param.main_grad = filled(param.info.shape, 1e-1);
    params.push_back(std::move(param));
  }
  optim::OptimizerConfig config;
  config.bf16 = true;
  config.lr = 1e-3;
  const std::shared_ptr<optim::Optimizer> optimizer =
      optim::get_megatron_optimizer(config, std::move(params), {.adam_arithmetic = arithmetic});
  return [optimizer] { optimizer->step(); };
}

const optim::MuonRule kMuon = {.nesterov = true,
                               .newton_schulz = {.coefficients = optim::NsCoefficients::Simple}};

// The update of one SIZE x SIZE matrix.
std::function<void()> update_of_matrix(int64_t size, const optim::RuleConfig& config) {
  const std::shared_ptr<optim::UpdateRule> rule = optim::make_rule(config);
  auto info = std::make_shared<optim::ParamInfo>();
  auto state = std::make_shared<optim::ParamState>();
  const optim::UpdateTarget target = {info.get(), filled({size, size}, 0.02),
                                      filled({size, size}, 1e-3), state.get()};
  return [rule, info, state, target] { rule->update(target, {.lr = 1e-3, .weight_decay = 0.1}); };
}

// Both bases of a SIZE x SIZE matrix by one power iteration with QR, and the moments in them.
std::function<void()> soap_refresh(int64_t size) {
  const auto side = [&] {
    const at::Tensor grads = filled({size, size}, 1);
    return optim::SoapSide{at::mm(grads, grads.t()).div_(static_cast<double>(size)),
                           std::get<0>(at::linalg_qr(filled({size, size}, 1)))};
  };
  const auto state = std::make_shared<optim::SoapRefresh>(optim::SoapRefresh{
      {side(), side()}, filled({size, size}, 1e-3), filled({size, size}, 1e-3).square_()});
  return [state] { *state = optim::refreshed(*state, optim::SoapRule{}, /*use_eigh=*/false); };
}

std::function<void()> copy(int64_t size) {
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 4; ++i) tensors.push_back(filled({size}, 1));
  return [tensors] { same_mix_copy(tensors); };
}

// Who owns SIZE parameters on 64 ranks, by cost.
std::function<void()> ownership(int64_t size) {
  auto groups = std::make_shared<std::vector<optim::ParamGroup>>(1);
  groups->front().updated_by = "muon";
  for (int64_t i = 0; i < size; ++i) {
    optim::ParamInfo info = {.name = "p", .shape = {64 + i * 37 % 4000, 64 + i * 91 % 3000}};
    groups->front().params.push_back({static_cast<size_t>(i), std::move(info)});
  }
  return [groups] {
    optim::shard_params(*groups, {.data_parallel = 64}, optim::OwnershipPolicy::Balanced);
  };
}

// Of "adam:NAME" and "step:NAME"; torch's without a name.
optim::AdamArithmetic arithmetic_of(const std::string& kind) {
  using enum optim::AdamArithmetic;
  const std::string name = kind.size() > 5 ? kind.substr(5) : "torch";
  if (name == "torch") return Torch;
  if (name == "fused_adam") return FusedAdam;
  if (name == "transformer_engine") return TransformerEngine;
  if (name == "fused") return Fused;
  throw std::invalid_argument("unknown arithmetic " + name);
}

// Of "adaptive_muon:NAME".
optim::Moment2Method moment2_of(const std::string& kind) {
  using enum optim::Moment2Method;
  const std::string name = kind.substr(kind.find(':') + 1);
  if (name == "adamuon") return AdaMuon;
  if (name == "normuon") return NorMuon;
  if (name == "namo") return Namo;
  throw std::invalid_argument("unknown second moment " + name);
}

// Newton-Schulz of SIZE rows, by "newton_schulz:ASPECT" or "gram:ASPECT".
std::function<void()> orthogonalisation(const std::string& kind, int64_t size) {
  const int64_t aspect = std::stoll(kind.substr(kind.find(':') + 1));
  const at::Tensor matrix = filled({size, aspect * size}, 1);
  optim::NewtonSchulzOptions options = kMuon.newton_schulz;
  if (kind.starts_with("gram")) options.iteration = optim::NewtonSchulzIteration::Gram;
  return [matrix, options] { optim::newton_schulz(matrix, options); };
}

std::function<void()> make(const std::string& kind, int64_t size) {
  if (kind.starts_with("adam")) return adam(size, arithmetic_of(kind));
  if (kind.starts_with("step")) return whole_step(size, arithmetic_of(kind));
  if (kind == "muon") return update_of_matrix(size, kMuon);
  if (kind.starts_with("adaptive_muon:")) {
    return update_of_matrix(
        size, optim::AdaptiveMuonRule{.muon = kMuon, .moment2_method = moment2_of(kind)});
  }
  if (kind.starts_with("newton_schulz:") || kind.starts_with("gram:")) {
    return orthogonalisation(kind, size);
  }
  if (kind == "soap_refresh") return soap_refresh(size);
  if (kind == "copy") return copy(size);
  if (kind == "ownership") return ownership(size);
  throw std::invalid_argument("unknown kind " + kind);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: optim_bench KIND SIZE THREADS\n"
                 "  KIND: adam[:ARITHMETIC] step[:ARITHMETIC] muon adaptive_muon:MOMENT "
                 "newton_schulz:ASPECT gram:ASPECT soap_refresh copy ownership\n";
    return 2;
  }
  at::set_num_threads(std::stoi(argv[3]));
  const at::NoGradGuard no_grad;
  const std::function<void()> run = make(argv[1], std::stoll(argv[2]));
  run();
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    const auto begin = std::chrono::steady_clock::now();
    const std::clock_t used = std::clock();
    run();
    const std::clock_t used_behind = std::clock();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::cout << seconds.count() << ' ' << static_cast<double>(used_behind - used) / CLOCKS_PER_SEC
              << std::endl;
  }
}
