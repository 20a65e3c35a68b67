#include "app/usage_texts.hpp"

#include <map>
#include <vector>

#include "app/usage.hpp"
#include "runtime/base/words.hpp"
#include "runtime/config/schema.hpp"

namespace simplescale {

namespace {

/// Examples by command, without the program's name; a line "# text" explains the line below it.
const std::map<std::string, std::vector<std::string>>& examples() {
  static const std::map<std::string, std::vector<std::string>> table = {
      {"train",
       {"# an example with real text, on this machine", "train configs/quickstart.toml",
        "# another length and folder than in the file",
        "train my.toml --run=runs/long --train.max_steps 5000", "# in the background",
        "train my.toml --detach", "# on each of four hosts without Slurm, here the third",
        "train my.toml --run=/shared/runs/my --nnodes=4 --node-rank=2",
        "# on one more host, while the run trains", "train --join /shared/runs/my"}},
      {"resume",
       {"# continue it; if it trains already, show its progress (Ctrl-C leaves it training)",
        "resume runs/my", "# train longer", "resume runs/my --train.max_steps 5000",
        "# without the samples that made a run give up", "resume runs/my --skip-samples 80-83"}},
      {"submit", {"submit my.toml --run=/shared/runs/my --dry-run"}},
      {"prepare", {"prepare my.toml"}},
      {"config", {"config show my.toml --changed", "config validate my.toml"}},
      {"config show",
       {"# what differs from the defaults, and where it was set", "config show my.toml --changed",
        "# what a trainer does in a step, task by task", "config show my.toml --program",
        "# the plan of a longer run", "config show my.toml --train.max_steps 5000"}},
      {"config explain", {"config explain train.warmup_iters", "config explain checkpoint"}},
      {"config validate", {"config validate my.toml --cluster.nodes 4"}},
      {"digest", {"digest runs/my"}},
      {"export", {"export runs/my my-model --dtype bf16"}},
      {"import",
       {"import my-model imported", "# eight experts of each MLP, of which a token passes two",
        "import my-model imported --upcycle experts=8,top_k=2"}},
      {"verify", {"verify runs/my", "verify s3://my-bucket/runs/my"}},
      {"status", {"status runs/my --watch", "status runs/my --json"}},
      {"console",
       {"# interactive, with history and completion", "console runs/my",
        "# what happened in the newest incident", "console runs/my -c why",
        "# save a checkpoint, then stop", "console runs/my -c save -c stop"}},
      {"runs", {"runs", "runs /shared/runs --json"}},
      {"plot",
       {"plot runs/a runs/b -o loss.svg", "# what a trainer does in a step, and when",
        "plot my.toml --program --parallel.wave 4 -o step.svg"}},
      {"report", {"report runs/my -o report.html"}},
      {"sweep",
       {"# the list of the runs; trains nothing", "sweep configs/sweep.toml --dry-run",
        "sweep configs/sweep.toml", "# the results so far", "sweep configs/sweep.toml --summary"}},
      {"logs",
       {"logs runs/my --follow", "# one node's warnings and errors",
        "logs runs/my n1 --level warning", "logs runs/my --grep 'killed|recovered'"}},
      {"trace", {"trace runs/my --list", "trace runs/my -o trace.json"}},
      {"doctor", {"doctor", "doctor my.toml --run=/shared/runs/my"}},
      {"generate", {"generate runs/my --prompt 'In the beginning' --max-tokens 40"}},
      {"evaluate", {"evaluate runs/my --samples 100"}},
      {"help", {"help train", "help config show"}},
      {"completion",
       {"# in ~/.bashrc: source <(simplescale completion bash)",
        "completion fish >~/.config/fish/completions/simplescale.fish"}},
      {"man", {"man >simplescale.1"}},
  };
  return table;
}

/// The lines of the examples as a user types them.
std::vector<std::string> example_lines(const std::string& command) {
  std::vector<std::string> lines;
  const auto found = examples().find(command);
  if (found == examples().end()) return lines;
  for (const std::string& line : found->second)
    lines.push_back(line.starts_with('#') ? line : "simplescale " + line);
  return lines;
}

struct NamedCommand {
  std::string name;  // "config show"
  CLI::App* app;
};

/// All commands but internal ones, and the commands in them.
std::vector<NamedCommand> all_commands(const CLI::App& app, const std::string& before = "") {
  std::vector<NamedCommand> found;
  for (const std::string& name : commands_of(app)) {
    found.push_back({before + name, app.get_subcommand(name)});
    for (const NamedCommand& inner : all_commands(*found.back().app, before + name + " "))
      found.push_back(inner);
  }
  return found;
}

/// "--watch", "-o", "--output" of an option; empty for a positional argument.
std::vector<std::string> flags_of(const CLI::Option& option) {
  std::vector<std::string> flags;
  for (const std::string& name : option.get_snames()) flags.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) flags.push_back("--" + name);
  return flags;
}

/// True if the command takes the keys of a configuration.
bool takes_keys(const CLI::App& command) {
  return command.get_allow_extras();
}

/// Words that can follow the command: its commands, or its options and the keys.
std::vector<std::string> words_after(const CLI::App& command) {
  std::vector<std::string> words = commands_of(command);
  for (const CLI::Option* option : command.get_options())
    for (const std::string& flag : flags_of(*option)) words.push_back(flag);
  if (takes_keys(command)) words.emplace_back("$keys");
  return words;
}

std::vector<std::string> key_words() {
  std::vector<std::string> words;
  for (const schema::Key& key : schema::keys()) words.push_back("--" + key.full_name() + "=");
  return words;
}

/// The text in single quotes, for all three shells.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

/// The lines of a shell's `case` that set `found` to the words that can follow a command.
std::string cases_of(const CLI::App& app) {
  std::string text = "    '') found=\"" + joined(words_after(app), " ") + "\" ;;\n";
  for (const NamedCommand& command : all_commands(app))
    text += "    " + quoted(command.name) + ") found=\"" + joined(words_after(*command.app), " ") +
            "\" ;;\n";
  return text;
}

/// The names of the commands that hold commands, as a pattern: "config".
std::string groups_of(const CLI::App& app) {
  std::vector<std::string> groups;
  for (const NamedCommand& command : all_commands(app))
    if (!commands_of(*command.app).empty()) groups.push_back(command.name);
  return joined(groups, "|");
}

std::string bash_script(const CLI::App& app) {
  return R"(# Completes the command line of simplescale in bash.
_simplescale() {
  local cur=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} found
  local keys=")" +
         joined(key_words(), " ") + R"("
  case $COMP_CWORD in 1) command= ;; esac
  case $command in
    )" + groups_of(app) +
         R"() [ "$COMP_CWORD" -lt 3 ] || command="$command ${COMP_WORDS[2]}" ;;
  esac
  case $command in
)" + cases_of(app) +
         R"(    *) found= ;;
  esac
  case $cur in
    -*) ;;
    *) case $found in -*) found= ;; esac ;;
  esac
  COMPREPLY=($(compgen -W "$found" -- "$cur"))
  case ${COMPREPLY[0]-} in *=) compopt -o nospace ;; esac
}
complete -o default -F _simplescale simplescale
)";
}

