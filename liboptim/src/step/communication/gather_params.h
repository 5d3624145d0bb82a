#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <optim/optimizer.h>

#include "step/communication/collectives.h"

namespace optim {

// A parameter of the model that is updated by one process of a group.
struct SharedParam {
  at::Tensor param;
  uint32_t id = 0;
  int owner = 0;  // process in the group
};

// Brings every parameter from its owner to all processes of a group, in rounds: a round carries the
// next bucket of each process's parameters. One object is one gather; all processes of the group
// make the same calls in the same order.
class ParamGather {
 public:
  virtual ~ParamGather();
  virtual int64_t round_count() const = 0;
  // Ids of this process's own parameters that must be final before start(round), and were not
  // needed for an earlier round.
  virtual std::vector<uint32_t> needed_for(int64_t round) const = 0;
  virtual void start(int64_t round) = 0;  // does not wait for other processes
  virtual void finish() = 0;              // after the last round: parameters are everywhere
  void run() {                            // all rounds
    for (int64_t round = 0; round < round_count(); ++round) start(round);
    finish();
  }
};

// Copies through buffers of `bucket_bytes` per process, as many as are under way.
std::unique_ptr<ParamGather> make_copying_gather(std::span<const SharedParam> params,
                                                 int64_t bucket_bytes, Collectives& collectives);

// Moves the parameters into one buffer, those of a process side by side, so that nothing need be
// copied to be sent. The parameters' tensors become views of it and keep their values.
class AdoptedBuffer {
 public:
  AdoptedBuffer(std::span<const SharedParam> params, int process_count);
  std::unique_ptr<ParamGather> make_gather(int64_t bucket_bytes, Collectives& collectives) const;

 private:
  friend class AdoptedGather;
  struct Range {
    uint32_t id = 0;
    int owner = 0;
    int64_t begin = 0, end = 0;  // bytes of the owner's region
  };
  at::Tensor bytes_;
  std::vector<Range> ranges_;
  std::vector<int64_t> region_begin_;  // [process], and the end of the last one
};

void broadcast_params(std::span<const SharedParam> params, Collectives& collectives);

}  // namespace optim
