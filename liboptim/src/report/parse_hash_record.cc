// Outputs of `ckpt-inspect hash`, read back. As text a line is "SHA-256  DTYPE  SHAPE  NAME", with
// a shape "[2, 16]" or "-"; the last one "SHA-256  digest of ...", or the digest alone. As JSON,
// docs/schema/hash.json.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include <ckpt/printed.h>
#include <optim/hash_record.h>

#include "report/entry_text.h"

namespace optim {
namespace {

using nlohmann::json;

constexpr size_t kDigits = 64;

bool starts_with_hash(std::string_view line) {
  return line.size() >= kDigits &&
         line.substr(0, kDigits).find_first_not_of("0123456789abcdef") == line.npos;
}

std::string_view after_spaces(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(' '), text.size()));
}

// A recorded name as it is written now: once \x27, \x22 and \x5c stood for \', \" and \\.
std::string as_written_now(std::string_view name) {
  constexpr std::pair<std::string_view, std::string_view> kOnce[] = {
      {"\\x27", "\\'"}, {"\\x22", "\\\""}, {"\\x5c", "\\\\"}};
  std::string text;
  while (!name.empty()) {
    size_t count = name.starts_with("\\\\") ? 2 : 1;
    std::string_view now = name.substr(0, count);
    for (const auto& [once, replacement] : kOnce) {
      if (!name.starts_with(once)) continue;
      now = replacement;
      count = once.size();
    }
    text += now;
    name.remove_prefix(count);
  }
  return text;
}

void add_line(std::string_view line, HashRecord& record) {
  std::string_view left = after_spaces(line.substr(kDigits));
  const std::string_view dtype = left.substr(0, left.find(' '));
  left = after_spaces(left.substr(dtype.size()));
  const size_t end = left.find(left.starts_with('[') ? ']' : ' ');
  const size_t shape_size = left.starts_with('[') && end != left.npos ? end + 1 : end;
  const std::string_view shape = left.substr(0, shape_size);
  left = after_spaces(left.substr(shape.size()));
  record.entries.emplace(as_written_now(left), entry_text(line.substr(0, kDigits), dtype, shape));
}

HashRecord parse_lines(std::string_view text) {
  HashRecord record;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (!starts_with_hash(line)) continue;  // the titles
    const bool is_digest_alone = line.size() == kDigits;
    if (is_digest_alone || line.find("  digest of ") == kDigits) {
      record.digest = line.substr(0, kDigits);
      const size_t selected = std::min(line.find(kSelectedBy), line.size());
      record.selection = line.substr(std::min(selected + kSelectedBy.size(), line.size()));
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
  for (const json& size : *found) {
    shape.push_back(size.is_number_unsigned() ? size.get<uint64_t>() : 0);
  }
  return ckpt::shape_text(shape);
}

// Objects hold tensors, which hold nothing.
void add_entries(const json& list, const std::string& owner, HashRecord& record) {
  if (!list.is_array()) return;
  for (const json& entry : list) {
    if (!entry.is_object()) continue;
    const std::string name = ckpt::qualified_key(text_at(entry, "file"), text_at(entry, "key"));
    const std::string dtype = entry.contains("dtype") ? text_at(entry, "dtype") : "object";
    record.entries.emplace(owner + name,
                           entry_text(text_at(entry, "sha256"), dtype, shape_at(entry)));
    if (entry.contains("tensors")) add_entries(entry["tensors"], name + " ", record);
  }
}

HashRecord parse_document(std::string_view text) {
  const json document = json::parse(text, nullptr, false);
  HashRecord record;
  if (!document.is_object()) return record;
  record.digest = text_at(document, "digest");
  record.selection = text_at(document, "selection");
  for (const char* list : {"tensors", "objects"}) {
    if (document.contains(list)) add_entries(document[list], "", record);
  }
  return record;
}

}  // namespace

HashRecord parse_hash_record(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \n"), text.size()));
  return text.starts_with('{') ? parse_document(text) : parse_lines(text);
}

}  // namespace optim
