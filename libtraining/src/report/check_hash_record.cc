// Whether a recorded output can be one: its digest is computed again from its rows.
#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include <ckpt/error.h>
#include <ckpt/printed.h>
#include <training/hash_record.h>

#include "report/hash_rows.h"

namespace optim {
namespace {

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

bool is_hash(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == text.npos;
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
    if (!is_hash(row.hash)) refuse(row.place, "has no SHA-256 of 64 hexadecimal digits");
    if (row.dtype == "object") return;
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

void check_hash_record(std::string_view text, const ckpt::Hashes& listed, const std::string& path) {
  RecordCheck(parse_hash_rows(text), listed, path).run();
}

}  // namespace optim
