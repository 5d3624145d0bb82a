#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ckpt/payload_source.h>
#include <training/opened_training.h>

#include "huggingface/viewed_tensor.h"
#include "state/computed_tensors.h"

// A PEFT adapter, and what it makes of the tensors of its base.
namespace optim {

// The base's tensors under the names of Hugging Face.
using BaseTensors = std::map<std::string, ViewedTensor>;

// A tensor of the base with what the adapter adds to it.
struct Change {
  ViewedTensor base;
  TensorRef a, b;           // null: `b` takes the place of the base
  bool is_flipped = false;  // W has the rows of A's columns: embeddings, fan_in_fan_out
  float scale = 0;
};

class Adapter {
 public:
  // Throws Unsupported, by name, for another kind than LoRA, settings that are not understood, and
  // tensors that do not fit the base's.
  Adapter(const std::filesystem::path& folder, const BaseTensors& base);

  const OpenedTraining& opened() const { return opened_; }
  const std::map<std::string, Change>& changes() const { return changes_; }  // by key of the base

 private:
  [[noreturn]] void refuse_setting(const std::string& name, const nlohmann::json& value) const;
  [[noreturn]] void refuse(const std::string& key, const std::string& problem) const;
  void add(const ckpt::TensorEntry& tensor);
  nlohmann::json by_pattern(const char* field, const std::string& module,
                            const nlohmann::json& otherwise) const;
  float scale_of(const std::string& module) const;
  void check(const std::string& key, Change& change) const;

  OpenedTraining opened_;
  const BaseTensors& base_;
  nlohmann::json config_;
  std::map<std::string, Change> changes_;
};

// What an adapter makes of a base's tensors, one computed tensor each, behind the base's files.
class MergedTensors {
 public:
  MergedTensors(const OpenedTraining& base, const Adapter& adapter)
      : base_(base), adapter_(adapter), computed_(base) {}

  // A tensor of the base with what is added to it, if anything is.
  ckpt::TensorEntry add(const std::string& key, const ViewedTensor& tensor);
  // Base and adapter must outlive it.
  std::shared_ptr<const ckpt::PayloadSource> payloads() { return computed_.payloads(); }

 private:
  const OpenedTraining& base_;
  const Adapter& adapter_;
  ComputedTensors computed_;
};

}  // namespace optim
