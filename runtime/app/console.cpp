// `console RUN -c COMMAND`: asks whoever is supervisor, and prints the answer.
#include <unistd.h>

#include <caf/all.hpp>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <thread>

#include "runtime/app/actor_process.hpp"
#include "runtime/app/commands.hpp"
#include "runtime/base/run_folder.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

namespace {

using Clock = std::chrono::steady_clock;
constexpr int answer_timeout_ms = 10'000;

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  for (size_t i = 0; i < text.size();) {
    const size_t end = std::min(text.find(' ', i), text.size());
    if (end > i) words.push_back(text.substr(i, end - i));
    i = end + 1;
  }
  return words;
}

/// One try: finds the supervisor of now and asks it.
Result<CommandReply> ask_once(const RunFolder& run, const Config& config, const Command& command) {
  SS_ASSIGN(const std::string text, read_text(run.control() + "/supervisor.json"));
  const auto page = nlohmann::json::parse(text, nullptr, false);
  if (!page.is_object() || !page.contains("address"))
    return Status(Code::bad_data, run.control() + "/supervisor.json" + " is damaged");
  SS_ASSIGN(auto process, ActorProcess::start(config, run, page.value("instance", ""), 1));
  SS_ASSIGN(const caf::actor supervisor,
            process->transport().lookup(page.value("address", ""), "supervisor", 1000));
  Result<CommandReply> result = Status(Code::deadline, "the supervisor does not answer");
  {
    caf::scoped_actor self(process->system());
    self->request(supervisor, std::chrono::milliseconds(answer_timeout_ms), command)
        .receive([&](const CommandReply& reply) { result = reply; },
                 [&](const caf::error& error) {
                   result = Status(Code::unavailable, caf::to_string(error));
                 });
  }
  process->transport().stop();
  return result;
}

/// A supervisor may just be changing: tries again until the deadline.
Result<CommandReply> ask(const RunFolder& run, const Config& config, const Command& command) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(answer_timeout_ms);
  while (true) {
    auto reply = ask_once(run, config, command);
    if (reply.ok() || reply.status().code() == Code::deadline || Clock::now() > deadline)
      return reply;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // files tell no changes
  }
}

}  // namespace

Status console_command(const std::string& folder, const std::vector<std::string>& commands,
                       bool json) {
  const RunFolder run{folder};
  SS_ASSIGN(const LoadedConfig loaded, load_config(run.config()));
  if (commands.empty())
    return Status(Code::usage, "console RUN -c \"COMMAND\": the interactive console is not there");
  const char* user = getlogin();
  for (const std::string& text : commands) {
    SS_ASSIGN(const CommandReply reply,
              ask(run, loaded.config, {words_of(text), user ? user : std::to_string(getuid())}));
    if (!reply.ok) return Status(Code::usage, reply.text);
    if (json)
      std::printf("%s\n", reply.json.empty()
                              ? nlohmann::json{{"ok", true}, {"text", reply.text}}.dump().c_str()
                              : reply.json.c_str());
    else
      std::printf("%s\n", reply.text.c_str());
    std::fflush(stdout);
  }
  return {};
}

}  // namespace simplescale
