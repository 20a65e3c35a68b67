#include "runtime/run/run_state.hpp"

#include <nlohmann/json.hpp>

#include "runtime/base/bounded_read.hpp"
#include "runtime/base/files.hpp"
#include "runtime/base/json_members.hpp"
#include "runtime/base/json_text.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/run/term.hpp"

namespace simplescale {

std::string instance_of(const RunFolder& run) {
  const auto text = read_text(run.instance());
  return text.ok() ? text->substr(0, text->find('\n')) : "";
}

namespace {

/// Null: the document does not exist, is damaged, or another start wrote it.
nlohmann::json document_of(const std::string& path, const std::string& instance) {
  const auto document = json_of(read_text(path, RunFolder::kFileBytesMax));
  return text_of(document, "instance") == instance ? document : nlohmann::json();
}

}  // namespace

nlohmann::json status_of(const RunFolder& run, const std::string& instance) {
  return document_of(run.status(), instance);
}

std::string page_url_of(const RunFolder& run) {
  return text_of(document_of(run.http(), instance_of(run)), "url");
}

std::optional<RunEnd> end_of(const RunFolder& run) {
  const auto document = json_of(read_text(run.end(), RunFolder::kFileBytesMax));
  if (!member_of(document, "exit").is_number_integer()) return std::nullopt;
  RunEnd end{document["exit"].get<int>(), text_of(document, "reason"),
             text_of(document, "instance")};
  for (const char* key : {"term", "epoch"})  // older versions wrote "epoch"
    end.term = unsigned_of(document, key).value_or(end.term);
  const auto newest = TermFiles(run, end.instance).newest();
  if (end.term > 0 && newest.ok() && newest->number > end.term) return std::nullopt;
  return end;
}

std::string end_text(const RunEnd& end) {
  const nlohmann::json document = {
      {"instance", end.instance}, {"term", end.term}, {"exit", end.code}, {"reason", end.reason}};
  return json_text(document, 1) + "\n";
}

std::optional<RunEnd> end_of(const RunFolder& run, const std::string& instance) {
  auto end = end_of(run);
  return end && end->instance == instance ? end : std::nullopt;
}

}  // namespace simplescale
