#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "runtime/base/json_members.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/checkpoint/checkpoint_format.hpp"
#include "runtime/checkpoint/run_checkpoints.hpp"

namespace simplescale {

using namespace checkpoint_format;
namespace fs = std::filesystem;

uint64_t generation_of(const CheckpointInfo& info) {
  return unsigned_of(parse_json(info.resume), "generation").value_or(0);
}

void set_generation(CheckpointInfo& info, uint64_t generation) {
  auto facts = parse_json(info.resume);
  if (!facts.is_object()) return;  // write_manifest() reports it
  facts["generation"] = generation;
  info.resume = facts.dump();
}

std::string run_in(const std::string& resume) {
  return text_of(parse_json(resume), "run");
}

namespace {
std::string with_fact(const std::string& resume, const char* name, nlohmann::json value) {
  auto facts = parse_json(resume);
  if (!facts.is_object()) return resume;  // write_manifest() reports it
  facts[name] = std::move(value);
  return facts.dump();
}
}  // namespace

std::string with_run(const std::string& resume, const std::string& run) {
  return with_fact(resume, "run", run);
}

std::string with_signature(const std::string& resume, const nlohmann::json& record) {
  return with_fact(resume, "signature", record);
}

nlohmann::json signature_record_in(const std::string& resume) {
  return member_of(parse_json(resume), "signature");
}

std::string checkpoint_format::made_by_another(const std::string& folder) {
  return folder +
         ": another run made this checkpoint; move it away, or give one of the two runs another "
         "checkpoint.folder";
}

bool checkpoint_format::is_of_another_run(const std::string& folder,
                                          const std::vector<std::string>& runs) {
  if (runs.empty()) return false;
  const auto manifest = json_of(read_text_file(folder + "/" + kManifest, kManifestBytesMax));
  const std::string run = text_of(member_of(manifest, "resume"), "run");
  return !run.empty() && std::ranges::find(runs, run) == runs.end();
}

namespace {

struct Candidate {
  std::string name;
  uint64_t step = 0;
};

/// The names of the checkpoints that the run which owns the folder may use, newest step first;
/// step-N before step-N.replaced. runs: of owning_runs().
std::vector<Candidate> candidates(const std::string& checkpoints,
                                  const std::vector<std::string>& names,
                                  const std::vector<std::string>& runs) {
  std::vector<Candidate> out;
  for (const std::string& name : names)
    if (const auto step = parse_step_folder(name);
        step && !is_of_another_run(checkpoints + "/" + name, runs))
      out.push_back({name, *step});
  std::sort(out.begin(), out.end(), [](const Candidate& a, const Candidate& b) {
    return a.step != b.step ? a.step > b.step : a.name.size() < b.name.size();
  });
  return out;
}

/// The step of "step-00000100.undone" or "step-00000100.replaced.undone"; nullopt for other names.
std::optional<uint64_t> parse_undone(const std::string& name) {
  if (!name.ends_with(kUndone)) return std::nullopt;
  return parse_step_folder(name.substr(0, name.size() - std::strlen(kUndone)));
}

Result<Checkpoint> open_checked(const std::string& folder, Verify verify) {
  SS_ASSIGN(Checkpoint checkpoint, Checkpoint::open(folder));
  const auto step = parse_step_folder(folder.substr(folder.find_last_of('/') + 1));
  if (step != checkpoint.info().step)
    return Status(Code::bad_data,
                  folder + ": its manifest says step " + std::to_string(checkpoint.info().step));
  if (verify == Verify::full) SS_RETURN_IF_ERROR(checkpoint.verify());
  return checkpoint;
}

}  // namespace

Status checkpoint_format::remove_checkpoint(const std::string& checkpoints, const std::string& name,
                                            FileOps& ops) {
  const std::string path = checkpoints + "/" + name,
                    removed = checkpoints + "/" + kDeletePrefix + name;
  std::error_code error;
  SS_RETURN_IF_ERROR(remove_folder(ops, removed));
  if (!fs::exists(path, error)) return {};
  SS_RETURN_IF_ERROR(ops.rename(path, removed));
  return remove_folder(ops, removed);
}

Result<FoundCheckpoint> find_newest_valid(const std::string& checkpoints, Verify verify) {
  std::vector<std::string> warnings;
  SS_ASSIGN(const std::vector<std::string> names, read_folder(checkpoints));
  SS_ASSIGN(const std::vector<std::string> runs, owning_runs(checkpoints));
  const std::vector<Candidate> own = candidates(checkpoints, names, runs);
  for (const Candidate& candidate : candidates(checkpoints, names, {})) {
    if (std::ranges::find(own, candidate.name, &Candidate::name) == own.end()) {  // CHECKPOINT-7
      warnings.push_back(made_by_another(checkpoints + "/" + candidate.name));
      continue;
    }
    auto checkpoint = open_checked(checkpoints + "/" + candidate.name, verify);
    if (checkpoint.ok()) {
      FoundCheckpoint found{checkpoint.take(), std::move(warnings), {}};
      for (const Candidate& other : own) {
        const bool listed = !found.older.empty() && found.older.front() == other.step;
        if (other.step < candidate.step && !listed)  // step-N and step-N.replaced are one step
          found.older.insert(found.older.begin(), other.step);
      }
      return found;
    }
    if (checkpoint.status().code() == Code::io)
      return Status(Code::io, checkpoint.status().message() +
                                  "; it is not known to be damaged: make it readable, or move " +
                                  checkpoints + "/" + candidate.name +
                                  " away to continue from the checkpoint before it");
    warnings.push_back(checkpoint.status().message());
  }
  if (warnings.empty()) return Status(Code::not_found, checkpoints + ": there is no checkpoint");
  std::string all = checkpoints + ": no valid checkpoint";
  for (const std::string& warning : warnings) all += "; " + warning;
  return Status(Code::bad_data, all);
}

Result<Checkpoint> open_step(const std::string& checkpoints, uint64_t step) {
  const std::string folder = checkpoints + "/" + step_folder_name(step);
  auto opened = open_checked(folder, Verify::sizes);
  if (opened.ok() || opened.status().code() == Code::io) return opened;
  auto replaced = open_checked(folder + kReplaced, Verify::sizes);
  return replaced.ok() || replaced.status().code() == Code::io ? std::move(replaced)
                                                               : std::move(opened);
}

std::vector<uint64_t> checkpoint_steps(const std::string& checkpoints) {
  std::vector<uint64_t> steps;
  const auto runs = owning_runs(checkpoints);
  for (const Candidate& candidate : candidates(checkpoints, list_folder(checkpoints),
                                               runs.ok() ? *runs : std::vector<std::string>()))
    if (!candidate.name.ends_with(kReplaced)) steps.insert(steps.begin(), candidate.step);
  return steps;
}

namespace {

/// The `count` valid checkpoints with the lowest validation loss, the best first.
std::vector<Candidate> best_checkpoints(const std::string& checkpoints,
                                        const std::vector<Candidate>& all, size_t count,
                                        Verify verify) {
  std::vector<std::pair<double, Candidate>> known;
  for (const Candidate& candidate : all) {
    if (candidate.name.ends_with(kReplaced)) continue;
    const auto checkpoint = open_checked(checkpoints + "/" + candidate.name, verify);
    if (checkpoint.ok() && checkpoint->info().val_loss)
      known.emplace_back(*checkpoint->info().val_loss, candidate);
  }
  std::ranges::stable_sort(known, [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first < b.first : a.second.step < b.second.step;
  });
  if (known.size() > count) known.resize(count);
  std::vector<Candidate> best;
  for (const auto& [loss, candidate] : known) best.push_back(candidate);
  return best;
}

/// Makes the link `name` point to `target`, or removes it if `target` is empty.
Status set_link(const std::string& checkpoints, const std::string& name, const std::string& target,
                FileOps& ops) {
  std::error_code error;
  const std::string path = checkpoints + "/" + name, link = checkpoints + "/" + kTmpPrefix + name;
  if (fs::read_symlink(path, error).string() == target) return {};
  if (target.empty()) return fs::is_symlink(path, error) ? ops.unlink(path) : Status();
  return replace_link(ops, target, link, path);
}

}  // namespace

Status prune_checkpoints(const std::string& checkpoints, const KeepRules& rules, Verify verify,
                         FileOps& ops) {
  std::error_code error;
  const std::string latest = fs::read_symlink(checkpoints + "/latest", error).string();
  SS_ASSIGN(const std::vector<std::string> names, read_folder(checkpoints));
  SS_ASSIGN(const std::vector<std::string> runs, owning_runs(checkpoints));
  const std::vector<Candidate> all = candidates(checkpoints, names, runs);
  const std::vector<Candidate> best =
      rules.keep_best > 0 ? best_checkpoints(checkpoints, all, rules.keep_best, verify)
                          : std::vector<Candidate>();
  // Before anything is removed, so that the link never names a folder that is gone.
  SS_RETURN_IF_ERROR(set_link(checkpoints, "best", best.empty() ? "" : best.front().name, ops));
  size_t valid = 0;
  std::optional<uint64_t> counted_step, newest;
  std::vector<std::string> removed;
  for (const Candidate& candidate : all) {
    if (candidate.step > rules.until_step) continue;
    const bool permanent = rules.permanent_every_steps > 0 && candidate.step > 0 &&
                           candidate.step % rules.permanent_every_steps == 0;
    const bool kept = permanent || candidate.name == latest ||
                      std::ranges::find(best, candidate.name, &Candidate::name) != best.end();
    const bool enough = valid >= std::max<size_t>(rules.keep, 1);
    if (counted_step == candidate.step || (enough && !kept)) {
      removed.push_back(candidate.name);  // old, or step-N.replaced of a valid step-N
    } else if (!enough && open_checked(checkpoints + "/" + candidate.name, verify).ok()) {
      ++valid;
      if (!newest) newest = candidate.step;
      counted_step = candidate.step;
    }
  }
  for (const std::string& name : removed)
    SS_RETURN_IF_ERROR(remove_checkpoint(checkpoints, name, ops));
  for (const std::string& name : names) {
    if (const auto step = parse_undone(name); step && newest && *step <= *newest)
      SS_RETURN_IF_ERROR(remove_checkpoint(checkpoints, name, ops));
    if (!name.starts_with(kTmpPrefix)) continue;
    // "tmp-<step>-<tag>": that of a newer step may still be written.
    const uint64_t step = std::strtoull(name.c_str() + std::string(kTmpPrefix).size(), nullptr, 10);
    if (newest && step > *newest) continue;
    const std::string path = checkpoints + "/" + name;
    const bool folder = fs::symlink_status(path, error).type() == fs::file_type::directory;
    if (!folder)
      SS_RETURN_IF_ERROR(ops.unlink(path));
    else if (name.starts_with(kDeletePrefix))
      SS_RETURN_IF_ERROR(remove_folder(ops, path));
    else
      SS_RETURN_IF_ERROR(remove_checkpoint(checkpoints, name, ops));
  }
  return {};
}

// -- A new publisher -----------------------------------------------------------------------------

Status revoke_publishers(const std::string& checkpoints, FileOps& ops) {
  std::error_code error;
  SS_ASSIGN(const std::vector<std::string> names, read_folder(checkpoints));
  for (const std::string& name : names) {
    if (!name.starts_with(kTmpPrefix)) continue;
    const std::string path = checkpoints + "/" + name;
    const size_t dot = path.find('.', checkpoints.size() + 1);
    const bool shards = std::isdigit(static_cast<unsigned char>(name[std::strlen(kTmpPrefix)]));
    if (fs::is_symlink(path, error))
      SS_RETURN_IF_ERROR(ops.unlink(path));
    else if (shards && dot != std::string::npos)
      SS_RETURN_IF_ERROR(ops.rename(path, path.substr(0, dot)));
  }
  SS_ASSIGN(const std::vector<std::string> runs, owning_runs(checkpoints));
  for (const auto& [name, step] : candidates(checkpoints, names, runs))
    if (open_checked(checkpoints + "/" + name, Verify::sizes).ok())
      return name.ends_with(kReplaced) ? Status() : set_link(checkpoints, "latest", name, ops);
  return {};
}

Status remove_unpublished(const std::string& checkpoints,
                          const std::function<bool(uint64_t step, uint64_t tag)>& dead,
                          FileOps& ops) {
  SS_ASSIGN(const std::vector<std::string> names, read_folder(checkpoints));
  for (const std::string& name : names) {
    unsigned long long step = 0,
                       tag = 0;  // of "tmp-<step>-<tag>" or "tmp-<step>-<tag>.<publisher>"
    if (name.starts_with(kTmpPrefix) &&
        std::sscanf(name.c_str(), "tmp-%llu-%llu", &step, &tag) == 2 && dead(step, tag))
      SS_RETURN_IF_ERROR(remove_checkpoint(checkpoints, name, ops));
  }
  return {};
}

Status put_back_replaced(const std::string& checkpoints, const Checkpoint& found, FileOps& ops) {
  const std::string& folder = found.folder();
  if (!folder.ends_with(kReplaced)) return {};
  const std::string name = step_folder_name(found.info().step);
  SS_RETURN_IF_ERROR(remove_checkpoint(checkpoints, name, ops));
  SS_RETURN_IF_ERROR(ops.rename(folder, checkpoints + "/" + name));
  return ops.fsync_folder(checkpoints);
}

Status set_aside_undone(const std::string& checkpoints, uint64_t after,
                        const std::function<bool(uint64_t step, uint64_t generation)>& undone,
                        FileOps& ops) {
  SS_ASSIGN(const std::vector<std::string> names, read_folder(checkpoints));
  SS_ASSIGN(const std::vector<std::string> runs, owning_runs(checkpoints));
  std::vector<std::string> aside;
  std::string newest;  // of those that stay
  for (const auto& [name, step] : candidates(checkpoints, names, runs)) {
    if (step <= after && (aside.empty() || !newest.empty())) break;
    const auto checkpoint = open_checked(checkpoints + "/" + name, Verify::sizes);
    const uint64_t generation = checkpoint.ok() ? generation_of(checkpoint->info()) : 0;
    if (step > after && undone(step, generation))
      aside.push_back(name);
    else if (newest.empty() && checkpoint.ok())
      newest = name;
  }
  if (aside.empty()) return {};
  // First, so that no link names a folder that is gone.
  for (const char* link : {"latest", "best"}) {
    std::error_code error;
    const fs::path target = fs::read_symlink(checkpoints + "/" + link, error);
    if (std::ranges::find(aside, target.string()) != aside.end())
      SS_RETURN_IF_ERROR(
          set_link(checkpoints, link, std::string_view(link) == "latest" ? newest : "", ops));
  }
  for (const std::string& name : aside) {
    SS_RETURN_IF_ERROR(remove_checkpoint(checkpoints, name + kUndone, ops));
    SS_RETURN_IF_ERROR(ops.rename(checkpoints + "/" + name, checkpoints + "/" + name + kUndone));
  }
  return ops.fsync_folder(checkpoints);
}

}  // namespace simplescale
