#include "app/launch/prepare_tasks.hpp"

#include <filesystem>

#include "app/launch/moved_run.hpp"
#include "app/terminal.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "tools/prepare/task_encode.hpp"
#include "tools/prepare/task_file.hpp"

namespace simplescale {

bool uses_kept_tasks(const RunFolder& run, const Config& config) {
  std::error_code error;
  if (config.train.tasks.empty() || std::filesystem::exists(config.train.tasks, error) ||
      !std::filesystem::exists(run.tasks(), error))
    return false;
  const auto before = recorded_config(run);
  return before.ok() && *before &&
         is_named_alike((*before)->train.tasks, **before, config.train.tasks, config);
}

Status check_tasks(const Config& config) {
  if (config.train.tasks.empty()) return {};
  if (const RunFolder run{run_folder(config)}; uses_kept_tasks(run, config)) {
    terminal::error(
        "simplescale: warning: train.tasks: %s is gone; the run goes on with its copy, %s\n",
        config.train.tasks.c_str(), run.tasks().c_str());
    return {};
  }
  std::string warning;
  const Status read = read_tasks(config.train.tasks, &warning).status();
  if (!warning.empty()) terminal::error("simplescale: warning: %s\n", warning.c_str());
  return read;
}

Result<std::vector<TaskTokens>> task_tokens(const Config& config, const ModelShape& shape,
                                            const std::string& tokenizer) {
  const std::string& path = config.train.tasks;
  if (path.empty()) return std::vector<TaskTokens>();
  if (tokenizer.empty())
    return Status(
        Code::bad_config,
        "train.tasks = \"" + path +
            "\" needs the tokenizer of the run's data, which is bare tokens: set tokenizer.path "
            "to the tokenizer that made them, or leave out train.tasks");
  if (const RunFolder run{run_folder(config)}; uses_kept_tasks(run, config))
    return read_task_tokens(run.tasks(), shape.block_size, shape.vocab);
  SS_ASSIGN(const Tokenizer loaded, Tokenizer::load(tokenizer));
  SS_ASSIGN(const std::vector<TaskRow> rows, read_tasks(path));
  auto tokens = encode_tasks(rows, loaded, shape.block_size, shape.vocab);
  if (!tokens.ok()) return tokens.status().in(path);
  return tokens;
}

Status keep_tasks(const RunFolder& run, const std::vector<TaskTokens>& tasks) {
  if (!tasks.empty()) return write_task_tokens(run.tasks(), tasks);
  std::error_code error;
  std::filesystem::remove(run.tasks(), error);
  return {};
}

}  // namespace simplescale
