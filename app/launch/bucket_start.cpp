#include "app/launch/bucket_start.hpp"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "actors/checkpoint/uploader.hpp"
#include "actors/supervisor/rates.hpp"
#include "app/terminal.hpp"
#include "runtime/base/files.hpp"
#include "runtime/base/json_members.hpp"
#include "runtime/checkpoint/run_checkpoints.hpp"

namespace simplescale {

namespace {

namespace fs = std::filesystem;

/// Fewer tries than during training, because a user waits.
StoreLimits start_limits() {
  StoreLimits limits;
  limits.tries = 4, limits.deadline_ms = 30'000;
  return limits;
}

/// Why the checkpoints of an object store do not belong to this run; "" if they do.
std::string wrong_run(const BucketIndex& index, const std::string& id, bool begun,
                      const Config& config) {
  if (index.run_id == id) return "";
  const std::string theirs = " holds the checkpoints of another run, \"" + index.run_name + "\"";
  if (begun || index.run_name != config.run.name)
    return theirs + "; give this one its own checkpoint.upload" +
           (begun ? "" : ", or continue that one with --run.name=" + index.run_name);
  if (config.run.resume == Resume::never)
    return " already holds this run and run.resume = \"never\"; use another checkpoint.upload";
  return "";
}

}  // namespace

Status restore_from_bucket(const RunFolder& run, const Config& config, const Plan& plan) {
  if (config.checkpoint.upload.empty()) return {};
  const std::string folder = checkpoint_folder(config);
  const bool begun = fs::exists(run.config());
  const auto local = find_newest_valid(folder, Verify::sizes);
  if (local.status().code() == Code::io) return {};  // it is never replaced by another one
  SS_ASSIGN(const auto bucket, open_bucket(config, run, nullptr, nullptr, start_limits()));
  SS_ASSIGN(const std::string id, run_id(run));
  const auto index = bucket->read();
  if (index.status().code() == Code::io && local.ok()) {
    terminal::error("simplescale: warning: %s; the run goes on with its own checkpoints\n",
                    index.status().message().c_str());
    return {};
  }
  if (!index.ok()) return Status(index.status()).in("checkpoint.upload");
  if (!*index) return bucket->claim().in("checkpoint.upload");
  if (const std::string wrong = wrong_run(**index, id, begun, config); !wrong.empty())
    return {Code::bad_config, "checkpoint.upload: " + bucket->name() + wrong};
  const auto& stored = (*index)->checkpoints;
  if (!stored.empty() && (!local.ok() || local->checkpoint.info().step < stored.back().step)) {
    terminal::error("downloading step %llu from %s\n",
                    static_cast<unsigned long long>(stored.back().step), bucket->name().c_str());
    const auto fetched = bucket->fetch_newest(folder, plan.shape);
    if (!fetched.ok()) return Status(fetched.status()).in("checkpoint.upload");
    // The folder of the run was lost: the same run continues under a new id.
    SS_RETURN_IF_ERROR(claim_checkpoints(run, folder));
    const std::string rates = rates_in(fetched->info().resume);
    if (!rates.empty() && !fs::exists(run.learning_rates()))
      SS_RETURN_IF_ERROR(write_file_atomic(run.learning_rates(), rates + "\n"));
    const nlohmann::json signature = signature_record_in(fetched->info().resume);
    const std::string instructions =
        text_of(member_of(signature, "fields"), "arithmetic.instructions");
    if (!instructions.empty() && !fs::exists(run.instructions()))
      SS_RETURN_IF_ERROR(write_file_atomic(run.instructions(), instructions + "\n"));
    SS_RETURN_IF_ERROR(continue_checkpoints_of(folder, run_in(fetched->info().resume)));
  }
  // From now on, if a copy of the run still trains elsewhere, it uploads nothing (CHECKPOINT-6).
  return (*index)->run_id == id ? Status() : bucket->claim().in("checkpoint.upload");
}

Status finish_upload(const RunFolder& run, const Config& config, std::function<bool()> stopped) {
  if (config.checkpoint.upload.empty()) return {};
  SS_ASSIGN(const auto bucket, open_bucket(config, run, nullptr, stopped, start_limits()));
  const auto uploaded = bucket->update(checkpoint_folder(config), keep_rules(config));
  if (!uploaded.ok())
    return Status(uploaded.status().code() == Code::aborted ? Code::io : uploaded.status().code(),
                  "the checkpoints are on disk, but not all are in " + bucket->name() + ": " +
                      uploaded.status().message() + "; the same `train` uploads the rest");
  for (const uint64_t step : *uploaded)
    terminal::error("uploaded step %llu to %s\n", static_cast<unsigned long long>(step),
                    bucket->name().c_str());
  return {};
}

}  // namespace simplescale
