#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <ckpt/value.h>
#include <training/model_facts.h>

#include "parallel/rank_grid.h"

// What Megatron-Core's code knows of its modules and no file says: how a parameter is called, where
// it comes in the order of registration, how tensor parallelism splits it. A table
// (model_rules.json, docs/schema/input/model_rules.json), to which a file can add rows.
namespace optim {

// In the order in which the model registers them. Final: behind the last layer. Mtp: of a layer of
// multi-token prediction, whose mtp_model_layer has the rows of any layer. Vision: of the vision
// model beside a language model, and of its projector, whose layers have the rows of any layer.
enum class ModelPart : uint8_t { Embedding, Layer, Final, Mtp, Output, Vision };
// How tensor parallel ranks share a tensor. GatedRows: two halves where the model has gated linear
// units, else rows. Segments: rows of several projections in one tensor, each shared on its own.
enum class SplitKind : uint8_t { Replicated, Rows, Columns, GatedRows, Segments };
std::string_view name(SplitKind split);  // "replicated", ...: as a file of rules has it

// Rows of a tensor that torch_dist keeps apart, under the tensor's key, a dot and this name.
struct RowSegment {
  std::string name;
  std::string rows;   // an expression of args: how many in the whole model
  std::string parts;  // the same: heads or groups, of which a rank has whole ones; empty: any rows
  std::optional<uint64_t> count = {}, part_count = {};  // their values; nullopt: args give none
};

struct ModelRule {
  ModelPart part = ModelPart::Layer;
  // In a state dict; of a layer without "decoder.layers.N." ("mtp.layers.N."), with {expert} for an
  // expert's number.
  std::string name;
  SplitKind split = SplitKind::Replicated;
  bool vocabulary = false;  // rows are the vocabulary's, padded
  bool buffer = false;      // no parameter: no optimizer steps it
  bool unsharded = false;   // torch_dist leaves it out
  // In a sharded state dict, where it differs: always, or with the local transformer implementation
  // alone (transformer_impl).
  std::string key = {};
  std::string local_key = {};
  std::vector<RowSegment> segments = {};  // of SplitKind::Segments, in the tensor's order
  // The name of the same tensor, where the model has that: this one is another name of it.
  std::string same_as = {};
  // An expression of args: where it is not true, another row has the key.
  std::string when = {};
  bool has_key = true;
};

// A place in the model's order of registration. The rules of one expert come together, expert after
// expert.
struct ModelPlace {
  uint32_t part = 0, layer = 0, block = 0, expert = 0, row = 0;
  auto operator<=>(const ModelPlace&) const = default;
};

// Whether torch_dist stacks what a row stands for over experts, and whether it is of a module that
// holds all experts of a rank (TEGroupedMLP).
bool is_of_experts(const ModelRule& rule);
bool is_of_grouped_experts(const ModelRule& rule);

// A row's name with an expert's number in the place of {expert}, if it has one.
std::string with_expert(std::string_view rule_name, uint32_t expert);

struct RuledName {
  const ModelRule* rule = nullptr;
  ModelPlace place;
  bool has_known_place = true;  // false: of a stack of which it is not known where it stands
};
// Behind the rest of its layer, or at the end: where a name without a rule comes.
ModelPlace place_without_rule(std::string_view name);

// "decoder.layers.7.mlp.router.weight" -> layer 7, "mlp.router.weight".
struct NameInLayer {
  uint32_t layer;
  std::string_view rest;
  std::string_view stack = "decoder.layers.";
};
inline constexpr std::string_view kLayersPrefix = "decoder.layers.";
std::optional<NameInLayer> split_layer(std::string_view name);
std::string join_layer(uint32_t layer, std::string_view rest,
                       std::string_view stack = kLayersPrefix);  // its inverse

// Stacks of transformer layers, as TransformerBlock names them: the decoder, an encoder, those of a
// submodel. What is before the number or, in a key of all layers, before the rest of it:
// "vision_model.decoder.layers."; empty: of no stack.
std::string_view stack_of(std::string_view name);
// Of any stack.
std::optional<NameInLayer> split_stack(std::string_view name);
// What LLaVA-like models have before the names of their language model.
inline constexpr std::string_view kLanguageModel = "language_model.";
inline constexpr std::string_view kVisionStack = "vision_model.decoder.layers.";
std::string_view without_submodel(std::string_view name);

// "mtp.layers.0.mtp_model_layer.mlp.router.weight" -> layer 0, "mtp_model_layer.mlp.router.weight".
inline constexpr std::string_view kMtpLayersPrefix = "mtp.layers.";
inline constexpr std::string_view kMtpModelLayer = "mtp_model_layer.";
std::optional<NameInLayer> split_mtp_layer(std::string_view name);
// "layers.1.mixer.A_log", behind mtp_model_layer of a hybrid model -> layer 1, "mixer.A_log".
std::optional<NameInLayer> split_inner_layer(std::string_view name);

class ModelRules {
 public:
  // The table that the library holds.
  static const ModelRules& built_in();
  // Rows of a JSON text. Throws Error(Corrupt) with the row's number and the field for what is not
  // in the schema, `source` as the file.
  static ModelRules parse(std::string_view json, std::string_view source);
  // These rows, with those of `more` in place of the ones that have the same part and name, or
  // behind them.
  ModelRules with(const ModelRules& more) const;
  // These rows, with the expressions' values by the args of a run, a Dict.
  ModelRules of_args(const ckpt::Value& args) const;

