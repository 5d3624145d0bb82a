#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/document.h>

#include "base/text.h"
#include "format/location/location.h"

namespace ckpt {

// The name of the document that is one state out of several files, among a checkpoint's documents.
inline constexpr std::string_view kJoinedDocument = "";

// One state out of the torch.save files of several ranks: a tree whose tensors lie in parts in
// these files.
class JoinedState {
 public:
  ValueTree& tree() { return document_.tree; }

  // A tensor by its type, its shape and its chunks.
  NodeId add(TensorEntry tensor);
  // A value of a file's document, with its storages. `prefix`: tells files apart.
  NodeId carry(const Value& value, const Document& document, const std::string& prefix);

  // Puts the document, and the catalog's tensors and objects, into what has the files. Throws
  // Corrupt, with the key, for a tensor whose parts overlap or leave holes.
  void finish(NodeId root, Contents& contents);

  // Whether the parts of a tensor cover it.
  static bool is_whole(const TensorEntry& tensor);

 private:
  Document document_;
  std::vector<TensorEntry> tensors_;
  TextSet storages_;
};

// A value to the bit: two that have one content are equal. A storage without a checksum is read
// from the file, where there is one; nullopt where there is none, or it has too many bytes for
// this.
std::optional<std::string> content_of(const Value& value, const Document& document,
                                      const RandomAccess* file);

// Says of a file of the catalog what is wrong with it; the first word stands.
void set_lack(Catalog& catalog, const std::string& file, std::string lack);

// Whether a file that is to be read is not there, which the catalog then says.
bool is_missing(const Location& location, const std::string& name, Contents& contents);

// torch.save writes the name of the file into it: of files whose number in their names is another
// one there, it says so as of files that lack something.
void find_renamed_files(const Location& location, const Limits& limits, Catalog& catalog);

}  // namespace ckpt
