// What holds for any model in any grid: who holds and who owns what. 3,000 random pairs, 100,000
// with SHARDWISE_LONG_TESTS.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <map>
#include <set>
#include <utility>

#include <training/size_change.h>

#include "grid/placement.h"
#include "grid/rank_files.h"
#include "support/errors.h"
#include "support/generated_model.h"
#include "support/sanitizer.h"

using test::flip;
using test::ModelShape;
using test::pick;
using test::Picker;

namespace {

int case_count() {
  if (test::kIsSanitized) return 1'000;
  return test::is_long() ? 100'000 : 3'000;
}

std::vector<optim::HeldEntry> joined(const optim::OwnedGroups& groups) {
  std::vector<optim::HeldEntry> all;
  for (const auto& group : groups) all.insert(all.end(), group.begin(), group.end());
  return all;
}

std::vector<optim::ParamGroup> groups_of(const optim::FiledState& state, bool has_expert_groups) {
  std::vector<optim::ParamInfo> infos;
  for (const optim::TrainedParam& param : state.params) {
    infos.push_back(param.info);
    infos.back().attributes.allreduce =
        !has_expert_groups || !optim::expert_in(param.info.name).has_value();
  }
  optim::OptimizerConfig config;
  config.optimizer = "muon";
  config.bf16 = true;
  config.use_layer_wise_distributed_optimizer = true;
  return optim::get_param_groups(infos, config);
}

// A model in a grid that it fits.
struct Placed {
  ModelShape shape;
  optim::FiledState state;
  optim::RunGrid grid;
  uint64_t rows = 0;
};

// The next that fits, of random ones.
Placed next_that_fits(Picker& random) {
  while (true) {
    Placed placed{test::random_shape_of_model(random), {}, {}};
    placed.state = test::state_of_shape(placed.shape);
    optim::SizeChange change = test::random_sizes(random, placed.shape, 48);
    const uint32_t stages = *change.pipeline_parallel * *change.virtual_pipeline_parallel;
    if (*change.pipeline_parallel > 1 && pick(random, 0, 2) == 0) {
      change.pipeline_layout = test::random_layout(random, placed.shape, stages);
    }
    const auto refused =
        test::error_of([&] { placed.grid = optim::target_grid(placed.state, change); });
    if (refused) continue;
    placed.rows = optim::target_vocabulary(placed.state, placed.grid, change);
    return placed;
  }
}

// By the numbers alone.
bool divides(const ModelShape& of, const optim::SizeChange& to) {
  const uint32_t tp = *to.tensor_parallel, pp = *to.pipeline_parallel;
  const uint32_t vpp = *to.virtual_pipeline_parallel, ep = *to.expert_parallel;
  const uint32_t etp = *to.expert_tensor_parallel;
  const uint32_t stage = tp * *to.context_parallel * *to.data_parallel;
  const bool has_dense = of.experts == 0 || of.dense_layers > 0;
  if (pp == 1 && vpp > 1) return false;
  if (of.experts > 0 && ep == 1 && etp > tp) return false;      // parts without an owner
  if (of.is_tied && of.mtp_layers > 0 && pp > 1) return false;  // Megatron cannot save it
  if (of.layers % (pp * vpp) != 0 || stage % (etp * ep) != 0) return false;
  if (of.experts > 0 && (of.experts % ep != 0 || of.ffn % etp != 0)) return false;
  return of.heads % tp == 0 && of.hidden % tp == 0 && (!has_dense || of.ffn % tp == 0);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(owned_once)

BOOST_AUTO_TEST_CASE(sizes_are_refused_just_where_they_do_not_divide_and_by_their_option) {
  Picker random(1);
  int fits = 0;
  for (int i = 0; i < case_count(); ++i) {
    const ModelShape shape = test::random_shape_of_model(random);
    const optim::FiledState state = test::state_of_shape(shape);
    const optim::SizeChange change = test::random_sizes(random, shape, 64);
    const auto refused = test::error_of([&] { optim::target_grid(state, change); });
    BOOST_REQUIRE_EQUAL(!refused, divides(shape, change));
    fits += refused ? 0 : 1;
    if (!refused) continue;
    BOOST_REQUIRE((refused->code() == ckpt::ErrorCode::InvalidArgument));
    BOOST_REQUIRE_MESSAGE(test::contains(refused->problem(), "--"), refused->what());
  }
  BOOST_TEST(fits > case_count() / 20);
}

// Each element of a parameter is in one box of one tensor parallel rank, and all parts are of the
// size that the rank's tensor has.
void require_tiles(const Placed& placed, const optim::Placement& placement, uint32_t param) {
  const ckpt::Extents shape = placement.shape_of(param);
  std::vector<int> counts(ckpt::element_count(shape), 0);
  for (uint32_t rank = 0; rank < placement.tensor_ranks(param); ++rank) {
    uint64_t held = 0;
    for (const ckpt::Box& box : placement.boxes(param, rank)) {
      const uint64_t columns = shape.size() == 1 ? 1 : shape[1];
      const uint64_t first = shape.size() == 1 ? 0 : box.offsets[1];
      const uint64_t width = shape.size() == 1 ? 1 : box.sizes[1];
      for (uint64_t row = box.offsets[0]; row < box.offsets[0] + box.sizes[0]; ++row) {
        for (uint64_t column = first; column < first + width; ++column) {
          ++counts.at(row * columns + column);
        }
      }
      held += ckpt::element_count(box.sizes);
    }
    BOOST_REQUIRE_EQUAL(held, ckpt::element_count(placement.shape_on_rank(param)));
  }
  BOOST_REQUIRE_MESSAGE(std::ranges::all_of(counts, [](int count) { return count == 1; }),
                        placed.state.params[param].info.name);
}

BOOST_AUTO_TEST_CASE(tensor_parallel_ranks_hold_each_element_of_a_parameter_once) {
  Picker random(2);
  for (int i = 0; i < case_count(); ++i) {
    const Placed placed = next_that_fits(random);
    const optim::Placement placement(placed.state, placed.grid, placed.rows);
    for (uint32_t param = 0; param < placed.state.params.size(); ++param) {
      require_tiles(placed, placement, param);
    }
  }
}

// On how many stages a copy lies: tied embeddings on the last one, too, and where MTP layers are.
size_t copies_of(const Placed& placed, const std::string& name,
                 const std::vector<optim::ModelChunk>& chunks) {
  if (!name.starts_with("embedding.")) return 1;
  const bool is_word = name == "embedding.word_embeddings.weight";
  return std::ranges::count_if(chunks, [&](const optim::ModelChunk& chunk) {
    return chunk.has_embedding || chunk.mtp_layers.count > 0 ||
           (is_word && placed.shape.is_tied && chunk.has_output);
  });
}

BOOST_AUTO_TEST_CASE(each_parameter_is_on_one_stage_and_expert_rank_but_for_copies_of_embeddings) {
  Picker random(3);
  for (int i = 0; i < case_count(); ++i) {
    const Placed placed = next_that_fits(random);
    const optim::Placement placement(placed.state, placed.grid, placed.rows);
    const optim::ParallelSizes& sizes = placed.grid.sizes;
    std::vector<size_t> held(placed.state.model.size(), 0);
    for (uint32_t stage = 0; stage < sizes.pipeline_parallel; ++stage) {
      for (uint32_t expert = 0; expert < sizes.expert_parallel; ++expert) {
        for (const optim::HeldEntry& one : placement.held(stage, expert)) {
          const bool is_expert = placement.is_expert(placed.state.model[one.entry].param);
          if (is_expert || expert == 0) ++held[one.entry];
        }
      }
    }
    for (size_t entry = 0; entry < held.size(); ++entry) {
      const std::string& name = placed.state.model[entry].name;
      BOOST_REQUIRE_MESSAGE(held[entry] == copies_of(placed, name, placement.chunks()), name);
    }
  }
}

BOOST_AUTO_TEST_CASE(names_on_a_rank_lead_back_to_the_model_and_are_in_order_of_registration) {
  Picker random(4);
  for (int i = 0; i < case_count() / 4; ++i) {
    const Placed placed = next_that_fits(random);
    const optim::Placement placement(placed.state, placed.grid, placed.rows);
    const uint32_t stages = placed.grid.sizes.pipeline_parallel;
    const uint32_t stage = pick(random, 0, stages - 1);
    const uint32_t expert = pick(random, 0, placed.grid.sizes.expert_parallel - 1);
    std::map<uint32_t, optim::ModelPlace> last;  // by chunk
    for (const optim::HeldEntry& one : placement.held(stage, expert)) {
      optim::RankPart part{.chunk = placement.chunks().at(one.chunk * stages + stage)};
      part.output_is_tied = placed.shape.is_tied;
      if (placed.shape.experts > 0) {
        part.experts =
            optim::experts_on(placed.shape.experts, expert, placed.grid.sizes.expert_parallel);
      }
      const std::string name = placement.name_on_rank(one, stage, expert);
      const std::string& whole = placed.state.model[one.entry].name;
      BOOST_REQUIRE_EQUAL(optim::name_in_model(name, part).value_or("none"), whole);
      const auto found = optim::ModelRules::built_in().find(name);
      BOOST_REQUIRE_MESSAGE(found.has_value(), name);
      const auto before = last.find(one.chunk);
      BOOST_REQUIRE_MESSAGE(before == last.end() || before->second < found->place, name);
      last[one.chunk] = found->place;
    }
  }
}

// Who steps a part of a parameter. Its ranks are those of the grid in which Megatron deals it: with
// one expert parallel rank experts are dealt as all others are.
struct PartKey {
  uint32_t param, chunk;  // of the model
  uint32_t rank;          // tensor parallel; of a dealt expert expert tensor parallel
  auto operator<=>(const PartKey&) const = default;
};
struct Owner {
  uint32_t share;        // among the ranks that share the part
  uint32_t tensor_rank;  // whose boxes it steps
};
using Owners = std::map<PartKey, std::vector<Owner>>;

Owners owners_of(const Placed& placed, const optim::RankDeals& deals) {
  const optim::Placement& placement = deals.placement();
  const bool deals_experts = placed.grid.sizes.expert_parallel > 1;
  Owners owners;
  for (const optim::WorldRank& rank : optim::ranks_of(placed.grid)) {
    const optim::OwnedGroups groups = deals.owned(rank.at);
    BOOST_REQUIRE_EQUAL(groups.size(), deals.groups().size());
    for (const optim::HeldEntry& one : joined(groups)) {
      const uint32_t param = placed.state.model[one.entry].param;
      const bool is_expert = deals_experts && placement.is_expert(param);
      if (is_expert) BOOST_REQUIRE_EQUAL(placement.expert_rank(param), rank.at.ep);
      owners[{param, one.chunk * placed.grid.sizes.pipeline_parallel + rank.at.pp,
              is_expert ? rank.at.etp : rank.at.tp}]
          .push_back(
              {is_expert ? rank.at.edp : rank.at.dp_cp, placement.tensor_rank(param, rank.at)});
    }
  }
  return owners;
}

// One owner for each part on each stage that has it, the same share for all tensor parallel ranks.
void require_owned_once(const Placed& placed, const optim::RankDeals& deals) {
  const optim::ParallelSizes& sizes = placed.grid.sizes;
  const Owners owners = owners_of(placed, deals);
  size_t expected = 0;
  for (uint32_t entry = 0; entry < placed.state.model.size(); ++entry) {
    const uint32_t param = placed.state.model[entry].param;
    const std::string& name = placed.state.model[entry].name;
    const bool is_expert = sizes.expert_parallel > 1 && deals.placement().is_expert(param);
    const uint32_t ranks = is_expert ? sizes.expert_tensor_parallel : sizes.tensor_parallel;
    const size_t owner_count = is_expert && !deals.is_dealt() ? sizes.expt_dp() : 1;
    for (const uint32_t chunk : deals.placement().chunks_of_entry(entry)) {
      std::set<uint32_t> shares, tensor_ranks;
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        const auto found = owners.find({param, chunk, rank});
        BOOST_REQUIRE_MESSAGE(found != owners.end(), name);
        BOOST_REQUIRE_MESSAGE(found->second.size() == owner_count, name);
        shares.insert(found->second.front().share);
        for (const Owner& owner : found->second) tensor_ranks.insert(owner.tensor_rank);
        ++expected;
      }
      BOOST_REQUIRE_EQUAL(shares.size(), 1u);
      BOOST_REQUIRE_EQUAL(tensor_ranks.size(), deals.placement().tensor_ranks(param));
    }
  }
  BOOST_REQUIRE_EQUAL(owners.size(), expected);
}

BOOST_AUTO_TEST_CASE(each_part_of_a_parameter_has_one_owner_and_replicas_agree_on_it) {
  Picker random(5);
  constexpr optim::OwnershipPolicy kPolicies[] = {optim::OwnershipPolicy::PingPong,
                                                  optim::OwnershipPolicy::Balanced,
                                                  optim::OwnershipPolicy::Lpt};
  for (int i = 0; i < case_count(); ++i) {
    const Placed placed = next_that_fits(random);
    const optim::Placement placement(placed.state, placed.grid, placed.rows);
    const auto groups = groups_of(placed.state, placed.grid.sizes.expert_parallel > 1);
    const auto policy = kPolicies[pick(random, 0, 2)];
    require_owned_once(placed, optim::RankDeals(placed.state, placement, groups, {true, policy}));
  }
}

// Dealt from the smallest on, equal ones in the order of registration; else in that order alone.
BOOST_AUTO_TEST_CASE(a_rank_steps_what_it_owns_in_the_order_of_the_deal) {
  Picker random(6);
  for (int i = 0; i < case_count() / 4; ++i) {
    const Placed placed = next_that_fits(random);
    const optim::Placement placement(placed.state, placed.grid, placed.rows);
    const auto groups = groups_of(placed.state, placed.grid.sizes.expert_parallel > 1);
    const optim::RankDeals deals(placed.state, placement, groups, {});
    for (const optim::WorldRank& rank : optim::ranks_of(placed.grid)) {
      const auto held = placement.held(rank.at.pp, rank.at.ep);
      for (const auto& group : deals.owned(rank.at)) {
        std::pair<uint64_t, std::ptrdiff_t> last(0, -1);  // elements, place
        for (const optim::HeldEntry& one : group) {
          const auto found = std::ranges::find_if(held, [&](const optim::HeldEntry& each) {
            return each.entry == one.entry && each.chunk == one.chunk;
          });
          BOOST_REQUIRE((found != held.end()));
          const uint32_t param = placed.state.model[one.entry].param;
          const uint64_t size = ckpt::element_count(placement.shape_on_rank(param));
          const std::pair here(deals.is_dealt() ? size : 0, found - held.begin());
          BOOST_REQUIRE_MESSAGE(last < here, placed.state.params[param].info.name);
          last = here;
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(without_sharding_each_rank_owns_all_that_it_holds) {
  Picker random(7);
  for (int i = 0; i < case_count() / 10; ++i) {
    const Placed placed = next_that_fits(random);
    const optim::Placement placement(placed.state, placed.grid, placed.rows);
    const auto groups = groups_of(placed.state, placed.grid.sizes.expert_parallel > 1);
    const optim::RankDeals deals(placed.state, placement, groups, {.is_sharded = false});
    for (const optim::WorldRank& rank : optim::ranks_of(placed.grid)) {
      const auto owned = joined(deals.owned(rank.at));
      BOOST_REQUIRE_EQUAL(owned.size(), placement.held(rank.at.pp, rank.at.ep).size());
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
