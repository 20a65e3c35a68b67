// `console RUN`: sends commands, typed or from -c, to the run's supervisor. Commands about the past
// (events, why) read the run's folder instead. The run does not depend on consoles.
#include <poll.h>
#include <pwd.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>

#include "actors/supervisor/journal.hpp"
#include "actors/supervisor/verbs.hpp"
#include "app/commands/commands.hpp"
#include "app/commands/line_editor.hpp"
#include "app/commands/render.hpp"
#include "app/commands/run_status.hpp"
#include "app/commands/supervisor_client.hpp"
#include "app/interrupts.hpp"
#include "app/terminal.hpp"
#include "runtime/base/bounded_read.hpp"
#include "runtime/base/files.hpp"
#include "runtime/base/json_members.hpp"
#include "runtime/base/json_text.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/base/printable.hpp"
#include "runtime/checkpoint/checkpoint_format.hpp"
#include "runtime/config/secrets.hpp"
#include "runtime/run/notice.hpp"
#include "runtime/run/run_state.hpp"

namespace simplescale {

namespace {

using nlohmann::json;

// Reads events.jsonl of a run that may be training. Blocks on the disk.

/// Bytes of events.jsonl now; 0 without the file.
int64_t size_of_events(const RunFolder& run) {
  std::ifstream file = open_lines(run.events());
  return file.is_open() ? static_cast<int64_t>(file.seekg(0, std::ios::end).tellg()) : 0;
}

/// The events from byte `from` on. Lines that are no events are skipped.
std::vector<json> events_from(const RunFolder& run, int64_t from) {
  std::vector<json> list;
  std::ifstream file = open_lines(run.events());
  std::string line;
  if (from > 0) {
    file.seekg(from - 1);
    next_line(file, line);  // skips to the next beginning of a line
  }
  while (next_line(file, line)) {
    json event = parse_json(shown_events(line));
    if (event.is_object()) list.push_back(std::move(event));
  }
  return list;
}

/// The newest events, from the last bytes_max bytes of the file.
std::vector<json> events_of(const RunFolder& run, int64_t bytes_max) {
  return events_from(run, std::max<int64_t>(0, size_of_events(run) - bytes_max));
}

/// The last `count` of the events.
std::vector<json> newest(std::vector<json> events, size_t count) {
  if (events.size() > count)
    events.erase(events.begin(), events.end() - static_cast<std::ptrdiff_t>(count));
  return events;
}

constexpr int64_t kAll = INT64_MAX, kTail = 8 << 20, kShortTail = 64 << 10;  // bytes
constexpr int kRedrawMs = 500;
constexpr int kDiagnosisMs = 600'000;  // deadline; the diagnosis starts at the end of a step
constexpr int kSaveMs = 600'000;       // deadline
constexpr int kEarlyMs = 120'000;      // deadline for the next generation to be up
constexpr int kAskMs = 1'000;          // between two questions to the supervisor during a wait
constexpr int kRefusals = 4;           // answers in a row that the disk refuses the checkpoint
constexpr int kPollMs = 50;

/// "user@host, process PID", for the event log.
std::string requester() {
  const passwd* user = getpwuid(getuid());
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  return (user ? std::string(user->pw_name) : std::to_string(getuid())) + "@" + host +
         ", process " + std::to_string(getpid());
}

/// While it exists, keys are read without Enter and without echo. The destructor restores the
/// terminal.
class RawKeys {
 public:
  RawKeys() {
    if (tcgetattr(STDIN_FILENO, &before_) != 0) return;
    termios raw = before_;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    changed_ = tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
  }
  ~RawKeys() {
    if (changed_) tcsetattr(STDIN_FILENO, TCSAFLUSH, &before_);
  }
  /// Waits up to timeout_ms. True if a key was pressed or stdin is closed.
  static bool pressed(int timeout_ms) {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    return poll(&input, 1, timeout_ms) > 0;
  }

 private:
  termios before_{};
  bool changed_ = false;
};

class Console {
 public:
  Console(RunFolder run, const Config& config, bool json)
      : run_(run), client_(run, config, [] { return interrupts != 0; }), json_(json) {
    terminal_ = isatty(STDOUT_FILENO);
    look_.color = terminal_ && !std::getenv("NO_COLOR");
  }

