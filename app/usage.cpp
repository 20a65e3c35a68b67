#include "app/usage.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include "app/report.hpp"
#include "runtime/base/limits.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/words.hpp"
#include "runtime/config/schema.hpp"

namespace simplescale {

namespace {

/// CLI::Range lets NaN pass.
const CLI::Validator kNumber(
    [](const std::string& text) {
      return std::isnan(std::strtod(text.c_str(), nullptr)) ? "not a number" : "";
    },
    "");

std::vector<std::string> options_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

/// The command that the leading words name, such as `config show`. name: its full name; next: the
/// index of the first word behind it.
const CLI::App* command_of(const CLI::App& app, const std::vector<std::string>& words, size_t& next,
                           std::string& name) {
  const CLI::App* at = &app;
  name = app.get_name();
  for (next = 0; next < words.size(); ++next) {
    const auto subs = at->get_subcommands([](const CLI::App*) { return true; });
    const auto sub = std::ranges::find_if(
        subs, [&](const CLI::App* known) { return known->get_name() == words[next]; });
    if (sub == subs.end()) break;
    at = *sub;
    name += " " + words[next];
  }
  return at;
}

/// One line about the error. words: the command line without the program's name.
std::string usage_text(const CLI::App& app, const CLI::ParseError& error,
                       const std::vector<std::string>& words) {
  size_t next = 0;
  std::string name;
  const CLI::App* command = command_of(app, words, next, name);
  const std::vector<std::string> commands = commands_of(*command);
  std::string text;
  if (!commands.empty() && next < words.size() && !words[next].starts_with('-'))
    text = "unknown command '" + words[next] + "'" + did_you_mean(words[next], commands);
  else if (!commands.empty() && next == words.size())
    text = "a command is missing: " + joined(commands);
  if (text.empty()) {
    // CLI11 may name the command instead of the option that it does not know.
    const bool extras = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError);
    text = error.what();
    std::ranges::replace(text, '\n', ' ');
    while (!text.empty() && (text.back() == ' ' || text.back() == '.')) text.pop_back();
    for (size_t i = next; i < words.size() && extras; ++i) {
      const std::string option = words[i].substr(0, words[i].find('='));
      const std::vector<std::string> known = options_of(*command);
      if (!option.starts_with("--") || std::ranges::find(known, option) != known.end()) continue;
      text = "unknown option " + option + did_you_mean(option, known);
      break;
    }
  }
  return text + "; see " + name + " --help";
}

/// The words after the program's name. `help COMMAND` becomes `COMMAND --help`, and a key with its
/// value becomes one word: --train.max_steps 10 is --train.max_steps=10.
std::vector<std::string> words_of(int argc, char** argv) {
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    const bool key = word.starts_with("--") && word.find('.') != std::string::npos &&
                     word.find_first_of("=/ ") == std::string::npos;
    if (key && i + 1 < argc && !std::string(argv[i + 1]).starts_with("--"))
      word += "=" + std::string(argv[++i]);
    words.push_back(std::move(word));
  }
  if (words.size() < 2 ? words == std::vector<std::string>{"help"} : words[0] == "help") {
    words.erase(words.begin());
    words.emplace_back("--help");
  }
  return words;
}

}  // namespace

std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    if (!sub->get_group().empty()) names.push_back(sub->get_name());  // "": an internal command
  return names;
}

Status check_extras(const CLI::App& command) {
  std::string full_name = command.get_name();
  for (const CLI::App* at = command.get_parent(); at; at = at->get_parent())
    full_name = at->get_name() + " " + full_name;
  for (const std::string& word : command.remaining()) {
    const std::string name = word.substr(0, word.find('='));
    if (name.find('.') != std::string::npos && (name != word || word.starts_with("--"))) continue;
    const std::string see = "; see " + full_name + " --help";
    if (!word.starts_with("-"))
      return Status(Code::usage, "unexpected argument '" + word + "'" + see);
    std::string hint = did_you_mean(name, options_of(command));
    if (hint.empty() && name.starts_with("--"))
      hint = "; nearest known key: --" + schema::nearest_key("", name.substr(2));
    return Status(Code::usage, "unknown option " + name + hint + see);
  }
  return {};
}

