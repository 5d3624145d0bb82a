// content_metadata says how Megatron laid out the rest of the checkpoint; a conversion writes its
// own.
#include "layouts/job/common_losses.h"

#include <algorithm>
#include <array>

#include <ckpt/document.h>

#include "args/value_place.h"

namespace optim {
namespace {

using ckpt::Kind;
using ckpt::Value;

constexpr std::string_view kContentMetadata = "content_metadata";
constexpr std::array<std::string_view, 4> kWrittenAnew{
    "distrib_optim_sharding_type", "distrib_optim_fully_reshardable_mem_efficient",
    "singleton_local_shards", "chained_optim_avoid_prefix"};

bool is_dict(const std::optional<Value>& value) { return value && value->is(Kind::Dict); }

class Losses {
 public:
  explicit Losses(const CommonState& common) : common_(common) {}

  std::vector<ckpt::NotCarried> run() {
    const Value root = common_.document->tree.root();
    if (const auto content = root.find(kContentMetadata)) add_content(*content);
    if (const auto optimizer = root.find("optimizer"); is_dict(optimizer)) {
      add_optimizers(*optimizer);
    }
    return std::move(losses_);
  }

 private:
  void add(const std::string& pointer, std::string reason) {
    losses_.push_back({common_.key + pointer, std::move(reason)});
  }

  void add_content(const Value& content) {
    const std::string pointer = "/" + std::string(kContentMetadata);
    if (!content.is(Kind::Dict)) return add(pointer, "it is not a dict, and is written anew");
    for (size_t i = 0; i < content.item_count(); ++i) {
      const Value key = content.item(i).first;
      const bool is_known = key.is(Kind::Str) && std::ranges::count(kWrittenAnew, key.text()) > 0;
      if (!is_known) {
        add(pointer + escaped_step(ckpt::key_text(key)),
            "content_metadata describes the layout of the "
            "checkpoint and is written anew");
      }
    }
  }

  // One, or several by their numbers.
  void add_optimizers(const Value& optimizer) {
    if (optimizer.find("optimizer")) return add_empty_state(optimizer, "/optimizer");
    for (size_t i = 0; i < optimizer.item_count(); ++i) {
      const auto [key, one] = optimizer.item(i);
      add_empty_state(one, "/optimizer" + escaped_step(ckpt::key_text(key)));
    }
  }

  void add_empty_state(const Value& optimizer, const std::string& pointer) {
    if (!optimizer.is(Kind::Dict)) return;
    const auto inner = optimizer.find("optimizer");
    if (!is_dict(inner)) return;
    const auto state = inner->find("state");
    if (!is_dict(state) || state->item_count() != 0) return;
    add(pointer + "/optimizer/state", "an empty mapping, which is not written without a step");
  }

  const CommonState& common_;
  std::vector<ckpt::NotCarried> losses_;
};

}  // namespace

std::vector<ckpt::NotCarried> common_losses(const CommonState& common) {
  return Losses(common).run();
}

}  // namespace optim
