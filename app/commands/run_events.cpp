#include "app/commands/run_events.hpp"

#include <algorithm>

#include "runtime/base/bounded_read.hpp"
#include "runtime/base/files.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/config/secrets.hpp"

namespace simplescale {

using nlohmann::json;

int64_t size_of_events(const RunFolder& run) {
  std::ifstream file = open_lines(run.events());
  return file.is_open() ? static_cast<int64_t>(file.seekg(0, std::ios::end).tellg()) : 0;
}

std::vector<json> events_from(const RunFolder& run, int64_t from) {
  std::vector<json> list;
  std::ifstream file = open_lines(run.events());
  std::string line;
  if (from > 0) {
    file.seekg(from - 1);
    next_line(file, line);  // skips to the next beginning of a line
  }
  while (next_line(file, line)) {
    json event = parse_json(shown_events(line));
    if (event.is_object()) list.push_back(std::move(event));
  }
  return list;
}

std::vector<json> events_of(const RunFolder& run, int64_t bytes_max) {
  return events_from(run, std::max<int64_t>(0, size_of_events(run) - bytes_max));
}

std::vector<json> newest(std::vector<json> events, size_t count) {
  if (events.size() > count)
    events.erase(events.begin(), events.end() - static_cast<std::ptrdiff_t>(count));
  return events;
}

}  // namespace simplescale
