#include "huggingface/table_walk.h"

#include <string_view>
#include <utility>

#include <ckpt/error.h>

#include "model/expression.h"

namespace optim {
namespace {

using ckpt::Error;
using ckpt::ErrorCode;

constexpr const char *kLayer = "{layer}", *kExpert = "{expert}", *kFurther = "{mtp}";

std::string replaced(std::string text, std::string_view part, const std::string& other) {
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + other.size())) {
    text.replace(at, part.size(), other);
  }
  return text;
}

// What marks in names stand for; `further`: of a layer behind those of the decoder.
struct Numbers {
  std::optional<uint32_t> layer = {}, further = {};
  uint32_t expert = 0;
};

std::string with_numbers(std::string text, const Numbers& numbers) {
  text = replaced(std::move(text), kLayer, std::to_string(numbers.layer.value_or(0)));
  text = replaced(std::move(text), kFurther, std::to_string(numbers.further.value_or(0)));
  return replaced(std::move(text), kExpert, std::to_string(numbers.expert));
}

bool is_further(const TensorRow& row) {
  return row.parts[0].from[0].find(kFurther) != std::string::npos;
}
bool is_of_layer(const TensorRow& row) {
  return row.target.find(kLayer) != std::string::npos || is_further(row);
}

class Walk {
 public:
  Walk(const NameTable& table, const NameScope& scope,
       const std::function<void(TableTensor)>& visit)
      : table_(table), scope_(scope), visit_(visit) {}

  void run() const {
    const uint64_t layers = scope_.size("num_layers");
    const uint64_t all = layers + scope_.size(table_.further.count);
    for (const TensorRow& row : table_.tensors) {
      if (!is_of_layer(row)) add(row, {});
    }
    for (uint32_t layer = 0; layer < all; ++layer) {
      std::optional<uint32_t> further;
      if (layer >= layers) further = static_cast<uint32_t>(layer - layers);
      for (const TensorRow& row : table_.tensors) {
        if (is_of_layer(row) && (!is_further(row) || further)) add(row, {layer, further});
      }
    }
  }

 private:
  void add(const TensorRow& row, Numbers numbers) const {
    if (!is_truthy(scope_.value(row.when, numbers.layer))) return;
    const bool has_experts = row.parts[0].from[0].find(kExpert) != std::string::npos;
    const bool is_stacked = has_experts && row.target.find(kExpert) == row.target.npos;
    const uint64_t experts = has_experts ? scope_.size("num_experts") : 1;
    TableTensor tensor{{}, &row};
    for (numbers.expert = 0; numbers.expert < experts; ++numbers.expert) {
      for (size_t i = 0; i < row.parts.size(); ++i) {
        tensor.parts.push_back({names_of(row.parts[i], numbers), numbers.expert, i});
      }
      if (is_stacked && numbers.expert + 1 < experts) continue;
      tensor.key = with_numbers(row.target, numbers);
      tensor.added = sum_of(row, numbers);
      visit_(std::exchange(tensor, {{}, &row}));
    }
  }

  float sum_of(const TensorRow& row, const Numbers& numbers) const {
    if (row.add.empty()) return 0;
    const nlohmann::json added = scope_.value(row.add, numbers.layer);
    if (added.is_number()) return added.get<float>();
    throw Error(ErrorCode::Unsupported, {.file = table_.name, .key = row.target},
                "'add' is not a number: " + added.dump());
  }

  std::vector<std::string> names_of(const RowPart& part, const Numbers& numbers) const {
    std::vector<std::string> names;
    for (const std::string& from : part.from) {
      std::vector<std::string> written = {from};
      if (numbers.further) {
        for (const auto& [name, others] : table_.further.names) {
          if (from.find(name) == from.npos) continue;
          written.clear();
          for (const std::string& other : others) written.push_back(replaced(from, name, other));
        }
      }
      for (std::string& name : written) names.push_back(with_numbers(std::move(name), numbers));
    }
    return names;
  }

  const NameTable& table_;
  const NameScope& scope_;
  const std::function<void(TableTensor)>& visit_;
};

}  // namespace

void for_each_tensor(const NameTable& table, const NameScope& scope,
                     const std::function<void(TableTensor)>& visit) {
  Walk(table, scope, visit).run();
}

const std::pair<const std::string, std::string>* first_unmet(
    const std::map<std::string, std::string>& conditions, const NameScope& scope) {
  for (const auto& condition : conditions) {
    if (!is_truthy(scope.value(condition.second))) return &condition;
  }
  return nullptr;
}

void require_conditions(const NameTable& table, const NameScope& scope, const std::string& who) {
  const auto* const unmet = first_unmet(table.needed, scope);
  if (unmet == nullptr) return;
  throw Error(ErrorCode::Unsupported, {.file = {}, .key = who},
              "do not fit " + table.name + ", " + unmet->first + ": " + unmet->second + ", found " +
                  scope.arguments_of(unmet->second));
}

}  // namespace optim
