// The options of a trainer's engine and backend, from the run's configuration and plan. Pure
// functions.
#pragma once

#include <cstddef>

#include "model/backend.hpp"
#include "model/engine/engine.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/topology.hpp"

namespace simplescale {

EngineOptions engine_options(const Config& config, const Plan& plan);

/// threads: CPU threads of the kernels. device_index stays 0.
BackendOptions backend_options(const Config& config, const Plan& plan, int threads);

/// Bytes of shared memory that the trainer's collectives need: the most that its engine allocates
/// for any number of groups up to the configured one, and room for alignment. host_memory: the
/// backend's; an engine on a GPU allocates more (see BufferPlan).
size_t arena_bytes(const Config& config, const Plan& plan, bool host_memory);

}  // namespace simplescale
