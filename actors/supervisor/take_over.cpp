#include "actors/supervisor/take_over.hpp"

#include <algorithm>

#include "actors/clock.hpp"
#include "actors/supervisor/decision/rollback.hpp"
#include "runtime/base/log.hpp"
#include "runtime/checkpoint/checkpoint.hpp"

namespace simplescale::supervisor {

namespace {

constexpr int64_t kReturnMs = 1'500;  // for nodes to find a new supervisor

/// Passes decide() a step that the predecessor recorded after it had replicated its state.
void catch_up(Self* self, std::optional<uint64_t> recorded) {
  JobSupervisorState& s = self->state;
  if (!recorded || *recorded <= s.job.committed_step) return;
  if (s.options.recorded_generation == s.job.generation) {
    handle(self, job::StepCommitted{s.job.generation, *recorded});
  } else {  // the step was committed just before its generation was fenced
    s.job.committed_step = *recorded;
    job::settle_rollbacks(s.job);
  }
}

/// Passes decide() the changes of checkpoints that are newer than the predecessor's state:
/// published, removed or set aside.
void adopt_checkpoints(Self* self) {
  const JobOptions& options = self->state.options;
  job::State& job = self->state.job;
  job.had_checkpoint = job.had_checkpoint || options.had_checkpoint;
  std::vector<uint64_t> on_disk = options.older_checkpoints;
  if (options.checkpoint_step) on_disk.push_back(*options.checkpoint_step);
  if (!on_disk.empty() && (!job.has_checkpoint || on_disk.back() > job.checkpoint_step))
    handle(self, job::CheckpointSaved{on_disk.back()});
  if (!on_disk.empty() || options.had_checkpoint) handle(self, job::CheckpointsLeft{on_disk});
}

}  // namespace

Result<LeftCheckpoints> find_left_checkpoints(const std::string& folder, const job::State& from,
                                              FileOps& files) {
  SS_RETURN_IF_ERROR(set_aside_undone(
      folder, from.has_checkpoint ? from.checkpoint_step : 0,
      [&](uint64_t step, uint64_t generation) {
        return generation > 0 && !job::trusted(from, step, generation);
      },
      files));
  LeftCheckpoints left;
  auto found = find_newest_valid(folder, Verify::sizes);
  const Code code = found.status().code();
  if (code == Code::not_found || code == Code::bad_data) {
    if (code == Code::bad_data) log::warn("{}", found.status().message());
    SS_ASSIGN(const std::vector<std::string> names, read_folder(folder));
    // If no such name exists, the folder may just not be mounted.
    left.had = std::ranges::any_of(
        names, [](const std::string& name) { return name.starts_with("step-"); });
    return left;
  }
  if (!found.ok()) return found.status();
  SS_RETURN_IF_ERROR(put_back_replaced(folder, found->checkpoint, files));
  left.newest = found->checkpoint.info().step;
  left.older = found->older;
  return left;
}

std::string taken_over(std::optional<uint64_t> recorded, uint64_t in_files,
                       const std::string& leader) {
  const std::string after = recorded ? " after " + std::to_string(*recorded) : "";
  std::string text = "it leads";
  if (recorded) text += " after step " + std::to_string(*recorded);
  text += " (" + leader + ")";
  if (in_files > recorded.value_or(0))
    text += "; the steps" + after + " up to " + std::to_string(in_files) +
            " in the records do not count";
  return text;
}

void take_over(Self* self, SupervisorState from) {
  JobSupervisorState& s = self->state;
  const LeadershipOptions& o = s.options.leadership;
  const int64_t now = now_ms(self);
  rebase(from, now);
  const bool in_incident = s.incidents.resume(from, o.lost, o.lost_at_ms, o.stood_by);
  s.lead.resume(from, now + kReturnMs + (o.silent ? s.options.config.supervision.silence_ms : 0));
  s.traces.set_chosen(std::move(from.traced));
  s.job = job::resumed(std::move(from.job), s.options.generation_floor, now);
  if (s.job.instructions == InstructionSet::automatic)  // the predecessor's decision is lost
    s.job.instructions = s.options.instructions;
  const bool ended = over(s.job);  // the predecessor ended the job

  const uint64_t joined = job::newest_joined(s.job);
  std::optional<StateVersion> in_files;
  if (s.options.recorded_step)
    in_files = StateVersion{*s.options.recorded_step, s.options.recorded_generation};
  const std::optional<uint64_t> recorded = job::recorded_of(
      s.job, in_files, from.recorded ? std::optional(from.recorded_step) : std::nullopt);
  s.steps.resume(joined > 0 ? joined : s.job.generation, job::places(s.job.rules, s.job.layout),
                 recorded, in_files, s.job.weights);
  s.steps.set_rates(s.job.rates.changes);
  if (recorded) s.options.journal->mark(*recorded);  // publishing checkpoints waits for it
  s.planned = std::move(from.planned);
  std::erase_if(s.planned, [&](const InjectFault& fault) {  // these were injected
    return fault.step <= recorded.value_or(0) + 1;
  });

  // Without an incident, the events below must name the newest step. With one, that step ends the
  // incident, so it comes after them.
  if (!in_incident) catch_up(self, recorded);
  perform(self, {job::Record{"detect", "supervisor_lost", "supervisor", o.lost},
                 job::Record{in_incident ? "decide" : "resume", "took_over", s.options.node,
                             taken_over(recorded, s.options.recorded_step.value_or(0),
                                        "term " + std::to_string(o.term) + ", generation " +
                                            std::to_string(s.job.generation))}});
  // Write the lines that the predecessor could not write before it died. They come after the event
  // above: no other event names their generation.
  record_up_to(self, s.job.joined_step);
  if (in_incident) catch_up(self, recorded);
  adopt_checkpoints(self);
  // LEAD-1: readers ignore the page of a supervisor that was replaced, so write it again.
  if (ended) record_end(self, from.end_exit, from.end_reason);
}

}  // namespace simplescale::supervisor
