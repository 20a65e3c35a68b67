// The options of a trainer's engine, backend and data plane, from the run's configuration and plan.
// Pure functions.
#pragma once

#include <optional>

#include "model/backend.hpp"
#include "model/program/engine_options.hpp"
#include "model/program/program.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/topology.hpp"
#include "transport/nccl/device_plane.hpp"

namespace simplescale {

EngineOptions engine_options(const Config& config, const Plan& plan);

/// The tasks of the first step of the trainers of group 0, before a node is lost.
Program first_program(const Config& config, const Plan& plan);

/// threads: CPU threads of the kernels. device_index stays 0.
BackendOptions backend_options(const Config& config, const Plan& plan, int threads);

/// The sizes of the trainer's data plane. Its arena holds the most that the engine allocates for any
/// number of groups up to the configured one, and room for alignment; with NCCL next to nothing.
/// device: nothing on a CPU; an engine on a GPU allocates more (see BufferPlan).
DataPlaneOptions plane_options(const Config& config, const Plan& plan,
                               std::optional<DeviceTransport> device);

}  // namespace simplescale
