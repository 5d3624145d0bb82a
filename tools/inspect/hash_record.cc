#include "inspect/hash_record.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <ostream>
#include <set>

#include <ckpt/error.h>
#include <common/json.h>
#include <common/share_options.h>
#include <common/table.h>
#include <common/text.h>

#include "inspect/hash_rows.h"
#include "inspect/listing.h"

namespace tools::inspect {
namespace {

using nlohmann::json;

constexpr size_t kDigits = 64;

[[noreturn]] void refuse(const std::string& what, std::string problem, std::string hint) {
  throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = what, .key = {}}, std::move(problem),
                    std::move(hint));
}

// Zero where the text is none.
ckpt::Sha256 sha256_in(std::string_view hex) {
  ckpt::Sha256 hash;
  for (size_t i = 0; i < hash.bytes.size() && 2 * i + 2 <= hex.size(); ++i) {
    const char* const digits = hex.data() + 2 * i;
    std::from_chars(digits, digits + 2, hash.bytes[i], 16);
  }
  return hash;
}

bool starts_with_hash(std::string_view line) {
  return line.size() >= kDigits &&
         line.substr(0, kDigits).find_first_not_of("0123456789abcdef") == line.npos;
}

std::string_view after_spaces(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(' '), text.size()));
}

std::string entry_text(const std::string& hash, const HashRow& row) {
  return hash + " " + row.dtype + " " + row.shape;
}

// "HASH  DTYPE  SHAPE  NAME"; a shape is "[2, 16]" or "-".
void add_line(std::string_view line, HashRecord& record) {
  std::string_view left = after_spaces(line.substr(kDigits));
  const std::string_view dtype = left.substr(0, left.find(' '));
  left = after_spaces(left.substr(dtype.size()));
  const size_t end = left.find(left.starts_with('[') ? ']' : ' ');
  const size_t shape_size = left.starts_with('[') && end != left.npos ? end + 1 : end;
  const std::string_view shape = left.substr(0, shape_size);
  left = after_spaces(left.substr(shape.size()));
  const HashRow row{std::string(dtype), std::string(shape), std::string(left)};
  record.entries.emplace(row.name, entry_text(std::string(line.substr(0, kDigits)), row));
}

HashRecord read_text(std::istream& in) {
  HashRecord record;
  for (std::string line; std::getline(in, line);) {
    if (!starts_with_hash(line)) continue;  // the titles
    if (line.find("  digest of ") == kDigits) {
      record.digest = line.substr(0, kDigits);
    } else {
      add_line(line, record);
    }
  }
  return record;
}

std::string text_at(const json& entry, const char* key) {
  const auto found = entry.find(key);
  return found != entry.end() && found->is_string() ? found->get<std::string>() : "";
}

std::string shape_at(const json& entry) {
  const auto found = entry.find("shape");
  if (found == entry.end() || !found->is_array()) return "-";
  ckpt::Extents shape;
  for (const json& size : *found)
    shape.push_back(size.is_number_unsigned() ? size.get<uint64_t>() : 0);
  return shape_text(shape);
}

void add_entries(const json& list, const std::string& owner, HashRecord& record) {
  if (!list.is_array()) return;
  for (const json& entry : list) {
    if (!entry.is_object()) continue;
    const std::string name = qualified_key(text_at(entry, "file"), text_at(entry, "key"));
    const HashRow row{entry.contains("dtype") ? text_at(entry, "dtype") : "object", shape_at(entry),
                      owner + name};
    record.entries.emplace(row.name, entry_text(text_at(entry, "sha256"), row));
    if (entry.contains("tensors")) add_entries(entry["tensors"], name + " ", record);
  }
}

HashRecord read_json(std::istream& in) {
  const json document = json::parse(in, nullptr, false);
  HashRecord record;
  if (!document.is_object()) return record;
  record.digest = text_at(document, "digest");
  for (const char* list : {"tensors", "objects"}) {
    if (document.contains(list)) add_entries(document[list], "", record);
  }
  return record;
}

HashRecord read_any(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    throw ckpt::Error(ckpt::ErrorCode::NotFound, {.file = path, .key = {}}, "cannot be read");
  }
  while (in && (in.peek() == ' ' || in.peek() == '\n')) in.get();
  return in.peek() == '{' ? read_json(in) : read_text(in);
}

// What one side says of a name, sorted.
std::multiset<std::string> hashes_of(const HashRecord& record, const std::string& name) {
  std::multiset<std::string> hashes;
  const auto [first, last] = record.entries.equal_range(name);
  for (auto at = first; at != last; ++at) hashes.insert(at->second);
  return hashes;
}

