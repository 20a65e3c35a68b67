// Writes Chrome's trace format, JSON that Perfetto (ui.perfetto.dev) and chrome://tracing read.
// Used from one thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace simplescale {

class ChromeTrace {
 public:
  /// All times are in ns, of one clock, and not before origin_ns.
  explicit ChromeTrace(int64_t origin_ns) : origin_ns_(origin_ns) {}

  /// Names a process and its threads. label: shown beside the name; "": none. Processes are ordered
  /// by pid, threads by `order`.
  void process(int pid, const std::string& name, const std::string& label);
  void thread(int pid, int tid, const std::string& name, int order);
  /// Spans of one thread must nest.
  void span(int pid, int tid, const char* category, const std::string& name, int64_t begin_ns,
            int64_t duration_ns, const nlohmann::json& args);
  void instant(int pid, int tid, const std::string& name, int64_t at_ns,
               const nlohmann::json& args);
  /// One end of arrow `id` between two spans. A span of the thread must begin at at_ns.
  void flow(bool start, uint64_t id, int pid, int tid, const std::string& name, int64_t at_ns);

  /// Number of spans and instants.
  size_t events() const { return events_; }
  /// Time from the origin to the end of the last event.
  double ms() const { return static_cast<double>(end_ns_ - origin_ns_) / 1e6; }
  /// Returns the file's text. Call it once, at the end.
  std::string take();

 private:
  double us(int64_t ns) const { return static_cast<double>(ns - origin_ns_) / 1e3; }
  void metadata(const char* name, int pid, int tid, const nlohmann::json& args);
  void add(const nlohmann::json& event);
  const int64_t origin_ns_;
  int64_t end_ns_ = origin_ns_;
  size_t events_ = 0;
  std::string text_;
};

}  // namespace simplescale
