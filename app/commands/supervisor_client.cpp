#include "app/commands/supervisor_client.hpp"

#include <caf/all.hpp>
#include <chrono>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "runtime/base/json_members.hpp"
#include "runtime/base/parse_json.hpp"

namespace simplescale {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
constexpr int64_t kAnswerMs = 10'000;
constexpr int64_t kRetryMs = 50;

}  // namespace

SupervisorClient::~SupervisorClient() {
  supervisor_ = nullptr;
  if (process_) process_->transport().stop();  // fails the requests under way
}

Status SupervisorClient::connect() {
  SS_ASSIGN(const std::string text, read_text(run_.supervisor()));
  const auto document = parse_json(text);
  const std::string address = text_of(document, "address"),
                    instance = text_of(document, "instance");
  if (address.empty() || instance.empty())
    return Status(Code::bad_data, run_.supervisor() + " is damaged");
  if (lost_->exchange(false)) supervisor_ = nullptr;  // lost since the last command
  if (supervisor_ && address == address_) return {};
  supervisor_ = nullptr;
  if (instance != instance_ || !process_) {
    if (process_) process_->transport().stop();
    process_.reset();
    SS_ASSIGN(process_, ActorProcess::start(config_, run_, instance, 1));
    instance_ = instance;
    process_->transport().on_peer_lost(
        [lost = lost_](const caf::node_id&, const std::string&) { *lost = true; });
  }
  SS_ASSIGN(supervisor_, process_->transport().lookup(address, "supervisor", kLookupMs));
  address_ = address;
  return {};
}

Result<CommandReply> SupervisorClient::ask_once(const Command& command, int64_t timeout_ms,
                                                bool& sent) {
  SS_RETURN_IF_ERROR(connect());
  sent = true;
  // An actor of its own sends the request: after a cancelled wait it can be left behind.
  auto answer = std::make_shared<std::promise<Result<CommandReply>>>();
  auto result = answer->get_future();
  process_->system().spawn(
      [answer, supervisor = supervisor_, command, timeout_ms](caf::event_based_actor* self) {
        self->request(supervisor, milliseconds(timeout_ms), command)
            .then([answer](const CommandReply& reply) { answer->set_value(reply); },
                  [answer](const caf::error& error) {
                    const bool late = error == caf::sec::request_timeout;
                    answer->set_value(late ? Status(Code::deadline, "it did not answer in time")
                                           : Status(Code::unavailable, "the connection was lost"));
                  });
      });
  while (result.wait_for(milliseconds(100)) != std::future_status::ready)
    if (cancelled_()) return Status(Code::aborted, "cancelled");
  return result.get();
}

Result<CommandReply> SupervisorClient::ask(const Command& command, bool acts) {
  const auto deadline = Clock::now() + milliseconds(kAnswerMs);
  for (int lost = 0; true;) {
    bool sent = false;
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now()).count() + 1;
    auto reply = ask_once(command, std::max<int64_t>(left, 1), sent);
    if (reply.ok()) return reply;
    if (sent) supervisor_ = nullptr;
    if (sent && acts)
      return Status(Code::unavailable,
                    "the supervisor was lost or did not answer (" + reply.status().message() +
                        "): it is not known whether it ran the command; `events` shows what was "
                        "recorded");
    if (reply.status().code() == Code::aborted) return reply;
    if (sent && ++lost > 1) return reply;
    if (Clock::now() > deadline)
      return Status(Code::deadline, "no supervisor answers (" + reply.status().message() + ")");
    // No supervisor, or none that can be reached: the run may have ended.
    if (!sent && !RunLock::held(run_))
      return Status(Code::not_found, "nothing trains in " + run_.path + " now");
    if (cancelled_()) return Status(Code::aborted, "cancelled");
    std::this_thread::sleep_for(milliseconds(kRetryMs));
  }
}

}  // namespace simplescale