// By name: "changed", "missing" or "new".
std::map<std::string, std::string> differences(const HashRecord& found,
                                               const HashRecord& recorded) {
  std::map<std::string, std::string> result;
  for (const auto& [name, hash] : recorded.entries) {
    const auto now = hashes_of(found, name);
    if (now != hashes_of(recorded, name)) result[name] = now.empty() ? "missing" : "changed";
  }
  for (const auto& [name, hash] : found.entries) {
    if (!recorded.entries.contains(name)) result[name] = "new";
  }
  return result;
}

}  // namespace

HashRecord record_of(const ckpt::Hashes& hashes) {
  HashRecord record;
  if (hashes.digest != ckpt::Sha256{}) record.digest = hex(hashes.digest);
  for_each_row(hashes, [&](const HashRow& row, const auto& hashed) {
    if (hashed.is_own) record.entries.emplace(row.name, entry_text(hex(hashed.sha256), row));
  });
  return record;
}

HashRecord part_of(const HashRecord& recorded, const ckpt::Hashes& hashes, ckpt::Share share) {
  std::set<std::string> own, others;
  for_each_row(hashes, [&](const HashRow& row, const auto& hashed) {
    (hashed.is_own ? own : others).insert(row.name);
  });
  HashRecord part;
  for (const auto& [name, entry] : recorded.entries) {
    const bool is_nobodys = !own.contains(name) && !others.contains(name);
    if (own.contains(name) || (is_nobodys && share.rank == 0)) part.entries.emplace(name, entry);
  }
  return part;
}

HashRecord read_record(const std::string& path) {
  HashRecord record = read_any(path);
  if (record.digest.empty()) {
    const bool is_share = !record.entries.empty();
    refuse(path, "holds no digest of the whole",
           is_share ? "an output of one share? `ckpt-inspect hash --finish` puts them together"
                    : "expected an output of `ckpt-inspect hash`");
  }
  return record;
}

void fill(ckpt::Hashes& hashes, const std::vector<std::string>& paths) {
  HashRecord record;
  for (const std::string& path : paths) record.entries.merge(read_any(path).entries);
  for_each_row(hashes, [&](const HashRow& row, auto& hashed) {
    const auto found = record.entries.lower_bound(row.name);
    if (found == record.entries.end() || found->first != row.name) {
      refuse(row.name, "is in none of the outputs", "the outputs of all shares are needed");
    }
    hashed.sha256 = sha256_in(found->second);
    if (entry_text(hex(hashed.sha256), row) != found->second) {
      refuse(row.name, "is something else in the outputs", "outputs of another checkpoint?");
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

namespace {

using Differences = std::map<std::string, std::string>;

struct Comparison {
  const HashRecord &found, &recorded;
  ckpt::Share share;
  Differences different;
  bool is_equal;
};

void print_as_json(Console& console, const Comparison& comparison) {
  json document = json_document();
  document["equal"] = comparison.is_equal;
  document["compared"] = comparison.recorded.entries.size();
  if (comparison.share.world_size == 1) {
    document["digest"] = comparison.found.digest;
  } else {
    document["share"] = share_json(comparison.share);
  }
  document["different"] = json::array();
  for (const auto& [name, kind] : comparison.different) {
    document["different"].push_back({{"name", json_text(name)}, {"kind", kind}});
  }
  print_json(console, document);
}

void print_as_text(Console& console, const Comparison& comparison) {
  Table table({{.can_shorten = true}, {.can_shorten = true}});
  for (const auto& [name, kind] : comparison.different) {
    table.add_row({{kind, Paint::Yellow}, {name, Paint::Bold}});
  }
  table.print(console);
  console.out() << (comparison.is_equal ? console.paint(Paint::Green, "equal")
                                        : console.paint(Paint::Red, "different"))
                << ": ";
  if (comparison.share.world_size != 1) console.out() << share_text(comparison.share) << ": ";
  const size_t count = comparison.recorded.entries.size();
  if (count == 0 && comparison.share.world_size == 1) {
    console.out() << "the digest of the whole, all that was recorded\n";
  } else {
    console.out() << comparison.different.size() << " of " << count << " recorded hashes differ\n";
  }
}

}  // namespace

int print_comparison(Console& console, const HashRecord& found, const HashRecord& recorded,
                     ckpt::Share share) {
  const bool is_whole = share.world_size == 1;
  // A record of the digest alone can only say whether all is equal.
  const bool says_entries = !is_whole || !recorded.entries.empty();
  Comparison comparison{found, recorded, share, {}, false};
  if (says_entries) comparison.different = differences(found, recorded);
  comparison.is_equal = is_whole ? found.digest == recorded.digest : comparison.different.empty();
  if (console.options().json) {
    print_as_json(console, comparison);
  } else if (!console.options().quiet) {
    print_as_text(console, comparison);
  }
  return comparison.is_equal ? 0 : 1;
}

}  // namespace tools::inspect
