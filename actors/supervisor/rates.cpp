#include "actors/supervisor/rates.hpp"

#include <nlohmann/json.hpp>

#include "runtime/base/json_text.hpp"
#include "runtime/base/parse_json.hpp"

namespace simplescale {

using nlohmann::json;

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

}  // namespace simplescale
