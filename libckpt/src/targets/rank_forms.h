#pragma once

#include <map>
#include <memory>
#include <string>

#include <ckpt/document.h>

namespace ckpt {

// A file of the source as it was saved: the forms of its tensors by their places in the state.
struct RankForms {
  std::shared_ptr<const Document> document;
  std::map<std::string, Value, std::less<>> values;
};
// `place`: of the document's root.
RankForms forms_in(std::shared_ptr<const Document> document, const std::string& place);

}  // namespace ckpt
