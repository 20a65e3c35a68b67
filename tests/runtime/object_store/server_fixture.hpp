// s3_server.py as a process of a test: moto behind a proxy that checks signatures and injects faults.
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/object_store/object_store.hpp"
#include "tests/paths.hpp"

extern char** environ;

namespace simplescale::test {

/// As in s3_server.py.
inline constexpr const char* kAccessKey = "AKIATESTACCESSKEY";
inline constexpr const char* kSecretKey = "test/secret+key/0123456789";
inline constexpr const char* kToken = "test-session-token//==";

/// An environment of the given variables only.
inline Environment environment_of(std::map<std::string, std::string> variables) {
  return [variables](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? "" : found->second;
  };
}

/// A running server with an empty bucket "bucket".
class S3Server {
 public:
  /// Null if there is no Python with moto. tls: a file that gets the certificate of an HTTPS server.
  static std::unique_ptr<S3Server> start(const std::string& tls = "") {
    const std::string python = deps_dir() + "/python/bin/python";
    if (std::system((python + " -c 'import moto.server, flask_cors' >/dev/null 2>&1").c_str()) != 0)
      return nullptr;
    auto server = std::unique_ptr<S3Server>(new S3Server);
    const std::string script = source_dir() + "/tests/runtime/object_store/s3_server.py";
    int in[2], out[2];
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) return nullptr;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    const char* argv[] = {python.c_str(), "-B",    script.c_str(), "--bucket",
                          "bucket",       "--tls", tls.c_str(),    nullptr};
    const int failed = posix_spawn(&server->pid_, python.c_str(), &actions, nullptr,
                                   const_cast<char**>(argv), environ);
    posix_spawn_file_actions_destroy(&actions);
    ::close(in[0]);
    ::close(out[1]);
    server->stdin_ = in[1];
    std::array<char, 64> port{};
    const std::unique_ptr<FILE, int (*)(FILE*)> lines(::fdopen(out[0], "r"), std::fclose);
    if (failed != 0 || !std::fgets(port.data(), port.size(), lines.get())) return nullptr;
    server->endpoint_ = (tls.empty() ? "http://127.0.0.1:" : "https://127.0.0.1:") +
                        std::to_string(std::atoi(port.data()));
    return server;
  }
  ~S3Server() {
    if (stdin_ >= 0) ::close(stdin_);
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
  }

  const std::string& endpoint() const { return endpoint_; }
  S3Settings settings() const {
    return {.endpoint = endpoint_, .credentials = {kAccessKey, kSecretKey, ""}};
  }
  /// Short pauses, so that tests of many tries are fast.
  static StoreLimits limits() {
    StoreLimits limits;
    limits.first_pause_ms = 1, limits.pause_ms_max = 5;
    return limits;
  }
  ObjectStore store(StoreLimits limits = S3Server::limits()) const {
    return ObjectStore(settings(), "bucket", std::move(limits));
  }

  void set_faults(const nlohmann::json& rules) {
    SS_ASSERT(rules.is_array());
    SS_ASSERT(request("PUT", "/_control/faults", rules.dump()).status == 200);
  }
  void clear_faults() { set_faults(nlohmann::json::array()); }
  /// Every request so far, "METHOD /bucket/key?query", with its HTTP status.
  std::vector<std::pair<std::string, int>> log() {
    return nlohmann::json::parse(request("GET", "/_control/log", "").body);
  }
  /// How many requests there were that begin so.
  size_t count(const std::string& begin) {
    size_t found = 0;
    for (const auto& [request, status] : log()) found += request.starts_with(begin);
    return found;
  }

 private:
  S3Server() = default;
  HttpAnswer request(const std::string& method, const std::string& path, const std::string& body) {
    return client_.send({.method = method, .url = endpoint_ + path, .body = body}, settings(), {});
  }
  pid_t pid_ = -1;
  int stdin_ = -1;
  std::string endpoint_;
  HttpClient client_;
};

}  // namespace simplescale::test
