#include "actors/checkpoint/uploader.hpp"

#include <utility>

#include "actors/essential.hpp"
#include "actors/local.hpp"
#include "runtime/base/log.hpp"
#include "runtime/checkpoint/run_checkpoints.hpp"

namespace simplescale {

namespace {

constexpr std::chrono::seconds kRetryPause{60};

struct UploaderState {
  static inline const char* name = "uploader";
  std::shared_ptr<CheckpointBucket> bucket;
  uint64_t until_step = 0;  // as in KeepRules
  bool due = false;         // a Tick is under way, queued behind all orders that wait
  bool retry_due = false;   // a RetryUpload is under way
  bool failing = false;     // the newest update failed, and the supervisor knows
};

using Uploader = caf::stateful_actor<UploaderState>;

Result<std::vector<uint64_t>> update(UploaderState& s, const UploaderOptions& options) {
  if (!s.bucket) {
    SS_ASSIGN(s.bucket, open_bucket(options.config, options.run, options.leads,
                                    [stopped = options.stopped] { return stopped->load(); }));
  }
  KeepRules rules = keep_rules(options.config);
  rules.until_step = s.until_step;
  return s.bucket->update(checkpoint_folder(options.config), rules);
}

void upload(Uploader* self, const caf::actor& supervisor, const UploaderOptions& options) {
  UploaderState& s = self->state;
  if (*options.stopped) return;
  const auto uploaded = update(s, options);
  if (uploaded.status().code() == Code::aborted) return;
  if (uploaded.ok() && !uploaded->empty()) self->send(supervisor, local::Uploaded{*uploaded, ""});
  if (!uploaded.ok() && !s.failing)
    self->send(supervisor, local::Uploaded{{}, uploaded.status().message()});
  s.failing = !uploaded.ok();
  if (s.failing && !std::exchange(s.retry_due, true))
    self->delayed_send(self, kRetryPause, local::RetryUpload{});
}

caf::behavior uploader_actor(Uploader* self, caf::actor supervisor, UploaderOptions options) {
  end_process_with(self, "uploader");
  return {
      [=](const local::UploadCheckpoints& order) {
        self->state.until_step = order.step;
        if (!std::exchange(self->state.due, true)) self->send(self, local::Tick{});
      },
      [=](local::Tick) {
        self->state.due = false;
        upload(self, supervisor, options);
      },
      [=](local::RetryUpload) {
        self->state.retry_due = false;
        if (self->state.failing) upload(self, supervisor, options);
      },
  };
}

}  // namespace

KeepRules keep_rules(const Config& config) {
  KeepRules rules;
  rules.keep = static_cast<size_t>(config.checkpoint.keep);
  rules.keep_best = static_cast<size_t>(config.checkpoint.keep_best);
  rules.permanent_every_steps = static_cast<uint64_t>(config.checkpoint.permanent_every_steps);
  return rules;
}

Result<std::shared_ptr<CheckpointBucket>> open_bucket(const Config& config, const RunFolder& run,
                                                      std::function<bool()> leads,
                                                      std::function<bool()> stopped,
                                                      StoreLimits limits) {
  SS_ASSIGN(S3Url url, parse_s3_url(config.checkpoint.upload));
  limits.http.stopped = std::move(stopped);
  limits.http.send_bytes_per_s_max = static_cast<uint64_t>(config.checkpoint.upload_mib_per_s)
                                     << 20;
  SS_ASSIGN(std::shared_ptr<ObjectStore> store, open_object_store(url, std::move(limits)));
  SS_ASSIGN(std::string id, run_id(run));
  BucketOptions options{std::move(url), std::move(id), config.run.name, std::move(leads)};
  return std::make_shared<CheckpointBucket>(std::move(store), std::move(options));
}

caf::actor spawn_uploader(caf::actor_system& system, caf::actor supervisor,
                          UploaderOptions options) {
  if (options.config.checkpoint.upload.empty()) return {};
  return system.spawn<caf::detached>(uploader_actor, std::move(supervisor), std::move(options));
}

}  // namespace simplescale
