#include "runtime/config/sweep.hpp"

#include <algorithm>
#include <cstdio>

namespace simplescale {

namespace {

constexpr size_t kRunsMax = 10'000;
constexpr size_t kNameMax = 64;  // bytes

/// The part of a run's name for one choice: "train.learning_rate", "1e-3" -> "-learning_rate-1e-3".
std::string label(const std::string& key, const std::string& value) {
  std::string text = "-" + key.substr(key.find('.') + 1) + "-";
  for (const char c : value) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '.' || c == '_';
    if (plain || (c == '-' && text.back() != '-'))
      text += c;
    else if (text.back() != '-' && c != '"' && c != '\'')
      text += '-';
  }
  while (text.back() == '-') text.pop_back();
  return text;
}

}  // namespace

Result<std::vector<SweepRun>> expand_sweep(const Config& config) {
  std::vector<SweepAxis> axes = config.sweep.keys;
  const bool zip = config.sweep.mode == SweepMode::zip;
  for (const SweepAxis& axis : axes)
    if (zip && axis.values.size() != axes[0].values.size())
      return Status(Code::bad_config,
                    "sweep.keys: with mode = \"zip\" all lists must have the same "
                    "length; " +
                        axes[0].key + " has " + std::to_string(axes[0].values.size()) +
                        " values and " + axis.key + " " + std::to_string(axis.values.size()));
  SweepAxis seeds{"run.seed", {}};
  for (const int64_t seed : config.sweep.seeds) seeds.values.push_back(std::to_string(seed));
  if (axes.empty() && seeds.values.empty())
    return Status(Code::bad_config, "sweep.keys and sweep.seeds are empty: nothing to vary");

  // Each walk is a set of lists that advance together (zip), and their length.
  size_t count = 1;
  std::vector<std::pair<std::vector<SweepAxis>, size_t>> walks;
  const auto walk = [&](std::vector<SweepAxis> together) {
    const size_t length = together[0].values.size();
    count = std::min(kRunsMax + 1, count * std::min(kRunsMax + 1, length));
    walks.emplace_back(std::move(together), length);
  };
  if (zip && !axes.empty()) walk(axes);
  for (const SweepAxis& axis : axes)
    if (!zip) walk({axis});
  if (!seeds.values.empty()) walk({seeds});
  if (count > kRunsMax)
    return Status(Code::bad_config,
                  "the sweep has more than " + std::to_string(kRunsMax) + " runs");

  std::vector<SweepRun> runs(count);
  for (size_t i = 0; i < count; ++i) {
    size_t left = count, at = i;
    for (const auto& [together, length] : walks) {
      left /= length;
      for (const SweepAxis& axis : together)
        runs[i].choices.emplace_back(axis.key, axis.values[at / left]);
      at %= left;
    }
    char number[24];
    std::snprintf(number, sizeof number, "%03zu", i);
    runs[i].name = number;
    for (const auto& [key, value] : runs[i].choices) {
      runs[i].name += label(key, value);
      runs[i].overrides.push_back("--" + key + "=" + value);
    }
    runs[i].name.resize(std::min(kNameMax, runs[i].name.size()));
  }
  return runs;
}

}  // namespace simplescale
