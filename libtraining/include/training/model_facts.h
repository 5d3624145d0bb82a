#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <optim/ownership.h>

// What decides where the parameters of a model lie on the ranks of a run, beside their names. Plain
// values.
namespace optim {

// How tensor parallelism cuts one tensor: along one dimension, section by section, each section
// into as many contiguous blocks of one size as there are ranks. A rank's tensor is its blocks one
// behind the other. One section: a fused qkv weight (query groups are contiguous, also where there
// are fewer of them than ranks), row-parallel weights, the vocabulary. Two equal ones: linear_fc1
// of a gated linear unit, the gate's rows and the up-projection's.
struct Split {
  size_t dim = 0;
  std::vector<uint64_t> sections;  // their sizes, which add up to the dimension's
  bool operator==(const Split&) const = default;
};

// How tensor parallel ranks share a parameter.
struct TensorSharing {
  bool is_known = false;            // by the files or by a rule
  std::optional<Split> split = {};  // nullopt: each rank has all of it
  bool is_split() const { return is_known && split.has_value(); }
};

// Which layers each pipeline stage has, as Megatron's arguments of these names. Layers are decoder
// layers.
struct PipelineSplit {
  uint32_t num_layers = 0;
  uint32_t pipeline_parallel = 1;
  uint32_t chunks_per_stage = 1;  // virtual pipeline parallel size; 1: none
  std::optional<uint32_t> num_layers_in_first_pipeline_stage = {};
  std::optional<uint32_t> num_layers_in_last_pipeline_stage = {};
  bool account_for_embedding_in_pipeline_split = false;
  bool account_for_loss_in_pipeline_split = false;
  std::string pipeline_model_parallel_layout = {};  // empty: none; docs/formats/torch.md
  uint32_t mtp_num_layers = 0;
  // A hybrid model's kinds of layers, with '|' between chunks where it says which have which.
  std::string hybrid_layer_pattern = {};
  bool operator==(const PipelineSplit&) const = default;
};

// Blocks in which rows of gate and up alternate in linear_fc1 of a gated linear unit.
struct GluBlocks {
  uint32_t rows = 0;     // of each; 0: all of gate come before all of up
  bool are_read = true;  // by the modules that the arguments ask for
};

// A stack of layers beside args.num_layers' decoder, or in its place: an encoder's, a submodel's.
struct LayerStack {
  std::string prefix = "decoder.layers.";
  uint32_t layers = 0;
  bool is_stacked = true;           // torch_dist has one tensor for all layers
  bool layer_norm_renamed = false;  // there, too
  bool are_keys_known = true;       // false: whether they are renamed only a store says
};

// What the arguments of a run say of its model; whether it is gated, its matrices say first.
struct ModelFacts {
  uint32_t expert_count = 0;                  // 0: no experts
  uint32_t attention_heads = 0;               // 0: not known
  std::optional<uint32_t> query_groups = {};  // fewer than heads (group_query_attention)
  bool gated_linear_unit = false;  // SwiGLU, GeGLU: linear_fc1 is two halves, gate and up
  GluBlocks glu_of_experts = {}, glu_of_shared_experts = {}, glu_of_dense_layers = {};
  bool layer_norm_renamed = false;      // transformer_impl 'local': see docs/formats/torch_dist.md
  bool experts_grouped = false;         // TEGroupedMLP: experts.linear_fc1.weight3
  bool layers_stacked = true;           // torch_dist has one tensor for all layers
  std::vector<LayerStack> stacks = {};  // as the files have them
  // The one that pipeline stages divide; empty: none, as of T5, which no pipeline can have.
  std::string divided_stack = "decoder.layers.";
  // Of a submodel's gated linear units, by what is before its layers: "vision_model.".
  std::map<std::string, bool> gating = {};
  // content_metadata of torch_dist: one tensor for each layer, and gate and up apart.
  bool singleton_local_shards = false;
  bool output_is_tied = false;              // the output layer is the word embeddings
  std::optional<uint64_t> vocabulary = {};  // vocab_size: true rows of embedding and output layer
  bool has_end_token = false;               // and one more, which NullTokenizer adds
  uint64_t vocabulary_divisor = 1;          // make_vocab_size_divisible_by
};

// The grid of a run, and its pipeline.
struct RunGrid {
  ParallelSizes sizes;
  PipelineSplit pipeline;
  std::string rank_order = "tp-cp-ep-dp-pp";  // --use-tp-pp-dp-mapping: "tp-cp-ep-pp-dp"
  // Copies of a DistributedOptimizer's state among the data-parallel ranks
  // (num_distributed_optimizer_instances): neighbours share its flat buffers.
  uint32_t optimizer_instances = 1;
  bool operator==(const RunGrid&) const = default;
};

}  // namespace optim
