#include "app/usage.hpp"

#include <algorithm>
#include <exception>
#include <string>
#include <vector>

#include "app/report.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/words.hpp"

namespace simplescale {

namespace {

std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    if (!sub->get_group().empty()) names.push_back(sub->get_name());  // "": an internal command
  return names;
}

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

}  // namespace

int run_program(CLI::App& app, int argc, char** argv, const int& exit_code) {
  init_logging("simplescale");
  app.set_version_flag("--version", SIMPLESCALE_VERSION);
  app.require_subcommand(1);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    return report_status(Status(Code::usage, usage_text(app, error, {argv + 1, argv + argc})));
  } catch (const std::exception& error) {  // std::filesystem may throw on an I/O error
    return report_status({Code::internal, error.what()});
  }
  return exit_code;
}

}  // namespace simplescale
