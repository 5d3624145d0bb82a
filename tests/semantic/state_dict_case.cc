// A random state dict through every conversion: nothing is lost that is not listed.
#include <ckpt/convert.h>
#include <ckpt/error.h>

#include "semantic/in_process_cases.h"
#include "semantic/listed.h"
#include "semantic/random_state.h"
#include "semantic/save_state.h"

namespace semantic {
namespace {

namespace fs = std::filesystem;

class StateDictCase {
 public:
  StateDictCase(uint64_t seed, fs::path folder) : folder_(std::move(folder)) {
    test::Random random(static_cast<uint32_t>(seed * 2654435761U));
    const NodePtr root = random_state(random);
    expected_ = facts_of(*root);
    strict_ = random() % 2 == 0;
    save_state(root, folder_ / "source.pt");
  }

  CaseResult run() {
    const auto source = ckpt::Checkpoint::open(folder_ / "source.pt");
    note("the source, read", unlisted(expected_, facts_of(source, expected_), {}));
    through_torch_dist();
    if (const auto listed = convert("source.pt", "new.pt", ckpt::Format::Torch, strict_)) {
      compare_file("new.pt", *listed);
    }
    if (const auto listed =
            convert("source.pt", "new.safetensors", ckpt::Format::Safetensors, false)) {
      compare_safetensors(*listed);
    }
    return std::move(result_);
  }

 private:
  void note(const std::string& where, const std::vector<std::string>& losses) {
    for (const std::string& loss : losses) result_.faults.push_back(where + ": " + loss);
  }

  std::optional<NotCarriedList> convert(const std::string& from, const std::string& to,
                                        ckpt::Format format, bool strict) {
    ckpt::ConvertOptions options;
    options.format = format;
    options.strict = strict;
    options.execute.threads = 1;
    try {
      const auto report = ckpt::convert(folder_ / from, folder_ / to, options);
      ++result_.published;
      if (strict && !report.not_carried.empty()) note(to, {"--strict carried less than all"});
      return report.not_carried;
    } catch (const ckpt::Error& error) {
      ++result_.refused;
      if (error.code() != ckpt::ErrorCode::Unsupported) {
        note(to, {std::string("a sound file is refused: ") + error.what()});
      }
      return std::nullopt;
    }
  }

  void through_torch_dist() {
    auto listed = convert("source.pt", "store", ckpt::Format::TorchDist, strict_);
    if (!listed) return;
    const auto store = ckpt::Checkpoint::open(folder_ / "store");
    note("store", unlisted(expected_, facts_of_store(store), *listed, true));
    const auto more = convert("store", "back.pt", ckpt::Format::Torch, false);
    if (!more) return note("back.pt", {"what was written does not convert back"});
    listed->insert(listed->end(), more->begin(), more->end());
    compare_file("back.pt", *listed);
  }

  void compare_file(const std::string& name, const NotCarriedList& listed) {
    const auto made = ckpt::Checkpoint::open(folder_ / name);
    note(name, unlisted(expected_, facts_of(made, expected_), listed));
  }

  // Keys of one step there: each is put back to where it comes from.
  void compare_safetensors(const NotCarriedList& listed) {
    const auto made = ckpt::Checkpoint::open(folder_ / "new.safetensors");
    Facts flat = facts_of_store(made), placed;
    for (const auto& [name, fact] : expected_) {
      const auto found = flat.find({{dotted(name.first)}, Aspect::Value});
      if (name.second != Aspect::Value || found == flat.end() || !fact.starts_with("tensor")) {
        continue;
      }
      placed.insert({name, found->second});
      flat.erase(found);
    }
    placed.merge(flat);
    note("new.safetensors", unlisted(expected_, placed, listed, true));
  }

  fs::path folder_;
  Facts expected_;
  bool strict_ = false;
  CaseResult result_;
};

}  // namespace

CaseResult run_state_dict_case(uint64_t seed, const fs::path& folder) {
  return StateDictCase(seed, folder).run();
}

}  // namespace semantic
