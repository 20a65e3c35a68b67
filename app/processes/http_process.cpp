#include "app/processes/http_process.hpp"

#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "app/report.hpp"
#include "runtime/base/log.hpp"
#include "runtime/run/run_state.hpp"
#include "tools/http/access.hpp"
#include "tools/http/server.hpp"

namespace simplescale {

namespace {

constexpr rlim_t kMemoryBytes = rlim_t{1} << 30;
constexpr rlim_t kFiles = 128;
constexpr int kNice = 10;
constexpr int kRestartDelayMs = 2'000;

}  // namespace

int run_http_process(const HttpProcessOptions& o) {
  init_logging("http");
  const rlimit memory{kMemoryBytes, kMemoryBytes}, files{kFiles, kFiles};
  setrlimit(RLIMIT_AS, &memory);
  mallopt(M_ARENA_MAX, 2);  // or each thread would reserve 64 MiB of the limit
  setrlimit(RLIMIT_NOFILE, &files);
  std::this_thread::sleep_for(std::chrono::milliseconds(o.delay_ms));
  const RunFolder run{o.run};
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  const Result<std::string> token = page_token(run, host, o.port);
  if (!token.ok()) return report_status(token.status());
  auto server =
      HttpServer::start({o.host, o.port, run,
                         o.checkpoints.empty() ? o.run + "/checkpoints" : o.checkpoints, *token});
  if (!server.ok()) return report_status(server.status());
  const nlohmann::json where = {{"url", (*server)->url() + "?token=" + (*server)->token()},
                                {"token", (*server)->token()},
                                {"host", host},
                                {"port", (*server)->port()},
                                {"instance", instance_of(run)},
                                {"term", o.term}};
  if (Status written = write_file_atomic(run.http(), where.dump(1) + "\n"); !written.ok())
    log::warn("{}", written.message());
  log::info("http: {}", (*server)->url());
  for (;;) pause();  // the kernel kills this process when its parent ends
}

HttpProcess::HttpProcess(HttpProcessOptions options) : options_(std::move(options)) {
  start(false);
}

HttpProcess::~HttpProcess() {
  std::lock_guard lock(mutex_);
  stopping_ = true;
  if (child_ > 0) kill(child_, SIGKILL);
}

void HttpProcess::start(bool by_watcher) {
  std::lock_guard lock(mutex_);
  if (stopping_) return;
  SpawnOptions spawn;
  spawn.argv = {program_folder() + "/simplescale",
                "http",
                "--run=" + options_.run,
                "--host=" + options_.host,
                "--checkpoints=" + options_.checkpoints,
                "--port=" + std::to_string(options_.port),
                "--term=" + std::to_string(options_.term),
                "--delay-ms=" + std::to_string(options_.delay_ms)};
  spawn.nice = kNice;
  spawn.inherits = Inherits::needed;
  options_.delay_ms = kRestartDelayMs;
  auto ended = [this](pid_t, ExitStatus status) {
    log::warn("the HTTP process ended ({}); starting it again", status.text());
    {
      std::lock_guard lock(mutex_);
      child_ = -1;
    }
    start(true);
  };
  // The kernel kills the child when the thread that spawned it ends, so the watcher's thread must
  // spawn it.
  Result<pid_t> child = by_watcher ? simplescale::spawn(spawn) : watcher_.spawn(spawn, ended);
  if (child.ok() && by_watcher) {
    if (Status watched = watcher_.watch(*child, ended); !watched.ok()) child = watched;
  }
  if (child.ok())
    child_ = *child;
  else
    log::warn("cannot start the HTTP process: {}", child.status().message());
}

}  // namespace simplescale
