// TensorBoard's event files: TFRecords of Event messages. Every supervisor begins a file of its
// own; a step that is made again comes after a SessionLog of START, upon which readers forget what
// they have of it and later steps.
//
//   record: u64 length, u32 masked crc32c of it, data, u32 masked crc32c of data; little-endian
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "runtime/exports/sink.hpp"

namespace simplescale {

namespace tensorboard {

std::string record(std::string_view data);
/// The first event of a file.
std::string version_event(double time_s);
/// Readers drop earlier events of this step and later ones.
std::string start_event(double time_s, uint64_t step);
std::string scalars_event(const MetricsRow& row);
/// Of the last row in a file's contents; what is damaged ends them.
std::optional<Position> last_position(std::string_view file);

}  // namespace tensorboard

/// A new file in the folder, which is made if need be.
Result<std::unique_ptr<MetricsSink>> open_tensorboard(const std::string& folder);

}  // namespace simplescale