  /// Runs one line. Sets `quit` if the line is `quit` or `exit`.
  Status run(const std::string& line, bool& quit) {
    std::vector<std::string> words = split_words(line);
    const bool as_json = json_ || std::ranges::find(words, "--json") != words.end();
    std::erase(words, "--json");
    if (words.empty()) return {};
    if (words[0] == "exit") words[0] = "quit";
    const Verb* verb = find_verb(words[0]);
    if (!verb)
      return Status(Code::usage, "unknown command '" + words[0] + "'; `help` lists all commands");
    quit = verb->name == "quit";
    if (verb->name == "help") return help(words.size() > 1 ? words[1] : "", as_json);
    if (verb->name == "events") return events(words.size() > 1 ? words[1] : "20", as_json);
    if (verb->name == "why") return why(words.size() > 1 ? words[1] : "", as_json);
    if (verb->name == "watch") return watch(as_json);
    if (quit) return {};
    const int64_t asked_at = size_of_events(run_);
    auto reply = ask(words, verb->answerer == Answerer::action);
    const bool document = words[0] == "status" || words[0] == "tree" || words[0] == "nodes";
    if (!reply.ok() && document) return document_of_folder(words[0], as_json, reply.status());
    if (!reply.ok()) return reply.status();
    if (!reply->ok) return Status(Code::usage, reply->text);
    if (verb->name == "diagnose") return diagnosis(asked_at, as_json);
    if (verb->name == "save") return saved(asked_at, reply->json, as_json);
    if (document) {
      json shown = parse_json(reply->json);
      if (const std::string notice = notice_of(run_, shown); !notice.empty() && shown.is_object())
        shown["notice"] = notice;
      print(as_json ? json_text(shown) : render(words[0], shown));
    } else if (as_json) {
      print(reply->json.empty() ? json_text({{"ok", true}, {"text", reply->text}}) : reply->json);
    } else {
      print(printable(reply->text));
    }
    return {};
  }

  /// Runs the lines in order. After one that fails, the others are not run but named; only a
  /// `resume` that ends a pause of this chain is, so that no run is left paused.
  Status run_chain(const std::vector<std::string>& lines) {
    bool quit = false, paused = false;
    for (size_t i = 0; i < lines.size(); ++i) {
      Status status = run(lines[i], quit);
      const auto words = split_words(lines[i]);
      if (status.ok() && !words.empty())
        paused = words[0] == "pause" || (paused && words[0] != "resume");
      if (!status.ok()) return Status(status.code(), status.message() + rest(lines, i, paused));
    }
    return {};
  }

  /// "NAME (STATE)> "
  std::string prompt() const {
    const auto document = current_status(run_.path);
    const std::string name = document.ok() ? document->value("run", "run") : "run";
    const std::string state =
        document.ok() ? printable(document->value("state", "?")) : "no status";
    // libedit: \1 begins and ends a sequence that takes no columns.
    const std::string bold = look_.color ? "\1\033[1m\1" : "",
                      plain = look_.color ? "\1\033[0m\1" : "";
    return bold + name + plain + " (" + state + ")> ";
  }

  std::vector<std::string> complete(const std::vector<std::string>& before,
                                    const std::string& prefix) const {
    const auto document = current_status(run_.path);
    return completions(document.ok() ? *document : json(), before, prefix);
  }

 private:
  /// "; not run: `save`", and that a pause was ended. failed: index of the line that failed.
  std::string rest(const std::vector<std::string>& lines, size_t failed, bool paused) {
    std::string skipped, ended;
    for (size_t i = failed + 1; i < lines.size(); ++i) {
      bool quit = false;
      if (paused && split_words(lines[i]) == std::vector<std::string>{"resume"}) {
        paused = false;
        const Status resumed = run(lines[i], quit);
        ended = resumed.ok() ? "; `resume` was run, since `pause` was"
                             : "; `resume` failed: " + resumed.message();
      } else {
        skipped += (skipped.empty() ? "; not run: `" : ", `") + lines[i] + "`";
      }
    }
    return skipped + ended + (paused ? "; the run is paused: `resume` continues it" : "");
  }

