#pragma once

#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include <training/layer_wise_checkpoint.h>
#include <training/opened_training.h>

#include "args/run_args.h"
#include "grid/build_state.h"
#include "support/generated_model.h"
#include "support/memory_payloads.h"

// Training states of any shape with values in memory; args, groups and random states are those of
// a real run (tests/golden/lw_muon_bf16_torch_dp2).
namespace test {

// The files of a checkpoint, and behind them others in memory.
class WithMemory final : public ckpt::PayloadSource {
 public:
  explicit WithMemory(const std::filesystem::path& path) : base_(optim::open_checkpoint(path)) {}

  const optim::OpenedTraining& base() const { return base_; }
  ckpt::StorageRegion add_storage(std::string content) {
    ckpt::StorageRegion region = memory_.add_storage(std::move(content));
    region.file += kFirst;
    return region;
  }
  ckpt::LocatedRegion locate(const ckpt::StorageRegion& region) const override {
    return is_base(region) ? base_.locate(region) : ckpt::LocatedRegion{region};
  }
  void read_bytes(const ckpt::StorageRegion& located, uint64_t offset_bytes,
                  std::span<std::byte> out) const override {
    if (is_base(located)) return base_.read_bytes(located, offset_bytes, out);
    ckpt::StorageRegion own = located;
    own.file -= kFirst;
    memory_.read_bytes(own, offset_bytes, out);
  }
  std::string file_name(uint32_t file) const override {
    return file < kFirst ? base_.file_name(file) : memory_.file_name(file - kFirst);
  }

 private:
  static constexpr uint32_t kFirst = 1'000'000;
  static bool is_base(const ckpt::StorageRegion& region) { return region.file < kFirst; }

  optim::OpenedTraining base_;
  MemoryPayloads memory_;
};

class GeneratedState {
 public:
  // Muon's whole parameters belong to ranks, or each rank has AdamW for all that it holds.
  GeneratedState(Picker& random, const ModelShape& shape, bool is_sharded = true)
      : source_(std::filesystem::path(SHARDWISE_GOLDEN_DIR) / "lw_muon_bf16_torch_dp2/ckpt"),
        state_(optim::read_training_state(source_.base())) {
    set_args(shape);
    if (!is_sharded) use_adam();
    optim::read_args(state_.args(), "args", state_);
    optim::FiledState made = state_of_shape(shape);
    state_.model = std::move(made.model);
    state_.params = std::move(made.params);
    state_.model_metadata.clear();
    state_.extra_states.clear();
    state_.attributes.clear();
    state_.not_carried.clear();
    optim::group_params(state_.args(), optim::ParallelSizes{}, state_.params);
    for (optim::TrainedParam& param : state_.params) add_values(random, param);
  }

  optim::FiledState& state() { return state_; }
  const WithMemory& source() const { return source_; }
  // By canonical key, row-major.
  const std::map<std::string, std::string>& values() const { return values_; }

  void set_arg(std::string_view name, ckpt::NodeId value) {
    state_.common.tree.put(state_.args().id(), name, value);
  }
  ckpt::ValueTree& tree() { return state_.common.tree; }

 private:
  void set_number(std::string_view name, uint64_t number) {
    set_arg(name, tree().integer(static_cast<int64_t>(number)));
  }
  void set_flag(std::string_view name, bool flag) { set_arg(name, tree().boolean(flag)); }

  void use_adam() {
    set_flag("use_layer_wise_distributed_optimizer", false);
    set_arg("optimizer", tree().str("adam"));
    state_.chain.erase(state_.chain.begin());
    state_.filed.is_layer_wise = false;
    state_.filed.optimizers.assign(state_.chain.size(), &optim::kWhole);
  }

  void set_args(const ModelShape& of) {
    for (const char* size : {"data_parallel_size", "world_size", "inprocess_active_world_size"}) {
      set_number(size, 1);
    }
    set_number("num_layers", of.layers);
    set_number("num_attention_heads", of.heads);
    if (of.mtp_layers > 0) set_number("mtp_num_layers", of.mtp_layers);
    if (of.experts > 0) set_number("num_experts", of.experts);
    if (of.dense_layers > 0) {
      const ckpt::NodeId pattern = tree().list();
      for (uint32_t i = 0; i < of.layers; ++i) {
        tree().append(pattern, tree().integer(i < of.dense_layers ? 0 : 1));
      }
      set_arg("moe_layer_freq", pattern);
    }
    if (of.is_hybrid) {
      for (const auto& [name, number] : hybrid_arguments(of)) set_number(name, number);
      set_arg("hybrid_layer_pattern", tree().str(pattern_of(of)));
    }
    set_flag("swiglu", of.is_gated);
    set_flag("untie_embeddings_and_output_weights", !of.is_tied);
    set_flag("moe_grouped_gemm", of.is_of_engine);
    set_arg("transformer_impl", tree().str(of.is_of_engine ? "transformer_engine" : "local"));
    set_number("vocab_size", of.vocabulary);
    set_number("padded_vocab_size", of.vocabulary_rows);
    set_number("make_vocab_size_divisible_by", of.vocabulary_divisor);
  }

  optim::TensorRef add(std::string key, ckpt::DType dtype, const ckpt::Extents& shape,
                       std::string content) {
    ckpt::TensorEntry tensor;
    tensor.key = key;
    tensor.dtype = dtype;
    tensor.shape = shape;
    values_.emplace(std::move(key), content);
    tensor.chunks.push_back({ckpt::whole(shape), source_.add_storage(std::move(content))});
    return std::make_shared<const ckpt::TensorEntry>(std::move(tensor));
  }

  // Masters that round to their weights, each value another one.
  void add_values(Picker& random, optim::TrainedParam& param) {
    const std::string& name = param.info.name;
    const ckpt::Extents shape = param.weight->shape;
    std::string weights, masters, states[2];
    for (uint64_t i = 0; i < ckpt::element_count(shape); ++i) {
      const auto weight = static_cast<uint16_t>(0x3000 + pick(random, 0, 0x0fff));
      const uint32_t master = uint32_t{weight} << 16 | pick(random, 0, 0x7fff);
      weights.append(reinterpret_cast<const char*>(&weight), sizeof weight);
      masters.append(reinterpret_cast<const char*>(&master), sizeof master);
      for (std::string& state : states) {
        const uint32_t bits = 0x3a000000 + pick(random, 0, 0x00ffffff);
        state.append(reinterpret_cast<const char*>(&bits), sizeof bits);
      }
    }
    param.weight = add(name, ckpt::DType::BFloat16, shape, weights);
    param.master =
        add(optim::state_key(optim::kMasterState, name), ckpt::DType::Float32, shape, masters);
    const bool is_of_muon = state_.filed.is_layer_wise && param.optimizer == 0;
    for (size_t i = 0; i < (is_of_muon ? 1u : 2u); ++i) {
      const char* const kinds[] = {"exp_avg", "exp_avg_sq"};
      const char* const kind = is_of_muon ? "momentum_buffer" : kinds[i];
      param.states.push_back(
          {kind, add(optim::state_key(kind, name), ckpt::DType::Float32, shape, states[i])});
    }
  }

  WithMemory source_;
  optim::FiledState state_;
  std::map<std::string, std::string> values_;
};

}  // namespace test
