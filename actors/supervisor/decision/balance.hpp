// Shares by speed: how many leaves of a step each group computes. A group is as fast as its slowest
// node. Pure functions of the state; any thread.
//
//   BALANCE-1  Shares by speed differ from even ones only if a step then takes at least a tenth less
//              time, as nodes were measured. A generation ends for other shares only if a trainer has
//              been a straggler for long, or none is any more, and at most once in
//              State::balance_pause_ms.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "actors/supervisor/decision/decide.hpp"

namespace simplescale::job {

/// The weights of the groups of s.layout (Shares::by_weight()): per mille of the speed of the
/// fastest one. A node that was not measured counts as one in the middle. Empty: even shares.
std::vector<uint32_t> weights_by_speed(const State& s);
/// Why a generation with other shares should replace this one; "": it should not. stragglers: as in
/// SpeedsMeasured.
std::string why_share_anew(const State& s, const std::set<std::string>& stragglers);
/// For users: the shares of s.weights, and why they are so.
std::string why_shares(const State& s);

}  // namespace simplescale::job
