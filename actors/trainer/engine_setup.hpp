// The options of a trainer's engine, backend and data plane, from the run's configuration and plan.
// Pure functions.
#pragma once

#include <optional>

#include "model/backend.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/program/costs.hpp"
#include "runtime/program/engine_options.hpp"
#include "runtime/program/program.hpp"
#include "transport/nccl/device_plane.hpp"

namespace simplescale {

/// Of a trainer in a group of so many.
EngineOptions engine_options(const Config& config, const Plan& plan, int shards);

/// The programs of the first step, before a node is lost: of the trainers of group 0, then of those of
/// other groups that have another one.
std::vector<Program> first_programs(const Config& config, const Plan& plan);
/// When a trainer of group 0 executes its tasks then, by estimated costs.
Result<std::vector<TimedTask>> first_step(const Config& config, const Plan& plan,
                                          const Speeds& speeds);

/// Of a trainer in a group of `shards`. threads: CPU threads of the kernels. device_index stays 0.
BackendOptions backend_options(const Config& config, const Plan& plan, int shards, int threads);

/// The sizes of the trainer's data plane. Its arena holds the most that the engine allocates for any
/// number and size of groups that the plan allows, and room for alignment; with NCCL next to nothing.
/// At first it has the pages for groups of the configured size.
/// device: nothing on a CPU; an engine on a GPU allocates more (see BufferPlan).
DataPlaneOptions plane_options(const Config& config, const Plan& plan,
                               std::optional<DeviceTransport> device);

}  // namespace simplescale
