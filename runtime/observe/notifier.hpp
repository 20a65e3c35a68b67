// Tells a command or a URL of incidents (supervision.notify).
//
// A thread of its own runs one command after the other, each with a deadline. No caller waits, but
// the destructor gives the last one a few seconds. What fails is logged; nothing else depends on
// it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace simplescale {

/// Limits the number of notices in any period. Plain data.
class NoticeLimit {
 public:
  NoticeLimit(size_t most, int64_t period_ms) : most_(most), period_ms_(period_ms) {}
  /// True if a notice may be sent now.
  bool take(int64_t now_ms);

 private:
  const size_t most_;
  const int64_t period_ms_;
  std::deque<int64_t> sent_ms_;
};

/// What to run for a notice: curl for a URL, else a shell for the command. Neither URL nor command,
/// which may hold a secret, is in it: all users of the host see the words of a command.
std::vector<std::string> notice_command(const std::string& target, int64_t timeout_ms);
/// What that command reads: for curl its configuration with the URL and the notice, else the notice.
std::string notice_input(const std::string& target, const std::string& notice);

class Notifier {
 public:
  /// target: supervision.notify, not "". timeout_ms: deadline of each command.
  explicit Notifier(std::string target, int64_t timeout_ms = 10'000);
  ~Notifier() { finish(); }
  Notifier(const Notifier&) = delete;
  Notifier& operator=(const Notifier&) = delete;
  /// Any thread. The notice gets a key "skipped": how many before it exceeded the limit.
  void send(nlohmann::json notice);
  /// Waits for the notices that are left, for at most timeout_ms together. No send() may follow.
  void finish();

 private:
  struct Queue;
  const int64_t timeout_ms_;
  std::shared_ptr<Queue> queue_;
};

}  // namespace simplescale
