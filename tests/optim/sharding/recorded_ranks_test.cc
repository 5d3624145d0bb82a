#include "optim/sharding/recorded_ranks.h"

#include <map>
#include <set>

#include <boost/test/unit_test.hpp>

// What is computed of the process grid, the stages, names, splits and buffers is what the ranks of
// real runs held.
BOOST_AUTO_TEST_SUITE(recorded_ranks_of_megatron)

using nlohmann::json;

BOOST_AUTO_TEST_CASE(each_rank_has_its_coordinates) {
  for (const RecordedRanks& set : recorded_ranks()) {
    const optim::RankGrid grid(set.sizes());
    BOOST_TEST(grid.rank_count() == set.json["ranks"].size(), set.name());
    for (const json& rank : set.json["ranks"]) {
      const optim::RankCoordinates at = grid.at(rank["rank"]);
      const json ours = {{"tp", at.tp},   {"pp", at.pp}, {"dp", at.dp},   {"cp", at.cp},
                         {"etp", at.etp}, {"ep", at.ep}, {"edp", at.edp}, {"dp_cp", at.dp_cp}};
      for (const auto& [axis, place] : ours.items()) {
        BOOST_TEST(place == rank[axis], set.name() << " rank " << rank["rank"] << ' ' << axis);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(names_on_a_rank_are_the_models) {
  for (const RecordedRanks& set : recorded_ranks()) {
    const optim::RankGrid grid(set.sizes());
    for (const json& rank : set.json["ranks"]) {
      const optim::RankCoordinates at = grid.at(rank["rank"]);
      for (const json& param : set.params_of(rank)) {
        const optim::RankPart part = set.part(at, param[1]);
        const std::string in_model = param[0], on_rank = param[2];
        BOOST_TEST(optim::name_in_model(on_rank, part).value_or("") == in_model, set.name());
        BOOST_TEST(optim::name_on_rank(in_model, part).value_or("") == on_rank, set.name());
      }
    }
  }
}

// Names of the model's parameters that a rank holds in one chunk.
std::set<std::string> names_in(const RecordedRanks& set, const optim::RankPart& part) {
  const optim::ModelChunk& chunk = part.chunk;
  const auto chunks = optim::model_chunks(set.pipeline());
  bool has_words = false;
  for (const size_t i : optim::chunks_with_word_embeddings(chunks, set.is_tied())) {
    has_words = has_words || chunks[i] == chunk;
  }
  std::set<std::string> names;
  for (const auto& [name, shape] : set.json["shapes"].items()) {
    const bool is_word = name == "embedding.word_embeddings.weight";
    const bool is_output = name.starts_with("output_layer") || name.starts_with("decoder.final");
    const bool is_here = is_word                          ? has_words
                         : name.starts_with("embedding.") ? chunk.has_embedding
                         : is_output                      ? chunk.has_output
                                                          : true;
    if (is_here && optim::name_on_rank(name, part)) names.insert(name);
  }
  return names;
}

BOOST_AUTO_TEST_CASE(ranks_hold_the_parameters_of_their_chunks_and_no_others) {
  for (const RecordedRanks& set : recorded_ranks()) {
    const optim::RankGrid grid(set.sizes());
    for (const json& rank : set.json["ranks"]) {
      std::set<std::string> held, expected;
      for (const json& param : set.params_of(rank)) held.insert(param[0]);
      for (uint32_t chunk = 0; chunk < set.size("vpp"); ++chunk) {
        expected.merge(names_in(set, set.part(grid.at(rank["rank"]), chunk)));
      }
      BOOST_TEST(held == expected, set.name() << " rank " << rank["rank"]);
    }
  }
}

optim::BufferRules rules_of(const RecordedRanks& set, const json& buffer, uint32_t stage) {
  const uint32_t ranks = buffer["is_expert"] ? set.sizes().expt_dp() : set.sizes().dp_cp();
  optim::BufferRules rules;
  if (set.has_distributed_optimizer()) rules = optim::distributed_optimizer_buffers(ranks, false);
  rules.bucket_elements =
      optim::bucket_elements({.overlap_grad_reduce = set.json["overlap_grad_reduce"],
                              .bucket_size = set.bucket_size(),
                              .data_parallel_ranks = set.sizes().dp_cp()},
                             {.stage = stage, .chunk = buffer["chunk"]});
  return rules;
}

// In the model's order; the buffer has them backwards.
std::vector<optim::FlatParam> params_of(const RecordedRanks& set, const json& rank,
                                        const json& buffer) {
  std::map<std::string, uint64_t> elements;
  for (const json& param : set.params_of(rank)) {
    elements[param[0]] = 1;
    for (const json& size : param[3]) elements[param[0]] *= size.get<uint64_t>();
  }
  std::vector<optim::FlatParam> params;
  for (const json& param : buffer["params"]) {
    const bool is_shared =
        set.is_tied() && set.size("pp") > 1 && param[0] == "embedding.word_embeddings.weight";
    params.insert(params.begin(), {elements.at(param[0]), is_shared});
  }
  return params;
}

void expect_layout(const optim::FlatLayout& layout, const json& buffer) {
  json buckets = json::array(), places = json::array();
  for (const optim::FlatBucket& bucket : layout.buckets) {
    buckets.push_back(
        {bucket.range.begin, bucket.range.end - bucket.range.begin, bucket.unpadded_count});
  }
  for (const json& param : buffer["params"]) {
    const optim::FlatPlace& place = layout.places[layout.places.size() - 1 - places.size()];
    places.push_back({param[0], place.range.begin, place.range.end, place.bucket});
  }
  BOOST_TEST(layout.element_count() == buffer["numel"].get<uint64_t>());
  BOOST_TEST(buckets == buffer["buckets"]);
  BOOST_TEST(places == buffer["params"]);
}

BOOST_AUTO_TEST_CASE(buffers_and_buckets_lie_where_the_ranks_had_them) {
  for (const RecordedRanks& set : recorded_ranks()) {
    const optim::RankGrid grid(set.sizes());
    for (const json& rank : set.json["ranks"]) {
      for (const json& buffer : set.buffers_of(rank)) {
        if (set.is_layer_wise_of_august(buffer)) continue;  // lpt_layout() lays these out
        BOOST_TEST_CONTEXT(set.name() << " rank " << rank["rank"] << " chunk " << buffer["chunk"]) {
          const auto rules = rules_of(set, buffer, grid.at(rank["rank"]).pp);
          expect_layout(optim::lay_out_flat(params_of(set, rank, buffer), rules), buffer);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
