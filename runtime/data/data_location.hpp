// Where a configuration's tokens lie, and how to open them.
#pragma once

#include <string>

#include "runtime/base/status.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/data/sample_order.hpp"
#include "runtime/data/token_file.hpp"

namespace simplescale {

/// True if data.source already holds tokens (a .bin file, or a folder of them); false if it is text
/// to prepare.
bool source_is_tokens(const Config& config);

/// True if data.source is text, and data_folder() does not hold tokens yet.
bool needs_preparation(const Config& config);

/// data.source itself where that holds tokens, else the prepared folder (data_folder()).
std::string token_path(const Config& config);

/// The run's batch over `groups` groups, as the sample order sees it; groups: of a generation,
/// which may be fewer than plan.topology.groups.
BatchLayout batch_layout(const Plan& plan, uint64_t groups);
/// What the trainer of a shard of group `group` of `groups` trains in a step (1-based), as global
/// sample indices: first, count, first, count, ...
std::vector<uint64_t> samples_of(const Plan& plan, uint64_t groups, uint64_t group, uint64_t shard,
                                 uint64_t step);

/// Training and validation tokens of a prepared configuration. Errors as open_dataset(); also a
/// block longer than the data.
Result<Dataset> open_tokens(const Config& config, const ModelShape& shape);

}  // namespace simplescale
