#include "tools/trace/chrome_trace.hpp"

#include <algorithm>

namespace simplescale {

using nlohmann::json;

void ChromeTrace::process(int pid, const std::string& name, const std::string& label) {
  metadata("process_name", pid, 0, {{"name", name}});
  if (!label.empty()) metadata("process_labels", pid, 0, {{"labels", label}});
  metadata("process_sort_index", pid, 0, {{"sort_index", pid}});
}

void ChromeTrace::thread(int pid, int tid, const std::string& name, int order) {
  metadata("thread_name", pid, tid, {{"name", name}});
  metadata("thread_sort_index", pid, tid, {{"sort_index", order}});
}

void ChromeTrace::span(int pid, int tid, const char* category, const std::string& name,
                       int64_t begin_ns, int64_t duration_ns, const json& args) {
  add({{"ph", "X"},
       {"name", name},
       {"cat", category},
       {"pid", pid},
       {"tid", tid},
       {"ts", us(begin_ns)},
       {"dur", static_cast<double>(duration_ns) / 1e3},
       {"args", args}});
  end_ns_ = std::max(end_ns_, begin_ns + duration_ns);
  ++events_;
}

void ChromeTrace::instant(int pid, int tid, const std::string& name, int64_t at_ns,
                          const json& args) {
  add({{"ph", "i"},
       {"s", "t"},
       {"name", name},
       {"cat", "event"},
       {"pid", pid},
       {"tid", tid},
       {"ts", us(at_ns)},
       {"args", args}});
  end_ns_ = std::max(end_ns_, at_ns);
  ++events_;
}

void ChromeTrace::flow(bool start, uint64_t id, int pid, int tid, const std::string& name,
                       int64_t at_ns) {
  json event = {{"ph", start ? "s" : "f"}, {"id", id},   {"name", name},
                {"cat", "message"},        {"pid", pid}, {"tid", tid},
                {"ts", us(at_ns)}};
  if (!start) event["bp"] = "e";
  add(event);
}

std::string ChromeTrace::take() {
  return "{\"displayTimeUnit\":\"ms\",\"baseTimeNanoseconds\":" + std::to_string(origin_ns_) +
         ",\"traceEvents\":[\n" + text_ + "\n]}\n";
}

void ChromeTrace::metadata(const char* name, int pid, int tid, const json& args) {
  add({{"ph", "M"}, {"name", name}, {"pid", pid}, {"tid", tid}, {"args", args}});
}

void ChromeTrace::add(const json& event) {
  if (!text_.empty()) text_ += ",\n";
  text_ += event.dump(-1, ' ', true, json::error_handler_t::replace);
}

}  // namespace simplescale
