// Commands that only call the library and print its text: prepare, config, digest, export, import,
// verify, status.
#include "app/commands/commands.hpp"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

#include "actors/supervisor/journal.hpp"
#include "actors/trainer/engine_setup.hpp"
#include "app/commands/render.hpp"
#include "app/commands/run_status.hpp"
#include "app/launch/auto_device.hpp"
#include "app/launch/command_line.hpp"
#include "app/launch/mixture_text.hpp"
#include "app/launch/prepare_data.hpp"
#include "app/launch/run_start.hpp"
#include "app/report.hpp"
#include "app/terminal.hpp"
#include "runtime/base/json_members.hpp"
#include "runtime/base/json_text.hpp"
#include "runtime/base/limits.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/base/printable.hpp"
#include "runtime/base/process.hpp"
#include "runtime/checkpoint/run_checkpoints.hpp"
#include "runtime/config/show.hpp"
#include "runtime/config/signature.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/object_store/s3_url.hpp"
#include "runtime/run/agent_lock.hpp"
#include "runtime/run/notice.hpp"
#include "runtime/run/run_folder.hpp"
#include "runtime/run/run_state.hpp"
#include "tools/convert/commands.hpp"
#include "tools/http/facts.hpp"
#include "tools/verify/verify_bucket.hpp"
#include "transport/caf/address.hpp"
#include "transport/stream/address.hpp"

