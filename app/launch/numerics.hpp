// SIGNATURE-1: compares the numerics signature of a start (runtime/config/signature.hpp) with what the
// run's records say of the steps so far. Blocks on the disk.
#pragma once

#include <vector>

#include "app/launch/manifest.hpp"
#include "runtime/config/topology.hpp"

namespace simplescale {

/// The changes of fields by this start of a run that is at `step`, but not those of keys that diff()
/// tells from config.toml; then, if the signature is another one or the first, a change with the key
/// "signature". A run of an earlier version has none: it keeps one from here on. bad_config: a field
/// has changed that run.change_numerics does not name.
Result<std::vector<ConfigChange>> numerics_changes(const RunFolder& run, const Config& config,
                                                   const Plan& plan, uint64_t step);

/// How to go on although these fields have changed; "" if --change-numerics cannot allow all of them.
std::string how_to_change(const std::vector<KeyDifference>& differences);

}  // namespace simplescale
