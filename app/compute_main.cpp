// The program `simplescale-compute`: what needs libtorch. People reach it through `simplescale
// generate` and `evaluate`; node agents start it as a trainer.
#include <CLI/CLI.hpp>
#include <exception>

#include "app/commands/generate.hpp"
#include "app/processes/trainer_process.hpp"
#include "app/report.hpp"
#include "app/usage.hpp"
#include "runtime/base/log.hpp"

namespace simplescale {
namespace {

int run(int argc, char** argv) {
  CLI::App app("computes with a simplescale model", "simplescale");
  app.set_version_flag("--version", SIMPLESCALE_VERSION);
  app.require_subcommand(1);
  int code = 0;

  TrainerProcessOptions trainer;
  CLI::App* train = app.add_subcommand("trainer", "one trainer process of a run")->group("");
  train->add_option("--run", trainer.run)->required();
  train->add_option("--process", trainer.process)->required();
  train->callback([&] { code = run_trainer_process(trainer); });

  GenerateOptions generate;
  CLI::App* sample = app.add_subcommand("generate", "samples text from a run or checkpoint");
  sample->add_option("RUN|CHECKPOINT", generate.checkpoint, "a run's folder or a checkpoint")
      ->required();
  sample->add_option("--prompt", generate.prompt, "what the text begins with");
  sample->add_option("--max-tokens", generate.max_tokens, "tokens to add")
      ->check(CLI::Range(1, 1'000'000));
  sample->add_option("--temperature", generate.temperature, "0: always the likeliest")
      ->check(CLI::Range(0.0, 100.0));
  sample->add_option("--top-k", generate.top_k, "choose among the K likeliest; 0: all")
      ->check(CLI::Range(0, 1'000'000));
  sample->add_option("--seed", generate.seed);
  sample->callback([&] { code = report(generate_command(generate)); });

  EvaluateOptions evaluate;
  CLI::App* loss =
      app.add_subcommand("evaluate", "validation loss and perplexity of a run or checkpoint");
  loss->add_option("RUN|CHECKPOINT", evaluate.checkpoint, "a run's folder or a checkpoint")
      ->required();
  loss->add_option("--data", evaluate.data,
                   "a token file or prepared folder; default: the run's validation tokens");
  loss->add_option("--samples", evaluate.samples, "at most so many samples; 0: all")
      ->check(CLI::Range(0, 1'000'000'000));
  loss->add_flag("--json", evaluate.json);
  loss->callback([&] { code = report(evaluate_command(evaluate)); });

  LogitsOptions logits;
  CLI::App* dump = app.add_subcommand("logits", "logits of samples as a .npy file")->group("");
  dump->add_option("RUN|CHECKPOINT", logits.checkpoint)->required();
  dump->add_option("--data", logits.data, "a token file or prepared folder")->required();
  dump->add_option("--samples", logits.samples)->check(CLI::Range(1, 1'000'000));
  dump->add_option("--out", logits.out)->required();
  dump->callback([&] { code = report(logits_command(logits)); });

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