namespace simplescale {

namespace {

/// text: its parts from elsewhere are printable() already.
Status print(const Result<std::string>& text) {
  if (!text.ok()) return text.status();
  terminal::painted(*text);
  if (!text->empty() && text->back() != '\n') terminal::text("\n");
  return std::fflush(stdout) == 0
             ? Status()
             : Status(Code::io, std::string("cannot print: ") + std::strerror(errno));
}

}  // namespace

Status check_is_run(const std::string& run) {
  std::error_code error;
  const RunFolder folder{run};
  if (std::filesystem::exists(folder.config(), error) ||
      std::filesystem::is_directory(folder.control(), error))
    return {};
  return Status(Code::bad_data, "no run in " + run + "; `runs FOLDER` lists the runs of a folder");
}

namespace {

/// Adds why the run is over, and what to type next. died: no process has told of the end.
void tell_end(const RunFolder& run, bool died, nlohmann::json& document) {
  const auto end = end_of(run);
  const std::string resume = command_line({"resume", shown_path(run.path)});
  if (document["state"] == "finished") return;
  document["why"] = end    ? end->reason
                    : died ? "all of its processes ended without a word: they were killed, or "
                             "their hosts went down"
                           : "";
  const bool wrong_input =
      end && (end->code == exit_code(Code::bad_data) || end->code == exit_code(Code::bad_config));
  document["next"] = wrong_input ? "mend what the reason names, then: " + resume
                                 : "to continue from the newest checkpoint: " + resume;
}

}  // namespace

Result<nlohmann::json> current_status(const std::string& run) {
  SS_RETURN_IF_ERROR(check_is_run(run));
  SS_ASSIGN(const std::string text, read_text(RunFolder{run}.status()));
  auto document = parse_json(text);
  if (!document.is_object() || !document["supervisor"].is_object() ||
      !document["nodes"].is_array() || !document["state"].is_string())
    return Status(Code::bad_data, RunFolder{run}.status() + " is damaged");
  const RunFolder folder{run};
  const bool current = text_of(document, "instance") == instance_of(folder);
  if (current && agents_may_live(folder)) {
    if (std::string notice = notice_of(folder, document); !notice.empty())
      document["notice"] = std::move(notice);
    return document;
  }
  const bool held = RunLock::held(folder);
  const bool died = !held && !has_ended(document);
  if (!has_ended(document) || (held && !current))  // else all died without writing an end
    document["state"] = held ? "starting" : "failed";
  if (!held) tell_end(folder, died, document);
  for (nlohmann::json& node : document["nodes"]) {
    if (!node.is_object()) continue;
    node["state"] = "ended";
    node["pid"] = 0;
    for (nlohmann::json& trainer : node["trainers"])
      if (trainer.is_object()) trainer.update({{"state", "ended"}, {"pid", 0}});
  }
  document["supervisor"]["pid"] = 0;
  document["standby"] = nullptr;
  return document;
}

bool has_ended(const nlohmann::json& status) {
  return ends_run(status.value("state", ""));
}

Status prepare_command(const std::string& config, const Overrides& overrides, int jobs) {
  SS_ASSIGN(const LoadedConfig loaded, load_user_config(config, overrides));
  report_notes(loaded.notes);
  return prepare_data(loaded.config, jobs);
}

Status config_show_command(const std::string& config, const Overrides& overrides, bool changed,
                           bool signature) {
  SS_ASSIGN(LoadedConfig loaded, load_user_config(config, overrides));
  report_notes(loaded.notes);
  (void)resolve_device(loaded);
  if (changed) return print(show_changed(loaded));
  Config chosen = loaded.config;
  set_token_folders(chosen);
  if (std::exchange(loaded.config.tokenizer.kind, chosen.tokenizer.kind) != chosen.tokenizer.kind)
    loaded.origin["tokenizer.kind"] = "auto";
  if (signature) {
    SS_ASSIGN(const Plan plan, make_plan(loaded));
    return print(signature_of(loaded.config, plan, arithmetic_of_host(loaded.config)).text());
  }
  return print(show_config(loaded) + mixture_text(loaded.config));
}

Status config_program_command(const std::string& config, const Overrides& overrides) {
  SS_ASSIGN(LoadedConfig loaded, load_user_config(config, overrides));
  (void)resolve_device(loaded);
  SS_ASSIGN(const Plan plan, make_plan(loaded));
  return print(to_text(first_programs(loaded.config, plan)[0], units_of(plan.shape)));
}

Status config_validate_command(const std::string& config, const Overrides& overrides) {
  const CheckedConfig checked = check_user_config(config, overrides);
  const std::vector<Status> problems = validate_config(checked);
  if (problems.empty()) {
    SS_ASSIGN(const RunStart start, resolve_run_start(config, overrides, ""));
    SS_RETURN_IF_ERROR(check_before_start(start));
    return print(valid_text(checked.loaded));
  }
  if (problems.size() == 1) return problems.front();
  for (const Status& problem : problems) report_status(problem);
  return Status(Code::bad_config, config + ": " + std::to_string(problems.size()) + " errors");
}

Status config_explain_command(const std::string& key) {
  return print(explain_key(key));
}

Status digest_text_command(const std::string& checkpoint) {
  return print(digest_command(checkpoint));
}

Status export_text_command(const std::string& checkpoint, const std::string& folder,
                           const std::string& dtype, bool ema) {
  return print(export_command(checkpoint, folder, dtype, ema));
}

Status import_text_command(const std::string& folder, const std::string& checkpoint,
                           const std::string& upcycle) {
  return print(import_command(folder, checkpoint, upcycle));
}

Result<VerifyText> verify_folder(const std::string& run) {
  SS_RETURN_IF_ERROR(check_is_run(run));
  TrainedSamples trained;  // a config.toml that cannot be read is reported by verify_command()
  if (const auto loaded = load_config(RunFolder{run}.config()); loaded.ok())
    if (auto plan = make_plan(loaded->config); plan.ok())
      trained = {std::move(plan->mixture), std::move(plan->batch)};
  return verify_command(run, trained);
}

/// The checkpoints of checkpoint.upload. url: its value.
Result<VerifyText> verify_upload(const std::string& url) {
  SS_ASSIGN(const VerifyReport report, verify_bucket(url, [](const StoredCheckpoint& stored) {
              terminal::error("verifying step %llu\n",
                              static_cast<unsigned long long>(stored.step));
            }));
  return verify_text(url, report);
}

Status verify_text_command(const std::string& run) {
  SS_ASSIGN(const VerifyText result, is_s3_url(run) ? verify_upload(run) : verify_folder(run));
  SS_RETURN_IF_ERROR(print(printable(result.text)));
  return result.ok ? Status() : Status(Code::bad_data, run + " has the errors listed above");
}

/// What carries collectives between hosts, for a run with this configuration.
std::string protection(const RunFolder& run) {
  const auto config = load_config(run.config());
  return collectives_between_hosts(config.ok() ? config->config : Config{});
}

/// What carries the run's messages and collectives, and what protects them (docs/security.md).
void show_network(const RunFolder& run) {
  const auto file = json_of(read_text(run.supervisor()));
  const auto address = remote::parse_address(text_of(file, "address"));
  const auto supervisor = address.ok() ? stream::decode(address->worker) : std::nullopt;
  if (!supervisor) return;
  std::string endpoints;
  for (const stream::Endpoint& each : supervisor->endpoints)
    endpoints += (endpoints.empty() ? "" : ", ") + stream::to_text(each);
  if (endpoints.empty())
    terminal::print("network: not used; Unix sockets and shared memory of one host\n");
  else
    terminal::print("network: messages over encrypted TCP (the supervisor: %s); %s\n",
                    endpoints.c_str(), protection(run).c_str());
}

/// The address of the page, with its token, for users that may read control/.
void show_page(const RunFolder& run) {
  if (const std::string url = page_url_of(run); !url.empty())
    terminal::print("page: %s\n", url.c_str());
  std::fflush(stdout);
}

Status status_command(const std::string& run, bool json, bool watch) {
  while (true) {
    SS_ASSIGN(const nlohmann::json document, current_status(run));
    const bool terminal = isatty(STDOUT_FILENO);
    const RenderOptions look{terminal && !std::getenv("NO_COLOR"), 0, wall_time_s()};
    const bool redraw = watch && terminal && !json;
    if (redraw) terminal::cursor::out(terminal::cursor::kHome);
    if (redraw) terminal::cursor::out(terminal::cursor::kClearScreen);
    SS_RETURN_IF_ERROR(
        print(json ? printable(json_text(document, watch ? -1 : 1)) : render_tree(document, look)));
    if (const std::string signature = text_of(document, "signature"); !json && !signature.empty())
      terminal::print("signature: %s\n", signature.c_str());
    if (!json && !has_ended(document)) {
      show_network(RunFolder{run});
      show_page(RunFolder{run});
    }
    if (!watch || has_ended(document)) return {};
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
}

Status report_command(const std::string& run, const std::string& output) {
  if (!output.ends_with(".html") && !output.ends_with(".htm"))
    return Status(Code::usage, "--output " + output +
                                   ": the report is an HTML page, so the name must end in .html; "
                                   "`plot` writes .svg and .png");
  SS_ASSIGN(const nlohmann::json document, current_status(run));
  const RunFolder folder{run};
  SS_RETURN_IF_ERROR(
      write_output(output, report_page(folder, checkpoints_of(folder), json_text(document))));
  terminal::print("wrote %s\n", output.c_str());
  return {};
}

Status compute_command(const std::vector<std::string>& words) {
  constexpr uint64_t program = uint64_t{650} << 20;  // measured: what libtorch needs at least
  SS_RETURN_IF_ERROR(check_limits(words.empty() ? "" : words[0], {.address_space = program}));
  std::vector<std::string> texts = {program_folder() + "/simplescale-compute"};
  texts.insert(texts.end(), words.begin(), words.end());
  std::vector<char*> argv;
  for (std::string& text : texts) argv.push_back(text.data());
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  return Status(Code::internal, "cannot run " + texts[0] + ": " + std::strerror(errno) +
                                    "; build it with ./simplescale build");
}

}  // namespace simplescale
