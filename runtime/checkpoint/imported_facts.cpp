#include "runtime/checkpoint/imported_facts.hpp"

#include <nlohmann/json.hpp>

namespace simplescale {

std::string imported_facts(const CheckpointInfo& info) {
  const auto facts = nlohmann::ordered_json::parse(info.resume, nullptr, false);
  auto kept = nlohmann::ordered_json::object();
  for (const char* name : {kGenerationConfigFact, kTokenizerConfigFact, kTokenizerConfigOfFact})
    if (facts.is_object() && facts.contains(name)) kept[name] = facts[name];
  return kept.dump();
}

}  // namespace simplescale
