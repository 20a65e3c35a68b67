#include "runtime/observe/trace_parts.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "runtime/base/bounded_read.hpp"
#include "runtime/base/files.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/parse_json.hpp"

namespace simplescale {

using nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr int kVersion = 1;

/// Text of a fixed-size field, with characters replaced that would need escaping in JSON. Another
/// process may be writing to the field.
std::string text_of(const char* field, size_t size) {
  std::string text(field, strnlen(field, size));
  for (char& c : text)
    if (c < ' ' || c > '~' || c == '"' || c == '\\') c = '?';
  return text;
}

void append(std::string& out, const TraceSource& source, const TraceWindow& window) {
  const int64_t wall = trace::wall_offset_ns();
  if (source.ended_ns > 0 && source.ended_ns + wall < window.begin_ns) return;
  const trace::Recording recording = source.reader->read();
  // An unfinished event of a dead process ended with the process.
  const int64_t last = source.ended_ns > 0 ? source.ended_ns : recording.read_ns;
  out += json{{"process", source.process},
              {"pid", source.pid},
              {"full", recording.full},
              {"threads", recording.threads}}
             .dump(-1, ' ', true, json::error_handler_t::replace) +
         "\n";
  for (const trace::Event& e : recording.events) {
    const int64_t begin = e.begin_ns + wall;
    const bool unfinished = e.duration_ns == trace::Event::kUnfinished;
    const int64_t end = unfinished ? std::max(last, e.begin_ns) + wall : begin + e.duration_ns;
    if (begin > window.end_ns || end < window.begin_ns) continue;
    const int kind = static_cast<int>(e.kind);
    fmt::format_to(std::back_inserter(out), "[{},{},{},{},{},{},{},\"{}\",\"{}\"]\n", begin,
                   end - begin, unfinished ? -1 - kind : kind, e.thread, e.number, e.a, e.b,
                   text_of(e.name, sizeof e.name), text_of(e.detail, sizeof e.detail));
  }
}

/// Removes all recovery traces but the newest kRecoveryTracesKept.
void remove_old_traces(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator i(folder, error), end; !error && i != end; i.increment(error))
    if (std::string name = i->path().filename(); name.starts_with(kRecoveryTraces))
      names.push_back(std::move(name));
  std::ranges::sort(names);
  for (size_t i = 0; i + kRecoveryTracesKept < names.size(); ++i)
    fs::remove_all(fs::path(folder) / names[i], error);
}

Status read_process(const json& line, TracePart& part) {
  TraceProcess process;
  line.at("process").get_to(process.name);
  line.at("pid").get_to(process.pid);
  line.at("full").get_to(process.full);
  line.at("threads").get_to(process.threads);
  part.processes.push_back(std::move(process));
  return {};
}

Status read_event(const json& line, TracePart& part) {
  if (part.processes.empty()) return {Code::bad_data, "an event of no process"};
  TraceEvent e;
  line.at(0).get_to(e.begin_ns);
  line.at(1).get_to(e.duration_ns);
  const int kind = line.at(2).get<int>();
  e.unfinished = kind < 0;
  const int known = e.unfinished ? -1 - kind : kind;
  if (known > static_cast<int>(trace::Kind::received)) return {};  // a kind of a newer version
  e.kind = static_cast<trace::Kind>(known);
  line.at(3).get_to(e.thread);
  line.at(4).get_to(e.number);
  line.at(5).get_to(e.a);
  line.at(6).get_to(e.b);
  line.at(7).get_to(e.name);
  line.at(8).get_to(e.detail);
  constexpr int64_t longest = INT64_MAX / 4;
  if (e.begin_ns < 0 || e.begin_ns > longest || e.duration_ns < 0 || e.duration_ns > longest)
    return {Code::bad_data, "an impossible time"};
  part.processes.back().events.push_back(std::move(e));
  return {};
}

Status read_line(const std::string& text, bool first, TracePart& part) {
  const json line = parse_json(text);
  if (line.is_discarded()) return {Code::bad_data, "not JSON"};
  try {
    if (!first) return line.is_array() ? read_event(line, part) : read_process(line, part);
    if (line.at("trace").get<int>() != kVersion) return {Code::bad_data, "of another version"};
    line.at("who").get_to(part.who);
    line.at("host").get_to(part.host);
    line.at("begin_ns").get_to(part.begin_ns);
    line.at("end_ns").get_to(part.end_ns);
  } catch (const json::exception&) {
    return {Code::bad_data, "a value is missing or of another type"};
  }
  return {};
}

}  // namespace

bool is_trace_name(const std::string& name) {
  return !name.empty() && name.size() <= 64 && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
}

Status write_trace_part(const RunFolder& run, const TraceWindow& window, const std::string& who,
                        const std::vector<TraceSource>& sources) {
  if (!is_trace_name(window.name))
    return {Code::bad_data, "a trace cannot be named \"" + window.name + "\""};
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  std::string text = json{{"trace", kVersion},
                          {"who", who},
                          {"host", host},
                          {"begin_ns", window.begin_ns},
                          {"end_ns", window.end_ns}}
                         .dump() +
                     "\n";
  for (const TraceSource& source : sources) append(text, source, window);
  const std::string folder = run.traces() + "/" + window.name;
  std::error_code error;
  fs::create_directory(run.traces(), error);  // does not recreate a deleted run folder
  fs::create_directory(folder, error);
  SS_RETURN_IF_ERROR(write_file_atomic(folder + "/" + who + ".jsonl", text));
  if (window.name.starts_with(kRecoveryTraces)) remove_old_traces(run.traces());
  return {};
}

void write_own_trace(const RunFolder& run, const TraceWindow& window, const std::string& who) {
  auto own = trace::Reader::own();
  const Status status =
      own.ok() ? write_trace_part(run, window, who, {{who, getpid(), *own}}) : own.status();
  if (!status.ok()) log::warn("cannot write the trace of this process: {}", status.message());
}

Result<TracePart> read_trace_part(const std::string& path) {
  std::ifstream file = open_lines(path);
  if (!file.is_open()) return Status(Code::not_found, "cannot read " + path);
  TracePart part;
  size_t number = 0;
  for (std::string line; next_line(file, line);) {
    const bool first = ++number == 1;
    if (Status status = read_line(line, first, part); !status.ok())
      return status.in(path + ":" + std::to_string(number));
  }
  if (number == 0) return Status(Code::bad_data, path + " is empty");
  return part;
}

std::vector<std::string> trace_names(const RunFolder& run) {
  std::vector<std::pair<fs::file_time_type, std::string>> found;
  std::error_code error;
  for (fs::directory_iterator i(run.traces(), error), end; !error && i != end; i.increment(error)) {
    std::error_code ignored;
    if (i->is_directory(ignored) && is_trace_name(i->path().filename()))
      found.emplace_back(i->last_write_time(ignored), i->path().filename());
  }
  std::ranges::sort(found);
  std::vector<std::string> names;
  for (auto& [time, name] : found) names.push_back(std::move(name));
  return names;
}

}  // namespace simplescale
