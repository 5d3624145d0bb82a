#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ckpt/target.h>
#include <training/conservation.h>
#include <training/opened_training.h>
#include <training/training_state.h>

// shardwise-proof.json (docs/formats/proof.md): what a conversion promises of the iteration beside
// which it lies, in the root, or in whose folder.
namespace optim {

// One side of a conversion.
struct ProofSide {
  ckpt::Format format = ckpt::Format::Torch;
  RunGrid grid;
  std::vector<StateCount> states;
};

struct Proof {
  std::string folder = {};  // the iteration's in the root; empty: it is in the folder
  ProofSide source, target;
  std::vector<ckpt::NotCarried> not_carried;
  bool masters_proven = false;  // a result is published only where each rounds to its weight
  // `hash --logical` of the result; empty: not known.
  std::string logical_digest = {};
};

// A result that has every tensor and object of the source as it is has its logical hash, too.
bool keeps_digest(const Proof& proof);

// JSON. The same conversion gives the same text.
std::string text_of(const Proof& proof);

// What is checked of a result later.
struct Promise {
  std::string file;  // as errors name it
  std::vector<StateCount> states;
  std::string logical_digest;
};

// The proof beside a checkpoint; none where there is none, or it is of another iteration. Throws
// Corrupt for a text that text_of() does not write.
std::optional<Promise> promise_of(const OpenedTraining& checkpoint);

}  // namespace optim
