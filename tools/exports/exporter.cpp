#include "tools/exports/exporter.hpp"

#include <chrono>
#include <condition_variable>
#include <ctime>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "runtime/base/log.hpp"
#include "runtime/base/parse_json.hpp"
#include "tools/exports/sinks.hpp"

namespace simplescale {

namespace {

constexpr auto kWriteInterval = std::chrono::milliseconds(250);     // between two writes
constexpr auto kRetryInterval = std::chrono::milliseconds(10'000);  // after a failed write
constexpr size_t kRowsMax = 10'000;                                 // per write

/// The position in the records, and the sinks. After an error, and when a step is repeated, it is
/// replaced by a new one, which starts at the beginning of the records.
struct Work {
  LineFollower metrics, events;
  Position newest;              // of the rows that were read
  std::vector<Position> final;  // of the rows that are there at the start, those that count
  size_t done = 0;              // of `final`
  bool replaced = false;        // older files
  std::vector<std::unique_ptr<MetricsSink>> sinks;
  std::vector<double> recovered_s;  // times at which incidents ended

  explicit Work(const RunFolder& run) : metrics(run.metrics()), events(run.events()) {
    std::string line;
    for (LineFollower lines(run.metrics()); lines.next(line);) {
      const auto row = parse_metrics(line);
      if (!row || (!final.empty() && row->at <= final.back())) continue;
      while (!final.empty() && final.back().step >= row->at.step) final.pop_back();
      final.push_back(row->at);
    }
  }

  static Result<Work> open(const RunFolder& run, const Config& config) {
    Work work(run);
    if (config.metrics.tensorboard) {
      SS_ASSIGN(auto sink, open_tensorboard(run.path + "/tb"));
      work.sinks.push_back(std::move(sink));
    }
    if (config.metrics.wandb) {
      auto start_s = static_cast<double>(std::time(nullptr));
      if (std::string first; LineFollower(run.events()).next(first))
        if (const auto event = parse_json(first); event.is_object() && event["time"].is_number())
          start_s = event["time"];
      SS_ASSIGN(auto sink, open_wandb(run.path + "/wandb", config, start_s));
      work.sinks.push_back(std::move(sink));
    }
    return work;
  }

  /// Writes the records that have been added since the last call. False: a step is repeated.
  Result<bool> follow(const std::function<bool()>& may_write) {
    std::string line;
    while (events.next(line))
      if (const auto recovery = parse_recovery(line)) recovered_s.push_back(recovery->time_s);
    std::vector<MetricsRow> rows;
    do {
      rows.clear();
      while (rows.size() < kRowsMax && metrics.next(line)) {
        auto row = parse_metrics(line);
        if (!row || row->at <= newest) continue;
        if (done < final.size() && row->at != final[done]) continue;
        if (done >= final.size() && row->at.step <= newest.step) return false;
        ++done;
        newest = row->at;
        double recoveries = 0;
        for (const double time_s : recovered_s) recoveries += time_s <= row->time_s ? 1 : 0;
        row->scalars.emplace_back("recoveries", recoveries);
        rows.push_back(std::move(*row));
      }
      for (auto& sink : sinks) SS_RETURN_IF_ERROR(sink->write(rows));
    } while (!rows.empty());
    for (auto& sink : sinks)
      if (!replaced && may_write()) SS_RETURN_IF_ERROR(sink->replace_older());
    replaced = true;
    return true;
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
    const Status done = write_all(exit_code);
    if (done.ok()) return true;
    if (!warned)
      log::warn("cannot export metrics: {}; training continues, the export is tried again",
                done.message());
    warned = true;
    work.reset();
    return false;
  }

  Status write_all(const std::optional<int>& exit_code) {
    for (bool followed = false; !followed;) {
      if (!work) {
        SS_ASSIGN(auto opened, Work::open(run, config));
        work.emplace(std::move(opened));
      }
      SS_ASSIGN(followed, work->follow(may_write));
      if (!followed) work.reset();
    }
    if (exit_code)
      for (auto& sink : work->sinks) SS_RETURN_IF_ERROR(sink->finish(*exit_code));
    return {};
  }

  void follow() {
    std::unique_lock lock(mutex);
    for (bool last = false; !last;) {
      wake.wait(lock, [this] { return news || stopping; });
      news = false;
      last = stopping;
      const std::optional<int> code = exit_code;
      lock.unlock();
      const bool leads = may_write();
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
