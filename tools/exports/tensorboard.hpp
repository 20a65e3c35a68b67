// TensorBoard's event files: TFRecords of Event messages. Every supervisor starts a new file. A
// step that is trained again follows a SessionLog of START: readers then drop their events of this
// step and of later steps. The folder `by_tokens` has the same values over the tokens trained so far.
//
//   record: u64 length, u32 masked crc32c of it, data, u32 masked crc32c of data; little-endian
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "tools/exports/sink.hpp"

namespace simplescale {

namespace tensorboard {

std::string record(std::string_view data);
/// The first event of a file.
std::string version_event(double time_s);
/// SessionLog START: readers drop earlier events of this step and of later steps.
std::string start_event(double time_s, uint64_t step);
std::string scalars_event(const MetricsRow& row);
/// Position of the last row in the contents of a file, up to the first damaged record.
std::optional<Position> last_position(std::string_view file);

}  // namespace tensorboard

/// Opens a new file in the folder, which is created if necessary.
Result<std::unique_ptr<MetricsSink>> open_tensorboard(const std::string& folder);

}  // namespace simplescale
