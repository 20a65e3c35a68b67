#include "runtime/training/mixture.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <numeric>
#include <queue>
#include <tuple>

namespace simplescale {

namespace {

/// value = digits x 10^exponent, exactly as in the shortest text of the number.
struct Decimal {
  uint64_t digits = 0;
  int exponent = 0;
};

Decimal decimal_of(double value) {
  char text[32];
  const char* end =
      std::to_chars(text, text + sizeof text, value, std::chars_format::scientific).ptr;
  Decimal decimal;
  const char* at = text;
  bool behind_point = false;
  for (; at < end && *at != 'e'; ++at) {
    if (*at == '.') {
      behind_point = true;
      continue;
    }
    decimal.digits = decimal.digits * 10 + static_cast<uint64_t>(*at - '0');  // at most 17 digits
    decimal.exponent -= behind_point;
  }
  int exponent = 0;
  if (++at < end && *at == '+') ++at;
  std::from_chars(at, end, exponent);
  decimal.exponent += exponent;
  for (; decimal.digits > 0 && decimal.digits % 10 == 0; decimal.digits /= 10) ++decimal.exponent;
  return decimal;
}

struct Job {  // the next sample of a source
  uint64_t deadline = 0, release = 0;
  size_t source = 0;
  auto operator<=>(const Job&) const = default;
};
struct LaterRelease {
  bool operator()(const Job& a, const Job& b) const {
    return std::tie(a.release, a.source) > std::tie(b.release, b.source);
  }
};

Job job_of(size_t source, uint64_t k, uint64_t weight, uint64_t period) {
  return {((k + 1) * period + weight - 1) / weight, k * period / weight, source};
}

/// The source at each place of a stage's period (MIX-1).
std::vector<uint8_t> period_of(const std::vector<uint64_t>& weights, uint64_t period) {
  std::priority_queue<Job, std::vector<Job>, std::greater<>> ready;  // the earliest deadline first
  std::priority_queue<Job, std::vector<Job>, LaterRelease> waiting;
  for (size_t source = 0; source < weights.size(); ++source)
    if (weights[source] > 0) waiting.push(job_of(source, 0, weights[source], period));
  std::vector<uint64_t> given(weights.size(), 0);
  std::vector<uint8_t> sources;
  sources.reserve(period);
  for (uint64_t place = 0; place < period; ++place) {
    for (; !waiting.empty() && waiting.top().release <= place; waiting.pop())
      ready.push(waiting.top());
    SS_ASSERT(!ready.empty() && ready.top().deadline > place);
    const size_t source = ready.top().source;
    ready.pop();
    sources.push_back(static_cast<uint8_t>(source));
    if (++given[source] < weights[source])
      waiting.push(job_of(source, given[source], weights[source], period));
  }
  return sources;
}

}  // namespace

uint64_t Mixture::Stage::period() const {
  return std::accumulate(weights.begin(), weights.end(), uint64_t{0});
}

Result<std::vector<uint64_t>> whole_weights(std::span<const double> weights) {
  const Status too_fine = bad_config(
      "has weights with too many digits: as whole numbers their sum is "
      "above " +
      std::to_string(Mixture::period_max) + "; round them");
  std::vector<Decimal> decimals;
  int lowest = INT32_MAX;
  for (const double weight : weights) {
    if (!std::isfinite(weight) || weight < 0) return bad_config("has a weight that is not above 0");
    decimals.push_back(weight > 0 ? decimal_of(weight) : Decimal{});
    if (weight > 0) lowest = std::min(lowest, decimals.back().exponent);
  }
  std::vector<uint64_t> whole;
  uint64_t divisor = 0;
  // Weights as three thirds of 16 digits become 1 by the common divisor, so check the limit after
  // the division.
  for (const Decimal& decimal : decimals) {
    uint64_t value = decimal.digits;
    for (int e = decimal.exponent; value > 0 && e > lowest; --e)
      if (__builtin_mul_overflow(value, uint64_t{10}, &value)) return too_fine;
    whole.push_back(value);
    divisor = std::gcd(divisor, value);
  }
  if (divisor == 0) return bad_config("has no weight above 0");
  uint64_t sum = 0;
  for (uint64_t& value : whole) {
    value /= divisor;
    if (value > Mixture::period_max || (sum += value) > Mixture::period_max) return too_fine;
  }
  return whole;
}

MixtureSchedule::MixtureSchedule(Mixture mixture) : mixture_(std::move(mixture)) {
  SS_ASSERT(!mixture_.empty() && mixture_.names.size() <= Mixture::sources_max);
  SS_ASSERT(!mixture_.stages.empty() && mixture_.stages.front().first == 0);
  for (const Mixture::Stage& of : mixture_.stages) {
    Stage stage{of.first, of.period(), period_of(of.weights, of.period()), {}, {}};
    stage.places.resize(of.weights.size());
    for (uint32_t place = 0; place < stage.period; ++place)
      stage.places[stage.source[place]].push_back(place);
    for (size_t source = 0; source < of.weights.size(); ++source) {
      const bool first = stages_.empty();
      stage.before.push_back(
          first ? 0
                : stages_.back().before[source] +
                      stages_.back().count(source, of.first - stages_.back().first));
    }
    stages_.push_back(std::move(stage));
  }
}

uint64_t MixtureSchedule::Stage::count(size_t of, uint64_t samples) const {
  const std::vector<uint32_t>& own = places[of];
  const auto inside = std::ranges::lower_bound(own, samples % period);
  return samples / period * own.size() + static_cast<uint64_t>(inside - own.begin());
}

const MixtureSchedule::Stage& MixtureSchedule::stage_of(uint64_t sample) const {
  return *std::prev(std::ranges::upper_bound(stages_, sample, {}, &Stage::first));
}

MixtureSchedule::Draw MixtureSchedule::at(uint64_t sample) const {
  const Stage& stage = stage_of(sample);
  const uint64_t inside = sample - stage.first;
  const size_t source = stage.source[inside % stage.period];
  return {source, stage.before[source] + stage.count(source, inside)};  // MIX-2
}

uint64_t MixtureSchedule::count(size_t source, uint64_t samples) const {
  const Stage& stage = stage_of(samples);
  return stage.before[source] + stage.count(source, samples - stage.first);
}

std::vector<uint64_t> MixtureSchedule::trained(uint64_t first, uint64_t places,
                                               const SkippedSamples& skipped) const {
  std::vector<uint64_t> counts(mixture_.names.size(), 0);
  const std::vector<uint64_t> runs = skipped.samples_at(first, places);
  for (size_t i = 0; i + 1 < runs.size(); i += 2)
    for (size_t source = 0; source < counts.size(); ++source)
      counts[source] += count(source, runs[i] + runs[i + 1]) - count(source, runs[i]);
  return counts;
}

namespace {

/// The sources of a stage, in order. Sources without weight have no effect.
std::vector<std::pair<std::string, uint64_t>> used(const Mixture& mixture, size_t stage) {
  std::vector<std::pair<std::string, uint64_t>> sources;
  if (stage < mixture.stages.size())
    for (size_t i = 0; i < mixture.names.size(); ++i)
      if (const uint64_t weight = mixture.stages[stage].weights[i]; weight > 0)
        sources.emplace_back(mixture.names[i], weight);
  return sources;
}

std::string shares(const std::vector<std::pair<std::string, uint64_t>>& sources) {
  std::string text;
  for (const auto& [name, weight] : sources)
    text += (text.empty() ? "" : ", ") + name + " " + std::to_string(weight);
  return text;
}

}  // namespace

std::string mixture_change(const Mixture& was, const Mixture& now, uint64_t samples) {
  for (size_t i = 0;; ++i) {
    const bool is_was = i < was.stages.size() && was.stages[i].first < samples;
    const bool is_now = i < now.stages.size() && now.stages[i].first < samples;
    if (!is_was && !is_now) return "";
    const auto before = used(was, i), after = used(now, i);
    const uint64_t first = is_was ? was.stages[i].first : now.stages[i].first;
    const std::string from = "from sample " + std::to_string(first) + " on ";
    if (!is_now)
      return from + "the weights were " + shares(before) + ", and now do not change there";
    if (!is_was)
      return from + "the weights are now " + shares(after) + ", and did not change there";
    if (was.stages[i].first != now.stages[i].first)
      return "stage " + std::to_string(i) + " began with sample " + std::to_string(first) +
             ", and now begins with sample " + std::to_string(now.stages[i].first);
    if (before != after)
      return from + "the weights were " + shares(before) + " and are now " + shares(after);
  }
}

}  // namespace simplescale
