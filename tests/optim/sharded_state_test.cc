#include <optim/sharded_state.h>

#include <memory>
#include <string>
#include <vector>

#include <boost/test/unit_test.hpp>

#include "optim/expect_error.h"
#include "optim/golden_json.h"

namespace {

using ckpt::ErrorCode;
using nlohmann::json;
using optim::LocalNonpersistentObject;
using optim::ShardedParam;
using optim::ShardedTensor;
using optim::ShardedTensorFactory;
using optim::StateDict;
using optim::StateKey;
using optim::StateList;
using optim::StateValue;
using optim::TensorHandle;

// A tensor with an identity of its own.
TensorHandle new_tensor(optim::Shape shape, ckpt::DType dtype = ckpt::DType::BFloat16) {
  auto storage = std::make_shared<const int>(0);
  return {.identity = storage.get(), .dtype = dtype, .shape = std::move(shape), .tensor = storage};
}

// The golden file's description of a sharded parameter, around `data`.
ShardedParam read_param(const json& row, TensorHandle data) {
  const auto replica = row["replica_id"].get<optim::Shape>();
  if (row.contains("factory")) {
    return ShardedTensorFactory{
        .key = row["factory"], .data = std::move(data), .replica_id = replica};
  }
  return ShardedTensor{.key = row["key"],
                       .data = std::move(data),
                       .dtype = *ckpt::dtype_named(row["dtype"].get<std::string>()),
                       .local_shape = row["local_shape"],
                       .global_shape = row["global_shape"],
                       .global_offset = row["global_offset"],
                       .axis_fragmentations = row["axis_fragmentations"].get<optim::Shape>(),
                       .replica_id = replica,
                       .prepend_axis_num = row["prepend_axis_num"],
                       .allow_shape_mismatch = row["allow_shape_mismatch"]};
}

json written(const optim::ReplicaId& replica_id) {
  return std::visit([](const auto& id) { return json(id); }, replica_id);
}

json written(const ShardedParam& param) {
  if (const auto* factory = std::get_if<ShardedTensorFactory>(&param)) {
    return {{"factory", factory->key},
            {"replica_id", written(factory->replica_id)},
            {"shape", factory->data->shape},
            {"dtype", ckpt::name(factory->data->dtype)}};
  }
  const auto& tensor = std::get<ShardedTensor>(param);
  return {{"key", tensor.key},
          {"dtype", ckpt::name(tensor.dtype)},
          {"local_shape", tensor.local_shape},
          {"global_shape", tensor.global_shape},
          {"global_offset", tensor.global_offset},
          {"axis_fragmentations", *tensor.axis_fragmentations},
          {"replica_id", written(tensor.replica_id)},
          {"prepend_axis_num", tensor.prepend_axis_num},
          {"allow_shape_mismatch", tensor.allow_shape_mismatch}};
}

StateValue as_value(const ShardedParam& param) {
  return std::visit([](const auto& p) { return StateValue(p); }, param);
}

ShardedParam as_param(const StateValue& value) {
  if (const auto* tensor = value.get_if<ShardedTensor>()) return *tensor;
  return *value.get_if<ShardedTensorFactory>();
}

// One golden case: the parameters, a nested state dict around them, and the optimizer's order.
struct Case {
  std::vector<TensorHandle> params;
  StateDict model;
  std::vector<TensorHandle> optim_params;
};

Case read_case(const json& row) {
  Case result;
  std::vector<StateValue> sharded;
  for (const auto& param : row["params"]) {
    result.params.push_back(new_tensor(param["shape"]));
    sharded.push_back(as_value(read_param(param["sharded"], result.params.back())));
  }
  StateList second, rest;
  for (size_t i = 1; i < sharded.size(); ++i) (i < 2 ? second : rest).push_back(sharded[i]);
  const StateDict inner = {{"x", sharded[0]}, {"n", 3}};
  const ShardedTensor untracked =
      optim::sharded_tensor_from_rank_offsets("other", new_tensor({2}), {});
  result.model = {{"a", inner},
                  {"b", StateList{second, StateDict{{"y", rest}}}},
                  {"untracked", untracked},
                  {"text", "t"},
                  {"none", StateValue{}}};
  for (const size_t at : row["order"]) result.optim_params.push_back(result.params[at]);
  return result;
}

// An optimizer's state dict with three fp32 states for each id.
StateDict optimizer_state(const Case& model, const json& state_ids) {
  StateDict state;
  StateList ids;
  for (const int64_t id : state_ids) {
    StateDict states;
    for (const char* key : {"exp_avg", "exp_avg_sq", "step"}) {
      const auto& shape = model.optim_params[static_cast<size_t>(id)].shape;
      states.emplace_back(key, new_tensor(shape, ckpt::DType::Float32));
    }
    state.emplace_back(id, std::move(states));
    ids.emplace_back(id);
  }
  return {{"state", std::move(state)},
          {"param_groups", StateList{StateDict{{"lr", 0.5}, {"params", ids}}}}};
}

json written_state(const StateDict& optim_state) {
  json result = json::object();
  for (const auto& [id, states] : *find(optim_state, "state")->get_if<StateDict>()) {
    json& row = result[std::to_string(std::get<int64_t>(id))] = json::object();
    for (const auto& [key, value] : *states.get_if<StateDict>()) {
      row[std::get<std::string>(key)] = written(as_param(value));
    }
  }
  return result;
}

const StateDict& first_group(const StateDict& optim_state) {
  return *find(optim_state, "param_groups")->get_if<StateList>()->at(0).get_if<StateDict>();
}

ShardedTensor layer_of_two() {
  const std::vector<optim::RankOffset> offsets = {{.axis = 0, .rank = 1, .fragments = 2}};
  return optim::sharded_tensor_from_rank_offsets("decoder.w", new_tensor({4, 6}), offsets,
                                                 {.prepend_axis_num = 1});
}

}  // namespace

