// Outputs of `ckpt-inspect hash`, read back. As text a line is "SHA-256  DTYPE  SHAPE  NAME", with
// a shape "[2, 16]" or "-"; the last one "SHA-256  digest of ...", or the digest alone. As JSON,
// docs/schema/hash.json. Whether one can be an output: its digest is computed again from its rows.
#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include <ckpt/error.h>
#include <ckpt/key_pattern.h>
#include <ckpt/printed.h>
#include <training/hash_record.h>

#include "report/hash_rows.h"

namespace optim {
namespace {

using nlohmann::json;

struct RawName {
  std::string file, key;
  auto operator<=>(const RawName&) const = default;
};

enum class RowKind : uint8_t { Tensor, Object, TensorInObject };

// A row of a recorded output, as it stands there.
struct HashRow {
  std::string place;            // "line 3", "/tensors/2"
  std::string name;             // HashLine::name
  std::optional<RowKind> kind;  // none: of text, where tensors in objects look as those outside do
  std::string hash, dtype, shape;
  std::optional<RawName> raw = std::nullopt;  // where the output leaves no doubt
};

struct HashRows {
  std::vector<HashRow> rows;
  std::string selection, digest;
  std::string digest_place, second_digest_place;  // empty: there is none
};
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

// Of what is no output nothing.
HashRows parse_hash_rows(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \n"), text.size()));
  return text.starts_with('{') ? parse_document(text) : parse_lines(text);
}

// --- whether it can be one ---

// "[2, 16]"; nullopt for anything else.
std::optional<ckpt::Extents> shape_in(std::string_view text) {
  ckpt::Extents shape;
  for (std::string_view left = text.substr(std::min<size_t>(1, text.size())); left.size() > 1;) {
    uint64_t size = 0;
    const char* const end = std::from_chars(left.data(), left.data() + left.size(), size).ptr;
    const auto used = static_cast<size_t>(end - left.data()) + 2;  // with ", " behind it
    left.remove_prefix(std::min(used, left.size()));
    shape.push_back(size);
  }
  return ckpt::shape_text(shape) == text ? std::optional(shape) : std::nullopt;
}

// What the printed names of rows stand for, as far as the checkpoint says it or no character leaves
// a doubt.
class NamesOfRows {
 public:
  explicit NamesOfRows(const ckpt::Hashes& listed) {
    for (const ckpt::TensorHash& tensor : listed.tensors) add({tensor.file, tensor.key});
    for (const ckpt::ObjectHash& object : listed.objects) {
      add({object.file, object.key});
      const std::string owner = ckpt::qualified_key(object.file, object.key) + " ";
      for (const ckpt::TensorHash& tensor : object.tensors) {
        ++inner_[owner + ckpt::qualified_key(tensor.file, tensor.key)];
      }
    }
  }

  // How often the checkpoint has it.
  size_t count(const HashRow& row) const {
    if (row.kind == RowKind::TensorInObject) {
      const auto found = inner_.find(row.name);
      return found == inner_.end() ? 0 : found->second;
    }
    const auto found = names_.find(row.name);
    return found == names_.end() ? 0 : found->second.count;
  }

  std::optional<RawName> read(const HashRow& row) const {
    if (row.raw) return row.raw;
    const std::string& printed = row.name;
    const auto found = names_.find(printed);
    if (found != names_.end()) {
      return found->second.is_sure ? std::optional(found->second.name) : std::nullopt;
    }
    const auto is_plain = [](const std::string& text) {
      return text != "(root)" && text.find('\\') == text.npos;
    };
    const size_t colon = printed.find(':');
    if (colon == printed.npos) {
      return is_plain(printed) ? std::optional(RawName{"", printed}) : std::nullopt;
    }
    const auto file = files_.find(printed.substr(0, colon));
    const std::string key = printed.substr(colon + 1);
    if (file == files_.end() || !is_plain(key)) return std::nullopt;
    return RawName{file->second, key};
  }

  // Whether a row that is no object's is of a tensor in an object; nullopt: either.
  std::optional<RowKind> kind_of(const std::string& name,
                                 const std::set<std::string>& objects) const {
    const bool is_inner = inner_.contains(name), is_outer = names_.contains(name);
    if (is_outer) return is_inner ? std::nullopt : std::optional(RowKind::Tensor);
    bool has_owner = false;
    for (size_t at = name.find(' '); at != name.npos; at = name.find(' ', at + 1)) {
      has_owner = has_owner || objects.contains(name.substr(0, at));
    }
    if (is_inner != has_owner) return std::nullopt;
    return is_inner ? RowKind::TensorInObject : RowKind::Tensor;
  }

 private:
  struct Known {
    RawName name;
    bool is_sure = true;  // not of two that are printed alike
    size_t count = 0;
  };

