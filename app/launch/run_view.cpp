#include "app/launch/run_view.hpp"

#include <fmt/format.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "runtime/base/process.hpp"

namespace simplescale {

using nlohmann::json;

RunView::RunView(RunFolder run, const Config& config, const Plan& plan, std::string config_file)
    : run_(std::move(run)), config_(config), plan_(plan), config_file_(std::move(config_file)) {
  line_.say("run " + run_.path + ": " + std::to_string(plan.parameters) + " parameters, " +
            std::to_string(plan.topology.groups) + " groups x " +
            std::to_string(plan.topology.shards) + " trainers on " +
            std::to_string(plan.topology.nodes) + " nodes, " + std::to_string(plan.max_steps) +
            " steps of " + std::to_string(plan.tokens_per_step) + " tokens");
  for (auto [file, path] :
       {std::pair{&metrics_, run_.metrics()}, std::pair{&events_, run_.events()}}) {
    file->open(path);
    if (file->is_open()) file->seekg(0, std::ios::end);  // what earlier starts wrote is not news
  }
  line_.draw("starting", 0, "");
}

template <class Use>
void RunView::follow(std::ifstream& file, const std::string& path, std::string& partial, Use use) {
  if (!file.is_open()) file.open(path);
  if (!file.is_open()) return;
  file.clear();
  std::string text;
  while (std::getline(file, text)) {
    partial += text;
    if (file.eof()) return;  // a line in the making
    use(partial);
    partial.clear();
  }
}

void RunView::update() {
  follow(events_, run_.events(), partial_event_,
         [this](const std::string& text) { on_event(text); });
  follow(metrics_, run_.metrics(), partial_metric_,
         [this](const std::string& text) { on_step(text); });
}

void RunView::on_step(const std::string& text) {
  const json m = json::parse(text, nullptr, false);
  if (!m.is_object() || !m["loss"].is_number()) return;
  last_loss_ = m["loss"];
  last_step_ = m["step"];
  if (!seen_step_) first_loss_ = last_loss_;
  seen_step_ = true;
  const double rate = m["tokens_per_second"].is_number() ? m["tokens_per_second"].get<double>() : 0;
  const double left_s = m["remaining_s"].is_number() ? m["remaining_s"].get<double>() : 0;
  const std::string mfu =
      m["mfu"].is_number() ? fmt::format("{:.1f}", m["mfu"].get<double>() * 100) : "-";
  if (line_.terminal())
    line_.draw(fmt::format("step {}/{}", last_step_, plan_.max_steps),
               static_cast<double>(last_step_) / static_cast<double>(plan_.max_steps),
               fmt::format("loss {:.4f}, {:.0f} ms, {:.0f} tokens/s, mfu {} %, {:.0f} s left",
                           last_loss_, m["step_ms"].get<double>(), rate, mfu, left_s));
  const int64_t every = std::max<int64_t>({1, plan_.max_steps / 20, config_.metrics.every_steps});
  if (line_.terminal() ||
      (last_step_ % every != 0 && last_step_ != plan_.max_steps && printed_step_ >= 0))
    return;
  printed_step_ = last_step_;
  line_.say(
      fmt::format("iter {} step {}: loss {:.4f}, iter time: {:.2f} ms, {:.0f} tokens/s, mfu {} %, "
                  "remaining time: "
                  "{:.2f} hours",
                  m["iter"].get<int64_t>(), last_step_, last_loss_,
                  m["step_ms"].get<double>() / static_cast<double>(plan_.accumulation), rate, mfu,
                  left_s / 3600));
}

void RunView::on_event(const std::string& text) {
  const json e = json::parse(text, nullptr, false);
  if (!e.is_object()) return;
  const std::string kind = e.value("kind", ""), reason = e.value("reason", ""),
                    subject = e.value("subject", "");
  if (kind == "validated" && e["val_loss"].is_number()) {
    const bool before = !seen_step_;
    (before ? val_before_ : val_after_) = e["val_loss"];
    (before ? seen_before_ : seen_after_) = true;
    line_.say(fmt::format("step {}: validation loss {:.4f}", e.value("step", 0),
                          e["val_loss"].get<double>()));
  } else if (e["incident"].is_number()) {
    const double ms = e["ms"].is_number() ? e["ms"].get<double>() : 0;
    line_.say(fmt::format("incident {} {:>7}: {} {} {} ({:.0f} ms)", e["incident"].get<int64_t>(),
                          e["phase"].is_string() ? e["phase"].get<std::string>() : "", kind,
                          subject, reason, ms));
  } else if ((kind == "started" || kind == "checkpoint_skipped") && !reason.empty()) {
    line_.say(reason);
  }
  if (kind == "failed" || kind == "finished") last_reason_ = reason;
}

Status RunView::end(int exit_code, const std::string& dead, const std::string& reason) {
  update();
  line_.clear();
  if (exit_code != 0) {
    const std::string why = !last_reason_.empty() ? last_reason_
                            : !reason.empty()     ? reason
                                                  : "the supervisor's agent ended without a word";
    const bool goes_on = exit_code != simplescale::exit_code(Code::bad_data) &&
                         exit_code != simplescale::exit_code(Code::bad_config);
    const std::string text = why + ";" + dead + " logs are in " + run_.logs() +
                             (goes_on ? "; `train` goes on from the newest checkpoint" : "");
    if (exit_code == simplescale::exit_code(Code::gave_up)) return Status(Code::gave_up, text);
    if (exit_code == simplescale::exit_code(Code::requeue) || exit_code == -1)
      return Status(Code::requeue, text);
    if (exit_code == simplescale::exit_code(Code::bad_data)) return Status(Code::bad_data, text);
    if (exit_code == simplescale::exit_code(Code::bad_config))
      return Status(Code::bad_config, text);
    if (exit_code == simplescale::exit_code(Code::io)) return Status(Code::io, text);
    return Status(Code::internal, text);
  }
  std::printf("%s\n", last_reason_.c_str());
  if (seen_step_) std::printf("  training loss    %.4f -> %.4f\n", first_loss_, last_loss_);
  if (seen_before_ && seen_after_)
    std::printf("  validation loss  %.4f -> %.4f\n", val_before_, val_after_);
  if (seen_after_ && !seen_before_) std::printf("  validation loss  %.4f\n", val_after_);
  std::printf(
      "  run folder       %s\n  metrics, events  metrics.jsonl, events.jsonl, ledger.jsonl\n"
      "  checkpoint       %s/latest\n  logs             logs/\n",
      run_.path.c_str(),
      config_.checkpoint.folder.empty() ? "checkpoints" : config_.checkpoint.folder.c_str());
  std::fflush(stdout);
  const bool done = last_step_ >= plan_.max_steps;
  if (!done) {
    std::printf("go on with it: simplescale train %s --run=%s\n", config_file_.c_str(),
                run_.path.c_str());
    return {};
  }
  if (config_.train.sample_tokens > 0) {
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
    std::printf("a sample:\n");
    std::fflush(stdout);
    auto child = spawn(command);
    int status = 0;
    if (child.ok()) waitpid(*child, &status, 0);
  }
  return {};
}

}  // namespace simplescale
