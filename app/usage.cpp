#include "app/usage.hpp"

#include <algorithm>
#include <cstdio>

#include "app/report.hpp"
#include "runtime/base/words.hpp"

namespace simplescale {

namespace {

std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    if (!sub->get_group().empty()) names.push_back(sub->get_name());  // the others are internal
  return names;
}

std::vector<std::string> options_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

/// The command that the words name as far as they do; `next` is the first word behind it.
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

}  // namespace

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
    // Its name may be the command's.
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

int report_usage(const CLI::App& app, const CLI::ParseError& error,
                 const std::vector<std::string>& words) {
  if (error.get_exit_code() == 0) return app.exit(error);
  return report(Status(Code::usage, usage_text(app, error, words)));
}

}  // namespace simplescale
