// data.blend and data.stage: the checks of their values, and the mixture that they describe. Pure
// functions.
#pragma once

#include <string>
#include <vector>

#include "runtime/config/config.hpp"
#include "runtime/training/mixture.hpp"

namespace simplescale {

/// True for the values of data.token_bytes: 2, 4, and 0 for not said.
bool is_token_width(int64_t bytes);

/// What is wrong with the sources and stages. Messages begin with "data.blend" or "data.stage".
std::vector<Status> check_blend(const Config& config);

/// The mixture in samples of block_size tokens; empty without data.blend. Weights are in the order
/// of data.blend. A stage begins with the sample that data.stage's from_tokens begins or lies in,
/// rounded up. bad_config: as check_blend(); two stages begin with the same sample.
Result<Mixture> mixture_of(const Config& config, int64_t block_size);

/// True if one of the first `samples` samples is of the source.
bool uses_source(const Mixture& mixture, const std::string& name, uint64_t samples);

/// bad_config: with `now`, one of the first `samples` samples would be another one than with
/// `before`, so that the run would see samples twice or never. Tells how to change the mixture from
/// there on. Sources of one name count as the same wherever they lie: app/launch/manifest.hpp
/// compares what they hold.
Status check_same_mixture(const Config& before, const Config& now, int64_t block_size,
                          uint64_t samples);

}  // namespace simplescale
