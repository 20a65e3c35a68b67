#include "tools/verify/verify_run.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>

#include "runtime/base/bounded_read.hpp"
#include "runtime/base/files.hpp"
#include "runtime/base/json_members.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/base/parse_toml.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/checkpoint/checkpoint_format.hpp"
#include "runtime/checkpoint/run_checkpoints.hpp"
#include "runtime/run/run_folder.hpp"
#include "runtime/run/run_state.hpp"
#include "runtime/training/names.hpp"
#include "runtime/training/skipped_samples.hpp"
#include "tools/verify/metrics_lines.hpp"
#include "tools/verify/verify_mixture.hpp"
#include "tools/verify/verify_samples.hpp"

namespace simplescale {

using nlohmann::json;

namespace {

constexpr size_t kProblemsShownMax = 20;  // per section; further ones are only counted
constexpr int kReadingsMax = 4;           // of records that grow while they are read
constexpr int kWaitsMax = 20;             // of 50 ms, for a line that is missing

/// Collects the problems and notes of one file.
class Section {
 public:
  Section(VerifyReport& report, std::string name) : report_(report), name_(std::move(name)) {}
  ~Section() {
    if (problems_ > kProblemsShownMax)
      report_.lines.push_back(name_ + ": " + std::to_string(problems_ - kProblemsShownMax) +
                              " more problems");
  }
  void problem(const std::string& text) {
    report_.ok = false;
    if (++problems_ <= kProblemsShownMax) report_.lines.push_back(name_ + ": " + text);
  }
  void note(const std::string& text) { report_.lines.push_back(name_ + ": " + text); }
  bool clean() const { return problems_ == 0; }

