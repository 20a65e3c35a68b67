#include "runtime/observe/notifier.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "runtime/base/json_text.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/run_command.hpp"

namespace simplescale {

namespace {

constexpr size_t kNoticesMax = 10;  // in kPeriodMs
constexpr int64_t kPeriodMs = 600'000;
// The command is in the environment, which only this user can read, and not on the command line.
const char* const kNoticeVariable = "SIMPLESCALE_NOTIFY";

int64_t now_ms() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

bool is_url(const std::string& target) {
  return target.starts_with("http://") || target.starts_with("https://");
}

/// A part of the target can be a secret, and the logs are no place for one.
std::string without_words_of(const std::string& target, std::string text) {
  constexpr size_t kShort = 8;  // shorter words are no secrets, but in many messages
  const char* const between = " \t\n'\"=;|&()<>";
  for (size_t begin = 0, end = 0; begin < target.size(); begin = end + 1) {
    end = std::min(target.find_first_of(between, begin), target.size());
    const std::string word = target.substr(begin, end - begin);
    if (word.size() < kShort) continue;
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at))
      text.replace(at, word.size(), "(...)");
  }
  return text;
}

/// A value of a configuration of curl.
std::string curl_quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : std::string(1, c);
  }
  return out + "\"";
}

}  // namespace

bool NoticeLimit::take(int64_t now_ms) {
  while (!sent_ms_.empty() && now_ms - sent_ms_.front() >= period_ms_) sent_ms_.pop_front();
  if (sent_ms_.size() >= most_) return false;
  sent_ms_.push_back(now_ms);
  return true;
}

std::vector<std::string> notice_command(const std::string& target, int64_t timeout_ms) {
  if (!is_url(target))
    return {"/bin/sh", "-c",
            std::string("command=$") + kNoticeVariable + "; unset " + kNoticeVariable +
                "; eval \"$command\""};
  return {"curl",         "--silent",
          "--show-error", "--fail",
          "--max-time",   std::to_string((timeout_ms + 999) / 1000),
          "--output",     "/dev/null",
          "--header",     "Content-Type: application/json",
          "--config",     "-"};
}

std::string notice_input(const std::string& target, const std::string& notice) {
  if (!is_url(target)) return notice;
  return "url = " + curl_quoted(target) + "\ndata-binary = " + curl_quoted(notice) + "\n";
}

/// Outlives the notifier if a command does not end in time.
struct Notifier::Queue {
  Queue(std::string to, int64_t timeout) : target(std::move(to)), timeout_ms(timeout) {}
  void run();
  void tell(const nlohmann::json& notice) const;
  const std::string target;
  const int64_t timeout_ms;
  std::mutex mutex;
  std::condition_variable wake, ended;
  NoticeLimit limit{kNoticesMax, kPeriodMs};
  std::deque<nlohmann::json> notices;  // at most kNoticesMax: send() asks `limit` first
  uint64_t skipped = 0;
  bool stopping = false, over = false;
};

void Notifier::Queue::tell(const nlohmann::json& notice) const {
  CommandOutput kept;
  kept.input = notice_input(target, json_text(notice) + "\n");
  kept.own_group = true;
  kept.inherits = is_url(target) ? Inherits::needed : Inherits::all;
  if (!is_url(target)) kept.environment = {{kNoticeVariable, target}};
  const auto result = run_command(notice_command(target, timeout_ms), timeout_ms, kept);
  if (!result.ok()) return log::warn("supervision.notify: {}", result.status().message());
  if (result->code != 0)
    log::warn("supervision.notify ended with exit code {}: {}", result->code,
              without_words_of(target, result->output.substr(0, 200)));
}

void Notifier::Queue::run() {
  std::unique_lock lock(mutex);
  while (true) {
    wake.wait(lock, [this] { return stopping || !notices.empty(); });
    if (notices.empty()) break;
    const nlohmann::json notice = std::move(notices.front());
    notices.pop_front();
    lock.unlock();
    tell(notice);
    lock.lock();
  }
  over = true;
  ended.notify_all();
}

Notifier::Notifier(std::string target, int64_t timeout_ms)
    : timeout_ms_(timeout_ms), queue_(std::make_shared<Queue>(std::move(target), timeout_ms)) {
  std::thread([queue = queue_] { queue->run(); }).detach();
}

void Notifier::finish() {
  std::unique_lock lock(queue_->mutex);
  if (std::exchange(queue_->stopping, true)) return;
  queue_->wake.notify_all();
  queue_->ended.wait_for(lock, std::chrono::milliseconds(timeout_ms_),
                         [this] { return queue_->over; });
}

void Notifier::send(nlohmann::json notice) {
  std::lock_guard lock(queue_->mutex);
  if (!queue_->limit.take(now_ms())) {
    ++queue_->skipped;
    return;
  }
  notice["skipped"] = std::exchange(queue_->skipped, 0);
  queue_->notices.push_back(std::move(notice));
  queue_->wake.notify_one();
}

}  // namespace simplescale