std::string zsh_script(const CLI::App& app) {
  return R"(#compdef simplescale
# Completes the command line of simplescale in zsh.
_simplescale() {
  local command=${words[2]} found keys=")" +
         joined(key_words(), " ") + R"("
  (( CURRENT > 2 )) || command=
  case $command in
    )" + groups_of(app) +
         R"() (( CURRENT < 4 )) || command="$command ${words[3]}" ;;
  esac
  case $command in
)" + cases_of(app) +
         R"(    *) found= ;;
  esac
  local -a all=(${(s: :)found})
  if [[ $PREFIX == -* || $found != -* ]]; then
    compadd -S '' -- ${(M)all:#*=}
    compadd -- ${all:#*=}
  else
    _files
  fi
}
if [ "$funcstack[1]" = "_simplescale" ]; then
  _simplescale "$@"
else
  compdef _simplescale simplescale
fi
)";
}

std::string fish_script(const CLI::App& app) {
  std::string text = "# Completes the command line of simplescale in fish.\n";
  const std::string line = "complete -c simplescale ";
  std::string with_keys;
  for (const NamedCommand& command : all_commands(app)) {
    const size_t space = command.name.find(' ');
    const std::string first = command.name.substr(0, space);
    const bool inner = space != std::string::npos;
    const std::string here = inner ? command.name.substr(space + 1) : first;
    const std::string at =
        inner ? "'__fish_seen_subcommand_from " + first + "'" : "__fish_use_subcommand";
    text += line + "-f -n " + at + " -a " + here + " -d " + quoted(command.app->get_description()) +
            "\n";
    const std::string in = " '__fish_seen_subcommand_from " + here + "'";
    for (const CLI::Option* option : command.app->get_options()) {
      std::string flags;
      for (const std::string& name : option->get_snames()) flags += " -s " + name;
      for (const std::string& name : option->get_lnames()) flags += " -l " + name;
      if (flags.empty()) continue;
      text += line + "-n" + in + flags + (option->get_items_expected_max() > 0 ? " -r" : "") +
              " -d " + quoted(option->get_description()) + "\n";
    }
    if (takes_keys(*command.app)) with_keys += " " + here;
  }
  for (const schema::Key& key : schema::keys())
    text += line + "-n '__fish_seen_subcommand_from" + with_keys + "' -a '--" + key.full_name() +
            "=' -d " + quoted(key.comment) + "\n";
  return text;
}

