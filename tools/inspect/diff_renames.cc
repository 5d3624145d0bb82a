#include "inspect/diff_parts.h"

#include <algorithm>
#include <string_view>

#include <ckpt/error.h>
#include <ckpt/printed.h>
#include <common/option_values.h>

namespace tools::inspect {
namespace {

struct Rename {
  std::string from, to;
  bool is_used = false;
};

std::vector<Rename> parsed(const std::vector<std::string>& texts) {
  std::vector<Rename> renames;
  for (const std::string& text : texts) {
    auto [from, to] = split_rename(text);
    renames.push_back({std::move(from), std::move(to)});
  }
  return renames;
}

void apply(std::vector<Rename>& renames, std::string& key) {
  const auto fits = [&](const Rename& each) { return key.starts_with(each.from); };
  const auto first = std::ranges::find_if(renames, fits);
  if (first == renames.end()) return;
  first->is_used = true;
  key = first->to + key.substr(first->from.size());
}

using Names = std::vector<std::string_view>;

std::string_view common_front(std::string_view a, std::string_view b) {
  return a.substr(0, static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin()));
}

// Up to its last separator.
std::string_view whole_steps(std::string_view front) {
  return front.substr(0, front.find_last_of("./") + 1);
}

// What stands in the names of `longer`, behind `front`, and not in those of `shorter`; empty where
// that is not all that they differ in. Both are sorted and begin with `front`.
std::string_view extra_front(const Names& shorter, const Names& longer, std::string_view front) {
  const std::string_view first = shorter.front().substr(front.size());
  std::string_view extra;
  for (const std::string_view name : longer) {
    const std::string_view rest = name.substr(front.size());
    if (rest.size() > first.size() && rest.ends_with(first)) {
      extra = rest.substr(0, rest.size() - first.size());
      break;
    }
  }
  if (extra.empty() || whole_steps(extra) != extra) return {};
  const bool are_alike = std::ranges::equal(shorter, longer, [&](auto a, auto b) {
    const std::string_view rest = b.substr(front.size());
    return rest.starts_with(extra) && rest.substr(extra.size()) == a.substr(front.size());
  });
  return are_alike ? extra : std::string_view();
}

}  // namespace

std::set<std::string, std::less<>> rename(optim::NamedPair& named,
                                          const std::vector<std::string>& texts) {
  std::vector<Rename> renames = parsed(texts);
  std::set<std::string, std::less<>> old_names;
  for (ckpt::Inventory* const side : {&named.a, &named.b}) {
    for (ckpt::TensorEntry& tensor : side->tensors) {
      // Of the other side, too: an object there holds it under this one.
      if (!renames.empty()) old_names.insert(tensor.key);
      apply(renames, tensor.key);
    }
    for (ckpt::ObjectTree& object : side->objects) apply(renames, object.key);
  }
  for (const Rename& each : renames) {
    if (each.is_used) continue;
    throw ckpt::Error(ckpt::ErrorCode::NotFound, {},
                      "no key starts with '" + ckpt::escaped(each.from) + "'",
                      "ckpt-inspect ls lists the keys");
  }
  return old_names;
}

std::optional<std::string> rename_that_helps(const ckpt::Differences& differences) {
  Names a, b;
  for (const ckpt::TensorDifference& tensor : differences.tensors) {
    const bool is_in_a = tensor.kind == ckpt::DifferenceKind::OnlyInA;
    if (!is_in_a && tensor.kind != ckpt::DifferenceKind::OnlyInB) continue;
    (is_in_a ? a : b).push_back(tensor.key);
  }
  if (a.empty() || a.size() != b.size()) return std::nullopt;
  std::ranges::sort(a);
  std::ranges::sort(b);
  const std::string_view front = whole_steps(
      common_front(common_front(a.front(), a.back()), common_front(b.front(), b.back())));
  for (const auto& [shorter, longer, side] : {std::tuple(&a, &b, "B"), std::tuple(&b, &a, "A")}) {
    const std::string_view extra = extra_front(*shorter, *longer, front);
    if (extra.empty()) continue;
    const std::string kept = ckpt::escaped(front), removed = ckpt::escaped(extra);
    return "names that only " + std::string(side) + " has are the other side's with '" + removed +
           "' in front: --rename '" + kept + removed + "=" + kept + "' removes it";
  }
  return std::nullopt;
}

}  // namespace tools::inspect
