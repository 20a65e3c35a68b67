// The process of a supervisor or of a standby. An agent starts it, but neither dies with the other.
// The process becomes supervisor when it claims the next epoch (runtime/run/epoch.hpp): at once if
// no supervisor leads; as a standby, after it has lost the supervisor whose state it replicates.
#include "app/processes/supervisor_process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <caf/all.hpp>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "actors/clock.hpp"
#include "actors/supervisor/journal.hpp"
#include "actors/supervisor/rates.hpp"
#include "actors/supervisor/standby.hpp"
#include "actors/supervisor/supervisor.hpp"
#include "actors/supervisor/take_over.hpp"
#include "app/launch/manifest.hpp"
#include "app/processes/actor_process.hpp"
#include "app/processes/http_process.hpp"
#include "app/report.hpp"
#include "app/slurm/job.hpp"
#include "runtime/base/files.hpp"
#include "runtime/base/json_text.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/checkpoint/huggingface.hpp"
#include "runtime/checkpoint/run_checkpoints.hpp"
#include "runtime/data/data_location.hpp"
#include "runtime/exports/exporter.hpp"
#include "runtime/observe/notifier.hpp"
#include "runtime/observe/trace.hpp"
#include "runtime/run/agent_lock.hpp"
#include "runtime/run/epoch.hpp"
#include "runtime/run/folder_watch.hpp"
#include "runtime/run/run_state.hpp"

