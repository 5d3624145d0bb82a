#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/error.h>
#include <optim/rule_table.h>

namespace optim {

// A small JSON file. Throws NotFound, IoFailure; Unsupported for more than 1 MiB; Corrupt, also for
// an object with a key twice.
nlohmann::json read_json_file(const std::filesystem::path& path);

// A value for a message, on one line, cut where it is long.
std::string found_text(const nlohmann::json& value);

// The fields of a JSON object, each asked for by name and type; nothing is converted. Errors name
// the file, the field, what was expected and what was found: Corrupt for a field that is absent or
// holds anything else. Not thread-safe: it remembers what was asked for.
class JsonFields {
 public:
  JsonFields(std::string file, nlohmann::json object);

  const nlohmann::json& raw() const { return object_; }
  bool has(const std::string& field) const;
  const nlohmann::json& any(const std::string& field) const;
  std::string text(const std::string& field) const;
  std::vector<std::string> texts(const std::string& field) const;
  bool flag(const std::string& field) const;
  int64_t whole(const std::string& field, int64_t least, int64_t most) const;
  // `count` of them.
  std::vector<int64_t> wholes(const std::string& field, size_t count, int64_t least,
                              int64_t most) const;
  double number(const std::string& field, SettingRange range = SettingRange::Any) const;
  std::vector<double> numbers(const std::string& field, size_t count,
                              SettingRange each = SettingRange::Any) const;
  JsonFields object(const std::string& field) const;

  // One of the names; Unsupported for another text.
  std::string one_of(const std::string& field, std::initializer_list<std::string_view> names) const;

  // Throws Unsupported for a field that none of the calls above asked for.
  void refuse_others() const;

  [[noreturn]] void refuse(const std::string& field, const std::string& expected,
                           const nlohmann::json& found) const;
  [[noreturn]] void refuse_unsupported(const std::string& field, const std::string& problem,
                                       const std::string& hint = {}) const;

 private:
  template <class Read, class Fits>
  Read read(const std::string& field, const std::string& expected, Fits fits) const;

  std::string file_;
  nlohmann::json object_;
  mutable std::set<std::string> known_;
};

}  // namespace optim
