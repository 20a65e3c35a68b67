#include "runtime/run/run_state.hpp"

#include <nlohmann/json.hpp>

#include "runtime/base/files.hpp"
#include "runtime/base/parse_json.hpp"

namespace simplescale {

std::string instance_of(const RunFolder& run) {
  const auto text = read_text(run.instance());
  return text.ok() ? text->substr(0, text->find('\n')) : "";
}

std::optional<RunEnd> end_of(const RunFolder& run) {
  const auto text = read_text(run.end());
  if (!text.ok()) return std::nullopt;
  const auto document = parse_json(*text);
  if (!document.is_object() || !document.contains("exit") || !document["exit"].is_number_integer())
    return std::nullopt;
  const auto word = [&](const char* key) {
    const auto found = document.find(key);
    return found != document.end() && found->is_string() ? found->get<std::string>() : "";
  };
  return RunEnd{document["exit"].get<int>(), word("reason"), word("instance")};
}

std::optional<RunEnd> end_of(const RunFolder& run, const std::string& instance) {
  auto end = end_of(run);
  return end && end->instance == instance ? end : std::nullopt;
}

}  // namespace simplescale
