#include <training/hash_record.h>

#include <charconv>
#include <set>
#include <utility>

#include <ckpt/error.h>
#include <ckpt/printed.h>

#include "report/hash_rows.h"

namespace optim {
namespace {

[[noreturn]] void refuse(const std::string& what, std::string problem, std::string hint) {
  throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = what, .key = {}}, std::move(problem),
                    std::move(hint));
}

HashLine line_of(const ckpt::TensorHash& tensor, const std::string& owner) {
  return {std::string(name(tensor.dtype)), ckpt::shape_text(tensor.shape),
          owner + ckpt::qualified_key(tensor.file, tensor.key), &tensor.sha256, tensor.is_own};
}

HashLine line_of(const ckpt::ObjectHash& object) {
  return {"object", "-", ckpt::qualified_key(object.file, object.key), &object.sha256,
          object.is_own};
}

// Calls visit(line, hash) in the order of the lines; `hash` is a TensorHash or an ObjectHash.
template <class Hashes, class Visit>
void for_each_line(Hashes& hashes, Visit visit) {
  for (auto& tensor : hashes.tensors) visit(line_of(tensor, ""), tensor);
  for (auto& object : hashes.objects) {
    const HashLine line = line_of(object);
    visit(line, object);
    for (auto& tensor : object.tensors) visit(line_of(tensor, line.name + " "), tensor);
  }
}

std::string entry_of(const HashLine& line, const ckpt::Sha256& sha256) {
  return entry_text(hex(sha256), line.dtype, line.shape);
}

// What one side says of a name, sorted.
std::multiset<std::string> hashes_of(const HashRecord& record, const std::string& name) {
  std::multiset<std::string> hashes;
  const auto [first, last] = record.entries.equal_range(name);
  for (auto at = first; at != last; ++at) hashes.insert(at->second);
  return hashes;
}

std::map<std::string, RecordDifference> differences(const HashRecord& found,
                                                    const HashRecord& recorded) {
  std::map<std::string, RecordDifference> result;
  for (const auto& [name, hash] : recorded.entries) {
    const auto now = hashes_of(found, name);
    if (now == hashes_of(recorded, name)) continue;
    result[name] = now.empty() ? RecordDifference::Missing : RecordDifference::Changed;
  }
  for (const auto& [name, hash] : found.entries) {
    if (!recorded.entries.contains(name)) result[name] = RecordDifference::New;
  }
  return result;
}

}  // namespace

ckpt::Sha256 sha256_of(std::string_view hex) {
  ckpt::Sha256 hash;
  for (size_t i = 0; i < hash.bytes.size() && 2 * i + 2 <= hex.size(); ++i) {
    const char* const digits = hex.data() + 2 * i;
    std::from_chars(digits, digits + 2, hash.bytes[i], 16);
  }
  return hash;
}

std::vector<HashLine> lines_of(const ckpt::Hashes& hashes) {
  std::vector<HashLine> lines;
  for_each_line(hashes, [&](HashLine line, const auto&) { lines.push_back(std::move(line)); });
  return lines;
}

HashRecord record_of(const ckpt::Hashes& hashes) {
  HashRecord record;
  if (hashes.digest != ckpt::Sha256{}) record.digest = hex(hashes.digest);
  for (const HashLine& line : lines_of(hashes)) {
    if (line.is_own) record.entries.emplace(line.name, entry_of(line, *line.sha256));
  }
  return record;
}

HashRecord part_of(const HashRecord& recorded, const ckpt::Hashes& hashes, ckpt::Share share) {
  std::set<std::string> own, others;
  for (const HashLine& line : lines_of(hashes)) (line.is_own ? own : others).insert(line.name);
  HashRecord part;
  for (const auto& [name, entry] : recorded.entries) {
    const bool is_nobodys = !own.contains(name) && !others.contains(name);
    if (own.contains(name) || (is_nobodys && share.rank == 0)) part.entries.emplace(name, entry);
  }
  return part;
}

void require_whole(const HashRecord& record, const std::string& path) {
  if (!record.digest.empty()) return;
  const bool is_share = !record.entries.empty();
  refuse(path, "holds no digest of the whole",
         is_share ? "an output of one share? `ckpt-inspect hash --finish` puts them together"
                  : "expected an output of `ckpt-inspect hash`");
}

void fill(ckpt::Hashes& hashes, std::vector<HashRecord> shares) {
  HashRecord record;
  for (HashRecord& share : shares) record.entries.merge(share.entries);
  for_each_line(hashes, [&](const HashLine& line, auto& hashed) {
    const auto found = record.entries.lower_bound(line.name);
    if (found == record.entries.end() || found->first != line.name) {
      refuse(line.name, "is in none of the outputs", "the outputs of all shares are needed");
    }
    hashed.sha256 = sha256_of(found->second);
    if (entry_of(line, hashed.sha256) != found->second) {
      refuse(line.name, "is something else in the outputs", "outputs of another checkpoint?");
    }
    hashed.is_own = true;
    record.entries.erase(found);
  });
  if (!record.entries.empty()) {
    refuse(record.entries.begin()->first, "is in the outputs more often than in the checkpoint",
           "an output given twice, or of another checkpoint?");
  }
  hashes.digest = digest_of(hashes);
}

std::string_view name(RecordDifference difference) {
  static constexpr std::string_view kNames[] = {"changed", "missing", "new"};
  return kNames[static_cast<size_t>(difference)];
}

RecordComparison compare_records(const HashRecord& found, const HashRecord& recorded,
                                 ckpt::Share share) {
  const bool is_whole = share.world_size == 1;
  RecordComparison comparison;
  comparison.compared_count = recorded.entries.size();
  const bool says_entries = !is_whole || !recorded.entries.empty();
  if (says_entries) comparison.different = differences(found, recorded);
  const bool is_digest_equal = !is_whole || found.digest == recorded.digest;
  comparison.is_equal = is_digest_equal && comparison.different.empty();
  return comparison;
}

}  // namespace optim