/// The text without what man would take for a request or an escape sequence.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (out.empty() && (c == '.' || c == '\'')) out = "\\&";
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  return out;
}

/// "FOLDER" of `export CHECKPOINT FOLDER`, "[NAME]" if it may be missing.
std::string positional(const CLI::Option& option) {
  const std::string name =
      option.get_name(true) + (option.get_items_expected_max() > 1 ? "..." : "");
  return option.get_required() ? name : "[" + name + "]";
}

std::string man_command(const NamedCommand& command) {
  std::string call = "simplescale " + command.name, options;
  for (const CLI::Option* option : command.app->get_options()) {
    const std::vector<std::string> flags = flags_of(*option);
    const std::string value =
        !flags.empty() && option->get_items_expected_max() > 0 ? " VALUE" : "";
    if (flags.empty()) call += " " + positional(*option);
    options += ".TP\n.B " + roff(flags.empty() ? option->get_name(true) : joined(flags) + value) +
               "\n" + roff(option->get_description()) + "\n";
  }
  if (takes_keys(*command.app)) call += " [--section.key=value ...]";
  std::string text =
      ".SS " + roff(call) + "\n" + roff(command.app->get_description()) + ".\n" + options;
  const std::vector<std::string> lines = example_lines(command.name);
  if (lines.empty()) return text;
  text += ".PP\nExamples:\n.PP\n.nf\n";
  for (const std::string& line : lines) text += "    " + roff(line) + "\n";
  return text + ".fi\n";
}

}  // namespace

void add_examples(CLI::App& app) {
  for (const NamedCommand& command : all_commands(app)) {
    const std::vector<std::string> lines = example_lines(command.name);
    if (lines.empty()) continue;
    std::string text = command.app->get_footer();
    text += (text.empty() ? "Examples:" : "\n\nExamples:");
    for (const std::string& line : lines) text += "\n  " + line;
    command.app->footer(text);
  }
  app.footer(
      "Examples:\n  simplescale train configs/quickstart.toml\n"
      "  simplescale status runs/quickstart\n"
      "  simplescale help train        the options of a command, with examples");
}

std::string completion_script(const CLI::App& app, const std::string& shell) {
  if (shell == "bash") return bash_script(app);
  return shell == "zsh" ? zsh_script(app) : fish_script(app);
}

std::string man_page(const CLI::App& app) {
  std::string text =
      ".TH SIMPLESCALE 1 \"\" \"simplescale " SIMPLESCALE_VERSION
      "\"\n.SH NAME\nsimplescale \\- pretrains Llama, Mistral, Qwen and OLMo models on many nodes, "
      "and "
      "keeps training while machines fail\n.SH SYNOPSIS\n.B simplescale\n.I "
      "COMMAND\n[\\fIARGUMENTS\\fR]\n"
      ".SH DESCRIPTION\nA run is described by one TOML file and lives in one folder. Keys of the "
      "file can be set on the command line, as \\-\\-section.key=value or \\-\\-section.key value."
      "\n.SH COMMANDS\n";
  for (const NamedCommand& command : all_commands(app))
    if (commands_of(*command.app).empty()) text += man_command(command);
  return text +
         ".SH EXIT STATUS\n.TP\n0\ndone, or stopped on request\n.TP\n3\ntraining gave up, or "
         "doctor "
         "found a host that fails a check\n.TP\n64\nthe command line is wrong\n.TP\n65\na file is "
         "missing or damaged\n.TP\n74\nan I/O error\n.TP\n75\nstopped before the end; start the "
         "run again\n.TP\n78\nthe configuration is wrong\n.SH FILES\n.TP\nruns/NAME\nthe folder of "
         "a run, by default\n.TP\ndata/NAME\nits tokens, by default\n";
}

}  // namespace simplescale
