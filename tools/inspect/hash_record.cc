#include "inspect/hash_record.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <ostream>
#include <set>

#include <ckpt/error.h>
#include <common/json.h>
#include <common/table.h>
#include <common/text.h>

#include "inspect/listing.h"

namespace tools::inspect {
namespace {

using nlohmann::json;

constexpr size_t kDigits = 64;

[[noreturn]] void refuse(const std::string& path, std::string problem) {
  throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = path, .key = {}}, std::move(problem),
                    "expected an output of `ckpt-inspect hash`");
}

bool starts_with_hash(std::string_view line) {
  return line.size() >= kDigits &&
         line.substr(0, kDigits).find_first_not_of("0123456789abcdef") == line.npos;
}

std::string_view after_spaces(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(' '), text.size()));
}

// "HASH  DTYPE  SHAPE  NAME"; a shape is "[2, 16]" or "-".
std::string_view name_in(std::string_view line) {
  std::string_view left = after_spaces(line.substr(kDigits));
  left = after_spaces(left.substr(std::min(left.find(' '), left.size())));
  const char last = left.starts_with('[') ? ']' : ' ';
  left.remove_prefix(std::min(left.find(last), left.size()));
  return after_spaces(left.starts_with(']') ? left.substr(1) : left);
}

HashRecord read_text(std::istream& in, const std::string& path) {
  HashRecord record;
  for (std::string line; std::getline(in, line);) {
    if (!starts_with_hash(line)) continue;  // the titles
    const std::string hash = line.substr(0, kDigits);
    if (line.find("  digest of ") == kDigits) {
      record.digest = hash;
    } else {
      record.hashes.emplace(name_in(line), hash);
    }
  }
  if (record.digest.empty()) refuse(path, "holds no digest");
  return record;
}

std::string text_at(const json& entry, const char* key) {
  const auto found = entry.find(key);
  return found != entry.end() && found->is_string() ? found->get<std::string>() : "";
}

void add_entries(const json& list, const std::string& owner, HashRecord& record) {
  if (!list.is_array()) return;
  for (const json& entry : list) {
    if (!entry.is_object()) continue;
    const std::string name = qualified_key(text_at(entry, "file"), text_at(entry, "key"));
    record.hashes.emplace(owner + name, text_at(entry, "sha256"));
    if (entry.contains("tensors")) add_entries(entry["tensors"], name + " ", record);
  }
}

HashRecord read_json(std::istream& in, const std::string& path) {
  const json document = json::parse(in, nullptr, false);
  if (!document.is_object() || !document.contains("digest")) refuse(path, "is no such document");
  HashRecord record;
  record.digest = text_at(document, "digest");
  for (const char* list : {"tensors", "objects"}) {
    if (document.contains(list)) add_entries(document[list], "", record);
  }
  return record;
}

// What one side says of a name, sorted.
std::multiset<std::string> hashes_of(const HashRecord& record, const std::string& name) {
  std::multiset<std::string> hashes;
  const auto [first, last] = record.hashes.equal_range(name);
  for (auto at = first; at != last; ++at) hashes.insert(at->second);
  return hashes;
}

// By name: "changed", "missing" or "new".
std::map<std::string, std::string> differences(const HashRecord& found,
                                               const HashRecord& recorded) {
  std::map<std::string, std::string> result;
  for (const auto& [name, hash] : recorded.hashes) {
    const auto now = hashes_of(found, name);
    if (now != hashes_of(recorded, name)) result[name] = now.empty() ? "missing" : "changed";
  }
  for (const auto& [name, hash] : found.hashes) {
    if (!recorded.hashes.contains(name)) result[name] = "new";
  }
  return result;
}

}  // namespace

HashRecord record_of(const ckpt::Hashes& hashes) {
  HashRecord record;
  record.digest = hex(hashes.digest);
  for (const ckpt::TensorHash& tensor : hashes.tensors) {
    record.hashes.emplace(qualified_key(tensor.file, tensor.key), hex(tensor.sha256));
  }
  for (const ckpt::ObjectHash& object : hashes.objects) {
    const std::string name = qualified_key(object.file, object.key);
    record.hashes.emplace(name, hex(object.sha256));
    for (const ckpt::TensorHash& tensor : object.tensors) {
      record.hashes.emplace(name + " " + qualified_key(tensor.file, tensor.key),
                            hex(tensor.sha256));
    }
  }
  return record;
}

HashRecord read_record(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    throw ckpt::Error(ckpt::ErrorCode::NotFound, {.file = path, .key = {}}, "cannot be read");
  }
  while (in && (in.peek() == ' ' || in.peek() == '\n')) in.get();
  return in.peek() == '{' ? read_json(in, path) : read_text(in, path);
}

int print_comparison(Console& console, const HashRecord& found, const HashRecord& recorded) {
  // A record of the digest alone can only say whether all is equal.
  const bool is_equal = found.digest == recorded.digest;
  const auto different =
      recorded.hashes.empty() ? std::map<std::string, std::string>() : differences(found, recorded);
  if (console.options().json) {
    json document = json_document();
    document["equal"] = is_equal;
    document["compared"] = recorded.hashes.size();
    document["digest"] = found.digest;
    document["different"] = json::array();
    for (const auto& [name, kind] : different) {
      document["different"].push_back({{"name", json_text(name)}, {"kind", kind}});
    }
    print_json(console, document);
    return is_equal ? 0 : 1;
  }
  Table table({{""}, {""}});
  for (const auto& [name, kind] : different) {
    table.add_row({{kind, Paint::Yellow}, {name, Paint::Bold}});
  }
  if (console.options().quiet) return is_equal ? 0 : 1;
  table.print(console);
  console.out() << (is_equal ? console.paint(Paint::Green, "equal")
                             : console.paint(Paint::Red, "different"))
                << ": ";
  if (recorded.hashes.empty()) {
    console.out() << "the digest of the whole, all that was recorded\n";
  } else {
    console.out() << different.size() << " of " << recorded.hashes.size()
                  << " recorded hashes differ\n";
  }
  return is_equal ? 0 : 1;
}

}  // namespace tools::inspect
