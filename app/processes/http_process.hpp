// HTTP beside the supervisor, in a process of its own with little memory and few files: what
// strangers do to it happens to it alone. It ends with the supervisor, and is started again when it
// ends before.
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
  int port = 0;
  uint64_t epoch = 0;
  int delay_ms = 0;  // before it begins
};

/// The process itself: `simplescale http`. Says in control/http.json where it is. Its exit code.
int run_http_process(const HttpProcessOptions& options);

/// The supervisor's side.
class HttpProcess {
 public:
  explicit HttpProcess(HttpProcessOptions options);
  ~HttpProcess();  // does not wait for it

 private:
  void start(bool by_watcher);
  HttpProcessOptions options_;
  std::mutex mutex_;
  bool stopping_ = false;
  pid_t child_ = -1;
  ProcessWatcher watcher_;  // the first to go: it calls start()
};

}  // namespace simplescale