  /// Asks the supervisor, again while a command is only too early.
  Result<CommandReply> ask(const std::vector<std::string>& words, bool acts) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(kEarlyMs);
    while (true) {
      auto reply = client_.ask({words, requester()}, acts);
      const bool early =
          reply.ok() && !reply->ok && member_of(parse_json(reply->json), "early") == json(true);
      if (!early || interrupts) return reply;
      if (std::chrono::steady_clock::now() > deadline) {
        reply->text += "; waited " + std::to_string(kEarlyMs / 1000) + " s for it";
        return reply;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(kPollMs));
    }
  }

  /// Why the checkpoint of a step after `after` is not saved, or waits for the disk, as the
  /// supervisor knows it; "" if neither. On a full disk no event tells it.
  std::string why_unsaved(uint64_t after) {
    const auto reply = client_.ask({{"status"}, requester()}, false);
    const json now = reply.ok() ? parse_json(reply->json) : json();
    const json& failed = member_of(now, "checkpoint_failed");
    if (failed.is_object() && whole_of(failed, "step") > static_cast<int64_t>(after))
      return "saving step " + std::to_string(whole_of(failed, "step")) +
             " failed: " + text_of(failed, "reason");
    const std::string unwritten = text_of(now, "unwritten");
    return unwritten.empty() ? ""
                             : "no checkpoint can be published while the run cannot write " +
                                   unwritten + "; it is published once the disk takes the records";
  }

  /// text: with colours; its parts from elsewhere are printable() already.
  static void print(const std::string& text) {
    terminal::painted(text);
    if (!text.empty() && text.back() != '\n') terminal::text("\n");
    std::fflush(stdout);
  }

  std::string render(const std::string& what, const json& document) const {
    if (what == "status") return render_status(document, look_);
    return what == "tree" ? render_tree(document, look_) : render_nodes(document, look_);
  }

  /// Called if no supervisor answers: prints what the run's folder shows instead.
  Status document_of_folder(const std::string& what, bool as_json, const Status& why) {
    SS_ASSIGN(const json document, current_status(run_.path));
    terminal::error("%s; the run's folder shows:\n", why.message().c_str());
    print(as_json ? json_text(document) : render(what, document));
    return {};
  }

  static Status help(const std::string& name, bool as_json) {
    const Verb* one = name.empty() ? nullptr : find_verb(name);
    if (one && !as_json) {
      print(printable(explained(*one)));
      return {};
    }
    json list = json::array();
    std::string text;
    for (const Verb& verb : verbs()) {
      if (!name.empty() && name != verb.name) continue;
      list.push_back({{"name", verb.name},
                      {"arguments", verb.arguments},
                      {"help", verb.help},
                      {"example", verb.example}});
      const std::string call = verb.name + " " + verb.arguments;
      text +=
          "  " + call +
          (call.size() < 24 ? std::string(24 - call.size(), ' ') : "\n" + std::string(26, ' ')) +
          verb.help + "\n";
    }
    if (list.empty()) return Status(Code::usage, "unknown command '" + name + "'");
    print(as_json ? list.dump() : printable(text));
    return {};
  }

  /// On stderr: that the records below are old, or that the newest state is not saved.
  void print_notice() {
    const auto document = current_status(run_.path);
    if (!document.ok()) return;
    for (const char* line : {"notice", "why", "next"})
      if (const std::string said = text_of(*document, line); !said.empty())
        terminal::error("%s\n", said.c_str());
  }

  Status events(const std::string& count, bool as_json) {
    char* end = nullptr;
    const unsigned long wanted = std::strtoul(count.c_str(), &end, 10);
    if (*end != '\0') return Status(Code::usage, "events [N]: '" + count + "' is not a number");
    print_notice();
    const std::vector<json> list = newest(events_of(run_, kTail), wanted);
    print(as_json ? json_text(list) : render_events(list, look_));
    return {};
  }

