#include "format/strict_json.h"

#include <vector>

#include "base/text_map.h"

namespace ckpt {
namespace {

using nlohmann::json;

// Looks at the events of a parse; makes nothing of them.
class Check final : public nlohmann::json_sax<json> {
 public:
  explicit Check(const StrictJson& strict) : strict_(strict) {}

  bool start_object(size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(); }
  bool end_array() override { return close(); }
  bool key(std::string& key) override {
    if (!seen_.back().insert(key).second) strict_.refuse(key, "appears twice");
    return true;
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t) override { return true; }
  bool number_unsigned(uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(json::binary_t&) override { return true; }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  bool open() {
    if (seen_.size() >= strict_.depth_max) strict_.refuse({}, "is nested too deeply");
    seen_.emplace_back();
    return true;
  }
  bool close() {
    seen_.pop_back();
    return true;
  }

  const StrictJson& strict_;
  std::vector<TextSet> seen_;  // keys of the open objects
};

}  // namespace

json parse_strict_json(const std::string& text, const StrictJson& strict) {
  Check check(strict);
  if (!json::sax_parse(text, &check)) return json(json::value_t::discarded);
  return json::parse(text, nullptr, false);
}

}  // namespace ckpt
