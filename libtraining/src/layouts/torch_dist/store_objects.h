#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <future>
#include <optional>
#include <vector>

#include <training/opened_training.h>
#include <training/training_state.h>

#include "grid/build_state.h"

// Objects of a torch_dist folder beside the common state and those of flat buckets: what modules
// keep beside their parameters (KEY._extra_state/shard_L.E_COUNTS), random states
// (rng_state/shard_PP.TP_COUNTS), and counters of ranks (rerun_state_machine...).
namespace optim {

// Reads what modules keep beside their parameters on another thread, while its user names tensors:
// a model of many experts has an object for each of their layers. Few are read when they are asked
// for, in one order. Its own functions are for one thread; each of both reads the objects that it
// took from `next_`. `source` and `catalog` must outlive it.
class ExtraStatesAhead {
 public:
  ExtraStatesAhead(const OpenedTraining& source, const ckpt::Catalog& catalog);
  ~ExtraStatesAhead() { next_ = objects_.size(); }
  ExtraStatesAhead(const ExtraStatesAhead&) = delete;
  ExtraStatesAhead& operator=(const ExtraStatesAhead&) = delete;

  // Of that object of the catalog, once. Waits for all; throws what reading this one threw.
  ckpt::Document take(size_t object);

 private:
  struct ReadObject {
    std::optional<ckpt::Document> document;  // nullopt: not of a module, or could not be read
    std::exception_ptr error;
  };
  void read_what_is_left();

  const OpenedTraining& source_;
  const ckpt::Catalog& catalog_;
  std::vector<ReadObject> objects_;  // of the catalog
  std::atomic<size_t> next_ = 0;     // the first that nobody reads
  std::future<void> reading_;        // the last member: its destructor waits
};

struct StoreObjects {
  const OpenedTraining& source;
  const ckpt::Catalog& catalog;
  const KeyRules& rules;
  ExtraStatesAhead& extra_states;
  bool are_values = false;  // objects that are what a module keeps, not lists of it
};
// Into model, extra states, random states and rank objects of `state`. Throws Unsupported for an
// object that is not known, Corrupt for one that does not fit the grid and the model.
void read_store_objects(const StoreObjects& from, CommonBuilder& common, TrainingState& state);

}  // namespace optim