  /// Waits until the requested checkpoint is saved, and prints which one it is. asked_at: as below.
  /// accepted: the supervisor's reply; it names the newest step at the request.
  Status saved(int64_t asked_at, const std::string& accepted, bool as_json) {
    const json reply = parse_json(accepted);
    uint64_t after = reply.is_object() ? reply.value("after", uint64_t{0}) : 0;
    bool again = false;  // a recovery came in between, and it was asked once more
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(kSaveMs);
    auto due = std::chrono::steady_clock::now() + std::chrono::milliseconds(kAskMs);
    for (int refused = 0; !interrupts && std::chrono::steady_clock::now() < deadline;) {
      for (const json& event : events_from(run_, asked_at)) {
        const std::string kind = text_of(event, "kind"), subject = text_of(event, "subject");
        const bool saves = kind == "checkpoint_saved" || kind == "checkpoint_failed";
        const uint64_t step = saves && subject.starts_with("step-")
                                  ? std::strtoull(subject.c_str() + 5, nullptr, 10)
                                  : 0;
        if (saves && step <= after) continue;  // an earlier checkpoint
        if (kind == "checkpoint_failed")
          return Status(Code::io, "saving step " + std::to_string(step) +
                                      " failed: " + text_of(event, "reason"));
        if (saves) {
          const std::string folder = checkpoint_format::step_folder_name(step);
          print(as_json ? json_text({{"ok", true}, {"step", step}, {"checkpoint", folder}})
                        : "saved a checkpoint of step " + std::to_string(step) + ": " + folder);
          return {};
        }
        if (kind == "recovered" && !again) {
          again = true;
          asked_at = size_of_events(run_);
          const auto second = ask({"save"}, true);
          if (!second.ok()) return second.status();
          if (!second->ok) return Status(Code::usage, second->text);
          after = static_cast<uint64_t>(whole_of(parse_json(second->json), "after"));
          break;
        }
        if (kind == "recovered" || ends_run(kind))
          return Status(Code::unavailable,
                        "training was interrupted before the checkpoint was "
                        "saved; `events` shows what was saved");
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(kPollMs));
      if (std::chrono::steady_clock::now() < due) continue;
      due = std::chrono::steady_clock::now() + std::chrono::milliseconds(kAskMs);
      const std::string why = why_unsaved(after);
      refused = why.empty() ? 0 : refused + 1;
      if (refused == kRefusals) return Status(Code::io, why);
    }
    return Status(Code::deadline,
                  "the checkpoint is not saved yet; `events` will show checkpoint_saved");
  }

  /// Waits for the end of the requested diagnosis. asked_at: size of events.jsonl at the request.
  Status diagnosis(int64_t asked_at, bool as_json) {
    const auto deadline =
        std::chrono::steady_clock::now() + std::chrono::milliseconds(kDiagnosisMs);
    while (!interrupts && std::chrono::steady_clock::now() < deadline) {
      for (const json& event : events_from(run_, asked_at)) {
        const std::string kind = text_of(event, "kind");
        if (kind == "diagnosed") {
          print(as_json ? event.dump() : render_diagnosis(event, look_));
          return {};
        }
        if (kind == "stop_requested" || ends_run(kind))
          return Status(Code::unavailable, "the run ends: " + text_of(event, "reason"));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(kPollMs));
    }
    return Status(Code::deadline,
                  "the diagnosis has not ended yet; `why diagnosis` will show its result");
  }

  /// Prints the newest diagnosis.
  Status why_diagnosis(bool as_json) {
    const std::vector<json> all = events_of(run_, kAll);
    for (auto event = all.rbegin(); event != all.rend(); ++event)
      if (text_of(*event, "kind") == "diagnosed") {
        print(as_json ? event->dump()
                      : render_events({*event}, look_) + render_diagnosis(*event, look_));
        return {};
      }
    return Status(Code::usage, "there was no diagnosis yet; `diagnose all` starts one");
  }

