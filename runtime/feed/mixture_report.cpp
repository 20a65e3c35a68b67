#include "runtime/feed/mixture_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace simplescale {

namespace {

double share_of(const SamplePacking& packing) {
  return static_cast<double>(packing.padding()) / static_cast<double>(packing.samples()) /
         static_cast<double>(packing.block_size());
}

}  // namespace

std::vector<SourceUse> source_uses(const Plan& plan, const RunData& data) {
  std::vector<SourceUse> uses;
  if (plan.mixture.empty()) return uses;
  const uint64_t places = plan.batch.samples(static_cast<uint64_t>(plan.max_steps));
  const std::vector<uint64_t> trained =
      MixtureSchedule(plan.mixture).trained(0, places, plan.skipped);
  for (size_t i = 0; i < data.sources.size(); ++i) {
    const TokenSource& tokens = data.sources[i].data.train;
    uses.push_back(
        {data.sources[i].name, tokens.tokens(), tokens.samples(plan.shape.block_size), trained[i]});
  }
  return uses;
}

std::string mixture_table(const std::vector<SourceUse>& uses) {
  size_t width = 6;
  uint64_t all = 0;
  for (const SourceUse& use : uses) {
    width = std::max(width, use.name.size());
    all += use.samples;
  }
  std::string text = fmt::format("  {:{}}  {:>16}  {:>14}  {:>14}  {:>8}  {:>8}\n", "source", width,
                                 "tokens", "samples", "trained", "share", "epochs");
  for (const SourceUse& use : uses)
    text += fmt::format(
        "  {:{}}  {:>16}  {:>14}  {:>14}  {:>6.2f} %  {:>8.3f}\n", use.name, width, use.tokens,
        use.epoch, use.samples,
        all > 0 ? 100 * static_cast<double>(use.samples) / static_cast<double>(all) : 0.0,
        use.epochs());
  return text;
}

std::vector<std::string> mixture_warnings(const std::vector<SourceUse>& uses) {
  std::vector<std::string> warnings;
  for (const SourceUse& use : uses)
    if (use.samples == 0)
      warnings.push_back(fmt::format("data.blend: the run never reads \"{}\"", use.name));
    else if (use.epochs() > kEpochsWithoutWarning)
      warnings.push_back(fmt::format(
          "data.blend: the run reads \"{}\" {:.1f} times: {} samples of {}; lower its weight, or "
          "add text",
          use.name, use.epochs(), use.samples, use.epoch));
  return warnings;
}

std::string packing_table(const RunData& data) {
  std::string text;
  for (const RunData::Source& source : data.sources)
    for (const auto& [what, tokens] : {std::pair{"train", &source.data.train},
                                       std::pair{"validation", &source.data.validation}}) {
      if (!tokens->packing()) continue;
      const SamplePacking& packing = *tokens->packing();
      text += fmt::format("  {}{}{}: {} tokens in {} samples, padding {:.2f} %\n", source.name,
                          source.name.empty() ? "" : " ", what, tokens->tokens(), packing.samples(),
                          100 * share_of(packing));
    }
  return text;
}

double padding_share(const Plan& plan, const RunData& data) {
  double padding = 0, samples = 0;
  const std::vector<SourceUse> uses = source_uses(plan, data);
  for (size_t i = 0; i < data.sources.size(); ++i) {
    const SamplePacking* packing = data.sources[i].data.train.packing();
    const double trained = uses.empty() ? 1 : static_cast<double>(uses[i].samples);
    samples += trained;
    if (packing) padding += trained * share_of(*packing);
  }
  return samples > 0 ? padding / samples : 0;
}

}  // namespace simplescale
