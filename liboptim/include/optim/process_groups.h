#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include <optim/export.h>

namespace c10d {
class ProcessGroup;
}

namespace optim {

// Who copies or drops one includes torch/csrc/distributed/c10d/ProcessGroup.hpp.
using ProcessGroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

// The reference's groups, borrowed from the trainer. A null group is one process.
struct OPTIM_EXPORT ProcessGroupCollection {
  ProcessGroupPtr world, mp, tp, expt_tp, dp_cp, expt_dp, tp_ep_pp;

  // Out of line, so that users need no c10d headers.
  ProcessGroupCollection();
  ProcessGroupCollection(const ProcessGroupCollection&);
  ProcessGroupCollection(ProcessGroupCollection&&) noexcept;
  ProcessGroupCollection& operator=(const ProcessGroupCollection&);
  ProcessGroupCollection& operator=(ProcessGroupCollection&&) noexcept;
  ~ProcessGroupCollection();
};

// This process among its peers.
struct ProcessRank {
  int rank = 0, size = 1;
};

struct GlooOptions {
  std::string network_interface = {};  // "lo", "eth0"; empty: the one of the host's name
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
};

// How processes find each other.
struct TcpRendezvous {
  std::string address = "127.0.0.1";
  uint16_t port = 0;
  bool store_is_hosted =
      false;                // someone else hosts the store (torchrun's agent); else rank 0 does
  std::string prefix = {};  // of all keys in the store; torchrun: its restart count
};

// Gloo groups over CPUs. Blocking; every process of the group must call. They throw
// Error(IoFailure) when the processes do not find each other in time.
OPTIM_EXPORT ProcessGroupPtr join_gloo_group(const TcpRendezvous& rendezvous, ProcessRank rank,
                                             const GlooOptions& options = {});
// Processes of one host that share a file: it must not exist, or be empty, before the first joins.
OPTIM_EXPORT ProcessGroupPtr join_gloo_group(const std::string& store_file, ProcessRank rank,
                                             const GlooOptions& options = {});

// NCCL over GPUs, Gloo over CPUs, in one group: each tensor travels as its device asks for. Each
// process has a GPU of its own, the current one. Throws Error(Unsupported) where this build has no
// NCCL or this machine no GPU. Blocking.
OPTIM_EXPORT ProcessGroupPtr join_nccl_group(const TcpRendezvous& rendezvous, ProcessRank rank,
                                             const GlooOptions& options = {});

// A process and how it finds its peers: at a TCP store or a store file; monostate: it has none.
struct ProcessMesh {
  ProcessRank rank = {};
  std::variant<std::monostate, TcpRendezvous, std::string> rendezvous = {};
  GlooOptions gloo = {};
};
// All processes of the mesh as one data-parallel group, of dense parameters and experts alike.
OPTIM_EXPORT ProcessGroupCollection join_data_parallel(const ProcessMesh& mesh);

// `size` data-parallel ranks in this process: element r is rank r, for a thread of its own.
OPTIM_EXPORT std::vector<ProcessGroupCollection> make_in_process_groups(
    int size, const GlooOptions& options = {});

OPTIM_EXPORT ProcessRank rank_in(const ProcessGroupPtr& group);  // {0, 1} for null

// all[r] is what rank r passed as `mine`: for small values, such as the outcome of a run.
// Collective.
OPTIM_EXPORT std::vector<std::string> all_gather(const ProcessGroupPtr& group,
                                                 const std::string& mine);

}  // namespace optim