namespace simplescale {

namespace {

constexpr int kLookupMs = 1'000;         // for another supervisor to answer
constexpr int kRefusalMs = 5'000;        // how long agents are told that the run cannot begin
constexpr int kFlushTimeoutMs = 10'000;  // for the disk to take the last records
constexpr int kEpochPollMs = 500;        // between two reads of the epoch files
constexpr int kClaimAgainMs = 100;       // between two claims of a standby
constexpr Retries kReadRetries{4, std::chrono::seconds(1)};  // of the run's files

/// What all functions of this file need; lives as long as the process.
struct Process {
  SupervisorOptions options;
  Config config;
  Plan plan;
  RunData data;
  EpochFiles files;
  caf::actor_system& system;
  Transport& transport;
  RunFolder run() const { return {options.run}; }
};

/// The newest checkpoint; not_found only if the run has never had one. An older checkpoint never
/// replaces one that cannot be read.
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
  return fmt::format("step {} of {}", facts.value("from_step", 0), facts.value("from", ""));
}

/// The facts of the newest checkpoint that all later ones keep. io.
Result<std::string> kept_facts(const std::string& folder) {
  const auto newest =
      with_retries(kReadRetries, [&] { return find_newest_valid(folder, Verify::sizes); });
  if (newest.status().code() == Code::io) return newest.status();
  return newest.ok() ? imported_facts(newest->checkpoint.info()) : "{}";
}

/// JOB-1: what the predecessor has left on the disk, which may be newer than `from`, its state. io:
/// the disk cannot be read, so nothing is known of it.
Status find_left(const Process& p, const std::string& folder, const job::State& from,
                 FileOps& files, JobOptions& job) {
  const auto left = with_retries(
      kReadRetries, [&] { return supervisor::find_left_checkpoints(folder, from, files); });
  if (left.ok()) {
    job.checkpoint_step = left->newest;
    job.older_checkpoints = left->older;
  } else if (left.status().code() == Code::io) {
    return left.status();
  } else {  // all are damaged: the trainers hold the state
    log::warn("{}", left.status().message());
  }
  if (job.checkpoint_step || from.had_checkpoint) return {};
  return with_retries(kReadRetries, [&]() -> Status {
    const auto saved = was_saved(p.run());
    if (saved.ok()) job.had_checkpoint = *saved;
    return saved.status();
  });
}

/// The supervisor actor's options, with the checkpoint to start from. from: the predecessor's
/// state; null: the run starts.
Result<JobOptions> job_options(const Process& p, uint64_t epoch, const SupervisorState* from) {
  JobOptions job;
  job.config = p.config;
  job.plan = p.plan;
  job.run = p.run();
  job.node = p.options.node;
  job.tokenizer = p.data.tokenizer;
  if (!p.plan.mixture.empty())
    for (const RunData::Source& source : p.data.sources)
      job.epoch_samples.push_back(source.data.train.samples(p.plan.shape.block_size));
  job.sample_places = [tokens = p.data.train(), order = sample_order(p.config, p.plan, p.data),
                       block = p.plan.shape.block_size](const std::vector<uint64_t>& runs) {
    return places_text(tokens, order, block, runs);
  };
  job.leads = [files = p.files, epoch] {
    const auto leads = files.leads(epoch);
    const auto touched = files.touched_ns(epoch);
    return leads.ok() && *leads && touched.ok() && *touched != 0;
  };
  const std::string folder = checkpoint_folder(p.config);
  LeaderFiles files(job.leads);
  if (Status revoked = with_retries(kReadRetries, [&] { return revoke_publishers(folder, files); });
      !revoked.ok())
    log::warn("{}", revoked.message());
  // LOCK-1: no agent of an earlier start writes any more. Those of this start may.
  const auto all = [](uint64_t, uint64_t) { return true; };
  if (Status removed = epoch > 1 ? Status() : remove_unpublished(folder, all, files); !removed.ok())
    log::warn("{}", removed.message());
  SS_ASSIGN(job.facts, kept_facts(folder));
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

/// True if the supervisor of this epoch answers, or if its heartbeat in the run's folder continues:
/// a supervisor that cannot be reached may still be alive. io: the heartbeat cannot be read, which
/// deposes no supervisor (LEAD-1).
Result<bool> is_alive(const Process& p, const Epoch& epoch) {
  SS_ASSIGN(const int64_t first, p.files.touched_ns(epoch.number));
  if (first == 0 || epoch.address.empty()) return false;
  if (p.transport.lookup(epoch.address, "supervisor", kLookupMs).ok()) return true;
  SS_ASSIGN(const int64_t before, p.files.touched_ns(epoch.number));
  std::this_thread::sleep_for(
      std::chrono::milliseconds(kHeartbeatTimeoutMs));  // polls: a shared file
  SS_ASSIGN(const int64_t now, p.files.touched_ns(epoch.number));
  return now != before;
}

/// True if this epoch's supervisor resigned because of votes that other nodes still renew: one of
/// those nodes leads next, not this one. io.
Result<bool> was_voted_out(const Process& p, const Epoch& epoch) {
  SS_ASSIGN(const int64_t touched, p.files.touched_ns(epoch.number));
  if (touched != 0) return false;
  SS_ASSIGN(const auto before, p.files.votes(epoch.number));
  if (before.empty() || before.contains(p.options.node)) return false;
  std::this_thread::sleep_for(std::chrono::milliseconds(kHeartbeatTimeoutMs));
  SS_ASSIGN(const auto now, p.files.votes(epoch.number));
  return now != before;
}

/// What this process knows of the supervisor before it.
struct Predecessor {
  uint64_t epoch = 0;                    // 0: this is the run's first supervisor
  std::optional<SupervisorState> state;  // as replicated to the standby
  std::string lost;                      // why it is counted as lost
  int64_t lost_at_ms = 0;                // by the actor clock
  bool silent = false;                   // true: it stopped answering; its process may be alive
  bool stood_by = false;                 // this process was its standby
};

/// An actor in the supervisor's place that tells every agent to end: the run cannot begin.
caf::behavior refuse(caf::event_based_actor* self, Shutdown end) {
  self->set_default_handler(caf::drop);
  return {[self, end](const NodeHello&) {
    self->send(caf::actor_cast<caf::actor>(self->current_sender()), end);
  }};
}

/// Null without supervision.notify.
std::shared_ptr<Notifier> make_notifier(const Process& p) {
  const std::string& target = p.config.supervision.notify;
  return target.empty() ? nullptr : std::make_shared<Notifier>(target);
}

void notify(Notifier& notifier, const std::string& run, nlohmann::json event) {
  event["run"] = run;
  notifier.send(std::move(event));
}

/// LEAD-1: true while no newer supervisor leads. io: that cannot be read now.
std::function<Result<bool>()> leads(const Process& p, uint64_t epoch) {
  return [files = p.files, epoch] { return files.leads(epoch); };
}

/// The line in events.jsonl of a supervisor that ends before it has begun.
nlohmann::json event_of(const std::string& kind, const std::string& subject, uint64_t generation,
                        const Status& why) {
  return {{"time", wall_time_s()}, {"generation", generation}, {"step", 0},
          {"incident", nullptr},   {"phase", nullptr},         {"kind", kind},
          {"subject", subject},    {"reason", why.message()},  {"ms", nullptr}};
}

/// Records that the run cannot go on, and refuses agents for kRefusalMs: they end with the reason,
/// even if it cannot be recorded. Returns `why`.
Status refuse_agents(const Process& p, uint64_t epoch, uint64_t generation, const Status& why) {
  const RunEnd end{exit_code(why.code()), why.message(), p.options.instance, epoch};
  const nlohmann::json event = event_of("failed", "", generation, why);
  {
    Journal journal(p.options.run, leads(p, epoch), kFlushTimeoutMs);
    journal.append("events.jsonl", event);
    journal.replace("control/end.json", end_text(end));
  }
  const auto notifier = make_notifier(p);
  if (notifier) notify(*notifier, p.options.run, event);
  p.transport.publish("supervisor",
                      p.system.spawn(refuse, Shutdown{exit_code(why.code()), why.message()}));
  std::this_thread::sleep_for(std::chrono::milliseconds(kRefusalMs));  // agents join meanwhile
  return why;
}

/// Null if metrics.http_port is 0. The run does not depend on the HTTP process.
std::unique_ptr<HttpProcess> serve_http(const Process& p, uint64_t epoch) {
  const auto& metrics = p.config.metrics;
  if (metrics.http_port == 0) return nullptr;
  return std::make_unique<HttpProcess>(
      HttpProcessOptions{p.options.run, metrics.http_host, checkpoint_folder(p.config),
                         static_cast<int>(metrics.http_port), epoch});
}

/// Lets another process lead: ends the heartbeat, writes the queued records, then resigns. Nothing
/// of this supervisor is written after that.
void resign(const Process& p, uint64_t epoch, EpochWatch& watch, Journal& journal) {
  watch.lead(0);
  const auto stopped = std::make_shared<std::promise<void>>();
  watch.poll([stopped](const EpochView&) { stopped->set_value(); });
  stopped->get_future().wait_for(std::chrono::milliseconds(kHeartbeatTimeoutMs));
  (void)journal.flush();
  journal.stop();
  if (Status resigned = p.files.resign(epoch); !resigned.ok()) log::warn("{}", resigned.message());
}

/// JOB-1: lets another process lead, since this one cannot read what a leader needs: the trainers
/// keep what their memory holds. state: the newest that is known, perhaps by this process alone;
/// null: it is not known which one is the newest. Returns `why`.
Status leave_unprepared(const Process& p, uint64_t epoch, uint64_t generation,
                        const SupervisorState* state, EpochWatch& watch, const Status& why) {
  Journal journal(p.options.run, leads(p, epoch), kFlushTimeoutMs);
  if (state) {
    const std::vector<uint8_t> bytes = encode(*state);
    journal.replace(state_page(p.options.instance, epoch), std::string(bytes.begin(), bytes.end()));
  }
  journal.append("events.jsonl", event_of("resigned", p.options.node, generation, why));
  resign(p, epoch, watch, journal);
  return why;
}

/// The highest generation that a supervisor of this run has given out. LEAD-1: an error if that
/// cannot be read, since no number may be given out twice.
Result<uint64_t> highest_generation(const Process& p, const Predecessor& before) {
  const uint64_t known = before.state ? before.state->job.generation : 0;
  const auto text = with_retries(kReadRetries, [&] { return read_text(p.run().generation()); });
  if (text.status().code() == Code::not_found) return known;
  if (!text.ok()) return text.status();
  char* end = nullptr;
  const uint64_t given_out = std::strtoull(text->c_str(), &end, 10);
  if (end == text->c_str() || std::string_view(end) != "\n")
    return Status(Code::bad_data,
                  p.run().generation() +
                      " holds no number; write one into it that is greater than every "
                      "\"generation\" in " +
                      p.run().events());
  return std::max(known, given_out);
}

/// LEAD-1: a supervisor that lost its standby, or was lost by it, may have gone on deciding. If the
/// state that it left in the run's folder is newer, that state replaces the standby's. Raises
/// `generation` to that state's. Errors as read_left_state().
Status use_left_state_if_newer(const Process& p, Predecessor& before, uint64_t& generation) {
  SS_ASSIGN(auto left, with_retries(kReadRetries, [&] {
              return read_left_state(p.options.run, p.options.instance, before.epoch);
            }));
  if (!left) return {};
  if (before.state && std::pair(left->epoch, left->sequence) <=
                          std::pair(before.state->epoch, before.state->sequence))
    return {};
  generation = std::max(generation, left->job.generation);
  before.state = std::move(left);
  return {};
}

/// Touches the epoch's file, and tells the supervisor actor what the epoch files show.
std::shared_ptr<EpochWatch> lead_epoch(const Process& p, uint64_t epoch,
                                       std::shared_future<caf::actor> supervisor) {
  auto watch = std::make_shared<EpochWatch>(
      p.files, [supervisor = std::move(supervisor), epoch](const EpochView& view) {
        // Before the actor exists, the heartbeat alone shows that this process leads.
        if (supervisor.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return;
        caf::anon_send(supervisor.get(), epoch_seen(0, epoch, view));
      });
  watch->lead(epoch);
  watch->poll_every(kEpochPollMs);
  return watch;
}

/// How the supervisor actor ended.
struct End {
  int code;
  std::string reason;
  bool resigns;
};

LeadershipOptions leadership_options(const Process& p, uint64_t epoch, Predecessor before,
                                     std::shared_ptr<EpochWatch> watch,
                                     std::shared_ptr<std::promise<End>> end) {
  LeadershipOptions lead;
  lead.epoch = epoch;
  lead.address = p.transport.address();
  lead.instance = p.options.instance;
  lead.state = std::move(before.state);
  lead.lost = before.lost;
  lead.lost_at_ms = before.lost_at_ms;
  lead.silent = before.silent;
  lead.stood_by = before.stood_by;
  const auto touched = p.files.touched_ns(before.epoch);
  lead.elected = before.epoch > 0 && touched.ok() && *touched == 0;
  lead.watch = std::move(watch);
  lead.finished = [end = std::move(end)](int code, std::string reason, bool resigns) {
    end->set_value({code, std::move(reason), resigns});
  };
  return lead;
}

/// Reads what the supervisor actor begins with. from: the predecessor's state; null: the run
/// starts. io: a file cannot be read; aborted: another supervisor leads.
Result<JobOptions> prepare(const Process& p, uint64_t epoch, uint64_t generation,
                           const SupervisorState* from) {
  SS_ASSIGN(JobOptions job, job_options(p, epoch, from));
  SS_ASSIGN(RecordsEnd records, with_retries(kReadRetries, [&]() -> Result<RecordsEnd> {
              SS_ASSIGN(RecordsEnd end, end_of_records(p.options.run, p.config.data.ledger,
                                                       p.plan.batch, leads(p, epoch)));
              // LOCK-1: the first leader of a start has no predecessor that may still write.
              if (epoch > 1 && !hosts_can_append(p.options.run))
                SS_RETURN_IF_ERROR(leave_gap(p.options.run, leads(p, epoch)));
              return end;
            }));
  // GEN-2: a disk that lagged behind may have the lines of a generation, and not its number.
  job.last_generation = std::max(generation, records.newest_generation);
  job.incidents = records.incidents;
  job.validations = std::move(records.validations);
  job.recorded_beyond = std::move(records.beyond);
  if (epoch == 1)
    for (const ConfigChange& change : recorded_changes(p.run()))
      job.changes.emplace_back(change.key, change.reason);
  if (from && records.any) {
    job.recorded_step = records.step;
    job.recorded_generation = records.generation;
  }
  return job;
}

/// What was known when an epoch was claimed.
struct Claim {
  bool ours = false;        // false: another process has claimed it
  uint64_t generation = 0;  // the highest that was given out
  uint64_t above = 0;       // as Epoch::generation
  Status known;             // if not ok: why the run cannot go on
};

/// Claims the epoch after that of `before`, once. io: a file cannot be read or written.
Result<Claim> claim_once(const Process& p, Predecessor& before) {
  Claim claim;
  Epoch mine{before.epoch + 1, p.options.node, getpid(), p.transport.address(), 0};
  if (auto highest = highest_generation(p, before); highest.ok())
    claim.generation = *highest;
  else
    claim.known = highest.status();
  if (claim.known.ok()) claim.known = use_left_state_if_newer(p, before, claim.generation);
  if (claim.known.code() == Code::io) return claim.known;
  SS_ASSIGN(const Epoch newest, p.files.newest());
  mine.generation = newest.generation;
  if (newest == mine) {  // an earlier claim was carried out in spite of its error
    claim.ours = true;
  } else {
    mine.generation =
        mine.number == 1 ? claim.generation
                         : std::max(claim.generation, newest.generation) + job::unknown_generations;
    SS_ASSIGN(claim.ours, p.files.claim(mine));
  }
  claim.above = mine.generation;
  return claim;
}

/// Claims the epoch after that of `before`. JOB-1: a standby may be the only process that has the
/// newest state, so it tries again, as on a full disk, while agents live.
Result<Claim> claim_next(const Process& p, Predecessor& before) {
  const auto patience = std::chrono::milliseconds(p.config.cluster.join_timeout_ms);
  const auto until = std::chrono::steady_clock::now() + patience;
  bool said = false;
  while (true) {
    auto claim = claim_once(p, before);
    if (claim.status().code() != Code::io || !before.stood_by) return claim;
    if (std::chrono::steady_clock::now() > until && !agents_live(p.run())) return claim;
    if (!std::exchange(said, true))
      log::warn("cannot claim epoch {}, trying again while agents live: {}", before.epoch + 1,
                claim.status().message());
    std::this_thread::sleep_for(std::chrono::milliseconds(kClaimAgainMs));  // polls: shared files
    // A supervisor that was only stopped leads on, with a newer state than this one.
    const auto newest = p.files.newest();
    if (!newest.ok()) continue;
    const auto alive = is_alive(p, *newest);
    if (alive.ok() && *alive) return Claim{};
  }
}

/// Claims the next epoch and supervises until the end. Returns 0 at once if another process claimed
/// the epoch first. JOB-1: if a file cannot be read, another process is to lead, unless this is the
/// first epoch, in which no memory holds a step. Any other failure after the claim ends the run: an
/// epoch that ends without a word would be followed by the next one, for ever.
Result<int> supervise(const Process& p, Predecessor before) {
  const uint64_t epoch = before.epoch + 1;
  SS_ASSIGN(Claim claim, claim_next(p, before));
  if (!claim.ours) {
    log::info("another process leads epoch {}", epoch);
    return 0;
  }
  uint64_t generation = claim.generation;
  Status known = claim.known;
  log::info("supervisor of epoch {}", epoch);
  std::promise<caf::actor> to_watch;
  auto watch = lead_epoch(p, epoch, to_watch.get_future().share());
  // The predecessor may have gone on until now.
  if (known.ok()) known = use_left_state_if_newer(p, before, generation);
  auto prepared = known.ok()
                      ? prepare(p, epoch, generation, before.state ? &*before.state : nullptr)
                      : Result<JobOptions>(known);
  const auto still_leads = leads(p, epoch);
  const auto led = with_retries(kReadRetries, still_leads);
  if (led.ok() && !*led) {  // LEAD-1: this process may have been stopped while it prepared
    log::warn("another supervisor leads since this one prepared");
    return 0;
  }
  const Status& failed = led.ok() ? prepared.status() : led.status();
  if (failed.code() == Code::io && epoch > 1) {
    const bool newest = known.ok() && before.state;
    return leave_unprepared(p, epoch, generation, newest ? &*before.state : nullptr, *watch,
                            failed);
  }
  if (!failed.ok()) return refuse_agents(p, epoch, generation, failed);
  JobOptions job = prepared.take();
  // The records may name numbers of the predecessor that its epoch file does not.
  job.generations_above = job::numbers_above(epoch, claim.above, job.last_generation);
  auto end = std::make_shared<std::promise<End>>();
  auto result = end->get_future();
  job.leadership = leadership_options(p, epoch, std::move(before), watch, std::move(end));
  const auto exporter = Exporter::make(p.run(), p.config, [still_leads] {
    const auto leads = still_leads();
    return !leads.ok() || *leads;
  });
  job.journal = std::make_shared<Journal>(p.options.run, still_leads, kFlushTimeoutMs, [exporter] {
    if (exporter) exporter->wake();
  });
  auto journal = job.journal;
  job.diagnosis_failed = [run = p.options.run](const std::string& host, const std::string& why) {
    return drain_in_slurm(run, host, why);
  };
  const auto notifier = make_notifier(p);
  if (notifier)
    job.notify = [notifier, run = p.options.run](const nlohmann::json& event) {
      notify(*notifier, run, event);
    };
  caf::actor supervisor = p.system.spawn(job_supervisor, std::move(job));
  p.transport.publish("supervisor", supervisor);
  to_watch.set_value(supervisor);

  const auto http = serve_http(p, epoch);
  // Without its folder there is no run left to lead: the actor ends as if it had been deposed.
  auto folder_watch = std::make_unique<FolderWatch>(p.run(), [supervisor, run = p.run()] {
    log::error("{}", run_gone_message(run));
    caf::anon_send(supervisor, local::EpochSeen{0, true, 0});
  });

  const auto [code, reason, resigns] = result.get();
  log::info("supervisor ends: {}", reason);
  if (resigns) resign(p, epoch, *watch, *journal);
  watch.reset();
  folder_watch.reset();
  caf::anon_send_exit(supervisor, caf::exit_reason::user_shutdown);
  supervisor = nullptr;
  if (notifier) notifier->finish();
  if (exporter && !resigns && journal->flush()) exporter->finish(code);
  return code;
}

/// Becomes supervisor, unless one is alive or other nodes have voted for the next one.
Result<int> claim_leadership(const Process& p) {
  SS_ASSIGN(const Epoch newest, p.files.newest());
  if (newest.number > 0) {
    SS_ASSIGN(const bool alive, is_alive(p, newest));
    if (alive) {
      log::info("not needed: the supervisor of epoch {} is alive", newest.number);
      return 0;
    }
    SS_ASSIGN(const bool voted_out, was_voted_out(p, newest));
    if (voted_out) {
      log::info("not needed: other nodes voted out epoch {}, one of them leads next",
                newest.number);
      return 0;
    }
  }
  Predecessor before;
  before.epoch = newest.number;
  before.lost = "its process and its standby have ended";
  before.lost_at_ms = now_ms(p.system.clock());
  before.silent = true;
  return supervise(p, std::move(before));
}

/// Replicates the state of the supervisor at standby_of until that supervisor is lost, then
/// supervises. Returns 0 if the run ends first.
Result<int> stand_by(const Process& p) {
  auto end = std::make_shared<std::promise<Predecessor>>();
  auto result = end->get_future();
  SS_ASSIGN(caf::actor supervisor,
            p.transport.lookup(p.options.standby_of, "supervisor",
                               static_cast<int>(p.config.supervision.silence_ms)));
  auto me = std::make_shared<caf::actor>();
  auto ready = std::make_shared<std::promise<void>>();
  auto is_ready = ready->get_future().share();
  StandbyOptions options;
  options.node = p.options.node;
  options.address = p.transport.address();
  options.watch = std::make_shared<EpochWatch>(p.files, [me, is_ready](const EpochView& view) {
    is_ready.wait();
    caf::anon_send(*me, local::LeaderSeen{view.answered, view.current, view.newest.number,
                                          view.leader_alive()});
  });
  auto watch = options.watch;
  options.ended = [end, &system = p.system](std::optional<SupervisorState> state,
                                            std::string reason, bool silent) {
    Predecessor before;
    before.epoch = state ? state->epoch : 0;
    before.state = std::move(state);
    before.lost = std::move(reason);
    before.lost_at_ms = now_ms(system.clock());
    before.silent = silent;
    before.stood_by = true;
    end->set_value(std::move(before));
  };
  *me = p.system.spawn(standby_actor, supervisor, std::move(options));
  supervisor = nullptr;
  ready->set_value();
  watch->poll_every(kEpochPollMs);
  log::info("standby of {}", p.options.standby_of);
  auto folder_watch = std::make_unique<FolderWatch>(p.run(), [me = *me, run = p.run()] {
    caf::anon_send(me, Shutdown{0, run_gone_message(run)});
  });
  Predecessor before = result.get();
  folder_watch.reset();
  watch.reset();
  if (before.state) return supervise(p, std::move(before));
  log::info("standby ends: {}", before.lost);
  return 0;
}

Result<int> run_supervisor(const SupervisorOptions& o) {
  const RunFolder run{o.run};
  SS_ASSIGN(const LoadedConfig loaded, load_config(run.config()));
  SS_ASSIGN(const Plan plan, make_plan(loaded.config));
  SS_ASSIGN(const RunData data, open_tokens(loaded.config, plan.shape));
  const auto trace_events = static_cast<size_t>(loaded.config.metrics.trace_events);
  if (Status status = trace::start(trace_events); !status.ok())
    log::warn("no traces: {}", status.message());
  SS_ASSIGN(auto actors, ActorProcess::start(loaded.config, run, o.instance, 2));
  const Process process{o,
                        loaded.config,
                        plan,
                        data,
                        EpochFiles(run, o.instance),
                        actors->system(),
                        actors->transport()};
  auto code = o.standby_of.empty() ? claim_leadership(process) : stand_by(process);
  actors->transport().stop();
  return code;
}

}  // namespace

int run_supervisor_process(const SupervisorOptions& options) {
  init_logging("supervisor-" + options.node);
  // Signals for the terminal's or the agent's process group must not end the supervisor.
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGPIPE}) sigaddset(&set, signal);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  auto code = run_supervisor(options);
  if (code.ok()) return *code;
  log::error("{}", code.status().message());
  return report_status(code.status());
}

}  // namespace simplescale
