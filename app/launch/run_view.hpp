// What `train` shows while the agents work: it follows the run folder's files, so it has no part in
// the job itself.
#pragma once

#include <fstream>
#include <string>

#include "app/launch/progress.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

class RunView {
 public:
  RunView(RunFolder run, const Config& config, const Plan& plan, std::string config_file);
  /// Reads what has been added since the last call and shows it.
  void update();
  void say(const std::string& text) { line_.say(text); }
  /// The closing document, and the run's result from the exit code of the supervisor's agent (-1: it
  /// was killed).
  Status end(int exit_code, const std::string& dead, const std::string& reason);

 private:
  /// Calls use(line) for every whole new line.
  template <class Use>
  void follow(std::ifstream& file, const std::string& path, std::string& partial, Use use);
  void on_step(const std::string& text);
  void on_event(const std::string& text);

  const RunFolder run_;
  const Config& config_;
  const Plan& plan_;
  const std::string config_file_;
  ProgressLine line_;
  std::ifstream metrics_, events_;
  std::string partial_metric_, partial_event_, last_reason_;
  double first_loss_ = 0, last_loss_ = 0, val_before_ = 0, val_after_ = 0;
  int64_t last_step_ = 0, printed_step_ = -1;
  bool seen_step_ = false, seen_before_ = false, seen_after_ = false;
};

}  // namespace simplescale
