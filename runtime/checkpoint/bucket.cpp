#include "runtime/checkpoint/bucket.hpp"

#include <algorithm>
#include <filesystem>

#include "runtime/base/input_file.hpp"
#include "runtime/base/log.hpp"
#include "runtime/checkpoint/checkpoint_format.hpp"
#include "runtime/checkpoint/run_checkpoints.hpp"

namespace simplescale {

using namespace checkpoint_format;

namespace {

// Whole files to an object store. Blocks; any thread.

Status upload_parts(ObjectStore& store, const MultipartUpload& upload, const InputFile& file,
                    size_t part_bytes) {
  std::vector<std::string> etags;
  std::vector<char> part(part_bytes);
  for (uint64_t at = 0; at < file.bytes(); at += part_bytes) {
    const auto bytes = static_cast<size_t>(std::min<uint64_t>(part_bytes, file.bytes() - at));
    SS_RETURN_IF_ERROR(file.read(at, part.data(), bytes));
    SS_ASSIGN(std::string etag,
              store.upload_part(upload, etags.size() + 1, std::span(part.data(), bytes)));
    etags.push_back(std::move(etag));
  }
  return store.complete_upload(upload, etags, file.bytes());
}

/// Uploads a file: at once if it has at most part_bytes bytes, else in parts of that size, or of a
/// larger one if there would be more than kPartsMax. Holds one part in memory. The object appears as
/// a whole. After an error the parts are removed if the server can be reached. part_bytes: at least
/// kPartBytesMin. Errors as those of ObjectStore, and those of InputFile.
Status upload_file(ObjectStore& store, const std::string& key, const std::string& path,
                   size_t part_bytes) {
  SS_ASSERT(part_bytes >= kPartBytesMin);
  SS_ASSIGN(const InputFile file, InputFile::open(path));
  if (file.bytes() <= part_bytes) {
    std::vector<char> whole(static_cast<size_t>(file.bytes()));
    SS_RETURN_IF_ERROR(file.read(0, whole.data(), whole.size()));
    return store.put(key, whole).status();
  }
  part_bytes =
      std::max(part_bytes, static_cast<size_t>((file.bytes() + kPartsMax - 1) / kPartsMax));
  SS_ASSIGN(const MultipartUpload upload, store.begin_upload(key));
  const Status status = upload_parts(store, upload, file, part_bytes);
  if (!status.ok() && status.code() != Code::aborted) (void)store.abort_upload(upload);
  return status;
}

constexpr const char* kLatest = "latest";
constexpr size_t kIndexBytesMax = 64 << 20;
constexpr int kConflictsMax = 5;  // of `latest`, in a row

/// The valid checkpoints of a folder up to a step, by step.
std::vector<StoredCheckpoint> local_checkpoints(const std::string& checkpoints, uint64_t until) {
  std::vector<StoredCheckpoint> found;
  for (const uint64_t step : checkpoint_steps(checkpoints)) {
    if (step > until) continue;
    const std::string folder = checkpoints + "/" + step_folder_name(step);
    const auto text = read_text_file(folder + "/" + kManifest, kManifestBytesMax);
    const auto checkpoint = Checkpoint::open(folder);
    if (text.ok() && checkpoint.ok())
      found.push_back({step, bucket_folder_name(step, *text), checkpoint->info().val_loss});
  }
  return found;
}

std::string file_name(const std::string& path) {
  return path.substr(path.find_last_of('/') + 1);
}

}  // namespace

CheckpointBucket::CheckpointBucket(std::shared_ptr<ObjectStore> store, BucketOptions options)
    : store_(std::move(store)), options_(std::move(options)) {}

Result<std::optional<BucketIndex>> CheckpointBucket::read() {
  auto latest = store_->get(key(kLatest), kIndexBytesMax);
  if (latest.status().code() == Code::not_found) {
    etag_.clear();
    return std::optional<BucketIndex>();
  }
  if (!latest.ok()) return latest.status();
  auto index = parse_bucket_index(latest->text);
  if (!index.ok())
    return Status(Code::bad_data, store_->url(key(kLatest)) + " " + index.status().message() +
                                      "; use another s3:// URL, or remove that object");
  etag_ = latest->etag;
  return std::optional(index.take());
}

Status CheckpointBucket::check_leads() const {
  if (!options_.leads || options_.leads()) return {};
  return {Code::aborted, name() + ": another supervisor leads"};
}

Status CheckpointBucket::put_index(const BucketIndex& index) {
  SS_RETURN_IF_ERROR(check_leads());  // after read(): CHECKPOINT-6
  auto put = store_->put(key(kLatest), bucket_index_text(index),
                         {.if_etag = etag_, .if_absent = etag_.empty()});
  if (put.ok()) etag_ = put.take();
  return put.status();
}

Status CheckpointBucket::claim() {
  SS_ASSIGN(const std::optional<BucketIndex> index, read());
  const BucketIndex ours{options_.run_id, options_.run_name,
                         index ? index->checkpoints : std::vector<StoredCheckpoint>()};
  SS_RETURN_IF_ERROR(put_index(ours));
  // Another text: of the same one, put() would say that it has been put.
  const std::string probe = bucket_index_text(ours) + "\n";
  const auto put = store_->put(key(kLatest), probe, {.if_absent = true});
  if (put.status().code() == Code::mismatch) return {};
  if (!put.ok()) return put.status();
  return {Code::bad_config, name() +
                                ": the server ignores the condition of a put "
                                "(If-None-Match), which protects the checkpoints; use a "
                                "server that keeps it"};
}

Result<std::vector<uint64_t>> CheckpointBucket::update(const std::string& checkpoints,
                                                       const KeepRules& rules) {
  std::vector<uint64_t> uploaded;
  for (int conflicts = 0; conflicts < kConflictsMax;) {
    SS_ASSIGN(const std::optional<BucketIndex> index, read());
    if (index && index->run_id != options_.run_id)
      return Status(Code::bad_config, name() + " now belongs to another run, \"" + index->run_name +
                                          "\"; give this one its own checkpoint.upload");
    const auto stored = index ? index->checkpoints : std::vector<StoredCheckpoint>();
    const auto local = local_checkpoints(checkpoints, rules.until_step);
    const BucketStep next = next_bucket_step(stored, local, rules);
    if (!clean_) SS_RETURN_IF_ERROR(abort_uploads());
    if (next.upload) {
      const std::string folder = checkpoints + "/" + step_folder_name(next.upload->step);
      const Status status = upload(*next.upload, folder);
      if (!status.ok() && !std::filesystem::exists(folder)) continue;  // pruned meanwhile
      SS_RETURN_IF_ERROR(status);
    }
    if (next.listed != stored || !index) {
      const Status status = put_index({options_.run_id, options_.run_name, next.listed});
      if (status.code() == Code::mismatch) {
        ++conflicts;
        continue;
      }
      SS_RETURN_IF_ERROR(status);
    }
    SS_RETURN_IF_ERROR(remove_unlisted(next.listed));
    if (!next.upload) return uploaded;
    uploaded.push_back(next.upload->step);
  }
  return Status(Code::io, name() + ": `latest` is changed by another process all the time");
}

Status CheckpointBucket::upload(const StoredCheckpoint& stored, const std::string& folder) {
  SS_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(folder));
  std::vector<std::string> files;
  for (const ShardRecord& record : checkpoint.records()) files.push_back(record.file);
  if (!checkpoint.info().tokenizer.empty()) files.push_back(file_name(checkpoint.info().tokenizer));
  files.push_back(kManifest);
  for (const std::string& file : files) {
    const std::string path = folder + "/" + file, object = key(stored.folder + "/" + file);
    SS_ASSIGN(const uint64_t bytes, file_bytes(path));
    // The folder's name has the hash of the manifest, which has those of all files.
    if (const auto there = store_->head(object); there.ok() && there->bytes == bytes) continue;
    SS_RETURN_IF_ERROR(upload_file(*store_, object, path, options_.part_bytes));
  }
  return {};
}

