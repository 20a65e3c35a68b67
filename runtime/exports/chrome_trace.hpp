// Writes Chrome's trace format: JSON that Perfetto (ui.perfetto.dev) and chrome://tracing read.
// One thread's.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace simplescale {

class ChromeTrace {
 public:
  /// Times are ns of one clock, not before origin_ns.
  explicit ChromeTrace(int64_t origin_ns) : origin_ns_(origin_ns) {}

  /// label: shown beside the name; "": none. Shown in order of pid, threads in order of `order`.
  void process(int pid, const std::string& name, const std::string& label);
  void thread(int pid, int tid, const std::string& name, int order);
  /// Spans of a thread nest.
  void span(int pid, int tid, const char* category, const std::string& name, int64_t begin_ns,
            int64_t duration_ns, const nlohmann::json& args);
  void instant(int pid, int tid, const std::string& name, int64_t at_ns,
               const nlohmann::json& args);
  /// One end of an arrow between two spans, each of which begins at that end's at_ns.
  void flow(bool start, uint64_t id, int pid, int tid, const std::string& name, int64_t at_ns);

  /// Spans and instants.
  size_t events() const { return events_; }
  /// From the origin to the end of the last event.
  double ms() const { return static_cast<double>(end_ns_ - origin_ns_) / 1e6; }
  /// The file's text; ends the writing.
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
