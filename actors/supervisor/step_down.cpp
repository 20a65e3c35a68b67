#include "actors/supervisor/step_down.hpp"

#include <chrono>
#include <future>
#include <memory>
#include <vector>

#include "actors/supervisor/claim.hpp"
#include "runtime/base/log.hpp"

namespace simplescale::supervisor {

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

Status leave_unprepared(const Leader& leader, const SupervisorState* state, EpochWatch& watch,
                        const Status& why) {
  Journal journal(leader.run.path, leads(leader.files, leader.epoch), kFlushTimeoutMs);
  if (state) {
    const std::vector<uint8_t> bytes = encode(*state);
    journal.replace(state_page(leader.instance, leader.epoch),
                    std::string(bytes.begin(), bytes.end()));
  }
  journal.append("events.jsonl", event_of("resigned", leader.node, leader.generation, why));
  resign(leader.files, leader.epoch, watch, journal);
  return why;
}

}  // namespace simplescale::supervisor
