// How an actor gets a handle of another node's actor.
#pragma once

#include <caf/actor.hpp>
#include <functional>
#include <string>

#include "runtime/base/status.hpp"

namespace simplescale {

/// Returns the node actor of the agent whose transport listens at `address`.
/// Blocks for up to a few seconds while it connects. An error if the agent does not answer.
using FindNode = std::function<Result<caf::actor>(const std::string& address)>;

}  // namespace simplescale
