#pragma once

#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/checkpoint.h>
#include <ckpt/convert.h>
#include <ckpt/plain_target.h>
#include <ckpt/target.h>
#include <ckpt/write_target.h>
#include <training/convert.h>
#include <training/filed_state.h>
#include <training/opened_training.h>
#include <training/size_change.h>
#include <training/training_state.h>

#include "huggingface/export.h"
#include "model/model_rules.h"

// What a conversion refuses, sets right or tells of its options, its source and the masters that
// bits do not prove.
namespace optim {

// Throws InvalidArgument for options about the form of optimizer state, where `what` is written,
// which has none.
void require_form_of_optimizer(const ConvertOptions& options, const char* what);

// The same of a model of Megatron's without its optimizer, which eras file in different places.
void require_layout_alone(const ConvertOptions& options);

// Of dense parameters and experts that get one optimizer: throws Corrupt where tensors in the
// further state of the old ones, as a grad scaler's, have different bytes. `filed`: of `source`.
void require_equal_in_merged(const TrainingState& state, const TrainingState& filed,
                             const OpenedTraining& source);

// Puts the size that --vocab-size gives in the place of an args.vocab_size that the stored rows
// contradict, and lists it: else the result would have what its source was refused for. Of a
// Hugging Face folder the size is that of the result: throws what target_vocabulary() throws for
// it.
void correct_vocabulary(const ConvertOptions& options, TrainingState& state);

// Of a run's arguments, where a conversion lays parameters out anew: for other sizes, or in another
// format. Throws Error(Unsupported) for one whose layout is not understood, and under
// options.base.strict for one that is not in the table of arguments. What is to be told of such
// arguments, as ConvertReport::not_proven; empty: nothing.
std::vector<std::string> check_arguments(const FiledState& state, const OpenedTraining& source,
                                         const ConvertOptions& options);

// Where rows of --model-rules say another split than the built-in ones of the same part and name:
// what the user is told of each. A wrong split cuts weight, master and states alike, so that no
// proof of one by the other can find it.
std::vector<std::string> other_splits(const ModelRules& rules);

// Throws Error(Corrupt) where the run's arguments say another number of layers or experts than the
// model has, so that its parts would get wrong names; with rows of --model-rules, also where what
// they put together contradicts any argument.
void refuse_contradicted(const FiledState& state, const OpenedTraining& source, bool has_rules);

// Says of each embedding whose padding a target leaves out how large the largest value in these
// rows is, of the weight, its master and its states: padding that was trained is not zero.
// `rows`: of the target.
void tell_cut_rows(const TrainingState& state, const ckpt::PayloadSource& source, uint64_t rows,
                   ckpt::Target& target);

// What named masters where files do not: "the ping-pong deal".
std::string naming_of(const FiledState& state);

// Why no master can be proven by its bits: masters are remainders, or weights may be something else
// than rounded masters. nullopt where it can be.
std::optional<std::string> why_not_proven(const FiledState& state, const OpenedTraining& source);

// What of the optimizer's state may be right or lost: parameters without any although steps were
// taken, and counts of states that do not add up. For users; empty: nothing.
std::vector<std::string> states_not_proven(const FiledState& state);

// What can be told of such masters all the same. Throws Corrupt for what cannot be right, and
// Unsupported for state that may be displaced; Error(IoFailure, "cancelled") when asked to stop.
void check_unproven(const FiledState& state, const OpenedTraining& source,
                    const std::stop_token& stop);

// Hooks for ckpt::ConversionSource::check_result. What they refer to must outlive them.
using CheckWritten = std::function<ckpt::Carried(const ckpt::WrittenResult& written)>;

// Of a plain state dict.
CheckWritten plain_check(const OpenedTraining& source, ckpt::TargetSpec spec,
                         std::vector<ckpt::NotCarried> not_carried,
                         const ckpt::ConvertOptions& options);

struct WrittenAs {
  uint64_t vocabulary_rows;        // target_vocabulary() of its grid
  std::vector<StateCount> states;  // that the result must have
};

// What a step of a conversion, which is neither reading nor writing its files, is told.
ckpt::ExecuteOptions named_steps(const ckpt::ConvertOptions& options, std::string_view step);

// Of what make_layer_wise_target() made of a state, which is filed in the target's form.
// `payloads`: what the state's chunks lie in. Embeddings that the target pads otherwise are
// compared in the rows that both have.
CheckWritten layer_wise_check(const FiledState& state, const ckpt::PayloadSource& payloads,
                              const WrittenAs& made, std::vector<ckpt::NotCarried> not_carried,
                              const ckpt::ConvertOptions& options);

// Of what make_layer_wise_safetensors(state, options.keys) made.
CheckWritten layer_wise_safetensors_check(const FiledState& state,
                                          const ckpt::PayloadSource& payloads,
                                          std::vector<ckpt::NotCarried> not_carried,
                                          const ckpt::ConvertOptions& options);

// Of what export_model() made: each tensor has the elements of the source where its table puts
// them.
CheckWritten export_check(std::vector<HuggingFaceExport::Tensor> tensors,
                          const ckpt::PayloadSource& payloads,
                          std::vector<ckpt::NotCarried> not_carried,
                          const ckpt::ConvertOptions& options);

}  // namespace optim