Result<std::vector<std::string>> CheckpointBucket::unlisted(
    const std::vector<StoredCheckpoint>& listed) {
  std::vector<std::string> keys;
  const std::string below = key("step-");
  SS_ASSIGN(const std::vector<ObjectFacts> objects, store_->list(below));
  for (const ObjectFacts& object : objects) {
    const std::string rest = object.key.substr(below.size() - 5);  // "step-..."
    const std::string folder = rest.substr(0, rest.find('/'));
    if (is_bucket_folder_name(folder) &&
        std::ranges::find(listed, folder, &StoredCheckpoint::folder) == listed.end())
      keys.push_back(object.key);
  }
  return keys;
}

/// Removes the objects of checkpoints that `latest` does not list: old ones, and what a crash has
/// left. Other objects below the prefix are not touched.
Status CheckpointBucket::remove_unlisted(const std::vector<StoredCheckpoint>& listed) {
  SS_ASSIGN(const std::vector<std::string> keys, unlisted(listed));
  for (const std::string& key : keys) {
    SS_RETURN_IF_ERROR(check_leads());
    SS_RETURN_IF_ERROR(store_->remove(key));
  }
  return {};
}

/// Uploads that earlier publishers have left take space until they are aborted.
Status CheckpointBucket::abort_uploads() {
  SS_ASSIGN(const std::vector<MultipartUpload> left, store_->uploads(key("step-")));
  for (const MultipartUpload& upload : left) {
    SS_RETURN_IF_ERROR(check_leads());
    SS_RETURN_IF_ERROR(store_->abort_upload(upload));
  }
  clean_ = true;
  return {};
}