 private:
  VerifyReport& report_;
  std::string name_;
  size_t problems_ = 0;
};

/// Calls `visit` for every line that is a JSON object with these keys; other lines are problems. An
/// incomplete last line was left by a killed process: it is noted and not counted. Returns the
/// number of lines; nullopt if there is no file.
std::optional<size_t> for_each_line(const std::string& path, const std::vector<const char*>& keys,
                                    Section& section,
                                    const std::function<void(const json&, size_t line)>& visit) {
  std::ifstream file = open_lines(path);
  if (!file.is_open()) return std::nullopt;
  std::string text;
  size_t line = 0;
  while (next_line(file, text)) {
    ++line;
    const std::string at = "line " + std::to_string(line) + ": ";
    const json value = parse_json(text);
    if (file.eof() && !value.is_object()) {
      section.note(at + "incomplete: a process was killed while it wrote the line");
      return line - 1;
    }
    if (!value.is_object()) {
      section.problem(at + "not a JSON object");
      continue;
    }
    const auto missing = std::find_if(keys.begin(), keys.end(),
                                      [&](const char* key) { return !value.contains(key); });
    if (missing != keys.end())
      section.problem(at + "no \"" + *missing + "\"");
    else
      visit(value, line);
  }
  if (!file.eof()) section.problem("line " + std::to_string(line + 1) + ": it is too long");
  return line;
}

// -- Checkpoints --------------------------------------------------------------------------------

/// Tells a folder from another one that gets its name later; nothing: there is no such folder.
std::optional<std::array<int64_t, 4>> identity_of(const std::string& folder) {
  struct stat facts {};
  if (stat(folder.c_str(), &facts) != 0) return std::nullopt;
  return std::array<int64_t, 4>{static_cast<int64_t>(facts.st_dev),
                                static_cast<int64_t>(facts.st_ino), facts.st_mtim.tv_sec,
                                facts.st_mtim.tv_nsec};
}

struct Verified {
  Status status;
  CheckpointInfo info;   // if the status is ok
  bool removed = false;  // the run has removed it meanwhile, which is no error
};

/// A run that trains removes checkpoints, and may put another one of the same step in their place.
Verified verify_checkpoint(const std::string& path) {
  while (true) {
    const auto before = identity_of(path);
    if (!before) return {{}, {}, true};
    auto checkpoint = Checkpoint::open(path);
    const Status status = checkpoint.ok() ? checkpoint->verify() : checkpoint.status();
    if (status.ok()) return {{}, checkpoint->info()};
    if (identity_of(path) == before) return {status, {}};
  }
}

/// False if the link names a folder that is gone, and goes on doing so.
bool link_is_whole(const std::string& link) {
  std::error_code error, gone;
  while (true) {
    const auto target = std::filesystem::read_symlink(link, error);
    if (error || std::filesystem::exists(link, gone)) return true;
    if (std::filesystem::read_symlink(link, error) == target) return false;
  }
}

NewestCheckpoint verify_checkpoints(const std::string& folder, VerifyReport& report) {
  Section section(report, "checkpoints");
  size_t count = 0, removed = 0;
  NewestCheckpoint newest;
  const auto names = read_folder(folder);
  if (!names.ok()) section.problem(names.status().message());
  const auto runs = owning_runs(folder);
  if (!runs.ok()) section.problem(runs.status().message());
  size_t nameless = 0;
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    const auto step = checkpoint_format::parse_step_folder(name);
    if (!step) continue;
    if (runs.ok() && checkpoint_format::is_of_another_run(folder + "/" + name, *runs)) {
      ++count;
      section.problem(checkpoint_format::made_by_another(folder + "/" + name));
      continue;
    }
    const Verified checkpoint = verify_checkpoint(folder + "/" + name);
    checkpoint.removed ? ++removed : ++count;
    if (checkpoint.removed) continue;
    nameless += checkpoint.status.ok() && run_in(checkpoint.info.resume).empty();
    if (*step >= newest.step) {
      newest = {*step, 0, std::nullopt};
      if (checkpoint.status.ok())
        newest = {*step, checkpoint.info.next_sample, mixture_in(checkpoint.info.resume)};
    }
    if (!checkpoint.status.ok())
      section.problem(checkpoint.status.message());
    else if (checkpoint.info.step != *step)
      section.problem(folder + "/" + name + ": its manifest says step " +
                      std::to_string(checkpoint.info.step));
  }
  if (const std::string latest = folder + "/latest"; !link_is_whole(latest))
    section.problem(latest + ": names a checkpoint that does not exist");
  if (section.clean())
    section.note(std::to_string(count) + " checked, all checksums match" +
                 (removed == 0
                      ? ""
                      : "; " + std::to_string(removed) + " were removed by the run meanwhile"));
  if (nameless > 0)
    section.note(std::to_string(nameless) +
                 " of them name no run: an earlier version made them, or they were imported");
  return newest;
}

// -- Metrics and events -------------------------------------------------------------------------

/// The step that the run began with: 0, or that of its parent (run.with_optimizer).
uint64_t first_step(const std::string& run) {
  const json manifest = json_of(read_text(RunFolder{run}.control() + "/manifest.json"));
  const json::json_pointer step("/starts/0/from/step");
  return manifest.is_object() && manifest.contains(step) && manifest[step].is_number_unsigned()
             ? manifest[step].get<uint64_t>()
             : 0;
}

/// The generations of a run according to events.jsonl.
struct Generations {
  bool read = false;                                // the file exists
  std::set<uint64_t> known;                         // generations of all events
  std::set<uint64_t> taken_over;                    // with which a supervisor took over
  std::map<uint64_t, std::set<std::string>> nodes;  // nodes of a generation, if recorded
};

/// Every generation that trained must be in events.jsonl. Only the last generation of a supervisor
/// that died may be missing: its events wait in memory while the disk takes none.
void check_known(const Generations& generations, const std::set<uint64_t>& used, Section& section) {
  if (!generations.read) return;
  for (const uint64_t generation : used) {
    if (generations.known.contains(generation)) continue;
    const auto next = generations.known.upper_bound(generation);
    if (next != generations.known.end() && generations.taken_over.contains(*next))
      section.note("generation " + std::to_string(generation) +
                   " is in no line of events.jsonl: its supervisor died before it wrote one");
    else
      section.problem(
          "generation " + std::to_string(generation) +
          " is in no line of events.jsonl: lines are missing there, or this number is wrong");
  }
}

struct Committed {
  std::set<uint64_t> steps;
  uint64_t newest = 0;  // the last one made; steps beyond were undone
};

/// Returns the committed steps. checkpoint: step of the newest checkpoint, which is published only
/// after the line of its step has been written.
Committed verify_metrics(const std::string& path, uint64_t first, uint64_t checkpoint,
                         const Generations& generations, VerifyReport& report) {
  Section section(report, "metrics.jsonl");
  std::set<uint64_t> steps, used;
  MetricsLines seen;
  const auto lines = for_each_line(
      path,
      {"time", "step", "iter", "loss", "grad_norm", "lr", "step_ms", "tokens", "tokens_per_second",
       "mfu", "remaining_s", "generation"},
      section, [&](const json& value, size_t line) {
        if (!value["step"].is_number_unsigned() || !value["generation"].is_number_unsigned())
          return section.problem("line " + std::to_string(line) +
                                 ": step or generation is not a whole number");
        const json& loss = value["loss"];
        if (!loss.is_number() &&
            !loss.is_null())  // null: not finite, or no trainer could report it
          section.problem("line " + std::to_string(line) + ": loss is " + loss.dump());
        const std::pair now(value["generation"].get<uint64_t>(), value["step"].get<uint64_t>());
        const std::string wrong =
            seen.add(now, loss.is_number() ? loss.get<double>() : std::nan(""));
        if (!wrong.empty()) section.problem("line " + std::to_string(line) + ": " + wrong);
        steps.insert(now.second);
        used.insert(now.first);
      });
  if (!lines) {
    section.problem(path + " is missing");
    return {};
  }
  uint64_t next = first + 1;
  for (const uint64_t step : steps) {
    if (step != next)
      section.problem("steps " + std::to_string(next) + " to " + std::to_string(step - 1) +
                      " are missing");
    next = step + 1;
  }
  // A run that starts from an imported model has a checkpoint and no step.
  if (!steps.empty() && checkpoint > *steps.rbegin())
    section.problem("ends at step " + std::to_string(*steps.rbegin()) +
                    ", but there is a checkpoint of step " + std::to_string(checkpoint) +
                    ": lines are missing at the end");
  check_known(generations, used, section);
  if (section.clean()) section.note(std::to_string(steps.size()) + " steps, none missing");
  return {std::move(steps), seen.last().second};
}

std::set<std::string> nodes_of(const json& layout) {
  std::set<std::string> nodes;
  if (!layout.is_array()) return nodes;
  for (const json& domain : layout)
    for (const json& node : domain)
      if (node.is_string()) nodes.insert(node.get<std::string>());
  return nodes;
}

Generations verify_events(const std::string& run, VerifyReport& report) {
  static const std::set<std::string> phases = {"detect", "fence", "abort",
                                               "decide", "heal",  "resume"};
  const std::string path = run + "/events.jsonl";
  Section section(report, "events.jsonl");
  Generations generations;
  std::string last_end;
  const auto lines = for_each_line(
      path, {"time", "generation", "step", "incident", "phase", "kind", "subject", "reason", "ms"},
      section, [&](const json& value, size_t line) {
        const json& phase = value["phase"];
        if (!phase.is_null() && !(phase.is_string() && phases.contains(phase.get<std::string>())))
          section.problem("line " + std::to_string(line) + ": phase is " + phase.dump());
        if (value["kind"].is_string() && ends_run(value["kind"].get<std::string>()))
          last_end = value["reason"].is_string() ? value["reason"].get<std::string>() : "";
        if (value["kind"] == "started") last_end.clear();
        if (!value["generation"].is_number_unsigned()) return;
        const uint64_t generation = value["generation"].get<uint64_t>();
        generations.known.insert(generation);
        if (value["kind"] == "took_over") generations.taken_over.insert(generation);
        if (value.contains("layout"))
          generations.nodes[generation].merge(nodes_of(value["layout"]));
      });
  generations.read = lines.has_value();
  const auto end = end_of(RunFolder{run});
  if (!lines)
    section.problem(path + " is missing");
  else if (end && end->reason != last_end)
    section.problem("the run has ended (" + end->reason +
                    "; control/end.json), and no event says so: lines are missing at the end");
  else if (section.clean())
    section.note(std::to_string(*lines) + " events");
  return generations;
}

// -- Ledger -------------------------------------------------------------------------------------

/// "24", or "8 to 24" if steps differ.
std::string batch_text(const BatchSchedule& batch, const std::set<uint64_t>& steps) {
  std::set<uint64_t> sizes;
  for (const uint64_t step : steps) sizes.insert(batch.size(step));
  if (sizes.empty()) sizes.insert(batch.size(1));
  return (sizes.size() == 1 ? "" : std::to_string(*sizes.begin()) + " to ") +
         std::to_string(*sizes.rbegin());
}

void verify_ledger(const std::string& path, const BatchSchedule& batch,
                   const SkippedSamples& skipped, const Committed& committed,
                   const Generations& generations, SourcesSeen& sources, VerifyReport& report) {
  Section section(report, "ledger.jsonl");
  std::map<uint64_t, LedgerStep> steps;
  std::set<uint64_t> used;
  const auto lines = for_each_line(
      path, {"step", "trainer", "generation", "samples"}, section,
      [&](const json& value, size_t line) {
        const std::string trainer =
            value["trainer"].is_string() ? value["trainer"].get<std::string>() : "";
        std::vector<LedgerRun> runs;
        if (!value["step"].is_number_unsigned() || !value["generation"].is_number_unsigned() ||
            !read_runs(value["samples"], std::hash<std::string>()(trainer), runs))
          return section.problem("line " + std::to_string(line) +
                                 ": step, generation or samples has a wrong type");
        LedgerStep& step = steps[value["step"].get<uint64_t>()];
        const uint64_t generation = value["generation"].get<uint64_t>();
        used.insert(generation);
        const auto nodes = generations.nodes.find(generation);
        if (nodes != generations.nodes.end() && !nodes->second.contains(node_of(trainer)))
          section.problem("line " + std::to_string(line) + ": " + value["trainer"].dump() +
                          " does not train in generation " + std::to_string(generation) +
                          ", says events.jsonl");
        if (generation < step.generation) return;
        if (generation > step.generation) step = {generation, {}};
        step.runs.insert(step.runs.end(), runs.begin(), runs.end());
      });
  if (!lines) return section.problem(path + " is missing");
  check_known(generations, used, section);
  // The line of a step in metrics.jsonl is written before those in the ledger.
  if (committed.steps.empty() && steps.size() > 1)
    section.problem("has " + std::to_string(steps.size()) + " steps, metrics.jsonl none");
  for (const uint64_t number : committed.steps) {
    if (number == 0 || number > UINT64_MAX / batch.size(number)) continue;
    const auto step = steps.find(number);
    const std::string wrong =
        step == steps.end()
            ? "has no line"
            : check_cover(step->second, batch.samples(number - 1), batch.size(number), skipped);
    const bool undone = number > committed.newest;  // and perhaps not recorded as a whole
    if (!wrong.empty() && !undone) section.problem("step " + std::to_string(number) + ": " + wrong);
    if (wrong.empty() && !undone) sources.add(number, step->second, skipped);
  }
  if (!section.clean()) return;
  for (const std::string& problem : sources.problems()) section.problem(problem);
  for (const std::string& note : sources.notes()) section.note(note);
  if (section.clean())
    section.note(std::to_string(committed.steps.size()) + " steps of " +
                 batch_text(batch, committed.steps) + " samples, each sample exactly once" +
                 (skipped.empty() ? "" : "; left out: " + skipped.text()));
}

/// Sizes of the files that a run appends to.
std::array<uintmax_t, 3> record_bytes(const std::string& run) {
  std::error_code error;
  const auto bytes = [&](const char* name) {
    return std::filesystem::file_size(run + "/" + name, error);
  };
  return {bytes("events.jsonl"), bytes("metrics.jsonl"), bytes("ledger.jsonl")};
}

}  // namespace

