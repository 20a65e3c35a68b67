// The communicators of trainers on fake GPUs: a thread for each trainer, NCCL over fake_nccl.cpp.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/model/thread_collective.hpp"
#include "tests/must.hpp"
#include "transport/nccl/communicator.hpp"

namespace simplescale::testing {

inline std::unique_ptr<nccl::NcclCommunicator> communicator(const std::string& name,
                                                            Collective& host,
                                                            bool native_sums = false) {
  auto stream = must(nccl::Stream::create(host.rank()));
  auto made = std::make_unique<nccl::NcclCommunicator>(
      nccl::NcclCommunicator::Spec{
          .name = name, .generation = 1, .timeout_ms = 60'000, .native_sums = native_sums},
      std::make_unique<ForwardingCollective>(host), stream.take(), [](nccl::NcclCommunicator*) {});
  REQUIRE(made->connect().ok());
  return made;
}

/// Runs trainer(group, shard, communicator of the group, communicator of the shard) on a thread for
/// each trainer.
inline void run_trainers(int groups, int shards,
                         const std::function<void(int, int, Collective&, Collective&)>& trainer,
                         bool native_sums = false) {
  std::vector<std::unique_ptr<ThreadCommunicator>> shard_wise, replicate_wise;
  for (int i = 0; i < groups; ++i)
    shard_wise.push_back(std::make_unique<ThreadCommunicator>(shards, 60'000));
  for (int i = 0; i < shards; ++i)
    replicate_wise.push_back(std::make_unique<ThreadCommunicator>(groups, 60'000));
  std::vector<std::thread> trainers;
  for (int t = 0; t < groups * shards; ++t)
    trainers.emplace_back([&, t] {
      const int group = t / shards, shard = t % shards;
      const auto of_group =
          communicator("shard", shard_wise[static_cast<size_t>(group)]->rank(shard), native_sums);
      const auto of_shard = communicator(
          "replicate", replicate_wise[static_cast<size_t>(shard)]->rank(group), native_sums);
      trainer(group, shard, *of_group, *of_shard);
    });
  for (std::thread& each : trainers) each.join();
}

}  // namespace simplescale::testing