// -- Reading --------------------------------------------------------------------------------------

Status CheckpointBucket::download(const std::string& key, const std::string& path) {
  SS_ASSIGN(const ObjectFacts object, store_->head(key));
  SS_ASSIGN(OutputFile file, OutputFile::create(system_files(), path));
  std::vector<char> piece(static_cast<size_t>(
      std::min<uint64_t>(object.bytes, static_cast<uint64_t>(options_.part_bytes))));
  for (uint64_t at = 0; at < object.bytes; at += piece.size()) {
    const std::span part(piece.data(),
                         static_cast<size_t>(std::min<uint64_t>(piece.size(), object.bytes - at)));
    SS_RETURN_IF_ERROR(store_->get_range(key, at, part, object.etag));
    SS_RETURN_IF_ERROR(file.write(part.data(), part.size()));
  }
  return file.sync();
}

Result<std::string> CheckpointBucket::manifest_text(const StoredCheckpoint& stored) {
  SS_ASSIGN(ObjectText text, store_->get(key(stored.folder + "/" + kManifest), kManifestBytesMax));
  if (bucket_folder_name(stored.step, text.text) != stored.folder)
    return Status(Code::bad_data, store_->url(key(stored.folder)) +
                                      ": its manifest.json is not the one that it had");
  return std::move(text.text);
}

