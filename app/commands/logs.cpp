// `logs`: prints the files of RUN/logs merged by time; with --follow until Ctrl-C. It only reads
// files: it works on a run that is over, and does not slow down one that trains.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "app/commands/commands.hpp"
#include "app/commands/run_status.hpp"
#include "app/interrupts.hpp"
#include "app/terminal.hpp"
#include "runtime/base/printable.hpp"
#include "runtime/base/regex.hpp"
#include "runtime/observe/log_merge.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

namespace {

/// Prints the lines of a record. Lines without a time stamp get the name of their log in front.
void print(const std::string& name, const LogRecord& record, bool color) {
  const char* paint = nullptr;
  const size_t first_end = record.text.find('\n');
  const std::string_view head = std::string_view(record.text).substr(0, first_end);
  if (color && head.find(" error ") != std::string_view::npos) paint = "\033[31m";
  if (color && head.find(" warning ") != std::string_view::npos) paint = "\033[33m";
  for (size_t begin = 0; begin < record.text.size();) {
    const size_t end = std::min(record.text.find('\n', begin), record.text.size());
    const std::string line = record.text.substr(begin, end - begin);
    const std::string tag = stamp_of(line).empty() ? printable(name) + ": " : "";
    terminal::painted(tag + (paint ? paint : "") + printable(line) + (paint ? "\033[0m" : "") +
                      "\n");
    begin = end + 1;
  }
}

/// Selects the records of a level, or a worse one, with a matching line. A record that continues
/// another one is selected with it.
class Filter {
 public:
  Filter(std::optional<Regex> regex, const std::string& level)
      : regex_(std::move(regex)), least_(level.empty() ? 0 : severity_of(level)) {}
  bool shows(const std::string& name, const LogRecord& record) {
    Shown& shown = shown_[name];
    if (!record.continued) shown = {severity_of(level_of(record.text)) >= least_, !regex_};
    for (size_t begin = 0; begin < record.text.size() && !shown.matches;) {
      const size_t end = std::min(record.text.find('\n', begin), record.text.size());
      shown.matches = regex_->matches(record.text.substr(begin, end - begin).c_str());
      begin = end + 1;
    }
    return shown.severe && shown.matches;
  }

 private:
  std::optional<Regex> regex_;
  int least_ = 0;  // severity
  struct Shown {
    bool severe = true, matches = true;
  };
  std::map<std::string, Shown> shown_;
};

}  // namespace

Status logs_command(const std::string& run, const LogsOptions& options) {
  const auto& [process, grep, level, follow] = options;
  SS_RETURN_IF_ERROR(check_is_run(run));
  const std::string folder = RunFolder{run}.logs();
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error))
    return Status(Code::bad_data, "there is no folder " + folder + "; name a run's folder");
  std::optional<Regex> regex;
  if (!grep.empty()) {
    SS_ASSIGN(regex, Regex::compile(grep));
  }
  Filter filter(std::move(regex), level);
  const bool color = isatty(STDOUT_FILENO) && !std::getenv("NO_COLOR");
  LogMerger merger(folder, process);
  if (follow) count_interrupts({SIGINT});
  while (true) {
    merger.read(follow, [&](const std::string& name, const LogRecord& record) {
      if (filter.shows(name, record)) print(name, record, color);
      return !interrupts;
    });
    if (std::fflush(stdout) != 0 || interrupts || !follow) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // polls: a shared file system
  }
  if (!follow && merger.names().empty()) {
    LogMerger all(folder, "");
    all.read(false, [](const std::string&, const LogRecord&) { return false; });
    std::string names;
    for (const std::string& name : all.names()) names += " " + name;
    return Status(Code::usage,
                  "no log of '" + process + "' in " + folder + "; there are logs of:" + names);
  }
  return {};
}

}  // namespace simplescale