  Status why(const std::string& number, bool as_json) {
    if (number == "diagnosis") return why_diagnosis(as_json);
    if (number.empty()) print_notice();
    std::vector<json> list;
    int64_t wanted = std::strtoll(number.c_str(), nullptr, 10);
    const std::vector<json> all = events_of(run_, kAll);
    auto incident = [](const json& event) {
      const json& value = member_of(event, "incident");
      return value.is_number_integer() ? value.get<int64_t>() : 0;
    };
    for (const json& event : all)
      if (number.empty()) wanted = std::max(wanted, incident(event));
    for (const json& event : all)
      if (wanted > 0 && incident(event) == wanted) list.push_back(event);
    if (list.empty())
      return Status(Code::usage,
                    number.empty() ? "there was no incident" : "no incident " + number);
    print(as_json ? json_text(list) : render_incident(list, look_));
    return {};
  }

  /// Redraws what matters in place until a key is pressed or the run ends. Prints the tree once if
  /// stdin or stdout is not a terminal.
  Status watch(bool as_json) {
    const bool live = terminal_ && isatty(STDIN_FILENO) && !as_json;
    std::unique_ptr<RawKeys> keys = live ? std::make_unique<RawKeys>() : nullptr;
    if (live) terminal::cursor::out(terminal::cursor::kClearScreen);
    Status status;
    while (true) {
      const auto document = current_status(run_.path);
      if (!document.ok()) {
        status = document.status();
        break;
      }
      if (!live) {
        print(as_json ? document->dump() : render_tree(*document, look_));
        break;
      }
      draw(*document);
      if (has_ended(*document) || RawKeys::pressed(kRedrawMs) || interrupts) break;
    }
    return status;
  }

  /// One screen, redrawn in place.
  void draw(const json& document) const {
    winsize size{};
    ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
    const size_t rows = std::max<size_t>(size.ws_row > 0 ? size.ws_row : 24, 8);
    const RenderOptions look{look_.color, size.ws_col > 0 ? size_t{size.ws_col} : 80,
                             wall_time_s()};
    const std::string shown = render_watch(document, events_of(run_, kShortTail), rows - 2, look);
    terminal::cursor::out(terminal::cursor::kHome);
    for (size_t begin = 0; begin < shown.size();) {
      const size_t end = std::min(shown.find('\n', begin), shown.size());
      terminal::painted(shown.substr(begin, end - begin));
      terminal::cursor::out(terminal::cursor::kClearLine);
      terminal::text("\n");
      begin = end + 1;
    }
    terminal::cursor::out(terminal::cursor::kClearBelow);
    terminal::text("(press any key to leave; training continues)\n");
    std::fflush(stdout);
  }

  const RunFolder run_;
  SupervisorClient client_;
  const bool json_;
  bool terminal_ = false;
  RenderOptions look_;
};

std::string history_file() {
  const char* home = std::getenv("HOME");
  return home && *home ? std::string(home) + "/.simplescale_history" : "";
}

/// For scripts: every failed command gives exit code 64, except damaged files (65) and a disk that
/// refuses a checkpoint (74).
Status as_exit(const Status& status) {
  return status.ok() || status.code() == Code::bad_data || status.code() == Code::io
             ? status
             : Status(Code::usage, status.message());
}

}  // namespace

Status console_command(const std::string& folder, const std::vector<std::string>& commands,
                       bool json) {
  const RunFolder run{folder};
  SS_RETURN_IF_ERROR(check_is_run(folder));
  SS_ASSIGN(const LoadedConfig loaded, load_config(run.config()));
  if (!std::getenv("SIMPLESCALE_LOG")) log::set_level(log::Level::error);
  count_interrupts({SIGINT});
  Console console(run, loaded.config, json);
  if (!commands.empty()) return as_exit(console.run_chain(commands));
  bool quit = false;
  LineEditor editor(history_file(), [&](const auto& before, const std::string& prefix) {
    return console.complete(before, prefix);
  });
  if (editor.terminal())
    terminal::print("`help` lists the commands, Tab completes words, Ctrl-D quits\n");
  while (!quit) {
    const auto line = editor.read(editor.terminal() ? console.prompt() : "");
    if (!line) break;
    interrupts = 0;
    if (Status status = console.run(*line, quit); !status.ok())
      terminal::error("%s\n", status.message().c_str());
  }
  if (editor.terminal() && !quit) terminal::print("\n");
  return {};
}

}  // namespace simplescale
