// The learning rate and weight decay of each parameter: `train.group` of the configuration. Pure
// functions, any thread.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/training/model_shape.hpp"

namespace simplescale {

/// Parameters by name. If several groups match a parameter, the first group decides.
struct ParameterGroup {
  std::string pattern;                 // for whole names; * stands for any characters, ? for one
  double learning_rate_factor = 1;     // 0: the parameters do not change
  std::optional<double> weight_decay;  // none: the same as without the group
  bool operator==(const ParameterGroup&) const = default;
};

/// How the optimizer treats a parameter.
struct ParameterRates {
  float rate_factor = 1;   // of the learning rate
  float weight_decay = 0;  // multiplied by the parameter's own learning rate
  bool operator==(const ParameterRates&) const = default;
};

/// True if the whole of `name` matches.
bool matches(const std::string& pattern, const std::string& name);

/// weight_decay: of matrices. Norms and biases do not decay unless their group sets it.
ParameterRates rates_of(const Parameter& parameter, std::span<const ParameterGroup> groups,
                        float weight_decay);

/// bad_config: a value out of range, or a group that decides for no parameter. The message begins
/// with the key.
Status check_groups(std::span<const ParameterGroup> groups, const std::vector<Unit>& units);

/// For users: "*norm*: 13 parameters, learning rate x 0.5, weight decay 0".
std::vector<std::string> groups_text(std::span<const ParameterGroup> groups,
                                     const std::vector<Unit>& units);

}  // namespace simplescale
