#include "app/processes/prepare_supervisor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "actors/supervisor/claim.hpp"
#include "actors/supervisor/rates.hpp"
#include "actors/supervisor/records_end.hpp"
#include "actors/supervisor/run_signature.hpp"
#include "actors/supervisor/take_over.hpp"
#include "app/launch/manifest.hpp"
#include "runtime/base/files.hpp"
#include "runtime/base/json_members.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/checkpoint/imported_facts.hpp"
#include "runtime/checkpoint/run_checkpoints.hpp"
#include "runtime/config/run_instructions.hpp"
#include "runtime/feed/mixture_report.hpp"

namespace simplescale {

namespace {

using supervisor::kReadRetries;
using supervisor::leads;

/// The newest checkpoint; not_found only if the run never had one. If the newest checkpoint cannot
/// be read, an older one does not replace it.
Result<FoundCheckpoint> find_newest_checkpoint(const RunFolder& run, const std::string& folder) {
  return with_retries(kReadRetries, [&]() -> Result<FoundCheckpoint> {
    auto found = find_newest_valid(folder);
    if (found.status().code() == Code::not_found)
      SS_RETURN_IF_ERROR(check_never_saved(run, folder));
    return found;
  });
}

/// "step 100 of FOLDER" if the checkpoint was copied from another run; otherwise "".
std::string parent_of(const CheckpointInfo& info) {
  const auto facts = parse_json(info.resume);
  if (!facts.is_object() || !facts.contains("from")) return "";
  return fmt::format("step {} of {}", whole_of(facts, "from_step"), text_of(facts, "from"));
}

/// The facts that all later checkpoints keep, from the newest one. io.
Result<std::string> kept_facts(const std::string& folder) {
  const auto newest =
      with_retries(kReadRetries, [&] { return find_newest_valid(folder, Verify::sizes); });
  if (newest.status().code() == Code::io) return newest.status();
  return newest.ok() ? imported_facts(newest->checkpoint.info()) : "{}";
}

/// JOB-1: finds what the predecessor has left on the disk, which may be newer than `from`, its
/// state. io: the disk cannot be read, so this is unknown.
Status find_left(const SupervisedRun& p, const std::string& folder, const job::State& from,
                 FileOps& files, JobOptions& job) {
  const auto left = with_retries(
      kReadRetries, [&] { return supervisor::find_left_checkpoints(folder, from, files); });
  if (left.ok()) {
    job.checkpoint_step = left->newest;
    job.older_checkpoints = left->older;
    job.had_checkpoint = left->had;
  } else if (left.status().code() == Code::io) {
    return left.status();
  } else {  // this supervisor no longer leads
    log::warn("{}", left.status().message());
  }
  if (job.checkpoint_step || job.had_checkpoint || from.had_checkpoint) return {};
  return with_retries(kReadRetries, [&]() -> Status {
    const auto saved = was_saved(p.run());
    if (saved.ok()) job.had_checkpoint = *saved;
    return saved.status();
  });
}

/// The supervisor actor's options, with the checkpoint to begin with. from: the predecessor's
/// state; null: the run starts.
Result<JobOptions> job_options(const SupervisedRun& p, uint64_t term, const SupervisorState* from) {
  JobOptions job;
  job.config = p.config;
  job.plan = p.plan;
  job.run = p.run();
  job.node = p.options.node;
  job.tokenizer = p.data.tokenizer;
  job.signature = signature_of_run(job.run, p.config, p.plan).hash().hex();
  if (!p.plan.mixture.empty())
    for (const RunData::Source& source : p.data.sources)
      job.epoch_samples.push_back(source.data.train.samples(p.plan.shape.block_size));
  if (p.config.data.pack == Pack::best_fit) job.padding = padding_share(p.plan, p.data);
  job.sample_places = [tokens = p.data.train(), order = sample_order(p.config, p.plan, p.data),
                       block = p.plan.shape.block_size](const std::vector<uint64_t>& runs) {
    return places_text(tokens, order, block, runs);
  };
  job.leads = [files = p.files, term] {
    const auto leads = files.leads(term);
    const auto touched = files.touched_ns(term);
    return leads.ok() && *leads && touched.ok() && *touched != 0;
  };
  const std::string folder = checkpoint_folder(p.config);
  LeaderFiles files(job.leads);
  if (Status revoked = with_retries(kReadRetries, [&] { return revoke_publishers(folder, files); });
      !revoked.ok())
    log::warn("{}", revoked.message());
  // LOCK-1: no agent of an earlier start writes any more. Agents of this start may write.
  const auto all = [](uint64_t, uint64_t) { return true; };
  if (Status removed = term > 1 ? Status() : remove_unpublished(folder, all, files); !removed.ok())
    log::warn("{}", removed.message());
  SS_ASSIGN(job.resume_facts, kept_facts(folder));
  SS_ASSIGN(const std::string id, run_id(p.run()));
  job.resume_facts = with_run(job.resume_facts, id);
  SS_ASSIGN(job.recorded_instructions,
            with_retries(kReadRetries, [&] { return run_instructions(p.run()); }));
  SS_ASSIGN(job.instructions,
            with_retries(kReadRetries, [&] { return required_instructions(p.run(), p.config); }));
  if (from) {
    SS_RETURN_IF_ERROR(find_left(p, folder, from->job, files, job));
    return job;
  }
  const auto text = with_retries(kReadRetries, [&] { return read_text(p.run().learning_rates()); });
  if (text.ok()) {
    auto rates = rates_of(*text, p.config.train.learning_rate);
    if (!rates.ok())
      return Status(Code::bad_data, p.run().learning_rates() + ": " + rates.status().message());
    job.rates = rates.take();
  } else if (text.status().code() != Code::not_found) {
    return text.status();
  }
  auto found = find_newest_checkpoint(p.run(), folder);
  if (found.ok()) {
    SS_RETURN_IF_ERROR(put_back_replaced(folder, found->checkpoint, files));
    for (const std::string& warning : found->warnings)
      job.skipped.push_back(warning + "; the next older checkpoint is used");
    if (found->checkpoint.info().shape != p.plan.shape)
      return Status(Code::bad_config, found->checkpoint.folder() +
                                          " holds a model of another shape than the "
                                          "configuration's; start a new run with --run=FOLDER");
    if (found->checkpoint.info().step > static_cast<uint64_t>(p.plan.max_steps))
      return Status(Code::bad_config,
                    found->checkpoint.folder() + " is beyond the configuration's last step, " +
                        std::to_string(p.plan.max_steps) + "; start a new run with --run=FOLDER");
    job.checkpoint_step = found->checkpoint.info().step;
    job.parent = parent_of(found->checkpoint.info());
    job.older_checkpoints = found->older;
  } else if (found.status().code() != Code::not_found) {
    return found.status();
  }
  return job;
}

}  // namespace

Result<JobOptions> prepare_supervisor(const SupervisedRun& p, uint64_t term, uint64_t generation,
                                      const SupervisorState* from) {
  SS_ASSIGN(JobOptions job, job_options(p, term, from));
  const uint64_t said = from && from->recorded ? from->recorded_step : 0;
  SS_ASSIGN(RecordsEnd records, with_retries(kReadRetries, [&]() -> Result<RecordsEnd> {
              SS_ASSIGN(RecordsEnd end, end_of_records(p.options.run, p.config.data.ledger,
                                                       p.plan.batch, leads(p.files, term), said));
              // LOCK-1: the first leader of a start has no predecessor that may still write.
              if (term > 1 && !hosts_can_append(p.options.run))
                SS_RETURN_IF_ERROR(leave_gap(p.options.run, leads(p.files, term)));
              return end;
            }));
  // GEN-2: after a slow disk, the records may name a generation whose number is in no file.
  job.last_generation = std::max(generation, records.newest_generation);
  job.incidents = records.incidents;
  job.validations = std::move(records.validations);
  job.recorded_beyond = std::move(records.beyond);
  if (term == 1)
    for (const ConfigChange& change : recorded_changes(p.run()))
      job.changes.emplace_back(change.key, change.reason);
  // A full disk may have taken the line of the end, and left control/end.json.
  if (term == 1 && !from && records.unended && !p.files.previous_ended())
    job.died = {records.newest_time, records.any ? records.step : 0};
  if (from && records.any) {
    job.recorded_step = records.step;
    job.recorded_generation = records.generation;
  }
  return job;
}

}  // namespace simplescale
