// The program `simplescale-compute`: everything that needs libtorch. Node agents start it as a
// trainer; users reach it through `simplescale generate` and `simplescale evaluate`.
#include <CLI/CLI.hpp>

#include "app/commands/generate.hpp"
#include "app/processes/trainer_process.hpp"
#include "app/report.hpp"
#include "app/usage.hpp"

namespace simplescale {
namespace {

/// Adds all commands to `app` and holds the values of their options. The callback of the command
/// that the user chose runs it and keeps its exit code.
class CommandLine {
 public:
  explicit CommandLine(CLI::App& app) {
    add_trainer(app);
    add_generate(app);
    add_evaluate(app);
    add_logits(app);
  }
  const int& exit_code() const { return code_; }

 private:
  void add_trainer(CLI::App& app) {
    CLI::App* command = app.add_subcommand("trainer", "one trainer process of a run")->group("");
    command->add_option("--run", trainer_.run)->required();
    command->add_option("--process", trainer_.process)->required();
    command->callback([this] { code_ = run_trainer_process(trainer_); });
  }

  void add_generate(CLI::App& app) {
    CLI::App* command =
        app.add_subcommand("generate", "generate text with the model of a run or checkpoint");
    add_generate_options(*command, generate_);
    command->callback([this] { code_ = report_status(generate_command(generate_)); });
  }

  void add_evaluate(CLI::App& app) {
    CLI::App* command = app.add_subcommand(
        "evaluate", "print validation loss and perplexity of a run or checkpoint");
    add_evaluate_options(*command, evaluate_);
    command->callback([this] { code_ = report_status(evaluate_command(evaluate_)); });
  }

  void add_logits(CLI::App& app) {
    CLI::App* command =
        app.add_subcommand("logits", "write the logits of samples as a .npy file")->group("");
    command->add_option("RUN|CHECKPOINT", logits_.checkpoint)->required();
    command->add_option("--data", logits_.data, "a token file or prepared folder")->required();
    command->add_option("--samples", logits_.samples)->check(CLI::Range(1, 1'000'000));
    command->add_option("--out", logits_.out)->required();
    command->callback([this] { code_ = report_status(logits_command(logits_)); });
  }

  int code_ = 0;
  TrainerProcessOptions trainer_;
  GenerateOptions generate_;
  EvaluateOptions evaluate_;
  LogitsOptions logits_;
};

}  // namespace
}  // namespace simplescale

int main(int argc, char** argv) {
  CLI::App app("computes with a simplescale model", "simplescale");
  simplescale::CommandLine commands(app);
  return simplescale::run_program(app, argc, argv, commands.exit_code());
}
