// ckpt-inspect hash: SHA-256 of every tensor and object, and one digest of the whole.
#include <optional>
#include <ostream>

#include <ckpt/error.h>
#include <ckpt/hash.h>
#include <common/json.h>
#include <common/progress.h>
#include <common/source_options.h>
#include <common/table.h>
#include <common/text.h>
#include <optim/logical_inventory.h>
#include <CLI/CLI.hpp>

#include "inspect/commands.h"
#include "inspect/hash_record.h"
#include "inspect/listing.h"

namespace tools::inspect {
namespace {

struct HashOptions {
  SourceOptions source;
  bool logical = false;
  std::string record;

  void declare(CLI::App& app) {
    source.declare(app);
    app.add_flag("--logical", logical,
                 "Under canonical names: the same state hashes equal in every format and at every "
                 "data-parallel size");
    app.add_option("-c,--check", record,
                   "Compare with the recorded output (text or JSON) of an earlier run; exit code 1 "
                   "if they differ")
        ->option_text("FILE");
  }
};

nlohmann::json to_json(const ckpt::TensorHash& tensor) {
  nlohmann::json json = {
      {"key", json_text(tensor.key)},
      {"dtype", name(tensor.dtype)},
      {"shape", tensor.shape},
      {"bytes", ckpt::element_count(tensor.shape) * bytes_per_element(tensor.dtype)},
      {"sha256", hex(tensor.sha256)}};
  if (!tensor.file.empty()) json["file"] = json_text(tensor.file);
  return json;
}

nlohmann::json to_json(const ckpt::ObjectHash& object) {
  nlohmann::json json = {{"key", json_text(object.key)},
                         {"sha256", hex(object.sha256)},
                         {"tensors", nlohmann::json::array()}};
  if (!object.file.empty()) json["file"] = json_text(object.file);
  for (const ckpt::TensorHash& tensor : object.tensors) json["tensors"].push_back(to_json(tensor));
  return json;
}

void print_hashes_as_json(Console& console, const ckpt::Hashes& hashes, ckpt::Format format) {
  nlohmann::json document = json_document();
  document["format"] = name(format);
  document["tensors"] = nlohmann::json::array();
  document["objects"] = nlohmann::json::array();
  for (const ckpt::TensorHash& tensor : hashes.tensors) {
    document["tensors"].push_back(to_json(tensor));
  }
  for (const ckpt::ObjectHash& object : hashes.objects) {
    document["objects"].push_back(to_json(object));
  }
  document["digest"] = hex(hashes.digest);
  print_json(console, document);
}

void add_tensor(Table& table, const ckpt::TensorHash& tensor, const std::string& owner) {
  table.add_row({{hex(tensor.sha256)},
                 {std::string(name(tensor.dtype)), Paint::Cyan},
                 {shape_text(tensor.shape)},
                 {owner + qualified_key(tensor.file, tensor.key), Paint::Bold}});
}

void print_hashes(Console& console, const ckpt::Hashes& hashes) {
  Table table({{"SHA-256"}, {"DTYPE"}, {"SHAPE"}, {"KEY"}});
  for (const ckpt::TensorHash& tensor : hashes.tensors) add_tensor(table, tensor, "");
  for (const ckpt::ObjectHash& object : hashes.objects) {
    const std::string object_name = qualified_key(object.file, object.key);
    table.add_row(
        {{hex(object.sha256)}, {"object", Paint::Cyan}, {"-"}, {object_name, Paint::Bold}});
    for (const ckpt::TensorHash& tensor : object.tensors)
      add_tensor(table, tensor, object_name + " ");
  }
  if (!console.options().quiet) table.print(console);
  console.out() << hex(hashes.digest) << "  digest of "
                << count_text(hashes.tensors.size(), "tensor") << " and "
                << count_text(hashes.objects.size(), "object") << '\n';
}

int run(const HashOptions& options, Console& console) {
  std::optional<ProgressLine> line(std::in_place, console, "hashing");
  const ckpt::Checkpoint checkpoint = options.source.open();
  const ckpt::Inventory inventory =
      options.logical ? optim::logical_inventory(checkpoint) : native_inventory(checkpoint);
  const ckpt::Hashes hashes = hash(inventory, checkpoint, make_execute_options(console, *line));
  line.reset();
  if (!options.record.empty()) {
    return print_comparison(console, record_of(hashes), read_record(options.record));
  }
  if (console.options().json) {
    print_hashes_as_json(console, hashes, checkpoint.catalog().format);
  } else {
    print_hashes(console, hashes);
  }
  return 0;
}

}  // namespace

Command make_hash_command() {
  return make_command<HashOptions>(
      {"hash",
       "SHA-256 of each tensor and object, and one digest of the whole (--quiet: the digest "
       "alone).",
       {"ckpt-inspect hash ckpt/", "ckpt-inspect hash ckpt/ --logical --quiet",
        "ckpt-inspect hash model.pt --json > model.hashes.json && ckpt-inspect hash copy.pt -c "
        "model.hashes.json"}},
      run);
}

}  // namespace tools::inspect