BOOST_AUTO_TEST_SUITE(sharded_state)

BOOST_AUTO_TEST_CASE(ids_are_places_in_the_optimizer_and_the_first_of_a_repeated_parameter) {
  const TensorHandle a = new_tensor({1}), b = new_tensor({2});
  const auto ids = optim::get_optim_param_to_id_map(std::vector{b, a, b});
  BOOST_TEST(ids.size() == 2u);
  BOOST_TEST(ids.at(b.identity) == 0);
  BOOST_TEST(ids.at(a.identity) == 1);
}

BOOST_AUTO_TEST_CASE(maps_and_states_are_those_of_megatron_core) {
  size_t refused = 0, warned = 0;
  for (const auto& row : golden("sharded_state.json")) {
    const Case model = read_case(row);
    BOOST_TEST_CONTEXT(row) {
      auto map = optim::get_param_id_to_sharded_param_map(model.model, model.optim_params);
      BOOST_TEST(map.warnings.size() == (map.params.empty() ? 1u : 0u));
      warned += map.warnings.size();
      if (row["missing"].get<bool>()) map.params.erase(std::prev(map.params.end()));
      json actual = json::object();
      for (const auto& [id, param] : map.params) actual[std::to_string(id)] = written(param);
      BOOST_TEST(actual == row["map"]);

      StateDict state = optimizer_state(model, row["state_ids"]);
      const auto exclude = row["exclude"].get<std::set<std::string>>();
      if (row.contains("error")) {
        BOOST_CHECK_THROW(optim_state_to_sharding_state(state, map.params, exclude), ckpt::Error);
        ++refused;
        continue;
      }
      optim_state_to_sharding_state(state, map.params, exclude);
      BOOST_TEST(written_state(state) == row["state"]);
      const StateValue* params = find(first_group(state), "params");
      const auto& kept = *params->get_if<LocalNonpersistentObject>()->unwrap().get_if<StateList>();
      BOOST_TEST(kept.size() == row["state_ids"].size());
      BOOST_TEST(*find(first_group(state), "lr")->get_if<double>() == 0.5);
    }
  }
  BOOST_TEST(refused > 2u);
  BOOST_TEST(warned > 2u);
}

