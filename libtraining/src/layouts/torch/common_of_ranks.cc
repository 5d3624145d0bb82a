// One common state out of those that rank files repeat.
#include "layouts/torch/common_of_ranks.h"

#include <algorithm>

#include "layouts/parts/placed_value.h"
#include "state/value_compare.h"

namespace optim {
namespace {

using ckpt::Kind;
using ckpt::Value;

constexpr std::string_view kRng = "rng_state", kRerun = "rerun_state_machine";
// Of args: the rank that wrote them.
constexpr std::string_view kOwnArgs[] = {"rank", "local_rank"};

bool is_of_state(std::string_view key) {
  return key.starts_with("model") || key == "optimizer";  // model, model0, ...
}

class Carrier {
 public:
  Carrier(const TorchSource& source, CommonBuilder& common, TrainingState& view)
      : source_(source), common_(common), view_(view) {}

  void run() {
    for (const WorldRank& rank : source_.ranks) {
      if (!rank.writes_model) continue;
      require_rank(rank);
      if (first_ == nullptr) carry(rank);
      if (first_ != &rank) compare(rank);
      carry_rng(rank);
    }
    for (const std::string_view key : lost_) {
      common_.erase(key);
      view_.not_carried.push_back({std::string(key),
                                   "it holds counters of each rank, which differ; Megatron starts "
                                   "with new ones",
                                   std::string(key)});
    }
  }

 private:
  // Whether a rank writes this file in some release, so that it may have been the last one.
  bool may_have_written(int64_t stated, const WorldRank& rank) const {
    const bool is_rank = stated >= 0 && static_cast<uint64_t>(stated) < source_.ranks.size();
    if (!is_rank) return false;
    const WorldRank& writer = source_.ranks[static_cast<size_t>(stated)];
    return writer.folder == rank.folder && may_write_model(writer.at);
  }

  // The rank that wrote a file, as its args state it.
  void require_rank(const WorldRank& rank) const {
    const Value root = document_of(rank).tree.root();
    const auto args = root.find("args");
    const auto attributes = args && args->is(Kind::Object) ? args->state() : std::nullopt;
    const auto stated = attributes ? attributes->find("rank") : std::nullopt;
    if (!stated || !stated->is(Kind::Int) || may_have_written(stated->as_int(), rank)) return;
    (Place{rank.model_file(), ""} / "args" / "@rank")
        .corrupt("is " + std::to_string(stated->as_int()) + ", but rank " +
                     std::to_string(rank.rank) + " writes this file",
                 "rank folders may have been swapped or renamed");
  }

  const ckpt::Document& document_of(const WorldRank& rank) const {
    return source_.document(rank.model_file());
  }

  void carry(const WorldRank& rank) {
    first_ = &rank;
    const ckpt::Document& document = document_of(rank);
    const Value root = document.tree.root();
    for (size_t i = 0; i < root.item_count(); ++i) {
      const auto [key, value] = root.item(i);
      if (!key.is(Kind::Str) || is_of_state(key.text())) continue;
      common_.put(key.text(), common_.carry(value, document));
    }
  }

  void compare(const WorldRank& rank) {
    const Value known = document_of(*first_).tree.root(), own = document_of(rank).tree.root();
    const Place first{first_->model_file(), ""}, place{rank.model_file(), ""};
    for (size_t i = 0; i < known.item_count(); ++i) {
      const auto [key, value] = known.item(i);
      if (!key.is(Kind::Str) || is_of_state(key.text()) || key.text() == kRng) continue;
      const auto other = own.find(key.text());
      if (!other)
        place.corrupt("has no '" + std::string(key.text()) + "', which " + first.file + " has",
                      kMixedFilesHint);
      if (key.text() == "args") {
        compare_args(value, {*other, place / "args"});
        continue;
      }
      if (are_equal_values(source_.checkpoint, {value, first / key.text()},
                           {*other, place / key.text()})) {
        continue;
      }
      if (key.text() != kRerun)
        (place / key.text()).corrupt("differs from its value in " + first.file, kMixedFilesHint);
      if (std::ranges::find(lost_, kRerun) == lost_.end()) lost_.push_back(kRerun);
    }
  }

  static void compare_args(const Value& known, const PlacedValue& own) {
    const auto attributes = known.state(), own_attributes = own.value.state();
    if (!attributes || !own_attributes) own.place.corrupt("is not an argparse.Namespace");
    for (size_t i = 0; i < attributes->item_count(); ++i) {
      const auto [key, value] = attributes->item(i);
      if (!key.is(Kind::Str)) continue;
      if (std::ranges::find(kOwnArgs, key.text()) != std::end(kOwnArgs)) continue;
      const auto other = own_attributes->find(key.text());
      if (other && !first_difference(value, *other)) continue;
      (own.place / ("@" + std::string(key.text())))
          .corrupt("differs from its value in the first rank folder", kMixedFilesHint);
    }
  }

  void carry_rng(const WorldRank& rank) {
    const ckpt::Document& document = document_of(rank);
    const auto rng = document.tree.root().find(kRng);
    if (!rng) return;
    view_.rng_states.push_back({rank.at.tp, rank.at.pp, rank.at.ep, common_.carry(*rng, document)});
  }

  const TorchSource& source_;
  CommonBuilder& common_;
  TrainingState& view_;
  const WorldRank* first_ = nullptr;
  std::vector<std::string_view> lost_;
};

}  // namespace

void carry_common(const TorchSource& source, CommonBuilder& common, TrainingState& view) {
  Carrier(source, common, view).run();
}

}  // namespace optim
