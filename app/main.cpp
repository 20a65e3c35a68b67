// The program `simplescale`: its command line. Commands that need libtorch are in
// simplescale-compute beside it, so that consoles and agents start in milliseconds.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "app/commands/commands.hpp"
#include "app/commands/runs.hpp"
#include "app/hosts/hosts.hpp"
#include "app/processes/http_process.hpp"
#include "app/report.hpp"
#include "app/slurm/job.hpp"
#include "app/terminal.hpp"
#include "app/usage.hpp"
#include "app/usage_texts.hpp"
#include "runtime/base/words.hpp"

namespace simplescale {
namespace {

int print_text(const std::string& text) {
  terminal::text(text);
  return 0;
}

/// Adds all commands to `app` and holds the values of their options. The callback of the command
/// that the user chose runs it and keeps its exit code.
class CommandLine {
 public:
  CommandLine(CLI::App& app, std::vector<std::string> words) : app_(app), words_(std::move(words)) {
    add_training();
    add_checkpoints();
    add_status_and_console();
    add_tables_and_sweep();
    add_logs_and_traces();
    add_doctor();
    add_compute();
    add_help();
    add_internal();
    add_examples(app);
  }
  const int& exit_code() const { return code_; }

 private:
  using Body = std::function<int(CLI::App*)>;

  CLI::App* add(CLI::App& parent, const char* name, const char* help, Body body) {
    CLI::App* command = parent.add_subcommand(name, help);
    command->callback([this, body = std::move(body), command] {
      const Status extras = check_extras(*command);
      code_ = extras.ok() ? body(command) : report_status(extras);
    });
    return command;
  }

  /// A command that takes a configuration: CONFIG, then --section.key=value as often as wanted.
  CLI::App* add_with_config(CLI::App& parent, const char* name, const char* help, Body body) {
    CLI::App* command = add(parent, name, help, std::move(body));
    command->add_option("CONFIG", config_, "a TOML file")->required();
    command->allow_extras();
    command->footer(
        "--section.key=value sets a key of the configuration; configs/reference.toml lists all.");
    return command;
  }

  /// A command of processes: it has no place in --help.
  CLI::App* add_hidden(const char* name, const char* help, Body body) {
    return add(app_, name, help, std::move(body))->group("");
  }

  /// What `train` and `resume` share.
  void add_start_options(CLI::App& command) {
    command.add_flag("--detach,-d", detach_,
                     "train in the background: return once the run has started; the same command "
                     "without --detach shows its progress");
    command.add_option("--skip-samples", skip_samples_,
                       "leave these samples out from now on: FIRST-LAST or a list, 84-87,92; the "
                       "message of a run that gave up names them");
    add_change_option(command);
    command.add_flag("--oversubscribe", oversubscribe_,
                     "start even if this host has too little memory or too few cores");
    add_trust_option(command);
    add_host_options(command,
                     "train on this number of hosts, nodes and spares, without Slurm: call the "
                     "same command on each, with a --node-rank of its own");
  }

