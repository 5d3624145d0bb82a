#pragma once

#include <memory>
#include <string>

#include <ckpt/inventory.h>
#include <ckpt/payload_source.h>
#include <training/opened_training.h>

namespace optim {

// A training checkpoint's model as ckpt-convert --to huggingface writes it: hashed, it gives what
// the folder gives.
struct ExportedModel {
  ckpt::Inventory inventory;                            // tensors alone
  std::shared_ptr<const ckpt::PayloadSource> payloads;  // of it; reads the checkpoint
  std::string names;                                    // as ConvertReport's
};

// The checkpoint must outlive it. Throws as convert() with ConvertOptions::hugging_face does.
ExportedModel exported_model(const OpenedTraining& checkpoint);

}  // namespace optim