Result<VerifyReport> verify_run(const std::string& run, const TrainedSamples& trained) {
  const std::string config_path = run + "/config.toml";
  std::error_code error;
  if (!std::filesystem::exists(config_path, error))
    return Status(Code::bad_data, run + ": not a run folder, it has no config.toml");
  VerifyReport report;
  int64_t global_batch = 0;
  bool ledger = true;
  SkippedSamples skipped;
  const auto text = read_text(config_path, kTomlBytesMax);
  if (const auto config = parse_toml(text.ok() ? *text : "", "config.toml"); config.ok()) {
    global_batch = (*config)["train"]["global_batch_size"].value_or(int64_t{0});
    ledger = (*config)["data"]["ledger"].value_or(true);
    SS_ASSIGN(skipped, SkippedSamples::parse((*config)["data"]["skip_samples"].value_or("")));
  } else {
    report.ok = false;
    report.lines.push_back(config.status().message());
  }
  const NewestCheckpoint newest = verify_checkpoints(checkpoints_of({run}), report);
  const auto verify_records = [&] {
    VerifyReport records;
    const Generations generations = verify_events(run, records);
    const Committed committed =
        verify_metrics(run + "/metrics.jsonl", first_step(run), newest.step, generations, records);
    if (!ledger) {
      records.lines.push_back("ledger.jsonl: switched off in config.toml, not checked");
    } else if (global_batch < 1) {
      records.ok = false;
      records.lines.push_back(
          "config.toml: no train.global_batch_size, so the ledger cannot be checked");
    } else {
      SourcesSeen sources(trained.mixture, newest);
      verify_ledger(run + "/ledger.jsonl",
                    trained.batch.value_or(BatchSchedule(static_cast<uint64_t>(global_batch))),
                    skipped, committed, generations, sources, records);
    }
    return records;
  };
  // A run that trains may have written one file after it was read, and the next one before: problems
  // that this makes are gone when the files are read again.
  VerifyReport records;
  for (int readings = 0; readings < kReadingsMax; ++readings) {
    const auto before = record_bytes(run);
    records = verify_records();
    if (records.ok) break;
    // The missing line may be about to be written.
    for (int waits = 0; waits < kWaitsMax && record_bytes(run) == before; ++waits)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (record_bytes(run) == before) break;
  }
  report.ok = report.ok && records.ok;
  report.lines.insert(report.lines.end(), records.lines.begin(), records.lines.end());
  return report;
}

}  // namespace simplescale
