// The program `simplescale`: its command line. Everything that needs libtorch is in
// simplescale-compute beside it, so that consoles and agents start in milliseconds.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "app/commands/commands.hpp"
#include "app/commands/runs.hpp"
#include "app/processes/http_process.hpp"
#include "app/report.hpp"
#include "app/slurm/job.hpp"
#include "app/usage.hpp"
#include "runtime/base/log.hpp"

namespace simplescale {
namespace {

struct Arguments {
  std::string config, run, folder, checkpoint, dtype = "float32", node, standby_of, who, grep;
  std::vector<std::string> commands, runs;
  std::string runs_folder = "runs", output = "plot.svg";
  SweepOptions sweep;
  std::string trace_output;
  bool list = false, json = false, watch = false, follow = false, dry_run = false;
  bool oversubscribe = false;
  int code = 0;
};

int run(int argc, char** argv) {
  CLI::App app(
      "simplescale: pretrains Llama models on many nodes and does not stop when machines fail",
      "simplescale");
  app.set_version_flag("--version", SIMPLESCALE_VERSION);
  app.require_subcommand(1);
  Arguments a;
  int code = 0;
  auto command = [&](CLI::App& parent, const char* name, const char* text, auto body) {
    CLI::App* sub = parent.add_subcommand(name, text);
    sub->callback([&code, body, sub] { code = body(sub); });
    return sub;
  };
  auto config_of = [&](CLI::App* sub) {
    sub->add_option("CONFIG", a.config, "a TOML file")->required();
    sub->allow_extras();
    sub->footer("--section.key=value sets a key of the configuration; see configs/reference.toml");
    return sub;
  };

  CLI::App* train = config_of(command(
      app, "train", "start a run, or go on with it if its folder has one", [&](CLI::App* sub) {
        return report(train_command(a.config, sub->remaining(), a.run, a.oversubscribe));
      }));
  train->add_option("--run", a.run, "the run's folder (run.folder)");
  train->add_flag("--oversubscribe", a.oversubscribe,
                  "also with more processes than this host seems to have room for");
  CLI::App* submit = config_of(command(
      app, "submit", "train as a job of Slurm: writes the batch script, shows it, submits it",
      [&](CLI::App* sub) {
        return report(submit_command(a.config, sub->remaining(), a.run, a.dry_run));
      }));
  submit->add_option("--run", a.run, "the run's folder (run.folder)");
  submit->add_flag("--dry-run", a.dry_run, "does not submit it");
  config_of(
      command(app, "prepare", "text to tokens: tokenizer and token files",
              [&](CLI::App* sub) { return report(prepare_command(a.config, sub->remaining())); }));

  CLI::App* config = app.add_subcommand("config", "look at a configuration");
  config->require_subcommand(1);
  config_of(command(
      *config, "show", "the resolved configuration, where each value came from, and the plan",
      [&](CLI::App* sub) { return report(config_show_command(a.config, sub->remaining())); }));
  config_of(command(
      *config, "validate", "errors with file and line, or nothing",
      [&](CLI::App* sub) { return report(config_validate_command(a.config, sub->remaining())); }));

  command(app, "digest", "one line a tensor with its hash, and the hash of all",
          [&](CLI::App*) { return report(digest_text_command(a.checkpoint)); })
      ->add_option("CHECKPOINT", a.checkpoint, "a checkpoint, or a run (its newest)")
      ->required();

  CLI::App* exporting = command(
      app, "export", "a Hugging Face Llama folder from a checkpoint",
      [&](CLI::App*) { return report(export_text_command(a.checkpoint, a.folder, a.dtype)); });
  exporting->add_option("CHECKPOINT", a.checkpoint, "a checkpoint, or a run (its newest)")
      ->required();
  exporting->add_option("FOLDER", a.folder, "the folder to make")->required();
  exporting->add_option("--dtype", a.dtype, "float32 or bfloat16")
      ->check(CLI::IsMember({"float32", "bfloat16"}));

  CLI::App* importing =
      command(app, "import", "a checkpoint from a Hugging Face Llama folder",
              [&](CLI::App*) { return report(import_text_command(a.folder, a.checkpoint)); });
  importing->add_option("FOLDER", a.folder, "a folder with config.json and *.safetensors")
      ->required();
  importing->add_option("CHECKPOINT", a.checkpoint, "the checkpoint to make")->required();

  command(app, "verify", "checks every checkpoint, the sample ledger and the event log of a run",
          [&](CLI::App*) { return report(verify_text_command(a.run)); })
      ->add_option("RUN", a.run, "the run's folder")
      ->required();

  CLI::App* status =
      command(app, "status", "the supervision tree, step, rate, recoveries",
              [&](CLI::App*) { return report(status_command(a.run, a.json, a.watch)); });
  status->add_option("RUN", a.run, "the run's folder")->required();
  status->add_flag("--json", a.json, "as JSON");
  status->add_flag("--watch", a.watch, "again every second");

  CLI::App* console =
      command(app, "console", "the console of a run: asks and tells its supervisor",
              [&](CLI::App*) { return report(console_command(a.run, a.commands, a.json)); });
  console->add_option("RUN", a.run, "the run's folder")->required();
  console->add_option("-c", a.commands,
                      "carries out a command and ends; -c help lists them; may be repeated");
  console->add_flag("--json", a.json, "answers as JSON");

  CLI::App* runs = command(app, "runs", "a table of the runs in a folder",
                           [&](CLI::App*) { return report(runs_command(a.runs_folder, a.json)); });
  runs->add_option("FOLDER", a.runs_folder, "where the runs are (runs)");
  runs->add_flag("--json", a.json, "as JSON");

  CLI::App* plot =
      command(app, "plot", "loss, throughput and recoveries over steps, runs in one picture",
              [&](CLI::App*) { return report(plot_command(a.runs, a.output)); });
  plot->add_option("RUN", a.runs, "a run's folder, or a folder of runs")->required();
  plot->add_option("-o,--output", a.output, "FILE.svg or FILE.png (plot.svg)");

  CLI::App* sweep = config_of(command(
      app, "sweep", "trains all runs of a [sweep], one after the other; goes on with what is left",
      [&](CLI::App* sub) {
        a.sweep.config = a.config;
        a.sweep.folder = a.run;
        a.sweep.overrides = sub->remaining();
        return report(sweep_command(a.sweep));
      }));
  sweep->add_option("--run", a.run, "the sweep's folder (run.folder)");
  sweep->add_flag("--submit", a.sweep.submit, "as a job array of Slurm instead");
  sweep->add_flag("--dry-run", a.sweep.dry_run, "with --submit: does not submit it");
  sweep->add_flag("--summary", a.sweep.summary, "only the table and the plot of what there is");

  CLI::App* logs =
      command(app, "logs", "the logs of a run's processes, merged by time",
              [&](CLI::App*) { return report(logs_command(a.run, a.who, a.follow, a.grep)); });
  logs->add_option("RUN", a.run, "the run's folder")->required();
  logs->add_option("NODE|TRAINER", a.who, "only of a node (n1), a trainer (n1.0), \"supervisor\"");
  logs->add_flag("--follow,-f", a.follow, "goes on with what is written, until Ctrl-C");
  logs->add_option("--grep", a.grep, "only what matches this regular expression (grep -E)");

  CLI::App* trace = command(
      app, "trace", "a trace of a run (metrics.trace_steps, recoveries) for ui.perfetto.dev",
      [&](CLI::App*) { return report(trace_command(a.run, a.who, a.trace_output, a.list)); });
  trace->add_option("RUN", a.run, "the run's folder")->required();
  trace->add_option("NAME", a.who, "which one (the newest)");
  trace->add_option("-o,--output", a.trace_output, "the file (RUN/traces/NAME.json)");
  trace->add_flag("--list", a.list, "only lists what there is, the newest last");

  CLI::App* doctor = command(
      app, "doctor",
      "checks this machine before a run; in an allocation of Slurm, all hosts and their links",
      [&](CLI::App* sub) { return doctor_command(a.config, sub->remaining(), a.run, a.json); });
  doctor->add_option("CONFIG", a.config, "a TOML file: checks where its run would write");
  doctor->allow_extras();
  doctor->add_option("--run", a.run, "the run's folder (run.folder)");
  doctor->footer(
      "exit code 0: fit to train; 3: not, and the last line says who and why. Waits for hosts at "
      "most --cluster.join_timeout_ms at a time");
  doctor->add_flag("--json", a.json, "as JSON");

  for (const auto& [name, text] :
       {std::pair{"generate", "samples text from a run or checkpoint"},
        std::pair{"evaluate", "validation loss and perplexity of a run or checkpoint"}}) {
    CLI::App* compute = command(app, name, text, [name = std::string(name)](CLI::App* sub) {
      return report(compute_command(name, sub->remaining()));
    });
    compute->prefix_command();
    compute->set_help_flag();  // simplescale-compute answers --help
  }

  CLI::App* agent = command(app, "agent", "a node's agent",
                            [&](CLI::App*) { return agent_command(a.run, a.node); });
  agent->group("");  // started by train, not by people
  agent->add_option("--run", a.run)->required();
  agent->add_option("--node", a.node)->required();

  CLI::App* requeue = command(app, "requeue", "the end of a batch script",
                              [&](CLI::App*) { return requeue_command(a.run, a.code); });
  requeue->group("");
  requeue->add_option("RUN", a.run)->required();
  requeue->add_option("--code", a.code, "srun's exit code")->required();

  static HttpProcessOptions http_options;
  CLI::App* http = command(app, "http", "HTTP for a run",
                           [](CLI::App*) { return run_http_process(http_options); });
  http->group("");  // started by supervisors
  http->add_option("--run", http_options.run)->required();
  http->add_option("--host", http_options.host)->required();
  http->add_option("--port", http_options.port)->required();
  http->add_option("--epoch", http_options.epoch);
  http->add_option("--delay-ms", http_options.delay_ms);

  CLI::App* supervisor =
      command(app, "supervisor", "the supervisor of a run, or its standby",
              [&](CLI::App*) { return supervisor_command(a.run, a.node, a.standby_of); });
  supervisor->group("");  // started by agents
  supervisor->add_option("--run", a.run)->required();
  supervisor->add_option("--node", a.node)->required();
  supervisor->add_option("--standby-of", a.standby_of, "a supervisor's address");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return report_usage(app, error, {argv + 1, argv + argc});
  }
  return code;
}

}  // namespace
}  // namespace simplescale

int main(int argc, char** argv) {
  simplescale::init_logging("simplescale");
  try {
    return simplescale::run(argc, argv);
  } catch (const std::exception& error) {  // such as a file system that answers oddly
    return simplescale::report({simplescale::Code::internal, error.what()});
  }
}
