#include "app/launch/mixture_text.hpp"

#include "app/launch/prepare_data.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/feed/mixture_report.hpp"

namespace simplescale {

std::string mixture_text(const Config& config) {
  const bool mixed = !config.data.blend.empty(), packed = config.data.pack == Pack::best_fit;
  if (!mixed && !packed) return "";
  std::string text = mixed ? "\nmixture\n" : "\npacking\n";
  const auto plan = make_plan(config);
  if (!plan.ok()) return text + "  none: " + plan.status().message() + "\n";
  Config c = config;
  set_token_folders(c);
  if (needs_preparation(c)) {
    for (const BlendSource& source : c.data.blend)
      text += "  " + source.name + "  " + source.source + "\n";
    return text + (mixed ? "  epochs are" : "  samples are") +
           " known once the text is prepared: simplescale prepare CONFIG\n";
  }
  const auto data = open_tokens(c, plan->shape);
  if (!data.ok()) return text + "  " + data.status().message() + "\n";
  if (mixed) {
    const auto uses = source_uses(*plan, *data);
    text += mixture_table(uses);
    for (const std::string& warning : mixture_warnings(uses))
      text += "  warning: " + warning + "\n";
  }
  return text + (mixed && packed ? "\npacking\n" : "") + packing_table(*data);
}

}  // namespace simplescale