  void add_host_options(CLI::App& command, const char* help) {
    CLI::Option* nnodes = command.add_option("--nnodes", rank_.nnodes, help)
                              ->envname("PET_NNODES")
                              ->check(CLI::Range(1, 100'000));
    nnodes->needs(command
                      .add_option("--node-rank", rank_.node_rank,
                                  "with --nnodes: the node that this command is, from 0")
                      ->envname("PET_NODE_RANK")
                      ->check(CLI::NonNegativeNumber));
  }

  /// It takes the place of CONFIG.
  void add_join_option(CLI::App& train) {
    CLI::Option* join = train.add_option(
        "--join", join_, "make this host a node of this run, which trains (cluster.max_nodes)");
    for (const char* other : {"CONFIG", "--run", "--detach", "--nnodes", "--from"})
      join->excludes(train.get_option(other));
    train.get_option("CONFIG")->required(false);
  }
  int join(const CLI::App& train) {
    if (train.remaining().empty()) return report_status(join_command(join_, oversubscribe_));
    return report_status(Status(
        Code::usage, "--join takes the configuration of the run: " + train.remaining().front() +
                         " can be set when the run is started again (resume)"));
  }

  /// Stands for the key run.trust_folder.
  void add_trust_option(CLI::App& command) {
    command.add_flag("--trust-folder", trust_folder_,
                     "write to checkpoint.folder and data.folder also if another user owns them or "
                     "may write them");
  }

  /// Stands for the key run.change_numerics.
  void add_change_option(CLI::App& command) {
    command
        .add_option("--change-numerics", change_numerics_,
                    "go on although this field of the numerics signature has changed, and with it "
                    "the bits of the next steps; may be repeated")
        ->delimiter(',')
        ->allow_extra_args(false);
  }

  /// --from and --with-optimizer stand for the keys run.from and run.with_optimizer.
  void add_parent_options(CLI::App& command) {
    command.add_option("--from", from_,
                       "begin a new run with the weights of this run, checkpoint or Hugging Face "
                       "folder");
    command.add_flag("--with-optimizer", with_optimizer_,
                     "with --from: also take the optimizer's moments and the step");
  }
  Overrides overrides_of(const CLI::App& command) const {
    Overrides overrides = command.remaining();
    if (!from_.empty()) overrides.push_back("--run.from=" + from_);
    if (with_optimizer_) overrides.push_back("--run.with_optimizer=true");
    if (trust_folder_) overrides.push_back("--run.trust_folder=true");
    if (!change_numerics_.empty())
      overrides.push_back("--run.change_numerics=" + joined(change_numerics_, ","));
    if (!skip_samples_.empty()) overrides.push_back("--data.skip_samples=" + skip_samples_);
    return overrides;
  }

  void add_training() {
    CLI::App* train =
        add_with_config(app_, "train", "start a run, continue it, or attach to it if it trains",
                        [this](CLI::App* command) {
                          if (!join_.empty()) return join(*command);
                          if (config_.empty())
                            return report_status(Status(
                                Code::usage, "CONFIG is required; see simplescale train --help"));
                          return report_status(train_command(config_, overrides_of(*command), run_,
                                                             oversubscribe_, detach_, rank_));
                        });
    train->add_option("--run", run_, "the run's folder; overrides run.folder");
    add_parent_options(*train);
    add_start_options(*train);
    add_join_option(*train);

    CLI::App* resume =
        add(app_, "resume", "continue a run with the configuration in its folder, or attach to it",
            [this](CLI::App* command) {
              return report_status(
                  resume_command(run_, overrides_of(*command), oversubscribe_, detach_, rank_));
            });
    resume->add_option("RUN", run_, "the run's folder")->required();
    resume->allow_extras();
    resume->footer(
        "--section.key=value changes what may change in a run: its length, learning "
        "rate, optimizer, layout, checkpoints, supervision, metrics");
    add_start_options(*resume);

    CLI::App* submit = add_with_config(
        app_, "submit", "train as a Slurm job: write the batch script, print it, submit it",
        [this](CLI::App* command) {
          return report_status(submit_command(config_, overrides_of(*command), run_, dry_run_));
        });
    submit->add_option("--run", run_, "the run's folder; overrides run.folder");
    add_parent_options(*submit);
    add_change_option(*submit);
    add_trust_option(*submit);
    submit->add_flag("--dry-run", dry_run_, "only print the script; write and submit nothing");

    CLI::App* prepare = add_with_config(
        app_, "prepare", "convert text to tokens: train the tokenizer, write the token files",
        [this](CLI::App* command) {
          return report_status(prepare_command(config_, overrides_of(*command), jobs_));
        });
    add_trust_option(*prepare);
    prepare->add_option("--jobs", jobs_, "threads that encode text; default: one for each core")
        ->check(CLI::Range(1, 1024));

    CLI::App* config = app_.add_subcommand("config", "show or check a configuration");
    config->require_subcommand(1);
    CLI::App* show = add_with_config(
        *config, "show", "print every key, its value and its origin, and the run's plan",
        [this](CLI::App* command) {
          return report_status(
              program_ ? config_program_command(config_, command->remaining())
                       : config_show_command(config_, command->remaining(), changed_, signature_));
        });
    CLI::Option* changed =
        show->add_flag("--changed", changed_, "only keys with another value than their default");
    CLI::Option* signature =
        show->add_flag("--signature", signature_,
                       "only the numerics signature: all that may change a bit of the weights")
            ->excludes(changed);
    show->add_flag("--program", program_,
                   "only the order of a step: what is gathered, computed and summed when")
        ->excludes(signature)
        ->excludes(changed);
    add_with_config(*config, "validate",
                    "print all that is wrong, with file and line, or that the config is valid",
                    [this](CLI::App* command) {
                      return report_status(config_validate_command(config_, command->remaining()));
                    });
    add(*config, "explain", "print what a key means, its values, its default, what a change does",
        [this](CLI::App*) { return report_status(config_explain_command(key_)); })
        ->add_option("KEY", key_, "a key, as train.max_steps, or a section, as train")
        ->required();
  }

  void add_checkpoints() {
    const char* checkpoint_or_run = "a checkpoint, or a run's folder (its newest checkpoint)";
    add(app_, "digest", "print the hash of every tensor, and one hash of all",
        [this](CLI::App*) { return report_status(digest_text_command(checkpoint_)); })
        ->add_option("CHECKPOINT", checkpoint_, checkpoint_or_run)
        ->required();

    CLI::App* exporting =
        add(app_, "export", "write a checkpoint as a Hugging Face folder", [this](CLI::App*) {
          return report_status(export_text_command(checkpoint_, folder_, dtype_, ema_));
        });
    exporting->add_option("CHECKPOINT", checkpoint_, checkpoint_or_run)->required();
    exporting->add_option("FOLDER", folder_, "the folder to create")->required();
    exporting->add_option("--dtype", dtype_, "type of the weights: float32 (fp32), bfloat16 (bf16)")
        ->transform(CLI::Transformer(
            std::map<std::string, std::string>{{"fp32", "float32"}, {"bf16", "bfloat16"}}))
        ->check(CLI::IsMember({"float32", "bfloat16", "fp32", "bf16"}));
    exporting->add_flag("--ema", ema_, kEmaHelp);

    CLI::App* importing =
        add(app_, "import", "create a checkpoint from a Hugging Face folder", [this](CLI::App*) {
          return report_status(import_text_command(folder_, checkpoint_, upcycle_));
        });
    importing->add_option("FOLDER", folder_, "a folder with config.json and *.safetensors")
        ->required();
    importing->add_option("CHECKPOINT", checkpoint_, "the checkpoint to create")->required();
    importing->add_option("--upcycle", upcycle_,
                          "make experts of each MLP, as experts=8,top_k=2; FOLDER may then also be "
                          "a checkpoint or a run (docs/models.md#experts)");

    add(app_, "verify", "check all checkpoints, the sample ledger and the event log of a run",
        [this](CLI::App*) { return report_status(verify_text_command(run_)); })
        ->add_option("RUN", run_, "the run's folder, or s3://BUCKET/PREFIX with its checkpoints")
        ->required();
  }

  void add_status_and_console() {
    CLI::App* status =
        add(app_, "status", "print a run's supervision tree, step, throughput and recoveries",
            [this](CLI::App*) { return report_status(status_command(run_, json_, watch_)); });
    status->add_option("RUN", run_, "the run's folder")->required();
    status->add_flag("--json", json_, "print JSON");
    status->add_flag("--watch", watch_, "print again every second until the run ends");

    CLI::App* console =
        add(app_, "console", "control a run: send commands to its supervisor",
            [this](CLI::App*) { return report_status(console_command(run_, commands_, json_)); });
    console->add_option("RUN", run_, "the run's folder")->required();
    console->add_option("-c", commands_,
                        "run this command and exit; may be repeated; -c help lists the commands");
    console->add_flag("--json", json_, "print the answers as JSON");
  }

  void add_tables_and_sweep() {
    CLI::App* runs = add(app_, "runs", "print a table of the runs in a folder", [this](CLI::App*) {
      return report_status(runs_command(runs_folder_, json_));
    });
    runs->add_option("FOLDER", runs_folder_, "the folder that holds the runs (default: runs)");
    runs->add_flag("--json", json_, "print JSON");

    CLI::App* plot =
        add(app_, "plot", "plot loss, gradient norm, learning rate and rate of one or several runs",
            [this](CLI::App* command) {
              return report_status(
                  program_ ? plot_program_command(runs_, command->remaining(), output_, network_)
                           : plot_command(runs_, command->remaining(), output_, smooth_));
            });
    plot->add_option("RUN", runs_,
                     "a run's folder, or a folder of runs; with --program a TOML file")
        ->required();
    plot->allow_extras();
    plot->footer("With --program, --section.key=value sets a key of the configuration.");
    plot->add_option("-o,--output", output_, "FILE.svg or FILE.png (default: plot.svg)");
    CLI::Option* smooth =
        plot->add_option("--smooth", smooth_,
                         "steps to average over; 0: no smooth curves (default: 2 %)")
            ->check(CLI::Range(0, 1'000'000'000));
    plot->add_option("--network", network_, "Gb/s that a trainer receives (default: 10; GPUs 400)")
        ->check(CLI::Range(0.001, 1e6))
        ->needs(plot->add_flag("--program", program_,
                               "draw the order of a step, which config show --program prints, over "
                               "time: estimated from FLOP and bytes")
                    ->excludes(smooth));

    CLI::App* report =
        add(app_, "report", "write a run's page with its data as one HTML file",
            [this](CLI::App*) { return report_status(report_command(run_, report_output_)); });
    report->add_option("RUN", run_, "the run's folder")->required();
    report->add_option("-o,--output", report_output_, "the file to write (default: report.html)");

    CLI::App* sweep = add_with_config(
        app_, "sweep", "train all runs of a [sweep], one after the other; skip the finished ones",
        [this](CLI::App* command) {
          sweep_.config = config_;
          sweep_.folder = run_;
          sweep_.overrides = overrides_of(*command);
          return report_status(sweep_command(sweep_));
        });
    sweep->add_option("--run", run_, "the sweep's folder; overrides run.folder");
    add_trust_option(*sweep);
    CLI::Option* to_slurm =
        sweep->add_flag("--submit", sweep_.submit, "submit the runs as a Slurm job array instead");
    CLI::Option* dry_run = sweep->add_flag(
        "--dry-run", sweep_.dry_run,
        "only list the runs (with --submit: print the script); train and write nothing");
    sweep->add_flag("--summary", sweep_.summary, "only write the table and the plot so far")
        ->excludes(to_slurm)
        ->excludes(dry_run);
  }

  void add_logs_and_traces() {
    CLI::App* logs =
        add(app_, "logs", "print the logs of a run's processes, merged by time", [this](CLI::App*) {
          return report_status(logs_command(run_, {process_, grep_, level_, follow_}));
        });
    logs->add_option("RUN", run_, "the run's folder")->required();
    logs->add_option("NODE|TRAINER", process_,
                     "only this process: a node (n1), a trainer (n1.0) or \"supervisor\"");
    logs->add_flag("--follow,-f", follow_, "keep printing new lines until Ctrl-C");
    logs->add_option("--grep", grep_, "only lines that match this regular expression (grep -E)");
    logs->add_option("--level", level_, "only this level and worse: debug, info, warning or error")
        ->check(CLI::IsMember({"debug", "info", "warning", "error"}));

    CLI::App* trace =
        add(app_, "trace",
            "convert a trace of steps (metrics.trace_steps) or a recovery for ui.perfetto.dev",
            [this](CLI::App*) {
              return report_status(trace_command(run_, trace_name_, trace_output_, list_));
            });
    trace->add_option("RUN", run_, "the run's folder")->required();
    CLI::Option* name =
        trace->add_option("NAME", trace_name_, "name of the trace (default: the newest)");
    CLI::Option* output = trace->add_option("-o,--output", trace_output_,
                                            "the file to write (default: RUN/traces/NAME.json)");
    trace->add_flag("--list", list_, "only list the traces, the newest last")
        ->excludes(name)
        ->excludes(output);
  }

  void add_doctor() {
    CLI::App* doctor =
        add(app_, "doctor",
            "check this machine before a run; in a Slurm allocation, all hosts and their links",
            [this](CLI::App* command) {
              return doctor_command(config_, command->remaining(), run_, json_, rank_);
            });
    doctor->add_option("CONFIG", config_, "a TOML file; check the folder that its run writes to");
    doctor->allow_extras();
    doctor->add_option("--run", run_, "the run's folder; overrides run.folder");
    add_host_options(*doctor,
                     "check this number of hosts and their links without Slurm: call the same "
                     "command on each, with a --node-rank of its own");
    doctor->footer(
        "Exit code 0: fit to train. 3: not fit; the last line names the host and the reason. "
        "Each stage waits at most --cluster.join_timeout_ms for the other hosts");
    doctor->add_flag("--json", json_, "print JSON");
  }

  /// simplescale-compute carries these out; it gets the same words.
  void add_compute() {
    const auto compute = [this](CLI::App*) { return report_status(compute_command(words_)); };
    add_generate_options(
        *add(app_, "generate", "generate text with the model of a run or checkpoint", compute),
        generate_);
    add_evaluate_options(
        *add(app_, "evaluate", "print validation loss and perplexity of a run or checkpoint",
             compute),
        evaluate_);
  }

  void add_help() {
    add(app_, "help", "print the help of a command, with examples", [](CLI::App*) {
      return 0;
    })->add_option("COMMAND", help_, "a command; default: the list of all commands");
    add(app_, "completion", "print a script that completes commands, options and keys",
        [this](CLI::App*) { return print_text(completion_script(app_, shell_)); })
        ->add_option("SHELL", shell_, "bash, zsh or fish")
        ->required()
        ->check(CLI::IsMember({"bash", "zsh", "fish"}));
    add(app_, "man", "print the man page", [this](CLI::App*) { return print_man_page(); });
  }

  /// Commands that processes of a run start: launchers start agents, batch scripts `requeue`,
  /// agents supervisors, supervisors HTTP.
  void add_internal() {
    CLI::App* agent = add_hidden("agent", "the agent of a node",
                                 [this](CLI::App*) { return agent_command(run_, node_); });
    agent->add_option("--run", run_)->required();
    agent->add_option("--node", node_)->required();

    CLI::App* requeue = add_hidden("requeue", "the last command of a batch script",
                                   [this](CLI::App*) { return requeue_command(run_, srun_code_); });
    requeue->add_option("RUN", run_)->required();
    requeue->add_option("--code", srun_code_, "srun's exit code")->required();

    CLI::App* http = add_hidden("http", "the HTTP server of a run",
                                [this](CLI::App*) { return run_http_process(http_); });
    http->add_option("--run", http_.run)->required();
    http->add_option("--host", http_.host)->required();
    http->add_option("--port", http_.port)->required();
    http->add_option("--checkpoints", http_.checkpoints);
    http->add_option("--term", http_.term);
    http->add_option("--delay-ms", http_.delay_ms);

    CLI::App* supervisor =
        add_hidden("supervisor", "the supervisor of a run, or its standby",
                   [this](CLI::App*) { return supervisor_command(run_, node_, standby_of_); });
    supervisor->add_option("--run", run_)->required();
    supervisor->add_option("--node", node_)->required();
    supervisor->add_option("--standby-of", standby_of_, "a supervisor's address");
  }

  /// On a terminal as `man` shows it; otherwise, and without `man`, its source.
  int print_man_page() {
    const std::string page = man_page(app_);
    FILE* shown = isatty(STDOUT_FILENO) && std::system("command -v man >/dev/null 2>&1") == 0
                      ? popen("man -l -", "w")
                      : nullptr;
    if (!shown) return print_text(page);
    std::fputs(page.c_str(), shown);
    return pclose(shown) == 0 ? 0 : report_status(Status(Code::io, "`man -l -` failed"));
  }

  CLI::App& app_;
  const std::vector<std::string> words_;  // of the command line, without the program's name
  int code_ = 0;
  std::string join_, config_, run_, folder_, checkpoint_, upcycle_, dtype_ = "float32", node_,
                                                                    standby_of_;
  std::string process_, grep_, level_, key_, trace_name_, trace_output_, shell_, from_;
  std::string skip_samples_;
  std::string runs_folder_ = "runs", output_ = "plot.svg", report_output_ = "report.html";
  std::vector<std::string> commands_, runs_, help_, change_numerics_;
  GenerateOptions generate_;
  EvaluateOptions evaluate_;
  SweepOptions sweep_;
  HttpProcessOptions http_;
  bool list_ = false, json_ = false, watch_ = false, follow_ = false, dry_run_ = false;
  HostRank rank_;
  bool oversubscribe_ = false, detach_ = false, with_optimizer_ = false, changed_ = false;
  bool signature_ = false, program_ = false;
  double network_ = 0;
  bool trust_folder_ = false;
  bool ema_ = false;
  int srun_code_ = 0, jobs_ = 0;
  int64_t smooth_ = kSmoothAutomatically;
};

}  // namespace
}  // namespace simplescale

int main(int argc, char** argv) {
  CLI::App app(
      "simplescale: pretrains Llama, Mistral, Qwen and OLMo models on many nodes, and keeps "
      "training "
      "while machines fail",
      "simplescale");
  simplescale::CommandLine commands(app, {argv + 1, argv + argc});
  return simplescale::run_program(app, argc, argv, commands.exit_code());
}