  // Of a name as in the model's state dict; nullopt where no row knows it.
  std::optional<RuledName> find(std::string_view name) const;
  std::optional<RuledName> find_in_layer(const NameInLayer& name) const;
  // At little cost for most of 10^6 names: the row of a name whose rows are segments, or null;
  // whether its rows are the vocabulary's.
  const ModelRule* find_segmented(std::string_view name) const;
  bool is_vocabulary(std::string_view name) const;
  // Of another name of a tensor: the one by which it is known here; empty: it is none.
  std::string_view same_as(std::string_view name) const;
  // The row that a sharded state dict calls by this key of a layer; `local`: local_key counts, too,
  // `grouped`: of rows for experts the one that numbers weights (TEGroupedMLP). Null: none, so that
  // the key is the name.
  struct KeyFlavor {
    bool local = false, grouped = false;
  };
  const ModelRule* find_by_key(std::string_view key, KeyFlavor flavor) const;
  // The index of the row of this part and name; null: none.
  const uint32_t* row_named(ModelPart part, std::string_view pattern) const;
  // "mixer.in_proj.weight.z", a key of a layer: the row, and which of its segments. Rule null: it
  // is none's.
  struct SegmentOfRule {
    const ModelRule* rule = nullptr;
    size_t segment = 0;
    std::string_view key;  // of the whole
  };
  SegmentOfRule find_segment(std::string_view key, KeyFlavor flavor) const;
  bool is_name_of_segment(std::string_view name) const { return segment_names_.contains(name); }
  const std::vector<ModelRule>& rows() const { return rows_; }

 private:
  explicit ModelRules(std::vector<ModelRule> rows);
  std::optional<RuledName> find_in_mtp(const NameInLayer& name) const;
  std::optional<RuledName> find_in_stack(const NameInLayer& name) const;
  const ModelRule* find_at_ends(std::string_view name, const std::vector<std::string>& ends) const;

  // Looked up for each of 10^6 names: without a text of its own for each.
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  using RowsByText = std::unordered_multimap<std::string, uint32_t, Hash, std::equal_to<>>;
  std::vector<ModelRule> rows_;
  std::vector<uint32_t> block_;  // [row] rows of one expert share one
  RowsByText rows_by_name_, rows_by_key_;
  size_t rows_of_two_names_ = 0;
  std::vector<std::string> segmented_ends_, vocabulary_ends_;  // of names
  std::set<std::string, std::less<>> segment_names_;
};

// What decides how a rule cuts, beside the shape, which is that of the part of each of `ranks`.
struct CutBy {
  bool is_gated = false;
  uint32_t ranks = 1;
};

// nullopt: replicated. Throws Error(InvalidArgument) where the shape has no such dimension or no
// two halves. Of segments these must fit.
std::optional<Split> split_of(const ModelRule& rule, const ckpt::Extents& shape, CutBy cut);

// Whether a tensor of this shape on each rank has the rows that args give its segments, and the
// ranks share each evenly; of other splits true.
bool segments_fit(const ModelRule& rule, const ckpt::Extents& shape, uint32_t ranks);
// The first segment whose parts so many ranks cannot share evenly; null: none.
const RowSegment* find_uneven_segment(const ModelRule& rule, uint32_t ranks);
// "z 64, x 64, B 16": with ? for a number that args do not give.
std::string segments_in_words(const ModelRule& rule);

// For a hint: the row of --model-rules that would be enough for a parameter of the model, as JSON.
// What nobody can know stands in capitals, and behind it what it may be. Segments are those that
// `rules` have for it, with the rows that args do not give to be filled in.
std::string enough_row(std::string_view name, const TensorSharing& sharing,
                       const ModelRules& rules);

}  // namespace optim