BOOST_AUTO_TEST_CASE(an_empty_map_warns_with_the_keep_vars_hint) {
  const StateDict model = {{"w", layer_of_two()}};
  const auto map = optim::get_param_id_to_sharded_param_map(model, std::vector{new_tensor({4, 6})});
  BOOST_TEST(map.params.empty());
  BOOST_TEST_REQUIRE(map.warnings.size() == 1u);
  BOOST_TEST(map.warnings[0].find(optim::KEEP_VARS_HINT) != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_state_takes_the_sharding_of_its_parameter_and_its_own_dtype) {
  const TensorHandle state = new_tensor({4, 6}, ckpt::DType::Float32);
  const auto result = std::get<ShardedTensor>(
      optim::make_sharded_optimizer_tensor(layer_of_two(), state, "optimizer.state.exp_avg"));
  BOOST_TEST(result.key == "optimizer.state.exp_avg.decoder.w");
  BOOST_TEST((result.dtype == ckpt::DType::Float32));
  BOOST_TEST(result.data->identity == state.identity);
  BOOST_TEST(result.global_shape == (optim::Shape{2, 4, 6}));
  BOOST_TEST(result.global_offset == (optim::Shape{1, 0, 0}));
}

BOOST_AUTO_TEST_CASE(a_state_of_another_shape_is_refused_with_its_key) {
  expect_error(ErrorCode::InvalidArgument, "p.decoder.w", [] {
    optim::make_sharded_optimizer_tensor(layer_of_two(), new_tensor({6, 4}), "p");
  });
}

// SOAP's factors, which Megatron-Core cannot save: whole, in one chunk a layer.
BOOST_AUTO_TEST_CASE(a_state_with_a_shape_of_its_own_is_one_chunk_of_its_layer) {
  ShardedTensor weight = layer_of_two();
  weight.key = "decoder.layers.w";
  weight.local_shape = {3, 5};
  weight.global_shape = {4, 3, 5};
  weight.global_offset = {2, 0, 0};
  weight.axis_fragmentations = optim::Shape{4, 1, 1};
  weight.prepend_axis_num = 1;
  const auto sharded_of = [&](const ShardedTensor& model, const char* name, optim::Shape shape) {
    StateDict states, state, optimizer;
    optim::put(states, name, new_tensor(std::move(shape), ckpt::DType::Float32));
    optim::put(state, int64_t{0}, std::move(states));
    optim::put(optimizer, "state", std::move(state));
    optim::put(optimizer, "param_groups", StateList{});
    optim::optim_state_to_sharding_state(optimizer, {{0, model}}, {});
    const auto& by_id = *optim::find(optimizer, StateKey("state"))->get_if<StateDict>();
    return *optim::find(*optim::find(by_id, int64_t{0})->get_if<StateDict>(), StateKey(name))
                ->get_if<ShardedTensor>();
  };
  const ShardedTensor left = sharded_of(weight, "L", {3, 3});
  BOOST_TEST(left.key == "optimizer.state.L.decoder.layers.w");
  BOOST_TEST((left.global_shape == optim::Shape{4, 3, 3}));
  BOOST_TEST((left.global_offset == optim::Shape{2, 0, 0}));
  BOOST_TEST((left.axis_fragmentations == optim::Shape{4, 1, 1}));
  const ShardedTensor means = sharded_of(weight, "moment2_buffer", {1, 5});
  BOOST_TEST((means.global_shape == optim::Shape{4, 1, 5}));
  expect_error(ErrorCode::InvalidArgument, "optimizer.state.exp_avg.decoder.layers.w", [&] {
    sharded_of(weight, "exp_avg", {3, 3});
  });
  weight.global_shape = {4, 6, 5};  // tensor parallel
  weight.axis_fragmentations = optim::Shape{4, 2, 1};
  expect_error(ErrorCode::InvalidArgument, "optimizer.state.L.decoder.layers.w", [&] {
    sharded_of(weight, "L", {3, 3});
  });
}

BOOST_AUTO_TEST_CASE(a_refused_state_dict_stays_as_it_was) {
  StateDict state = {{"state", StateDict{{int64_t{0}, StateDict{{"exp_avg", new_tensor({4, 6})}}},
                                         {int64_t{1}, StateDict{{"exp_avg", new_tensor({1})}}}}},
                     {"param_groups", StateList{StateDict{{"params", StateList{0, 1}}}}}};
  expect_error(ErrorCode::InvalidArgument, "state.1", [&] {
    optim_state_to_sharding_state(state, {{0, layer_of_two()}});
  });
  const StateValue& first = find(state, "state")->get_if<StateDict>()->at(0).second;
  BOOST_TEST(find(*first.get_if<StateDict>(), "exp_avg")->get_if<TensorHandle>() != nullptr);
  BOOST_TEST(find(first_group(state), "params")->get_if<StateList>() != nullptr);
}

BOOST_AUTO_TEST_CASE(malformed_state_dicts_are_refused_by_what_is_wrong) {
  const StateList groups = {StateDict{{"params", StateList{0}}}};
  const auto state_of = [](StateValue value) { return StateDict{{int64_t{0}, std::move(value)}}; };
  const std::vector<std::pair<std::string, StateDict>> rows = {
      {"state", {{"param_groups", groups}}},
      {"state", {{"state", 1}, {"param_groups", groups}}},
      {"state.0", {{"state", state_of(7)}, {"param_groups", groups}}},
      {"state.x", {{"state", StateDict{{"x", StateDict{}}}}, {"param_groups", groups}}},
      {"state.0.step", {{"state", state_of(StateDict{{"step", 3}})}, {"param_groups", groups}}},
      {"param_groups", {{"state", StateDict{}}}},
      {"param_groups", {{"state", StateDict{}}, {"param_groups", StateList{StateDict{}}}}}};
  for (const auto& [key, dict] : rows) {
    StateDict copy = dict;
    expect_error(ErrorCode::InvalidArgument, key, [&] {
      optim_state_to_sharding_state(copy, {{0, layer_of_two()}});
    });
  }
}

BOOST_AUTO_TEST_CASE(a_very_deep_model_state_dict_is_searched_without_recursion) {
  // Built and taken apart level by level: only the search is under test.
  std::vector<std::unique_ptr<StateDict>> levels;
  const TensorHandle param = new_tensor({2});
  StateDict dict = {{"w", optim::sharded_tensor_from_rank_offsets("w", param, {})}};
  for (int depth = 0; depth < 2000; ++depth) {
    StateDict outer;
    outer.emplace_back("next", std::move(dict));
    dict = std::move(outer);
  }
  BOOST_TEST(optim::get_param_id_to_sharded_param_map(dict, std::vector{param}).params.size() ==
             1u);
}

BOOST_AUTO_TEST_CASE(rank_offsets_give_the_grid_that_megatron_core_gives) {
  for (const auto& row : golden("grids.json")) {
    std::vector<optim::RankOffset> offsets;
    for (const auto& o : row["rank_offsets"]) offsets.push_back({o[0], o[1], o[2]});
    const auto make = [&] {
      return optim::sharded_tensor_from_rank_offsets("k",
                                                     new_tensor(row["shape"], ckpt::DType::Float32),
                                                     offsets, {.prepend_axis_num = row["prepend"]});
    };
    BOOST_TEST_CONTEXT(row) {
      if (row.contains("error")) {
        expect_error(ErrorCode::InvalidArgument, "k", make);
        continue;
      }
      const ShardedTensor tensor = make();
      BOOST_TEST(written(ShardedParam(tensor)) == row["tensor"]);
      BOOST_TEST(json(tensor.local_chunk_offset_in_global()) == row["chunk_offset"]);
      BOOST_TEST(json(tensor.max_allowed_chunks()) == row["max_chunks"]);
    }
  }
}

BOOST_AUTO_TEST_CASE(sharded_tensors_that_contradict_themselves_are_refused) {
  const auto broken = [](auto change, ErrorCode code = ErrorCode::InvalidArgument) {
    ShardedTensor tensor = layer_of_two();
    change(tensor);
    expect_error(code, "decoder.w", [&] { tensor.validate_metadata_integrity(); });
  };
  layer_of_two().validate_metadata_integrity();
  layer_of_two().without_data().validate_metadata_integrity();
  broken([](auto& t) { t.dtype = ckpt::DType::Float32; });
  broken([](auto& t) { t.local_shape = {6, 4}; });
  broken([](auto& t) { t.global_offset = {1, 0}; });
  broken([](auto& t) { t.prepend_axis_num = 0; });
  broken([](auto& t) { t.prepend_axis_num = -1; });
  broken([](auto& t) { t.prepend_axis_num = 9; });
  broken([](auto& t) { t.global_offset = {1, 3, 0}; });
  broken([](auto& t) { t.flattened_range = optim::FlattenedRange{0, 4}; }, ErrorCode::Unsupported);
}

BOOST_AUTO_TEST_CASE(keys_of_sharded_objects_are_written_and_read_as_megatron_core_does) {
  for (const auto& row : golden("objects.json")) {
    const optim::ShardedObject object{
        .key = row["key"], .global_shape = row["shape"], .global_offset = row["offset"]};
    BOOST_TEST(object.unique_key() == row["unique_key"].get<std::string>());
    const auto read = optim::ShardedObject::empty_from_unique_key(object.unique_key());
    BOOST_TEST(read.key == object.key);
    BOOST_TEST(read.global_shape == object.global_shape);
    BOOST_TEST(read.global_offset == object.global_offset);
  }
  for (const char* text : {"", "key", "key/shard_", "key/shard_0", "key/shard_0_", "key/shard_a_1",
                           "key/shard_0.0_1.1.1", "key/shard_0._1.1", "key/part_0_1"}) {
    BOOST_CHECK_THROW(optim::ShardedObject::empty_from_unique_key(text), ckpt::Error);
  }
  const auto old = optim::ShardedObject::empty_from_unique_key("k/shard_0.3_12");
  BOOST_TEST(old.global_shape == (optim::Shape{12, -1}));
}

BOOST_AUTO_TEST_CASE(the_main_replica_is_zero_or_all_zeros) {
  BOOST_TEST(optim::is_main_replica(int64_t{0}));
  BOOST_TEST(!optim::is_main_replica(int64_t{2}));
  BOOST_TEST(optim::is_main_replica(optim::Shape{0, 0, 0}));
  BOOST_TEST(!optim::is_main_replica(optim::Shape{0, 0, 1}));
}

BOOST_AUTO_TEST_CASE(putting_a_value_replaces_that_of_an_equal_key) {
  StateDict dict;
  put(dict, "a", 1);
  put(dict, int64_t{0}, 2);
  put(dict, "a", 3);
  BOOST_TEST(dict.size() == 2u);
  BOOST_TEST(*find(dict, "a")->get_if<int64_t>() == 3);
  BOOST_TEST(*find(dict, int64_t{0})->get_if<int64_t>() == 2);
  BOOST_TEST(find(dict, "b") == nullptr);
}

BOOST_AUTO_TEST_SUITE_END()
