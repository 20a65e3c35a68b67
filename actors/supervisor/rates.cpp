#include "actors/supervisor/rates.hpp"

#include <nlohmann/json.hpp>

#include "runtime/base/json_members.hpp"
#include "runtime/base/json_text.hpp"
#include "runtime/base/parse_json.hpp"

namespace simplescale {

using nlohmann::json;

namespace {
constexpr const char* kRatesFact = "learning_rates";
}  // namespace

std::string rates_text(const job::Rates& rates, double configured) {
  json changes = json::array();
  for (const RateChange& change : rates.changes)
    changes.push_back({{"step", change.step}, {"learning_rate", change.peak}});
  return json_text({{"configured", configured},
                    {"requested", rates.requested < 0 ? json(nullptr) : json(rates.requested)},
                    {"changes", std::move(changes)}});
}

Result<job::Rates> rates_of(const std::string& text, double configured) {
  const json document = parse_json(text);
  try {
    job::Rates rates;
    if (document.at("configured").get<double>() != configured) return rates;
    if (!document.at("requested").is_null()) document.at("requested").get_to(rates.requested);
    uint64_t last = 0;
    for (const json& change : document.at("changes")) {
      const auto step = change.at("step").get<uint64_t>();
      const auto peak = change.at("learning_rate").get<double>();
      rates.changes.push_back({step, peak});
      if (step <= last || !(peak >= 0)) return Status(Code::bad_data, "not a list of rates");
      last = step;
    }
    if (rates.changes.size() <= job::rate_changes_max) return rates;
  } catch (const json::exception&) {  // a field is missing or of another type
  }
  return Status(Code::bad_data, "not a list of learning rates");
}

std::string with_rates(const std::string& resume, const std::string& text) {
  json facts = parse_json(resume);
  const json rates = parse_json(text);
  if (!facts.is_object() || !rates.is_object()) return resume;
  facts[kRatesFact] = rates;
  return facts.dump();
}

std::string rates_in(const std::string& resume) {
  const json rates = member_of(parse_json(resume), kRatesFact);
  return rates.is_object() ? json_text(rates) : "";
}

std::optional<double> configured_in(const std::string& text) {
  const json configured = member_of(parse_json(text), "configured");
  return configured.is_number() ? std::optional(configured.get<double>()) : std::nullopt;
}

}  // namespace simplescale