Result<Checkpoint> CheckpointBucket::fetch(const StoredCheckpoint& stored,
                                           const std::string& folder, const ModelShape* shape) {
  FileOps& files = system_files();
  const auto get = [&]() -> Result<Checkpoint> {
    SS_ASSIGN(const std::string text, manifest_text(stored));
    const std::string what = store_->url(key(stored.folder));
    auto manifest = parse_manifest(text);
    if (!manifest.ok()) return manifest.status().in(what);
    if (shape && manifest->info.shape != *shape)
      return Status(Code::bad_config, what +
                                          " holds a model of another shape than this run's; "
                                          "use another checkpoint.upload");
    SS_RETURN_IF_ERROR(make_folders(files, folder));
    std::vector<std::string> names;
    for (const ShardRecord& record : manifest->records) names.push_back(record.file);
    if (manifest->tokenizer) names.push_back(manifest->tokenizer->file);
    for (const std::string& name : names)
      SS_RETURN_IF_ERROR(download(key(stored.folder + "/" + name), folder + "/" + name));
    SS_RETURN_IF_ERROR(write_text_file(files, folder + "/" + kManifest, text));
    SS_RETURN_IF_ERROR(files.fsync_folder(folder));
    SS_ASSIGN(Checkpoint checkpoint, Checkpoint::open(folder));
    SS_RETURN_IF_ERROR(checkpoint.verify());
    return checkpoint;
  };
  auto checkpoint = get();
  if (!checkpoint.ok()) (void)remove_folder(files, folder);
  return checkpoint;
}

Result<Checkpoint> CheckpointBucket::fetch_newest(const std::string& checkpoints,
                                                  const ModelShape& shape) {
  FileOps& files = system_files();
  SS_ASSIGN(const std::optional<BucketIndex> index, read());
  const auto stored = index ? index->checkpoints : std::vector<StoredCheckpoint>();
  Status first(Code::not_found, name() + ": there is no checkpoint");
  for (size_t i = stored.size(); i-- > 0;) {
    const std::string temporary = checkpoints + "/" + kTmpPrefix + "fetched";
    SS_RETURN_IF_ERROR(remove_folder(files, temporary));
    auto found = fetch(stored[i], temporary, &shape);
    if (found.ok()) {
      const std::string step = step_folder_name(stored[i].step);
      SS_ASSIGN(const std::vector<std::string> runs, owning_runs(checkpoints));
      if (is_of_another_run(checkpoints + "/" + step, runs))  // CHECKPOINT-7
        return Status(Code::bad_data, made_by_another(checkpoints + "/" + step));
      SS_RETURN_IF_ERROR(remove_checkpoint(checkpoints, step, files));
      SS_RETURN_IF_ERROR(files.rename(temporary, checkpoints + "/" + step));
      SS_RETURN_IF_ERROR(files.fsync_folder(checkpoints));
      return Checkpoint::open(checkpoints + "/" + step);
    }
    if (first.code() == Code::not_found) first = found.status();
    if (found.status().code() != Code::bad_data && found.status().code() != Code::not_found)
      return found.status();
    log::warn("skipped a damaged checkpoint: {}", found.status().message());
  }
  return first;
}

Result<Checkpoint> fetch_from_bucket(const std::string& url, const std::string& folder) {
  SS_ASSIGN(S3Url from, parse_s3_url(url));
  std::optional<uint64_t> step;
  const std::string last = file_name(from.key);
  if (last.starts_with("step-") && last.find_first_not_of("0123456789", 5) == std::string::npos &&
      last.size() > 5 && last.size() < 24) {
    step = std::stoull(last.substr(5));
    from.key.resize(from.key.size() - last.size());
    if (!from.key.empty()) from.key.pop_back();
  }
  SS_ASSIGN(std::shared_ptr<ObjectStore> store, open_object_store(from));
  CheckpointBucket bucket(std::move(store), {.url = from});
  SS_ASSIGN(const std::optional<BucketIndex> index, bucket.read());
  const auto stored = index ? index->checkpoints : std::vector<StoredCheckpoint>();
  std::string steps;
  for (size_t i = stored.size(); i-- > 0;) {
    if (!step || stored[i].step == *step) return bucket.fetch(stored[i], folder);
    steps += (steps.empty() ? "" : ", ") + std::to_string(stored[i].step);
  }
  return Status(Code::not_found, url + ": there is no such checkpoint" +
                                     (steps.empty() ? "" : "; there are those of step " + steps));
}

}  // namespace simplescale
