#include <cmath>

#include <common/json.h>
#include <common/text.h>

#include "inspect/value_text.h"

namespace tools::inspect {
namespace {

using ckpt::Kind;
using ckpt::Value;
using nlohmann::json;

// A file decides how deep and how often shared its values are: both are bounded here, so that the
// recursion below is, too.
constexpr size_t kDepthMax = 64;
constexpr size_t kValuesMax = 1'000'000;

class JsonWriter {
 public:
  json write(const Value& value, size_t depth) {
    if (depth == kDepthMax || ++values_ > kValuesMax) return {{"$truncated", true}};
    switch (value.kind()) {
      case Kind::None:
        return nullptr;
      case Kind::Bool:
        return value.as_bool();
      case Kind::Int:
        return value.as_int();
      case Kind::BigInt:
        return {{"$int", value.text()}};
      case Kind::Float:
        return number(value.as_float());
      case Kind::Str:
        return json_text(value.text());
      case Kind::Bytes:
        return {{"$bytes", hex(value.text())}};
      case Kind::ByteArray:
        return {{"$bytearray", hex(value.text())}};
      case Kind::List:
        return elements(value, depth);
      case Kind::Tuple:
        return {{"$tuple", elements(value, depth)}};
      case Kind::Set:
        return {{"$set", elements(value, depth)}};
      case Kind::FrozenSet:
        return {{"$frozenset", elements(value, depth)}};
      case Kind::Dict:
        return dict(value, depth);
      case Kind::Global:
        return {{"$global", class_name(value)}};
      case Kind::Object:
        return object(value, depth);
      case Kind::PersistentId:
        return {{"$storage", true}};
    }
    return nullptr;
  }

 private:
  bool is_full() const { return values_ > kValuesMax; }

  static json number(double value) {
    if (std::isfinite(value)) return value;
    return {{"$float", number_text(value)}};
  }

  static std::string hex(std::string_view bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    std::string text;
    for (const char byte : bytes) {
      text += kDigits[static_cast<unsigned char>(byte) >> 4];
      text += kDigits[static_cast<unsigned char>(byte) & 15];
    }
    return text;
  }

  static std::string class_name(const Value& global) {
    return json_text(std::string(global.module()) + "." + std::string(global.name()));
  }

  json elements(const Value& value, size_t depth) {
    json array = json::array();
    for (size_t i = 0; i < value.size() && !is_full(); ++i) {
      array.push_back(write(value[i], depth + 1));
    }
    return array;
  }

  json pairs(const Value& value, size_t depth) {
    json array = json::array();
    for (size_t i = 0; i < value.item_count() && !is_full(); ++i) {
      const auto [key, item] = value.item(i);
      array.push_back(json::array({write(key, depth + 1), write(item, depth + 1)}));
    }
    return array;
  }

  // A JSON object where all keys are different strings that cannot be taken for one of our "$"
  // keys.
  json dict(const Value& value, size_t depth) {
    json object = json::object();
    for (size_t i = 0; i < value.item_count(); ++i) {
      const auto [key, item] = value.item(i);
      const bool is_plain = key.is(Kind::Str) && !key.text().starts_with('$') &&
                            !object.contains(json_text(key.text()));
      if (!is_plain) return {{"$dict", pairs(value, depth)}};
      object[json_text(key.text())] = write(item, depth + 1);
    }
    return object;
  }

  json tensor(const Value& value, const ckpt::TensorView& tensor, size_t depth) {
    json parts = {{"dtype", name(tensor.dtype)}, {"shape", tensor.shape}};
    for (const ckpt::TensorAttribute& attribute : attributes_of(value.tree(), tensor)) {
      parts["attributes"][json_text(attribute.name)] = write(attribute.value, depth + 1);
    }
    return parts;
  }

  json object(const Value& value, size_t depth) {
    if (const auto tensor = ckpt::as_tensor(value)) {
      return {{"$tensor", this->tensor(value, *tensor, depth)}};
    }
    const Value callable = value.callable();
    json parts = {{"class", callable.is(Kind::Global) ? json(class_name(callable))
                                                      : write(callable, depth + 1)},
                  {"args", write(value.args(), depth + 1)}};
    if (const auto kwargs = value.kwargs()) parts["kwargs"] = write(*kwargs, depth + 1);
    if (value.size() != 0) parts["elements"] = elements(value, depth);
    if (value.item_count() != 0) parts["items"] = pairs(value, depth);
    if (const auto state = value.state()) parts["state"] = write(*state, depth + 1);
    return {{"$object", parts}};
  }

  size_t values_ = 0;
};

}  // namespace

json value_to_json(const Value& root) { return JsonWriter().write(root, 0); }

}  // namespace tools::inspect
