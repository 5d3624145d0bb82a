// A checkpoint of the layer-wise optimizer with a change that has a meaning, converted and
// resharded there and back: the same state, and every other value of every file in its place or
// listed.
#include <ckpt/error.h>
#include <ckpt/hash.h>
#include <ckpt/write_target.h>
#include <training/convert.h>
#include <training/logical_inventory.h>
#include <training/opened_training.h>

#include <set>

#include "faults/conversions.h"
#include "semantic/in_process_cases.h"
#include "semantic/layer_wise_mutations.h"
#include "semantic/listed.h"

namespace semantic {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModelFile = "mp_rank_00/model_optim_rng.pt";
constexpr const char* kIterationFolder = "iter_0000003/";

std::string rank_file(size_t rank) {
  return "mp_rank_00/layer_wise_optimizer_" + std::to_string(rank) + ".pt";
}

struct Base {
  optim::OpenedTraining checkpoint;
  uint32_t ranks;
};

const Base& base(bool of_four) {
  static const Base two = {optim::open_checkpoint(test::golden("lw_muon_bf16_torch_dp2/ckpt")), 2};
  static const Base four = {optim::open_checkpoint(test::golden("lw_muon_bf16_torch_dp4/ckpt")), 4};
  return of_four ? four : two;
}

class LayerWiseCase {
 public:
  LayerWiseCase(uint64_t seed, fs::path folder)
      : random_(static_cast<uint32_t>(seed * 2654435761U)),
        base_(base(random_() % 4 == 0)),
        folder_(std::move(folder)) {
    write_source();
    source_facts_ = facts(folder_ / "source");
  }

  CaseResult run() {
    const auto digest = digest_of(folder_ / "source");
    optim::ConvertOptions options = test::on_one_thread();
    options.base.format = ckpt::Format::TorchDist;
    options.base.strict = random_() % 4 == 0;
    there_and_back("store", optim::convert, options, digest);
    options = test::on_one_thread();
    options.sizes.data_parallel = 1 + random_() % 2 * 2;
    options.base.strict = random_() % 2 == 0;
    there_and_back("resharded", reshard, options, digest);
    for (std::string& fault : result_.faults) fault = changed_ + ": " + fault;
    return std::move(result_);
  }

 private:
  using Convert = optim::ConvertReport(const fs::path&, const fs::path&,
                                       const optim::ConvertOptions&);

  static optim::ConvertReport reshard(const fs::path& source, const fs::path& destination,
                                      const optim::ConvertOptions& options) {
    return optim::reshard(source, destination,
                          test::resharding(options, *options.sizes.data_parallel));
  }

  void write_source() {
    std::vector<ChangingFile> files;
    for (uint32_t rank = 0; rank < base_.ranks; ++rank) files.push_back(carried(rank_file(rank)));
    files.push_back(carried(kModelFile));
    changed_ = "dp" + std::to_string(base_.ranks) + ", " + mutate(random_, files);
    ckpt::Target target;
    for (ChangingFile& file : files) {
      const std::string name = fs::path(file.path).stem().string();
      const std::string path = kIterationFolder + file.path;
      target.files.push_back({path, {file.archive.finish(name, file.root)}, {}});
    }
    target.files.push_back({"latest_checkpointed_iteration.txt", {}, "3"});
    ckpt::write_target(std::move(target), {base_.checkpoint, base_.checkpoint.folder()},
                       folder_ / "source", test::on_one_thread().base);
  }

  ChangingFile carried(const std::string& path) {
    const ckpt::Document& document = *base_.checkpoint.document(path);
    ChangingFile file;
    file.path = path;
    file.root = file.archive.carry(document.tree.root(), document);
    return file;
  }

