#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <ckpt/checkpoint.h>
#include <common/console.h>
#include <common/json.h>
#include <common/source_options.h>
#include <training/contents.h>
#include <training/listing.h>
#include <training/subjects.h>

namespace tools::inspect {

// A key for people: ckpt::printed_key().
std::string key_text(const std::string& key);

struct FileName {
  const std::string* path;
  std::string json;  // quoted
};

// The files of a catalog in the order of their names, and which of them hold a row's bytes.
class FileNames {
 public:
  explicit FileNames(const ckpt::Catalog& catalog);
  // Sorted, each once; valid until the next call.
  const std::vector<const FileName*>& of(const optim::CatalogRow& row);
  // The same as an array of `json`, whose rows are all equally deep.
  const std::string& json_of(const optim::CatalogRow& row, const JsonStream& json);

 private:
  std::vector<FileName> names_;             // sorted
  std::vector<uint32_t> ranks_;             // [file] its place in names_
  void find(const optim::CatalogRow& row);  // found_

  std::vector<uint32_t> found_;   // ranks as the row has them
  std::vector<uint32_t> before_;  // of the row before: mostly the same
  std::vector<uint32_t> sorted_;
  std::vector<const FileName*> result_;
  std::string json_;  // of result_; empty: not made
  FileName own_;      // of an object that names its file
};

struct Rows {
  const ckpt::Catalog& catalog;
  const std::vector<optim::CatalogRow>& rows;
  size_t limit = SIZE_MAX;
  const optim::RankParts* parts = nullptr;  // null: of none

  const ckpt::TensorPart* part_of(const optim::CatalogRow& row) const {
    return parts == nullptr ? nullptr : parts->find(row.key());
  }
};
// The tensors of the training state that patterns of --include name where they name nothing that is
// stored, as a KEY of show does. Takes these patterns out of the filter.
std::vector<optim::Subject> take_from_state(const optim::OpenedTraining& checkpoint,
                                            KeyFilter& filter);

// Adds `missing_files` to a document, where there are any.
void add_missing_files(nlohmann::json& document, const ckpt::Catalog& catalog);
void print_rows(Console& console, const Rows& rows);
// The elements of one array: the tensors among the rows, or the objects.
void add_json_rows(JsonStream& json, const Rows& rows, bool tensors);

}  // namespace tools::inspect