void add_generate_options(CLI::App& command, GenerateOptions& options) {
  command.add_option("RUN|CHECKPOINT", options.checkpoint, "a run's folder or a checkpoint")
      ->required();
  command
      .add_option("--prompt", options.prompt,
                  "text to continue; -: from stdin; default: asked for on a terminal, else none")
      ->each([&options](const std::string&) { options.prompt_given = true; });
  command.add_option("--max-tokens", options.max_tokens, "most tokens to add")
      ->check(CLI::Range(1, 1'000'000));
  command
      .add_option("--temperature", options.sampling.temperature, "0: always the likeliest token")
      ->check(CLI::Range(0.0, 100.0) & kNumber);
  command
      .add_option("--top-k", options.sampling.top_k, "sample among the K likeliest tokens; 0: all")
      ->check(CLI::Range(0, 1'000'000));
  command
      .add_option("--top-p", options.sampling.top_p,
                  "sample among the likeliest tokens that have this probability together")
      ->check(CLI::Range(0.0, 1.0) & kNumber);
  command.add_option("--stop", options.stops, "end before this text; repeatable")
      ->allow_extra_args(false);
  command.add_option("--seed", options.seed, "the same seed gives the same text");
  command.add_flag("--ema", options.ema, kEmaHelp);
}

void add_evaluate_options(CLI::App& command, EvaluateOptions& options) {
  command.add_option("RUN|CHECKPOINT", options.checkpoint, "a run's folder or a checkpoint")
      ->required();
  command.add_option("--data,--data.source", options.data,
                     "a token file or prepared folder; default: the run's validation tokens");
  command
      .add_option("--tasks", options.tasks,
                  "a .jsonl file of questions or texts to score instead (docs/operations.md)")
      ->excludes("--data");
  command.add_option("--samples", options.samples, "most samples or rows to evaluate; 0: all")
      ->check(CLI::Range(0, 1'000'000'000));
  command.add_flag("--json", options.json, "print JSON");
  command.add_flag("--ema", options.ema, kEmaHelp);
}

namespace {

/// Given back for the sentence of a process that has no memory left.
std::unique_ptr<char[]> reserve(new char[64 << 10]);

/// Of an exception that nothing catches, on any thread. A process that lacks memory or threads ends
/// with a sentence, anything else is a bug.
[[noreturn]] void end_with_a_sentence() {
  static std::atomic_flag ends;
  while (ends.test_and_set()) pause();  // another thread ends the process
  reserve.reset();
  try {
    try {
      if (std::current_exception()) throw;
      // Of several threads one could not be started: CAF destroys those that run.
      if (std::uncaught_exceptions() > 0)
        throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
    } catch (const std::exception& error) {
      const Status status = exception_status(error);
      report_status(status);
      if (status.code() != Code::internal) _exit(exit_code(status.code()));
    }
  } catch (const std::bad_alloc&) {
    tell_no_memory();
  } catch (...) {
  }
  std::abort();
}

/// Of a command that users call, not of one that processes of a run start.
int end_of_command(const CLI::App& app, int code) {
  const auto chosen = app.get_subcommands();
  const bool internal = !chosen.empty() && chosen.front()->get_group().empty();
  return internal ? code : end_output(code);
}

/// A file that is opened gets no descriptor of a closed standard stream, whose texts would go there.
void occupy_standard_streams() {
  for (int fd = 0; fd <= 2;) {
    if (fcntl(fd, F_GETFD) >= 0)
      ++fd;
    else if (open("/dev/null", O_RDONLY) < 0)
      return;
  }
}

}  // namespace

int run_program(CLI::App& app, int argc, char** argv, const int& exit_code) {
  std::set_terminate(end_with_a_sentence);
  if (Status adapted = adapt_to_limits(); !adapted.ok()) return report_status(adapted);
  occupy_standard_streams();
  umask(umask(0) | S_IWGRP | S_IWOTH);  // never wider than the user's
  init_logging("simplescale");
  app.set_version_flag("--version", SIMPLESCALE_VERSION);
  app.require_subcommand(1);
  std::vector<std::string> words = words_of(argc, argv);
  size_t named = 0;
  std::string name;
  command_of(app, words, named, name);
  if (named == 0 && !words.empty() && !words[0].starts_with('-'))
    words.resize(1);  // no such command: an error, also with --help
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // CLI11 wants them reversed
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return end_of_command(app, app.exit(error));
    return report_status(Status(Code::usage, usage_text(app, error, words)));
  } catch (const std::filesystem::filesystem_error& error) {
    return report_status(
        {Code::io, "cannot read " + error.path1().string() + ": " + error.code().message()});
  } catch (const std::exception& error) {
    return report_status(exception_status(error));
  }
  return end_of_command(app, exit_code);
}

}  // namespace simplescale
