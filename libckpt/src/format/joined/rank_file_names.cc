#include "format/joined/rank_files.h"

#include <algorithm>

#include "base/text.h"
#include "format/joined/rank_metadata.h"

namespace ckpt {
namespace {

constexpr std::string_view kWorld = "_world_size_", kRank = "_rank_", kSuffix = ".pt";

}  // namespace

std::optional<RankFile> rank_file(std::string_view name) {
  if (!name.ends_with(kSuffix)) return std::nullopt;
  name.remove_suffix(kSuffix.size());
  for (const std::string_view kind : kRankFileKinds) {
    if (!name.starts_with(std::string(kind) + std::string(kWorld))) continue;
    const std::string_view rest = name.substr(kind.size() + kWorld.size());
    const size_t at = rest.find(kRank);
    if (at == rest.npos) return std::nullopt;
    const auto ranks = number_in<uint64_t>(rest.substr(0, at));
    const auto rank = number_in<uint64_t>(rest.substr(at + kRank.size()));
    const bool is_valid = ranks && rank && *rank < *ranks && *ranks <= kRanksMax;
    return is_valid ? std::optional(RankFile{kind, *ranks, *rank}) : std::nullopt;
  }
  return std::nullopt;
}

std::string name_of(const RankFile& file) {
  return std::string(file.kind) + std::string(kWorld) + std::to_string(file.ranks) +
         std::string(kRank) + std::to_string(file.rank) + std::string(kSuffix);
}

bool is_rank_files_folder(const Folder& source, const Location& location) {
  if (holds_rank_metadata(source, location)) return true;
  const std::vector<std::string> names = source.list(location.folder);
  return std::ranges::any_of(names, [](const std::string& name) {
    const auto found = rank_file(name);
    return found && found->kind != "extra_state";
  });
}

}  // namespace ckpt
