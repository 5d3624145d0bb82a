#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <boost/test/unit_test.hpp>

#include <optim/optimizer.h>

// Numbers that are the same on every machine: a linear congruential generator, in [-1, 1).
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : state_(seed * 2654435761U + 1) {}
  double next() {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<double>(static_cast<int64_t>(state_) >> 11) * 0x1p-52;
  }
  uint64_t below(uint64_t bound) {
    return static_cast<uint64_t>((next() + 1) / 2 * static_cast<double>(bound));
  }

 private:
  uint64_t state_;
};

inline at::Tensor random_tensor(const std::vector<int64_t>& shape, uint64_t seed,
                                double scale = 1) {
  at::Tensor tensor = at::empty(shape, at::kFloat);
  auto* const values = tensor.mutable_data_ptr<float>();
  Numbers numbers(seed);
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    values[i] = static_cast<float>(numbers.next() * scale);
  }
  return tensor;
}

inline std::vector<float> values_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous();
  const auto* const values = flat.const_data_ptr<float>();
  return {values, values + flat.numel()};
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const at::Tensor x = a.contiguous();
  const at::Tensor y = b.contiguous();
  return std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

inline double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  BOOST_REQUIRE(a.sizes() == b.sizes());
  const std::vector<float> x = values_of(a);
  const std::vector<float> y = values_of(b);
  double largest = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(x[i]) - static_cast<double>(y[i])));
  }
  return largest;
}

// A small GPT's parameters in bf16 with random values: attention, an MLP, norms, embeddings.
inline std::vector<optim::Param> small_model(int layers, uint64_t seed) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> all = {
      {"embedding.word_embeddings.weight", {24, 8}},
      {"embedding.position_embeddings.weight", {16, 8}}};
  for (int layer = 0; layer < layers; ++layer) {
    const std::string prefix = "decoder.layers." + std::to_string(layer) + ".";
    all.push_back({prefix + "input_layernorm.weight", {8}});
    all.push_back({prefix + "self_attention.linear_proj.weight", {8, 8}});
    all.push_back({prefix + "self_attention.linear_qkv.weight", {24, 8}});
    all.push_back({prefix + "self_attention.linear_qkv.bias", {24}});
    all.push_back({prefix + "mlp.linear_fc1.weight", {32, 8}});
    all.push_back({prefix + "mlp.linear_fc2.weight", {8, 32}});
  }
  all.push_back({"decoder.final_layernorm.weight", {8}});
  all.push_back({"output_layer.weight", {24, 8}});
  std::vector<optim::Param> params;
  for (const auto& [name, shape] : all) {
    optim::Param param;
    param.info.name = name;
    param.info.shape = shape;
    param.info.dtype = ckpt::DType::BFloat16;
    param.info.attributes = optim::megatron_attributes(name, shape.size());
    param.param = random_tensor(shape, seed++, 0.5).to(at::kBFloat16);
    params.push_back(std::move(param));
  }
  return params;
}

// The same gradient for the same parameter and step, whoever asks.
inline at::Tensor gradient_of(const optim::ParamInfo& info, int64_t step) {
  uint64_t seed = 7 + static_cast<uint64_t>(step);
  for (const char letter : info.name) seed = seed * 131 + static_cast<unsigned char>(letter);
  return random_tensor(info.shape, seed, 0.3);
}

inline optim::OptimizerConfig muon_config() {
  optim::OptimizerConfig config;
  config.optimizer = "muon";
  config.bf16 = true;
  config.params_dtype = ckpt::DType::BFloat16;
  config.lr = 0.01;
  config.min_lr = 0.001;
  config.weight_decay = 0.1;
  config.clip_grad = 1.0;
  config.log_num_zeros_in_grad = true;
  config.use_layer_wise_distributed_optimizer = true;
  return config;
}
