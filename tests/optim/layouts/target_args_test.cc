// Which arguments a change of each size sets: those of this table, and no other.
#include "layouts/job/layer_wise_target.h"

#include <boost/test/unit_test.hpp>
#include <functional>
#include <map>

#include "args/run_args.h"
#include "support/generated_state.h"

using ckpt::Kind;
using ckpt::NodeId;
using ckpt::Value;

namespace {

std::string text_of(const Value& value) {
  switch (value.kind()) {
    case Kind::None: return "None";
    case Kind::Bool: return value.as_bool() ? "True" : "False";
    case Kind::Int: return std::to_string(value.as_int());
    case Kind::Str: return std::string(value.text());
    default: return "of kind " + std::to_string(static_cast<int>(value.kind()));
  }
}

using Texts = std::map<std::string, std::string>;

Texts texts_of(const Value& args) {
  Texts texts;
  for (const auto& [key, value] : ckpt::items_of(args)) {
    texts.emplace(key.text(), text_of(value));
  }
  return texts;
}

// A model of 8 layers, on one rank; what a case sets before.
class Args {
 public:
  explicit Args(test::ModelShape shape = {.layers = 8, .hidden = 16, .ffn = 16})
      : random_(1), generated_(random_, shape) {}

  template <class Number>
  Args& with(const char* name, Number number) {
    ckpt::ValueTree& tree = generated_.tree();
    if constexpr (std::is_same_v<Number, bool>)
      generated_.set_arg(name, tree.boolean(number));
    else
      generated_.set_arg(name, tree.integer(number));
    return *this;
  }
  Args& with_text(const char* name, const char* text) {
    generated_.set_arg(name, generated_.tree().str(text));
    return *this;
  }
  Args& without(const char* name) {
    generated_.tree().erase(generated_.state().args().id(), name);
    return *this;
  }

  // The arguments that differ after the change; a new one is told.
  Texts changed_by(const optim::SizeChange& change, ckpt::Format format = ckpt::Format::Torch) {
    optim::FiledState& state = generated_.state();
    optim::read_args(state.args(), "args", state);
    optim::LayerWiseTargetSpec spec;
    spec.format = format;
    spec.sizes = change;
    optim::TargetJob job{
        state, state, spec, {.container = format}, optim::target_grid(state, change)};
    job.vocabulary_rows = optim::target_vocabulary(state, job.grid, change);
    ckpt::ArchiveBuilder archive;
    const NodeId made = optim::carry_args(job, state.common.tree.root().at("args"), archive);
    const Texts before = texts_of(state.args());
    Texts changed;
    for (const auto& [name, text] : texts_of(*archive.tree().value(made).state())) {
      const auto known = before.find(name);
      if (known == before.end())
        changed.emplace(name, "new: " + text);
      else if (known->second != text)
        changed.emplace(name, text);
    }
    return changed;
  }

 private:
  test::Picker random_;
  test::GeneratedState generated_;
};

optim::SizeChange change_of(const std::function<void(optim::SizeChange&)>& set) {
  optim::SizeChange change;
  set(change);
  return change;
}

void require_equal(const Texts& changed, const Texts& expected) {
  for (const auto& [name, text] : changed) {
    BOOST_TEST(expected.contains(name), name << " became " << text);
  }
  for (const auto& [name, text] : expected) {
    const auto found = changed.find(name);
    BOOST_TEST((found == changed.end() ? "as it was" : found->second) == text, name);
  }
}

constexpr test::ModelShape kMoe = {.layers = 8, .experts = 4, .hidden = 16, .ffn = 16};

}  // namespace

BOOST_AUTO_TEST_SUITE(target_args)