  void add(RawName name) {
    if (!name.file.empty()) files_.emplace(ckpt::escaped(name.file), name.file);
    Known& known = names_[ckpt::qualified_key(name.file, name.key)];
    known.is_sure = known.count == 0 || (known.is_sure && known.name == name);
    known.name = std::move(name);
    ++known.count;
  }

  std::map<std::string, Known> names_;
  std::map<std::string, size_t> inner_;
  std::map<std::string, std::string> files_;
};

class RecordCheck {
 public:
  RecordCheck(HashRows record, const ckpt::Hashes& listed, const std::string& path)
      : record_(std::move(record)), names_(listed), path_(path) {}

  void run() {
    if (!record_.second_digest_place.empty()) {
      refuse(record_.second_digest_place, "a second digest, and an output has one");
    }
    for (const HashRow& row : record_.rows) check_row(row);
    if (record_.digest.empty() || record_.rows.empty()) return;
    tell_kinds();
    const HashRow* const twice = find_twice();
    if (twice != nullptr && twice->kind == RowKind::TensorInObject) refuse_twice(*twice);
    const auto digest = digest_of_rows();
    if (!digest || *digest == record_.digest) return;
    if (twice != nullptr) refuse_twice(*twice);
    refuse(record_.digest_place,
           "the digest is " + record_.digest + ", but that of the rows is " + *digest);
  }

 private:
  [[noreturn]] void refuse(const std::string& place, const std::string& problem) const {
    throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = path_, .key = {}}, place + ": " + problem,
                      "the record was changed, or is of another version: record the hashes again");
  }
  [[noreturn]] void refuse_twice(const HashRow& row) const {
    refuse(row.place, "the row of '" + row.name + "' is there twice");
  }

  void check_row(const HashRow& row) const {
    if (row.hash.size() != kDigits || !starts_with_hash(row.hash)) {
      refuse(row.place, "has no SHA-256 of 64 hexadecimal digits");
    }
    if (row.dtype == kObject) return;
    if (!ckpt::dtype_named(row.dtype)) {
      refuse(row.place, "'" + ckpt::escaped(row.dtype) + "' is not a type of tensors");
    }
    if (!shape_in(row.shape)) {
      refuse(row.place, "'" + ckpt::escaped(row.shape) + "' is not the shape of a tensor");
    }
  }

  void tell_kinds() {
    std::set<std::string> objects;
    for (const HashRow& row : record_.rows) {
      if (row.kind == RowKind::Object) objects.insert(row.name);
    }
    for (HashRow& row : record_.rows) {
      if (!row.kind) row.kind = names_.kind_of(row.name, objects);
    }
  }

  // The same row more often than the checkpoint has its name.
  const HashRow* find_twice() const {
    std::map<std::tuple<std::string, std::string, std::string>, size_t> counts;
    for (const HashRow& row : record_.rows) {
      const size_t count = ++counts[{row.name, row.hash, row.dtype}];
      if (row.kind && count > std::max<size_t>(names_.count(row), 1)) return &row;
    }
    return nullptr;
  }

  // nullopt where it is not sure what a row is of.
  std::optional<std::string> digest_of_rows() const {
    ckpt::Hashes hashes;
    for (const HashRow& row : record_.rows) {
      if (row.kind == RowKind::TensorInObject) continue;
      auto name = row.kind ? names_.read(row) : std::nullopt;
      if (!name) return std::nullopt;
      if (row.kind == RowKind::Object) {
        hashes.objects.push_back({name->file, name->key, sha256_of(row.hash), {}});
      } else {
        hashes.tensors.push_back({name->file, name->key, *ckpt::dtype_named(row.dtype),
                                  *shape_in(row.shape), sha256_of(row.hash)});
      }
    }
    const auto by_name = [](const auto& hash) { return std::tie(hash.file, hash.key); };
    std::ranges::stable_sort(hashes.tensors, {}, by_name);
    std::ranges::stable_sort(hashes.objects, {}, by_name);
    return hex(digest_of(hashes));
  }

  HashRows record_;
  NamesOfRows names_;
  const std::string& path_;
};

}  // namespace

HashRecord parse_hash_record(std::string_view text) {
  HashRows rows = parse_hash_rows(text);
  HashRecord record{.entries = {}, .selection = std::move(rows.selection), .digest = rows.digest};
  for (HashRow& row : rows.rows) {
    record.entries.emplace(std::move(row.name), entry_text(row.hash, row.dtype, row.shape));
  }
  return record;
}

void check_hash_record(std::string_view text, const ckpt::Hashes& listed, const std::string& path) {
  RecordCheck(parse_hash_rows(text), listed, path).run();
}

}  // namespace optim
