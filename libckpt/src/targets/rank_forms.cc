#include "targets/rank_forms.h"

#include <utility>

#include "base/text.h"
#include "format/values/nesting.h"

namespace ckpt {
namespace {

constexpr size_t kFormDepthMax = 200;  // as deep as tensors of ranks are joined

void add_values(const Value& value, const std::string& pointer, size_t depth, RankForms& forms) {
  if (depth > kFormDepthMax) return;
  forms.values.emplace(pointer, value);
  if (const auto mapping = as_mapping(value)) {
    for (const auto& [key, child] : items_of(*mapping)) {
      add_values(child, pointer + pointer_step(key_text(key)), depth + 1, forms);
    }
  }
  for (size_t i = 0; value.is(Kind::List) && i < value.size(); ++i) {
    add_values(value[i], pointer + "/" + std::to_string(i), depth + 1, forms);
  }
}

}  // namespace

RankForms forms_in(std::shared_ptr<const Document> document, const std::string& place) {
  RankForms forms{std::move(document), {}};
  add_values(forms.document->tree.root(), place, 0, forms);
  return forms;
}

}  // namespace ckpt
