// What a new way to file an optimizer's state takes: hooks like these, and a line in filings.cc.
// Reading, refusing, converting from and to all other filings are there already.
#include <algorithm>
#include <boost/test/unit_test.hpp>

#include <ckpt/error.h>
#include <training/logical_inventory.h>

#include "grid/build_state.h"
#include "layouts/job/filing_hooks.h"
#include "layouts/job/store_files.h"
#include "layouts/layouts.h"
#include "model/tensor_names.h"
#include "state/state_values.h"
#include "support/errors.h"
#include "support/filed_state.h"
#include "support/temporary_folder.h"

namespace {

// --- the filing: each parameter's tensors under its own name, not stacked over layers ---
//
//   optimizer.by_parameter.NAME.{param,exp_avg,exp_avg_sq}
//   optimizer.by_parameter.I/shard_0_1     the groups of optimizer I

using optim::TensorRef;

constexpr std::string_view kPrefix = "optimizer.by_parameter.";
extern const optim::Filing kByParameter;

bool owns(std::string_view key) { return key.starts_with(kPrefix); }

std::string groups_key(size_t optimizer) {
  return std::string(kPrefix) + std::to_string(optimizer) + "/shard_0_1";
}

class Stored final : public optim::StoredOptimizers {
 public:
  explicit Stored(const ckpt::Catalog& catalog) : catalog_(catalog) {}

  std::map<uint32_t, const optim::Filing*> optimizers() const override {
    std::map<uint32_t, const optim::Filing*> found;
    while (catalog_.find_object(groups_key(found.size())) != nullptr) {
      found.emplace(static_cast<uint32_t>(found.size()), &kByParameter);
    }
    return found;
  }

  void read(const optim::StoreInto& into) const override {
    for (const auto& [i, filing] : optimizers()) {
      const auto& document = into.common.keep(std::make_shared<const ckpt::Document>(
          into.source.read_object(*catalog_.find_object(groups_key(i)))));
      const ckpt::Value groups = optim::only_object(document, groups_key(i)).at("param_groups");
      for (size_t group = 0; group < groups.size(); ++group) {
        into.state.chain[i].groups.push_back(into.common.carry(groups[group], document));
      }
    }
    for (optim::TrainedParam& param : into.state.params) {
      const std::string& name = param.info.name;
      param.master = tensor(name, "param", optim::state_key(optim::kMasterState, name));
      for (const char* const state : {"exp_avg", "exp_avg_sq"}) {
        param.states.push_back({state, tensor(name, state, optim::state_key(state, name))});
      }
    }
  }

 private:
  TensorRef tensor(const std::string& param, const std::string& state, std::string key) const {
    auto found = std::make_shared<ckpt::TensorEntry>(
        *catalog_.find_tensor(std::string(kPrefix) + param + "." + state));
    found->key = std::move(key);
    return found;
  }

  const ckpt::Catalog& catalog_;
};

void write(const optim::StoreFiles& files, const optim::Filing& filing) {
  for (const optim::TrainedParam& param : files.job.source.params) {
    if (files.job.filed.optimizers[param.optimizer] != &filing) continue;
    const auto add = [&](const std::string& state, const TensorRef& tensor) {
      const auto index = static_cast<uint32_t>(files.spec.tensors.size());
      const ckpt::Box all = ckpt::whole(tensor->shape);
      files.spec.tensors.push_back(
          {std::string(kPrefix) + param.info.name + "." + state, tensor->dtype, tensor->shape});
      files.spec.chunks.push_back({index, 0, all, ckpt::TensorSource{tensor, all}});
    };
    add("param", param.master);
    for (const optim::StateTensor& state : param.states) add(state.name, state.value);
  }
  for (uint32_t i = 0; i < files.job.source.chain.size(); ++i) {
    if (files.job.filed.optimizers[i] != &filing) continue;
    ckpt::ArchiveBuilder archive;
    const ckpt::NodeId groups = optim::write_wrapped(files.job, i, archive);
    files.add_object(groups_key(i), archive, groups, 0);
  }
}

std::unique_ptr<optim::StoredOptimizers> find(const ckpt::Catalog& catalog) {
  return std::make_unique<Stored>(catalog);
}

constexpr optim::StoreHooks kHooks = {owns, find, write};
constexpr optim::Filing kByParameter = {.name = "by_parameter",
                                        .container = ckpt::Format::TorchDist,
                                        .by_elements = true,
                                        .in_store = &kHooks};

// Its line.
struct WithFiling {
  WithFiling() { optim::filing_table().push_back(&kByParameter); }
  ~WithFiling() { optim::filing_table().pop_back(); }
  test::TemporaryFolder folder;
};

// --- what it can do ---

optim::OpenedTraining sample(const char* name) {
  return optim::open_checkpoint(std::filesystem::path(SHARDWISE_GOLDEN_DIR) / name / "ckpt");
}

optim::OpenedTraining filed(const optim::OpenedTraining& source, const optim::Filing& filing,
                            const std::filesystem::path& path) {
  optim::LayerWiseTargetSpec spec;
  spec.format = filing.container.value();
  spec.sizes.data_parallel = 3;
  spec.form.filing = &filing;
  return test::file_state(optim::read_training_state(source), source, spec, path);
}

// Of its tensors: name, type, shape and bytes.
std::map<std::string, std::vector<std::byte>> tensors_of(const optim::OpenedTraining& checkpoint) {
  std::map<std::string, std::vector<std::byte>> all;
  for (const TensorRef& tensor : optim::tensors_of(optim::read_training_state(checkpoint))) {
    std::vector<std::byte> bytes(ckpt::count_bytes(*tensor));
    checkpoint.read(*tensor, ckpt::whole(tensor->shape), bytes);
    all.emplace(tensor->key + " " + std::string(name(tensor->dtype)), std::move(bytes));
  }
  return all;
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(new_filing, WithFiling)

BOOST_AUTO_TEST_CASE(it_is_written_from_every_other_and_read_into_every_other) {
  for (const char* const name :
       {"do_adam_bf16_torch_dp2", "do_adam_bf16_torch_dist_dp_reshardable_dp2",
        "do_adam_bf16_torch_dist_fully_reshardable_dp2"}) {
    BOOST_TEST_CONTEXT(name) {
      const auto source = sample(name);
      const auto between = filed(source, kByParameter, folder / name);
      BOOST_TEST(optim::stated_filing(between)->filing == &kByParameter);
      BOOST_TEST((optim::read_training_state(between).filed.only() == &kByParameter));
      BOOST_TEST((tensors_of(between) == tensors_of(source)));
      for (const optim::Filing* const filing :
           {&optim::kByName, &optim::kBuckets, &optim::kFlatFile}) {
        const auto back =
            filed(between, *filing, folder / (std::string(name) + std::string(filing->name)));
        BOOST_TEST((tensors_of(back) == tensors_of(source)), filing->name);
        BOOST_TEST(optim::stated_filing(back)->filing == filing);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(what_a_distributed_optimizer_does_not_keep_has_no_place_in_it) {
  const auto source = sample("lw_muon_bf16_torch_dist_dp2");
  const auto refused = test::error_of([&] { filed(source, kByParameter, folder / "refused"); });
  BOOST_REQUIRE(refused.has_value());
  BOOST_TEST((refused->code() == ckpt::ErrorCode::Unsupported));
  BOOST_TEST(std::string(refused->what()).find("written as by_parameter") != std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()
