#include "runtime/checkpoint/mixture_record.hpp"

#include <nlohmann/json.hpp>

namespace simplescale {

using nlohmann::json;

std::string resume_text(const MixtureRecord& record, const std::string& facts) {
  json sources = json::array(), stages = json::array();
  for (size_t i = 0; i < record.mixture.names.size(); ++i)
    sources.push_back({{"name", record.mixture.names[i]},
                       {"trained_samples", record.trained.at(i)},
                       {"epoch_samples", record.epoch.at(i)}});
  for (const Mixture::Stage& stage : record.mixture.stages)
    stages.push_back({{"from_sample", stage.first}, {"weights", stage.weights}});
  json all = json::parse(facts);
  all["mixture"] = {{"sources", std::move(sources)}, {"stages", std::move(stages)}};
  return all.dump();
}

std::optional<MixtureRecord> mixture_in(const std::string& resume) {
  try {
    const json facts = json::parse(resume);
    if (!facts.contains("mixture")) return std::nullopt;
    MixtureRecord record;
    for (const json& source : facts.at("mixture").at("sources")) {
      record.mixture.names.push_back(source.at("name"));
      record.trained.push_back(source.at("trained_samples"));
      record.epoch.push_back(source.at("epoch_samples"));
    }
    for (const json& stage : facts.at("mixture").at("stages")) {
      record.mixture.stages.push_back({stage.at("from_sample"), stage.at("weights")});
      if (record.mixture.stages.back().weights.size() != record.mixture.names.size())
        return std::nullopt;
    }
    return record;
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

}  // namespace simplescale
