// Outputs of `ckpt-inspect hash`, read back. As text a line is "SHA-256  DTYPE  SHAPE  NAME", with
// a shape "[2, 16]" or "-"; the last one "SHA-256  digest of ...", or the digest alone. As JSON,
// docs/schema/hash.json.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include <ckpt/error.h>
#include <ckpt/key_pattern.h>
#include <ckpt/printed.h>
#include <training/hash_record.h>

#include "report/entry_text.h"
#include "report/hash_rows.h"

namespace optim {
namespace {

using nlohmann::json;

constexpr size_t kDigits = 64;
constexpr const char* kObject = "object";

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

HashRow row_of_line(std::string_view line) {
  std::string_view left = after_spaces(line.substr(kDigits));
  const std::string_view dtype = left.substr(0, left.find(' '));
  left = after_spaces(left.substr(dtype.size()));
  const size_t end = left.find(left.starts_with('[') ? ']' : ' ');
  const size_t shape_size = left.starts_with('[') && end != left.npos ? end + 1 : end;
  const std::string_view shape = left.substr(0, shape_size);
  left = after_spaces(left.substr(shape.size()));
  HashRow row;
  row.name = as_written_now(left);
  row.hash = line.substr(0, kDigits);
  row.dtype = dtype;
  row.shape = shape;
  if (dtype == kObject) row.kind = RowKind::Object;
  return row;
}

HashRows parse_lines(std::string_view text) {
  HashRows record;
  for (uint64_t number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (!starts_with_hash(line)) continue;  // the titles
    const std::string place = "line " + std::to_string(number);
    const bool is_digest_alone = line.size() == kDigits;
    if (is_digest_alone || line.find("  digest of ") == kDigits) {
      (record.digest.empty() ? record.digest_place : record.second_digest_place) = place;
      record.digest = line.substr(0, kDigits);
      const size_t selected = std::min(line.find(kSelectedBy), line.size());
      record.selection = line.substr(std::min(selected + kSelectedBy.size(), line.size()));
    } else {
      record.rows.push_back(row_of_line(line));
      record.rows.back().place = place;
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

// Names that are not UTF-8 are escaped in JSON, too: bytes above 0x7F as \xNN.
bool is_escaped(std::string_view text) {
  for (size_t at = 0; at + 2 < text.size(); ++at) {
    if (text[at] != '\\') continue;
    const bool is_high = std::string_view("89abcdef").find(text[at + 2]) != std::string_view::npos;
    if (text[at + 1] == 'x' && is_high) return true;
    ++at;
  }
  return false;
}

// Its name as the text output has it.
void read_name(const json& entry, HashRow& row) {
  const std::string file = text_at(entry, "file"), key = text_at(entry, "key");
  row.name = ckpt::qualified_key(file, key);
  if (!is_escaped(file) && !is_escaped(key)) return void(row.raw = {file, key});
  row.name = is_escaped(file) ? file : ckpt::escaped(file);
  if (!file.empty()) row.name += ':';
  if (is_escaped(key)) {
    row.name += key.front() == ' ' ? "\\x20" + key.substr(1) : key;
  } else {
    row.name += ckpt::printed_key(key);
  }
}

struct Owner {
  std::string name;   // of the object, and a blank; empty: of none
  std::string place;  // of the list
};

// Objects hold tensors, which hold nothing.
void add_rows(const json& list, const Owner& owner, HashRows& record) {
  if (!list.is_array()) return;
  for (size_t i = 0; i < list.size(); ++i) {
    const json& entry = list[i];
    if (!entry.is_object()) continue;
    HashRow row;
    row.place = owner.place + "/" + std::to_string(i);
    read_name(entry, row);
    const std::string inner = row.name + " ", place = row.place;
    row.name.insert(0, owner.name);
    const bool is_tensor = entry.contains("dtype");
    row.kind = !is_tensor           ? RowKind::Object
               : owner.name.empty() ? RowKind::Tensor
                                    : RowKind::TensorInObject;
    row.hash = text_at(entry, "sha256");
    row.dtype = is_tensor ? text_at(entry, "dtype") : kObject;
    row.shape = shape_at(entry);
    record.rows.push_back(std::move(row));
    if (entry.contains("tensors")) add_rows(entry["tensors"], {inner, place + "/tensors"}, record);
  }
}

HashRows parse_document(std::string_view text) {
  const json document = json::parse(text, nullptr, false);
  HashRows record;
  if (!document.is_object()) return record;
  record.digest = text_at(document, "digest");
  record.digest_place = "/digest";
  record.selection = text_at(document, "selection");
  for (const char* list : {"tensors", "objects"}) {
    if (document.contains(list)) add_rows(document[list], {"", "/" + std::string(list)}, record);
  }
  return record;
}

}  // namespace

HashRows parse_hash_rows(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \n"), text.size()));
  return text.starts_with('{') ? parse_document(text) : parse_lines(text);
}

HashRecord parse_hash_record(std::string_view text) {
  HashRows rows = parse_hash_rows(text);
  HashRecord record{.entries = {}, .selection = std::move(rows.selection), .digest = rows.digest};
  for (HashRow& row : rows.rows) {
    record.entries.emplace(std::move(row.name), entry_text(row.hash, row.dtype, row.shape));
  }
  return record;
}

}  // namespace optim
