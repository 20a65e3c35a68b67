#include "actors/supervisor/step_down.hpp"

#include <chrono>
#include <future>
#include <memory>
#include <vector>

#include "runtime/base/log.hpp"

namespace simplescale::supervisor {

namespace {

/// JOB-1: waits until the newest state is on the disk. A disk that refuses it now may take it
/// later.
void wait_until_written(const Claimant& c, uint64_t epoch, Journal& journal) {
  const Patience patience(c);
  while (!journal.flush()) {
    const auto leads = c.files.leads(epoch);
    if ((leads.ok() && !*leads) || !patience.lasts()) return;
    c.pause(kTryAgain);  // polls: a shared file system
  }
}

}  // namespace

nlohmann::json event_of(const std::string& kind, const std::string& subject, uint64_t generation,
                        const Status& why) {
  return {{"time", wall_time_s()}, {"generation", generation}, {"step", 0},
          {"incident", nullptr},   {"phase", nullptr},         {"kind", kind},
          {"subject", subject},    {"reason", why.message()},  {"ms", nullptr}};
}

void resign(const EpochFiles& files, uint64_t epoch, EpochWatch& watch, Journal& journal) {
  watch.lead(0);
  const auto stopped = std::make_shared<std::promise<void>>();
  watch.poll([stopped](const EpochView&) { stopped->set_value(); });
  stopped->get_future().wait_for(std::chrono::milliseconds(kHeartbeatTimeoutMs));
  (void)journal.flush();
  journal.stop();
  if (Status resigned = files.resign(epoch); !resigned.ok()) log::warn("{}", resigned.message());
}

Status leave_unprepared(const Claimant& c, uint64_t epoch, uint64_t generation,
                        const SupervisorState* state, EpochWatch& watch, const Status& why) {
  Journal journal(c.run.path, leads(c.files, epoch), kFlushTimeoutMs);
  if (state) {
    const std::vector<uint8_t> bytes = encode(*state);
    journal.replace(state_page(c.instance, epoch), std::string(bytes.begin(), bytes.end()));
    wait_until_written(c, epoch, journal);
  }
  journal.append("events.jsonl", event_of("resigned", c.node, generation, why));
  resign(c.files, epoch, watch, journal);
  return why;
}

}  // namespace simplescale::supervisor
