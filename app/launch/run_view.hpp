// What `train` prints during training. Results (steps, validations, scores) go to stdout,
// everything else to stderr. The view only reads metrics.jsonl, events.jsonl and status.json, so it
// cannot affect the run.
#pragma once

#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>

#include "app/launch/progress.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/run/run_folder.hpp"
#include "tools/report/records.hpp"

namespace simplescale {

class RunView {
 public:
  /// attached: the run trains already, so the view shows its newest step at once.
  RunView(RunFolder run, const Config& config, const Plan& plan, bool attached = false);
  /// Prints what was added to the files since the last call.
  void update();
  void print_line(const std::string& text) { line_.print_line(text); }
  /// Prints the summary, and a generated text if the run is complete. Returns the run's result.
  /// exit_code: the run's; -1: its agents were killed. killed_agents, reason: for the message.
  Status finish(int exit_code, const std::string& killed_agents, const std::string& reason);

 private:
  void on_step(const std::string& text);
  void on_event(const std::string& text);
  void show_state();
  void show_stall(const nlohmann::json& status);
  void show_notice(const nlohmann::json& status);
  void show_page();
  /// True: a progress line is drawn on stderr. False if stdout is a pipe, because its reader
  /// (`tee`) prints on the same terminal.
  bool draws() const;
  void draw_step(const std::string& text);
  Status failure(int exit_code, const std::string& killed_agents, const std::string& reason) const;
  std::string resume_command_line() const;
  /// Prints the summary of the whole run, including earlier starts. True if all steps are trained.
  bool print_summary() const;
  void print_sample() const;

  const RunFolder run_;
  const Config& config_;
  const Plan& plan_;
  ProgressLine line_;
  LineFollower metrics_{run_.metrics()}, events_{run_.events()};
  std::string last_reason_;
  int64_t last_step_ = 0, printed_step_ = -1;
  std::chrono::steady_clock::time_point read_{};     // when status.json was read
  std::chrono::steady_clock::time_point looked_{};   // when the newest step or stall was shown
  std::chrono::steady_clock::time_point printed_{};  // when the newest line of a step was printed
  bool stalled_ = false;                             // a stall was shown, and no step followed
  bool page_shown_ = false;
  bool noticed_ = false;          // the newest line about the records was a warning
  std::set<std::string> warned_;  // subjects of the shown warnings about missing targets
};

}  // namespace simplescale
