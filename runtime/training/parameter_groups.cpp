#include "runtime/training/parameter_groups.hpp"

#include <cstdio>

namespace simplescale {
namespace {

Status bad(const std::string& pattern, const std::string& text) {
  return {Code::bad_config, "train.group: \"" + pattern + "\" " + text};
}

const ParameterGroup* group_of(const Parameter& parameter, std::span<const ParameterGroup> groups) {
  for (const ParameterGroup& group : groups)
    if (matches(group.pattern, parameter.name)) return &group;
  return nullptr;
}

/// For each group, the number of parameters for which it decides.
std::vector<size_t> decided(std::span<const ParameterGroup> groups,
                            const std::vector<Unit>& units) {
  std::vector<size_t> counts(groups.size());
  for (const Unit& unit : units)
    for (const Parameter& parameter : unit.parameters)
      if (const ParameterGroup* group = group_of(parameter, groups))
        ++counts[static_cast<size_t>(group - groups.data())];
  return counts;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

}  // namespace

bool matches(const std::string& pattern, const std::string& name) {
  // After a mismatch, the last * takes one more character.
  size_t p = 0, n = 0, star = std::string::npos, taken = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++, taken = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p, ++n;
    } else if (star != std::string::npos) {
      p = star + 1, n = ++taken;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string::npos;
}

ParameterRates rates_of(const Parameter& parameter, std::span<const ParameterGroup> groups,
                        float weight_decay) {
  ParameterRates rates{.weight_decay = parameter.is_matrix() ? weight_decay : 0};
  if (const ParameterGroup* group = group_of(parameter, groups)) {
    rates.rate_factor = static_cast<float>(group->learning_rate_factor);
    if (group->weight_decay) rates.weight_decay = static_cast<float>(*group->weight_decay);
  }
  return rates;
}

Status check_groups(std::span<const ParameterGroup> groups, const std::vector<Unit>& units) {
  const std::vector<size_t> counts = decided(groups, units);
  for (size_t i = 0; i < groups.size(); ++i) {
    const ParameterGroup& group = groups[i];
    if (!(group.learning_rate_factor >= 0 && group.learning_rate_factor <= 1000))
      return bad(group.pattern, "has learning_rate_factor = " + number(group.learning_rate_factor) +
                                    ": use 0 to 1000");
    if (group.weight_decay && !(*group.weight_decay >= 0 && *group.weight_decay <= 10))
      return bad(group.pattern,
                 "has weight_decay = " + number(*group.weight_decay) + ": use 0 to 10");
    if (counts[i] > 0) continue;
    std::string example;
    for (const Unit& unit : units)
      for (const Parameter& parameter : unit.parameters) {
        if (matches(group.pattern, parameter.name))
          return bad(group.pattern,
                     "matches only parameters that an earlier group matches: put it first");
        if (parameter.is_matrix()) example = parameter.name;
      }
    return bad(group.pattern, "matches no parameter of the model; names are such as " +
                                  units[1].parameters.back().name + " and " + example);
  }
  return {};
}

std::vector<std::string> groups_text(std::span<const ParameterGroup> groups,
                                     const std::vector<Unit>& units) {
  const std::vector<size_t> counts = decided(groups, units);
  std::vector<std::string> lines;
  for (size_t i = 0; i < groups.size(); ++i) {
    lines.push_back(groups[i].pattern + ": " + std::to_string(counts[i]) +
                    (counts[i] == 1 ? " parameter" : " parameters") + ", learning rate x " +
                    number(groups[i].learning_rate_factor));
    if (groups[i].weight_decay) lines.back() += ", weight decay " + number(*groups[i].weight_decay);
  }
  return lines;
}

}  // namespace simplescale
