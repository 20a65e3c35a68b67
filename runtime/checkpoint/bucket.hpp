// A run's checkpoints in an object store (docs/object-stores.md).
//
//   s3://BUCKET/PREFIX/
//     latest                          lists the complete checkpoints; changed by a conditional put
//     step-00000100-0123456789abcdef/ the files of a checkpoint's folder, manifest.json the last;
//                                     the digits are of the manifest's hash
//
//   CHECKPOINT-5  `latest` lists only checkpoints of which every object is complete. It is changed
//                 after the objects of a new one, and before those of an old one are removed. A
//                 crash or an error at any request leaves the listed checkpoints as they were.
//   CHECKPOINT-6  A publisher that was deposed changes nothing: it reads `latest`, asks whether it
//                 leads, and then puts `latest` on the condition that it is the one that it has
//                 read. The same holds for another run: `latest` names its run.
//
// Blocks on network and disk; one thread at a time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/checkpoint/bucket_index.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/object_store/object_store.hpp"

namespace simplescale {

struct BucketOptions {
  S3Url url;                     // BUCKET and PREFIX
  std::string run_id, run_name;  // whose checkpoints are uploaded
  std::function<bool()> leads;   // as in LeaderFiles
  size_t part_bytes = 16 << 20;  // of a multipart upload; the memory that an upload takes
};

class CheckpointBucket {
 public:
  CheckpointBucket(std::shared_ptr<ObjectStore> store, BucketOptions options);

  /// What `latest` says; nullopt if there is none. bad_data: it is no list of checkpoints.
  Result<std::optional<BucketIndex>> read();
  /// Makes `latest` name this run, with the checkpoints that it lists now. Errors as
  /// ObjectStore::put(): mismatch if another process was faster; bad_config also if the server
  /// ignores conditions.
  Status claim();

  /// Uploads those checkpoints of a folder that the rules keep, the newest first, and removes those
  /// that they do not keep. Returns the steps that were uploaded. bad_config: `latest` names another
  /// run; aborted: not the leader, or the store was stopped; otherwise errors as ObjectStore. What
  /// was uploaded before an error is not uploaded again.
  Result<std::vector<uint64_t>> update(const std::string& checkpoints, const KeepRules& rules);

  /// Downloads a checkpoint to a folder, which must not exist, and verifies all its checksums. After
  /// an error the folder is removed. bad_data: it is damaged, or of another shape than `shape`.
  Result<Checkpoint> fetch(const StoredCheckpoint& stored, const std::string& folder,
                           const ModelShape* shape = nullptr);
  /// fetch() of the newest that is undamaged, to <checkpoints>/step-N. Skips damaged ones with a
  /// warning. not_found: `latest` lists none.
  Result<Checkpoint> fetch_newest(const std::string& checkpoints, const ModelShape& shape);

  /// Compares every byte of a checkpoint with its checksums, in memory of part_bytes. bad_data: the
  /// object that is damaged; not_found: one that is missing; otherwise errors as ObjectStore.
  Status verify(const StoredCheckpoint& stored);
  /// The keys of all objects of checkpoints other than these.
  Result<std::vector<std::string>> unlisted(const std::vector<StoredCheckpoint>& listed);

  /// "s3://BUCKET/PREFIX"
  std::string name() const { return options_.url.text(); }

 private:
  std::string key(const std::string& name) const { return options_.url.below(name); }
  Status check_leads() const;
  Status put_index(const BucketIndex& index);
  Status upload(const StoredCheckpoint& stored, const std::string& folder);
  Status remove_unlisted(const std::vector<StoredCheckpoint>& listed);
  Status abort_uploads();
  Status download(const std::string& key, const std::string& path);
  /// bad_data: it is not the one that the folder's name tells.
  Result<std::string> manifest_text(const StoredCheckpoint& stored);
  Status verify_shard(const std::string& key, const ShardRecord& record,
                      const std::vector<TensorEntry>& expected);

  std::shared_ptr<ObjectStore> store_;
  BucketOptions options_;
  std::string etag_;    // of `latest` as it was read last; "": there is none
  bool clean_ = false;  // uploads of earlier publishers have been aborted
};

/// The parent of a run (run.from): s3://BUCKET/PREFIX, its newest checkpoint, or
/// s3://BUCKET/PREFIX/step-N. Downloads it to `folder`, which must not exist. Errors as fetch();
/// not_found: there is none.
Result<Checkpoint> fetch_from_bucket(const std::string& url, const std::string& folder);

}  // namespace simplescale