BOOST_AUTO_TEST_CASE(each_size_sets_its_own_arguments_and_the_world) {
  const struct {
    std::function<void(optim::SizeChange&)> set;
    Texts expected;
  } rows[] = {
      {[](auto& to) { to.data_parallel = 3; },
       {{"data_parallel_size", "3"}, {"world_size", "3"}, {"inprocess_active_world_size", "3"}}},
      {[](auto& to) { to.context_parallel = 2; },
       {{"context_parallel_size", "2"}, {"world_size", "2"}, {"inprocess_active_world_size", "2"}}},
      {[](auto& to) { to.tensor_parallel = 2; },
       {{"tensor_model_parallel_size", "2"},
        {"expert_tensor_parallel_size", "2"},
        {"world_size", "2"},
        {"inprocess_active_world_size", "2"}}},
      {[](auto& to) { to.pipeline_parallel = 4; },
       {{"pipeline_model_parallel_size", "4"},
        {"transformer_pipeline_model_parallel_size", "4"},
        {"world_size", "4"},
        {"inprocess_active_world_size", "4"}}},
      {[](auto& to) { to.world_size = 5; },
       {{"data_parallel_size", "5"}, {"world_size", "5"}, {"inprocess_active_world_size", "5"}}},
  };
  for (const auto& row : rows) require_equal(Args().changed_by(change_of(row.set)), row.expected);
  require_equal(Args().changed_by({}), {});
}

BOOST_AUTO_TEST_CASE(experts_keep_sequence_parallelism_where_tensors_are_shared) {
  require_equal(Args(kMoe).changed_by(change_of([](auto& to) {
    to.expert_parallel = 2;
    to.data_parallel = 2;
  })),
                {{"expert_model_parallel_size", "2"},
                 {"data_parallel_size", "2"},
                 {"world_size", "2"},
                 {"inprocess_active_world_size", "2"}});
  const auto changed = Args(kMoe).changed_by(change_of([](auto& to) { to.tensor_parallel = 2; }));
  BOOST_TEST(changed.at("sequence_parallel") == "True");
}

// Read again, they would be those of --tp, and of one rank.
BOOST_AUTO_TEST_CASE(sizes_of_experts_that_args_do_not_state_are_stated) {
  Args args(kMoe);
  args.without("expert_tensor_parallel_size").without("expert_model_parallel_size");
  const auto changed = args.changed_by(change_of([](auto& to) {
    to.tensor_parallel = 2;
    to.expert_tensor_parallel = 1;
    to.expert_parallel = 2;
  }));
  BOOST_TEST(changed.at("expert_tensor_parallel_size") == "new: 1");
  BOOST_TEST(changed.at("expert_model_parallel_size") == "new: 2");
}

BOOST_AUTO_TEST_CASE(sequence_parallelism_ends_with_tensor_parallelism) {
  Args args;
  args.with("tensor_model_parallel_size", 2).with("expert_tensor_parallel_size", 2);
  args.with("sequence_parallel", true).with("world_size", 2);
  const auto one = args.changed_by(change_of([](auto& to) { to.tensor_parallel = 1; }));
  BOOST_TEST(one.at("sequence_parallel") == "False");
  BOOST_TEST(one.at("tensor_model_parallel_size") == "1");
  const auto four = args.changed_by(change_of([](auto& to) { to.tensor_parallel = 4; }));
  BOOST_TEST(!four.contains("sequence_parallel"));
}

BOOST_AUTO_TEST_CASE(model_chunks_are_stated_in_the_form_that_the_run_used) {
  const auto to_chunks = change_of([](auto& to) {
    to.pipeline_parallel = 2;
    to.virtual_pipeline_parallel = 2;
  });
  const auto by_stages = Args().with("overlap_p2p_comm", false).changed_by(to_chunks);
  BOOST_TEST(by_stages.at("virtual_pipeline_model_parallel_size") == "2");
  BOOST_TEST(by_stages.at("num_virtual_stages_per_pipeline_rank") == "2");
  BOOST_TEST(!by_stages.contains("num_layers_per_virtual_pipeline_stage"));
  BOOST_TEST(by_stages.at("overlap_p2p_comm") == "True");
  const auto by_layers =
      Args().with("num_layers_per_virtual_pipeline_stage", 4).changed_by(to_chunks);
  BOOST_TEST(by_layers.at("num_layers_per_virtual_pipeline_stage") == "2");
  BOOST_TEST(!by_layers.contains("num_virtual_stages_per_pipeline_rank"));
}

