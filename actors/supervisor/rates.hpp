// The learning rates that users have set during the run, as the text of
// control/learning_rates.json, which the next start of the run reads. Pure functions, any thread.
#pragma once

#include <optional>
#include <string>

#include "actors/supervisor/decision/decide.hpp"
#include "runtime/base/status.hpp"

namespace simplescale {

/// configured: train.learning_rate.
std::string rates_text(const job::Rates& rates, double configured);
/// The rates in such a text. If its train.learning_rate differs from `configured`, the user has
/// configured a new one since; then there are no changes. bad_data: the text is damaged.
Result<job::Rates> rates_of(const std::string& text, double configured);

/// CheckpointInfo::resume with such a text, so that a checkpoint has the rates without its run.
std::string with_rates(const std::string& resume, const std::string& text);
/// That text; "": it has none.
std::string rates_in(const std::string& resume);
/// train.learning_rate when the text was written. Nothing: the text is damaged.
std::optional<double> configured_in(const std::string& text);

}  // namespace simplescale
