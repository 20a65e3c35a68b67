#include "tools/exports/exporter.hpp"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "runtime/base/log.hpp"
#include "tools/exports/tensorboard.hpp"
#include "tools/exports/wandb.hpp"

namespace simplescale {

namespace {

constexpr auto kWriteInterval = std::chrono::milliseconds(250);     // between two writes
constexpr auto kRetryInterval = std::chrono::milliseconds(10'000);  // after a failed write
constexpr size_t kRowsMax = 10'000;                                 // per write

/// The position in the records, and the sinks. After an error it is replaced by a new one, which
/// starts at the beginning of the records.
struct Work {
  LineFollower metrics, events;
  Position newest;  // of the rows that were read
  std::vector<std::unique_ptr<MetricsSink>> sinks;
  std::vector<double> recovered_s;  // times at which incidents ended

  explicit Work(const RunFolder& run) : metrics(run.metrics()), events(run.events()) {}

  static Result<Work> open(const RunFolder& run, const Config& config) {
    Work work(run);
    if (config.metrics.tensorboard) {
      SS_ASSIGN(auto sink, open_tensorboard(run.path + "/tb"));
      work.sinks.push_back(std::move(sink));
    }
    if (config.metrics.wandb) {
      SS_ASSIGN(auto sink, open_wandb(run.path + "/wandb", config));
      work.sinks.push_back(std::move(sink));
    }
    return work;
  }

  /// Writes the records that have been added since the last call.
  Status follow() {
    std::string line;
    while (events.next(line))
      if (const auto recovery = parse_recovery(line)) recovered_s.push_back(recovery->time_s);
    std::vector<MetricsRow> rows;
    do {
      rows.clear();
      while (rows.size() < kRowsMax && metrics.next(line)) {
        auto row = parse_metrics(line);
        if (!row || row->at <= newest) continue;
        newest = row->at;
        double recoveries = 0;
        for (const double time_s : recovered_s) recoveries += time_s <= row->time_s ? 1 : 0;
        row->scalars.emplace_back("recoveries", recoveries);
        rows.push_back(std::move(*row));
      }
      for (auto& sink : sinks) {
        // Positions increase from row to row: skips the rows that the sink holds.
        size_t from = 0;
        while (from < rows.size() && sink->position() && rows[from].at <= *sink->position()) ++from;
        if (from < rows.size()) SS_RETURN_IF_ERROR(sink->write(std::span(rows).subspan(from)));
      }
    } while (!rows.empty());
    return {};
  }
};

}  // namespace

/// What the thread uses.
struct Exporter::Follower {
  Follower(RunFolder folder, Config keys, std::function<bool()> leads)
      : run(std::move(folder)), config(std::move(keys)), may_write(std::move(leads)) {}

  /// Writes the new records, and the exit code if the run has ended. False: an error; try again
  /// later.
  bool write_new_records(const std::optional<int>& exit_code) {
    Status done;
    if (!work) {
      auto opened = Work::open(run, config);
      if (opened.ok()) work.emplace(opened.take());
      done = opened.status();
    }
    if (work) done = work->follow();
    if (work && done.ok() && exit_code)
      for (auto& sink : work->sinks)
        if (done.ok()) done = sink->finish(*exit_code);
    if (done.ok()) return true;
    if (!warned)
      log::warn("cannot export metrics: {}; training continues, the export is tried again",
                done.message());
    warned = true;
    work.reset();
    return false;
  }

  void follow() {
    std::unique_lock lock(mutex);
    for (bool last = false; !last;) {
      wake.wait(lock, [this] { return news || stopping; });
      news = false;
      last = stopping;
      const std::optional<int> code = exit_code;
      lock.unlock();
      const bool leads = !may_write || may_write();
      const bool written = leads && write_new_records(code);
      lock.lock();
      if (!leads) break;
      if (!written) news = true;
      // Collects the steps of the interval into one write. stopping ends the wait.
      wake.wait_for(lock, written ? kWriteInterval : kRetryInterval, [this] { return stopping; });
    }
    over = true;
    ended.notify_all();
  }

  const RunFolder run;
  const Config config;
  const std::function<bool()> may_write;
  std::mutex mutex;
  std::condition_variable wake, ended;
  bool news = true, stopping = false, over = false;
  std::optional<int> exit_code;
  std::optional<Work> work;  // this and the next member: used by the thread only
  bool warned = false;
};

Exporter::Exporter(RunFolder run, Config config, std::function<bool()> may_write,
                   int64_t patience_ms)
    : patience_ms_(patience_ms),
      follower_(
          std::make_shared<Follower>(std::move(run), std::move(config), std::move(may_write))) {
  std::thread([follower = follower_] { follower->follow(); }).detach();
}

Exporter::~Exporter() {
  end(std::nullopt);
}

std::shared_ptr<Exporter> Exporter::make(const RunFolder& run, const Config& config,
                                         std::function<bool()> may_write) {
  if (!config.metrics.tensorboard && !config.metrics.wandb) return nullptr;
  return std::make_shared<Exporter>(run, config, std::move(may_write));
}

void Exporter::wake() {
  {
    std::lock_guard lock(follower_->mutex);
    follower_->news = true;
  }
  follower_->wake.notify_one();
}

void Exporter::finish(int exit_code) {
  end(exit_code);
}

void Exporter::end(std::optional<int> exit_code) {
  std::unique_lock lock(follower_->mutex);
  if (follower_->stopping) return;
  follower_->exit_code = exit_code;
  follower_->stopping = true;
  follower_->wake.notify_one();
  if (!follower_->ended.wait_for(lock, std::chrono::milliseconds(patience_ms_),
                                 [this] { return follower_->over; }))
    log::warn("{}: the disk hangs; the exported metrics are not complete", follower_->run.path);
}

}  // namespace simplescale
