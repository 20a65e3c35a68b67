#include "app/launch/run_view.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "app/launch/command_line.hpp"
#include "app/terminal.hpp"
#include "runtime/base/bounded_read.hpp"
#include "runtime/base/duration.hpp"
#include "runtime/base/files.hpp"
#include "runtime/base/json_members.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/base/process.hpp"
#include "runtime/base/words.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/config/risk.hpp"
#include "runtime/run/notice.hpp"
#include "runtime/run/run_state.hpp"
#include "runtime/training/task_score.hpp"

namespace simplescale {

using nlohmann::json;

namespace {
constexpr std::chrono::milliseconds kLookEvery{500};  // between two reads of the status
constexpr std::chrono::seconds kPrintEvery{30};       // between two lines of steps in a log
}  // namespace

RunView::RunView(RunFolder run, const Config& config, const Plan& plan, bool attached)
    : run_(std::move(run)), config_(config), plan_(plan) {
  line_.print_line("run " + run_.path + ": " + std::to_string(plan.parameters) + " parameters, " +
                   counted(plan.topology.groups, "group") + " x " +
                   counted(plan.topology.shards, "trainer") + " on " +
                   counted(plan.topology.nodes, "node") + ", " + counted(plan.max_steps, "step") +
                   " of " + std::to_string(plan.tokens_per_step) + " tokens");
  line_.print_line(risk_line(risk_of(config, plan)));
  metrics_.skip(attached);  // the lines of earlier starts
  events_.skip(false);
  if (!attached && draws()) line_.draw("starting", 0, "");
}

void RunView::update() {
  for (std::string line; events_.next(line);) on_event(line);
  for (std::string line; metrics_.next(line);) on_step(line);
  show_state();
  show_page();
}

/// Prints the address of the run's page on a terminal, once the supervisor of this start serves it.
void RunView::show_page() {
  if (page_shown_ || last_step_ == 0) return;
  page_shown_ = true;
  const std::string url = page_url_of(run_);
  if (url.empty()) return;
  // The address has the token, and other users may be able to read a log (in Slurm
  // RUN/logs/slurm-JOB.out).
  line_.print_line("the run's page: " +
                   (line_.terminal()
                        ? url
                        : command_line({"status", shown_path(run_.path)}) + " shows its address"));
}

/// Shows the parts of status.json other than steps.
void RunView::show_state() {
  const auto now = std::chrono::steady_clock::now();
  if (now - read_ < kLookEvery) return;
  read_ = now;
  std::ifstream file = open_lines(run_.status());
  std::string head;  // the text before the nodes
  if (!next_line(file, head)) return;
  const json status = parse_json(head + "]}");
  if (text_of(status, "instance") != instance_of(run_)) return;
  show_notice(status);
  if (last_step_ > 0 && now - looked_ >= kLookEvery) show_stall(status);
}

/// Warns once when records are not written, and reports once when they are written again. A
/// checkpoint that was not saved has its own event.
void RunView::show_notice(const json& status) {
  json records = status;
  records.erase("checkpoint_failed");
  const std::string notice = ends_run(text_of(status, "state")) ? "" : notice_of(run_, records);
  if (notice.empty() != noticed_) return;
  noticed_ = !notice.empty();
  line_.print_line(noticed_ ? "warning: " + notice : "the run's records are written again");
}

/// Shows a stall instead of the newest step; if stderr is no terminal, shows only its beginning.
void RunView::show_stall(const json& status) {
  const json& stall = member_of(status, "stall");
  looked_ = std::chrono::steady_clock::now();
  if (!stall.is_object()) return;
  const std::string sentence = text_of(stall, "sentence");
  if (draws())
    draw_step(sentence);
  else if (!stalled_)
    line_.print_line(sentence);
  stalled_ = true;
}

bool RunView::draws() const {
  struct stat output {};
  const bool pipe = fstat(STDOUT_FILENO, &output) == 0 && S_ISFIFO(output.st_mode);
  return line_.terminal() && !pipe;
}

void RunView::draw_step(const std::string& text) {
  line_.draw(fmt::format("step {}/{}", last_step_, plan_.max_steps),
             static_cast<double>(last_step_) / static_cast<double>(plan_.max_steps), text);
}

void RunView::on_step(const std::string& text) {
  const json m = parse_json(text);
  const double loss = real_of(m, "loss"), norm = real_of(m, "grad_norm");
  const int64_t step = whole_of(m, "step");
  const bool reported =
      !std::isnan(loss) || !std::isnan(norm);  // a gradient norm alone: no target counts
  if (!reported || step < 1 || step > plan_.max_steps) return;
  last_step_ = step;
  stalled_ = false;
  looked_ = std::chrono::steady_clock::now();
  const auto or_zero = [&](const char* key) {
    const double value = real_of(m, key);
    return std::isnan(value) ? 0 : value;
  };
  const double step_ms = or_zero("step_ms"), share = real_of(m, "mfu");
  const std::string shown_loss = std::isnan(loss) ? "loss none" : fmt::format("loss {:.4f}", loss);
  std::string pace = fmt::format("{:.0f} tokens/s", or_zero("tokens_per_second"));
  if (!std::isnan(share)) pace += fmt::format(", mfu {:.1f} %", share * 100);
  pace += ", " + duration(or_zero("remaining_s")) + " left";
  if (draws()) draw_step(fmt::format("{}, {:.0f} ms, {}", shown_loss, step_ms, pace));
  const int64_t every = std::max<int64_t>({1, plan_.max_steps / 20, config_.metrics.every_steps});
  const bool due = last_step_ % every == 0 || last_step_ == plan_.max_steps || printed_step_ < 0 ||
                   looked_ - printed_ >= kPrintEvery;
  if (!due || (draws() && isatty(STDOUT_FILENO))) return;
  printed_step_ = last_step_;
  printed_ = looked_;
  std::string iter, iter_time;  // as the paper's log has them
  if (config_.metrics.iterations) {
    const int64_t each = plan_.samples_per_iter();
    const int64_t of_step =
        (static_cast<int64_t>(plan_.batch.size(static_cast<uint64_t>(last_step_))) + each - 1) /
        each;
    iter = fmt::format("iter {} ", whole_of(m, "iter"));
    iter_time = fmt::format(", iter time {:.2f} ms", step_ms / static_cast<double>(of_step));
  }
  line_.print_result(
      fmt::format("{}step {}/{}: {}{}, learning rate {:.3g}, gradient norm {:.3g}, {}", iter,
                  last_step_, plan_.max_steps, shown_loss, iter_time, or_zero("lr"), norm, pace));
}

void RunView::on_event(const std::string& text) {
  const json e = parse_json(text);
  const std::string kind = text_of(e, "kind"), reason = text_of(e, "reason");
  const int64_t step = whole_of(e, "step"), incident = whole_of(e, "incident");
  if (kind == "validated" && e.contains("val_loss")) {
    const auto shown = [](const json& loss) {
      return loss.is_number() ? fmt::format("{:.4f}", loss.get<double>()) : "none";
    };
    std::string sources;
    for (const auto& [name, loss] : member_of(e, "val_losses").items())
      sources += fmt::format("{}{} {}", sources.empty() ? ": " : ", ", name, shown(loss));
    line_.print_result(
        fmt::format("step {}: validation loss {}{}", step, shown(e["val_loss"]), sources));
  }
  if (kind == "validated") {
    if (const std::string scores = task_text(member_of(e, "tasks")); !scores.empty())
      line_.print_result(fmt::format("step {}: {}", step, scores));
  } else if (kind == "no_targets") {
    if (warned_.insert(text_of(e, "subject")).second) line_.print_line("warning: " + reason);
  } else if (kind == "recovered" && incident > 0) {
    line_.print_line(fmt::format("incident {}: {}", incident, text_of(e, "sentence", reason)));
  } else if (kind == "checkpoint_failed") {
    line_.print_line(
        fmt::format("{} was not saved: {}", text_of(e, "subject", "a checkpoint"), reason));
  } else if ((kind == "started" || kind == "checkpoint_skipped" || kind == "upload_failed") &&
             !reason.empty()) {
    line_.print_line(reason);
  }
  if (ends_run(kind)) last_reason_ = reason;
}

Status RunView::finish(int exit_code, const std::string& killed_agents, const std::string& reason) {
  update();
  line_.clear();
  if (last_reason_.empty())
    last_reason_ = reason;  // of a run that had ended before this view began
  if (exit_code != 0) return failure(exit_code, killed_agents, reason);
  if (print_summary() && config_.train.sample_tokens > 0) print_sample();
  return {};
}

Status RunView::failure(int exit_code, const std::string& killed_agents,
                        const std::string& reason) const {
  const auto is = [exit_code](Code code) { return exit_code == simplescale::exit_code(code); };
  const std::string why = !last_reason_.empty() ? last_reason_
                          : !reason.empty()     ? reason
                                                : "the run ended without giving a reason";
  const bool resumes = !is(Code::bad_data) && !is(Code::bad_config);
  const std::string text =
      why + ";" + killed_agents + " logs are in " + run_.logs() +
      (resumes ? "; to continue from the newest checkpoint: " + resume_command_line() : "");
  if (exit_code == -1) return Status(Code::requeue, text);
  for (const Code code : {Code::gave_up, Code::requeue, Code::bad_data, Code::bad_config, Code::io})
    if (is(code)) return Status(code, text);
  return Status(Code::internal, text);
}

std::string RunView::resume_command_line() const {
  return command_line({"resume", shown_path(run_.path)});
}

bool RunView::print_summary() const {
  const RunRecords records = read_records(run_);
  terminal::print("%s\n", last_reason_.c_str());
  const auto print_range = [](const char* name, double first, double last) {
    terminal::print(first == last ? "  %-16s %.4f\n" : "  %-16s %.4f -> %.4f\n", name, first, last);
  };
  uint64_t step = 0;
  std::vector<double> losses;  // of the steps that have a loss
  size_t without = 0;
  for (const MetricsRow& row : records.rows) {
    if (const auto loss = row.find("loss"))
      losses.push_back(*loss);
    else
      without += row.find("grad_norm").has_value();
  }
  if (!losses.empty()) print_range("training loss", losses.front(), losses.back());
  if (without > 0)
    terminal::print("  without targets  %zu of %zu steps\n", without, records.rows.size());
  if (!records.rows.empty()) step = records.rows.back().at.step;
  if (!records.val_losses.empty())
    print_range("validation loss", records.val_losses.front().second,
                records.val_losses.back().second);
  const auto lowest =
      std::ranges::min_element(records.val_losses, {}, [](const auto& at) { return at.second; });
  if (lowest != records.val_losses.end() && lowest->second < records.val_losses.back().second)
    terminal::print("  lowest           %.4f at step %llu\n", lowest->second,
                    static_cast<unsigned long long>(lowest->first));
  if (const std::string first = task_text(records.first_tasks), last = task_text(records.tasks);
      !last.empty())
    terminal::print("  tasks            %s\n    at the start   %s\n", last.c_str(), first.c_str());
  std::error_code error;
  const std::string best = checkpoint_folder(config_) + "/best";
  const auto saved = find_newest_valid(checkpoint_folder(config_), Verify::sizes);
  terminal::print(
      "  run folder       %s\n  metrics, events  metrics.jsonl, events.jsonl, ledger.jsonl\n"
      "  checkpoint       %s\n  logs             logs/\n",
      run_.path.c_str(),
      saved.ok() ? shown_path(saved->checkpoint.folder()).c_str() : "none: nothing was saved");
  if (std::filesystem::exists(best, error))
    terminal::print("  best checkpoint  %s (lowest validation loss)\n", shown_path(best).c_str());
  const bool done = step >= static_cast<uint64_t>(plan_.max_steps);
  if (!done) terminal::print("to continue: %s\n", resume_command_line().c_str());
  std::fflush(stdout);
  return done;
}

void RunView::print_sample() const {
  SpawnOptions command;
  command.argv = {program_folder() + "/simplescale-compute",
                  "generate",
                  run_.path,
                  "--prompt",
                  config_.train.sample_prompt,
                  "--max-tokens",
                  std::to_string(config_.train.sample_tokens),
                  "--temperature",
                  "0.8",
                  "--seed",
                  "1"};
  command.inherits = Inherits::needed;
  terminal::print("a sample:\n");
  std::fflush(stdout);
  auto child = spawn(command);
  int status = 0;
  if (child.ok()) waitpid(*child, &status, 0);
}

}  // namespace simplescale