  // Of every file, by its path; not the model file's second copy of rank 0's state.
  static Facts facts(const fs::path& root) {
    const auto checkpoint = optim::open_checkpoint(root);
    const auto all_lists = [](const Place&) { return true; };
    Facts all;
    for (const ckpt::FileEntry& file : checkpoint.catalog().files) {
      const ckpt::Document* document = checkpoint.document(file.path);
      if (document == nullptr) continue;
      for (auto& [name, fact] : facts_of(checkpoint, *document, file.path, all_lists)) {
        Place place = name.first;
        if (file.path == kModelFile && !place.empty() && place[0] == "optimizer") continue;
        place.insert(place.begin(), file.path);
        all.emplace(FactName{place, name.second}, fact);
      }
    }
    return all;
  }

  std::optional<std::string> digest_of(const fs::path& path) {
    try {
      const auto checkpoint = optim::open_checkpoint(path);
      ckpt::ExecuteOptions options;
      options.threads = 1;
      return hex(hash(optim::logical_inventory(checkpoint), checkpoint, options).digest);
    } catch (const ckpt::Error&) {
      return std::nullopt;
    }
  }

  std::optional<NotCarriedList> publish(Convert* convert, const std::string& from,
                                        const std::string& to,
                                        const optim::ConvertOptions& options) {
    try {
      const auto report = convert(folder_ / from, folder_ / to, options);
      ++result_.published;
      return report.not_carried;
    } catch (const ckpt::Error&) {
      ++result_.refused;
      return std::nullopt;
    }
  }

  void fault(const std::string& where, const std::string& what) {
    result_.faults.push_back(where + ": " + what);
  }

  void there_and_back(const std::string& name, Convert* convert, optim::ConvertOptions options,
                      const std::optional<std::string>& digest) {
    auto listed = publish(convert, "source", name, options);
    if (!listed) return;
    const auto made = digest_of(folder_ / name);
    if (!made) return fault(name, "the reader refuses what was published");
    if (made != digest && !loses_state(*listed)) fault(name, "another state than the source's");
    options.base.format = ckpt::Format::Torch;
    options.sizes.data_parallel = base_.ranks;
    options.base.strict = false;
    const auto more = publish(convert, name, name + "_back", options);
    if (!more) return fault(name, "what was published does not go the way back");
    listed->insert(listed->end(), more->begin(), more->end());
    compare(name + "_back", *listed);
  }

  // Versions of modules are no state.
  static bool loses_state(const NotCarriedList& listed) {
    return std::ranges::any_of(listed, [](const ckpt::NotCarried& entry) {
      return entry.what != "_metadata of the model state dict";
    });
  }

  void compare(const std::string& name, const NotCarriedList& listed) {
    const Facts actual = facts(folder_ / name);
    for (const auto& [fact_name, fact] : source_facts_) {
      const auto there = actual.find(fact_name);
      if (there != actual.end() && there->second == fact) continue;
      note(name, fact_name.first, there == actual.end() ? "is missing" : "is another", listed);
    }
    for (const auto& [fact_name, fact] : actual) {
      if (!source_facts_.contains(fact_name)) note(name, fact_name.first, "was not there", listed);
    }
  }

  void note(const std::string& name, const Place& place, const std::string& what,
            const NotCarriedList& listed) {
    if (place == Place{kModelFile, "args"}) return;  // names formats and paths: compared logically
    if (!mentions(listed, named_key(place))) fault(name, pointer(place) + " " + what);
  }

  // Megatron's files are lists of lists: what has a name is the last key.
  static std::string named_key(const Place& place) {
    for (size_t i = place.size(); i-- > 1;) {
      const std::string word = place[i].starts_with("@") ? place[i].substr(1) : place[i];
      if (word.find_first_not_of("0123456789") != word.npos) return word;
    }
    return {};
  }

  test::Random random_;
  const Base& base_;
  fs::path folder_;
  std::string changed_;
  Facts source_facts_;
  CaseResult result_;
};

}  // namespace

CaseResult run_layer_wise_case(uint64_t seed, const fs::path& folder) {
  return LayerWiseCase(seed, folder).run();
}

}  // namespace semantic
