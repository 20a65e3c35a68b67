#include "runtime/checkpoint/bucket_index.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/base/hash.hpp"
#include "runtime/base/json_members.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/checkpoint/checkpoint_format.hpp"

namespace simplescale {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

constexpr const char* kFormat = "simplescale-bucket";
constexpr uint64_t kIndexVersion = 1;
constexpr size_t kHashDigits = 16;

Result<StoredCheckpoint> parse_stored(const json& entry) {
  if (!entry.is_object()) return bad_data("a checkpoint is no object");
  StoredCheckpoint out{0, text_of(entry, "folder"), std::nullopt};
  if (!is_bucket_folder_name(out.folder)) return bad_data("a checkpoint has no folder");
  out.step = *checkpoint_format::parse_step_folder(out.folder.substr(0, out.folder.rfind('-')));
  if (const double loss = real_of(entry, "val_loss"); !std::isnan(loss)) out.val_loss = loss;
  return out;
}

}  // namespace

std::string bucket_folder_name(uint64_t step, const std::string& manifest_text) {
  return checkpoint_format::step_folder_name(step) + "-" +
         hash128(manifest_text.data(), manifest_text.size()).hex().substr(0, kHashDigits);
}

bool is_bucket_folder_name(const std::string& name) {
  const size_t dash = name.rfind('-');
  if (dash == std::string::npos || name.size() != dash + 1 + kHashDigits) return false;
  return name.find_first_not_of("0123456789abcdef", dash + 1) == std::string::npos &&
         checkpoint_format::parse_step_folder(name.substr(0, dash)).has_value();
}

std::string bucket_index_text(const BucketIndex& index) {
  ordered_json checkpoints = ordered_json::array();
  for (const StoredCheckpoint& stored : index.checkpoints) {
    checkpoints.push_back({{"step", stored.step}, {"folder", stored.folder}});
    if (stored.val_loss) checkpoints.back()["val_loss"] = *stored.val_loss;
  }
  const bool empty = index.checkpoints.empty();
  const ordered_json out = {
      {"format", kFormat},
      {"version", kIndexVersion},
      {"run", {{"id", index.run_id}, {"name", index.run_name}}},
      {"latest", empty ? ordered_json() : ordered_json(index.checkpoints.back().folder)},
      {"checkpoints", checkpoints}};
  return out.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

Result<BucketIndex> parse_bucket_index(const std::string& text) {
  const json object = parse_json(text);
  if (!object.is_object() || text_of(object, "format") != kFormat)
    return bad_data("is not a list of checkpoints by simplescale");
  if (unsigned_of(object, "version") != kIndexVersion)
    return bad_data("has another version than 1, which this program reads");
  if (!member_of(object, "run").is_object() || !member_of(object, "checkpoints").is_array())
    return bad_data("lacks \"run\" or \"checkpoints\"");
  BucketIndex out{text_of(object["run"], "id"), text_of(object["run"], "name"), {}};
  for (const json& entry : object["checkpoints"]) {
    SS_ASSIGN(StoredCheckpoint stored, parse_stored(entry));
    out.checkpoints.push_back(std::move(stored));
  }
  std::ranges::sort(out.checkpoints, {}, &StoredCheckpoint::step);
  return out;
}

std::vector<StoredCheckpoint> kept_checkpoints(std::vector<StoredCheckpoint> all,
                                               const KeepRules& rules) {
  std::erase_if(all, [&](const StoredCheckpoint& c) { return c.step > rules.until_step; });
  std::ranges::sort(all, {}, &StoredCheckpoint::step);
  std::vector<StoredCheckpoint> best;
  for (const StoredCheckpoint& checkpoint : all)
    if (checkpoint.val_loss) best.push_back(checkpoint);
  std::ranges::stable_sort(best, {}, [](const StoredCheckpoint& c) { return *c.val_loss; });
  if (best.size() > rules.keep_best) best.resize(rules.keep_best);
  const size_t newest = std::min(all.size(), std::max<size_t>(rules.keep, 1));
  std::vector<StoredCheckpoint> kept;
  for (size_t i = 0; i < all.size(); ++i) {
    const bool permanent = rules.permanent_every_steps > 0 && all[i].step > 0 &&
                           all[i].step % rules.permanent_every_steps == 0;
    if (permanent || i >= all.size() - newest || std::ranges::find(best, all[i]) != best.end())
      kept.push_back(all[i]);
  }
  return kept;
}

BucketStep next_bucket_step(const std::vector<StoredCheckpoint>& stored,
                            const std::vector<StoredCheckpoint>& local, const KeepRules& rules) {
  const auto usable = [&](const StoredCheckpoint& checkpoint) {
    if (!local.empty() && checkpoint.step > local.back().step) return false;
    const auto same = std::ranges::find(local, checkpoint.step, &StoredCheckpoint::step);
    return same == local.end() || same->folder == checkpoint.folder;
  };
  BucketStep next;
  std::ranges::copy_if(stored, std::back_inserter(next.listed), usable);
  std::vector<StoredCheckpoint> all = next.listed;
  const auto is_listed = [&](const StoredCheckpoint& checkpoint) {
    return std::ranges::find(next.listed, checkpoint.folder, &StoredCheckpoint::folder) !=
           next.listed.end();
  };
  std::ranges::copy_if(local, std::back_inserter(all), std::not_fn(is_listed));
  for (const StoredCheckpoint& checkpoint : kept_checkpoints(all, rules))
    if (!is_listed(checkpoint)) next.upload = checkpoint;  // the newest is the last
  if (next.upload) next.listed.push_back(*next.upload);
  next.listed = kept_checkpoints(std::move(next.listed), rules);
  return next;
}

}  // namespace simplescale