BOOST_AUTO_TEST_CASE(nothing_of_model_chunks_stays_where_there_are_none) {
  Args args;
  args.with("pipeline_model_parallel_size", 2).with("world_size", 2);
  args.with("virtual_pipeline_model_parallel_size", 2);
  args.with("num_virtual_stages_per_pipeline_rank", 2).with("overlap_p2p_comm", true);
  args.with("align_param_gather", true);
  const auto changed = args.changed_by(change_of([](auto& to) { to.pipeline_parallel = 1; }));
  BOOST_TEST(changed.at("virtual_pipeline_model_parallel_size") == "None");
  BOOST_TEST(changed.at("num_virtual_stages_per_pipeline_rank") == "None");
  BOOST_TEST(changed.at("overlap_p2p_comm") == "False");
  BOOST_TEST(changed.at("align_param_gather") == "False");
}

BOOST_AUTO_TEST_CASE(uneven_stages_are_stated_and_those_of_the_source_are_not_kept) {
  const auto layout = Args().changed_by(change_of([](auto& to) {
    to.pipeline_parallel = 2;
    to.pipeline_layout = "Et|tt|ttt|ttL";
  }));
  BOOST_TEST(layout.at("pipeline_model_parallel_layout") == "Et|tt|ttt|ttL");
  BOOST_TEST(layout.at("virtual_pipeline_model_parallel_size") == "2");
  BOOST_TEST(!layout.contains("num_virtual_stages_per_pipeline_rank"));
  const auto stages = Args().changed_by(change_of([](auto& to) {
    to.pipeline_parallel = 2;
    to.first_stage_layers = 3;
    to.last_stage_layers = 5;
  }));
  BOOST_TEST(stages.at("decoder_first_pipeline_num_layers") == "3");
  BOOST_TEST(stages.at("decoder_last_pipeline_num_layers") == "5");
  Args uneven;
  uneven.with("pipeline_model_parallel_size", 2).with("world_size", 2);
  uneven.with_text("pipeline_model_parallel_layout", "Et|tttttttL");
  const auto even = uneven.changed_by(change_of([](auto& to) { to.pipeline_parallel = 4; }));
  BOOST_TEST(even.at("pipeline_model_parallel_layout") == "None");
}

BOOST_AUTO_TEST_CASE(the_padded_vocabulary_follows_tensor_parallelism) {
  const auto changed = Args({.layers = 2, .vocabulary = 21, .vocabulary_divisor = 4})
                           .changed_by(change_of([](auto& to) { to.tensor_parallel = 4; }));
  BOOST_TEST(changed.at("padded_vocab_size") == "32");
  BOOST_TEST(!changed.contains("vocab_size"));
}

BOOST_AUTO_TEST_CASE(the_format_is_stated) {
  const Texts dist = {{"ckpt_format", "torch_dist"}, {"use_dist_ckpt", "True"}};
  require_equal(Args().changed_by({}, ckpt::Format::TorchDist), dist);
}

BOOST_AUTO_TEST_CASE(arguments_that_a_version_does_not_have_are_not_added) {
  Args args(kMoe);
  const char* const names[] = {"inprocess_active_world_size",
                               "transformer_pipeline_model_parallel_size",
                               "expert_tensor_parallel_size",
                               "num_virtual_stages_per_pipeline_rank",
                               "pipeline_model_parallel_layout",
                               "decoder_first_pipeline_num_layers",
                               "align_param_gather",
                               "overlap_p2p_comm",
                               "sequence_parallel",
                               "padded_vocab_size",
                               "use_dist_ckpt"};
  for (const char* const name : names) args.without(name);
  const auto changed = args.changed_by(change_of([](auto& to) {
                                         to.tensor_parallel = 2;
                                         to.pipeline_parallel = 2;
                                         to.virtual_pipeline_parallel = 2;
                                       }),
                                       ckpt::Format::TorchDist);
  for (const auto& [name, text] : changed) BOOST_TEST(!text.starts_with("new"), name);
  for (const char* const name : names) BOOST_TEST(!changed.contains(name), name);
  BOOST_TEST(changed.at("tensor_model_parallel_size") == "2");
}

BOOST_AUTO_TEST_SUITE_END()
