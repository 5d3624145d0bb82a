#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/document.h>

namespace ckpt {

// What reading the metadata of a checkpoint gives.
struct Contents {
  Catalog catalog;
  std::map<std::string, Document> documents;           // torch.save files by name
  std::string joined_words;                            // Checkpoint::joined_words()
  std::optional<ValueTree> dist_metadata;              // .metadata: DistMetadata::rest
  std::vector<std::string> metadata_files;             // read, but not in catalog.files
  bool has_backend_file = false;                       // FolderConvention::backend_file
  std::map<std::string, std::string> header_metadata;  // safetensors' __metadata__
};

}  // namespace ckpt
