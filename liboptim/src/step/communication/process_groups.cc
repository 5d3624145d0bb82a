#include <optim/process_groups.h>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <exception>
#include <thread>

#include "step/communication/collectives.h"
#include "step/communication/nccl_module.h"
#include "step/device/device_ops.h"

namespace optim {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

ProcessGroupPtr make_gloo_group(const StorePtr& store, ProcessRank rank,
                                const GlooOptions& options) {
  auto gloo_options = c10d::ProcessGroupGloo::Options::create();
  gloo_options->timeout = options.timeout;
  gloo_options->devices.push_back(
      options.network_interface.empty()
          ? c10d::ProcessGroupGloo::createDefaultDevice()
          : c10d::ProcessGroupGloo::createDeviceForInterface(options.network_interface));
  auto backend = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank.rank, rank.size,
                                                             std::move(gloo_options));
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank.rank, rank.size);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO, backend);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  return group;
}

StorePtr join_tcp_store(const TcpRendezvous& rendezvous, ProcessRank rank,
                        const GlooOptions& options) {
  c10d::TCPStoreOptions store_options;
  store_options.port = rendezvous.port;
  store_options.isServer = rank.rank == 0 && !rendezvous.store_is_hosted;
  store_options.waitWorkers = false;
  store_options.timeout = options.timeout;
  StorePtr store = c10::make_intrusive<c10d::TCPStore>(rendezvous.address, store_options);
  if (rendezvous.prefix.empty()) return store;
  return c10::make_intrusive<c10d::PrefixStore>(rendezvous.prefix, std::move(store));
}

AddNccl nccl_module() {
  std::string problem;
  void* const entry = function_of_module("liboptim_nccl.so", kAddNccl, problem);
  if (entry != nullptr) return reinterpret_cast<AddNccl>(entry);
  throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = "nccl"}, problem,
                    "process groups made by the trainer work as well");
}

}  // namespace

ProcessGroupCollection::ProcessGroupCollection() = default;
ProcessGroupCollection::ProcessGroupCollection(const ProcessGroupCollection&) = default;
ProcessGroupCollection::ProcessGroupCollection(ProcessGroupCollection&&) noexcept = default;
ProcessGroupCollection& ProcessGroupCollection::operator=(const ProcessGroupCollection&) = default;
ProcessGroupCollection& ProcessGroupCollection::operator=(ProcessGroupCollection&&) noexcept =
    default;
ProcessGroupCollection::~ProcessGroupCollection() = default;

ProcessGroupPtr join_gloo_group(const TcpRendezvous& rendezvous, ProcessRank rank,
                                const GlooOptions& options) {
  return translate_c10d_errors("rendezvous", [&] {
    return make_gloo_group(join_tcp_store(rendezvous, rank, options), rank, options);
  });
}

ProcessGroupPtr join_gloo_group(const std::string& store_file, ProcessRank rank,
                                const GlooOptions& options) {
  return translate_c10d_errors("rendezvous", [&] {
    const StorePtr store = c10::make_intrusive<c10d::FileStore>(store_file, rank.size);
    store->setTimeout(options.timeout);
    return make_gloo_group(store, rank, options);
  });
}

ProcessGroupPtr join_nccl_group(const TcpRendezvous& rendezvous, ProcessRank rank,
                                const GlooOptions& options) {
  use_cuda();
  const AddNccl add_nccl = nccl_module();
  return translate_c10d_errors("rendezvous", [&] {
    const StorePtr store = join_tcp_store(rendezvous, rank, options);
    ProcessGroupPtr group = make_gloo_group(store, rank, options);
    add_nccl(*group, store, options.timeout);
    return group;
  });
}

ProcessGroupCollection join_data_parallel(const ProcessMesh& mesh) {
  ProcessGroupCollection groups;
  if (const auto* const tcp = std::get_if<TcpRendezvous>(&mesh.rendezvous)) {
    groups.dp_cp = join_gloo_group(*tcp, mesh.rank, mesh.gloo);
  } else if (const auto* const file = std::get_if<std::string>(&mesh.rendezvous)) {
    groups.dp_cp = join_gloo_group(*file, mesh.rank, mesh.gloo);
  }
  groups.expt_dp = groups.dp_cp;
  return groups;
}

std::vector<ProcessGroupCollection> make_in_process_groups(int size, const GlooOptions& options) {
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  std::vector<ProcessGroupCollection> groups(static_cast<size_t>(size));
  std::vector<std::exception_ptr> errors(groups.size());
  std::vector<std::jthread> threads;  // each constructor waits for all others
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto at = static_cast<size_t>(rank);
      try {
        groups[at].dp_cp = translate_c10d_errors("rendezvous", [&] {
          return make_gloo_group(store, {rank, size}, options);
        });
        groups[at].expt_dp = groups[at].dp_cp;
      } catch (...) {
        errors[at] = std::current_exception();
      }
    });
  }
  threads.clear();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return groups;
}

ProcessRank rank_in(const ProcessGroupPtr& group) {
  if (!group) return {};
  return {group->getRank(), group->getSize()};
}

std::vector<std::string> all_gather(const ProcessGroupPtr& group, const std::string& mine) {
  return Collectives(group).all_gather(mine);
}

}  // namespace optim
