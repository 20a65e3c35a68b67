// The HTTP server of a run: a child process of the supervisor with limited memory and files, so
// that hostile clients cannot harm the supervisor. It ends with the supervisor. If it ends earlier,
// the supervisor restarts it.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "runtime/base/process.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

struct HttpProcessOptions {
  std::string run;
  std::string host;
  std::string checkpoints;  // their folder; "": RUN/checkpoints
  int port = 0;
  uint64_t term = 0;
  int delay_ms = 0;  // before the server starts
};

/// The main function of the process, `simplescale http`. Writes its address to control/http.json
/// and serves until it is killed. Returns only if it cannot start: an exit code.
int run_http_process(const HttpProcessOptions& options);

/// Owned by the supervisor. Starts the process, and restarts it whenever it ends. Thread-safe.
class HttpProcess {
 public:
  explicit HttpProcess(HttpProcessOptions options);
  ~HttpProcess();  // kills the process, does not wait for it

 private:
  void start(bool by_watcher);
  HttpProcessOptions options_;
  std::mutex mutex_;
  bool stopping_ = false;
  pid_t child_ = -1;
  ProcessWatcher watcher_;  // destroyed first: its thread calls start()
};

}  // namespace simplescale
