#pragma once

#include <functional>
#include <stop_token>
#include <vector>

#include <ckpt/checkpoint.h>
#include <ckpt/execute.h>
#include <training/conversion_facts.h>
#include <training/export.h>
#include <training/filed_state.h>

namespace optim {

struct ProofOptions {
  unsigned threads = 0;  // 0: one per core
  // One of several processes proves its share of the parameters, and sees what is ambiguous among
  // these alone.
  ckpt::Share share = {};
  std::stop_token stop = {};  // a requested stop ends in Error(IoFailure, "cancelled")
  // Of the masters and weights that are read; from any thread, one call at a time.
  std::function<void(const ckpt::Progress&)> on_progress = {};
  // Where the bytes of masters and weights come from; null: the checkpoint's files.
  const ckpt::PayloadSource* payloads = nullptr;
};

// Proves by content that each master belongs to its name: rounded to the weight's type it equals
// the weight bit for bit. Streams all masters and weights once. Throws Corrupt with file and key.
TRAINING_EXPORT std::vector<AmbiguousParam> prove_assignment(const FiledState& checkpoint,
                                                             const ckpt::Checkpoint& source,
                                                             const ProofOptions& options = {});

}  // namespace optim
