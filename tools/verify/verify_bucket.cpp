#include "tools/verify/verify_bucket.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "runtime/checkpoint/checkpoint_format.hpp"

namespace simplescale {

using namespace checkpoint_format;

namespace {

/// The bytes of an object, from the first to the last.
class ObjectBytes {
 public:
  ObjectBytes(ObjectStore& store, ObjectFacts object, size_t piece_bytes)
      : store_(store), object_(std::move(object)), piece_bytes_(piece_bytes) {}

  /// Calls take(piece) until it has got the next `bytes` bytes, which there are.
  template <class Take>
  Status next(uint64_t bytes, Take take) {
    while (bytes > 0) {
      if (left_.empty()) {
        buffer_.resize(std::min<uint64_t>(piece_bytes_, object_.bytes - at_));
        SS_RETURN_IF_ERROR(store_.get_range(object_.key, at_, buffer_, object_.etag));
        at_ += buffer_.size();
        left_ = buffer_;
      }
      const auto piece = left_.first(std::min<uint64_t>(bytes, left_.size()));
      take(piece);
      left_ = left_.subspan(piece.size());
      bytes -= piece.size();
    }
    return {};
  }

 private:
  ObjectStore& store_;
  const ObjectFacts object_;
  const size_t piece_bytes_;
  uint64_t at_ = 0;  // of the object, behind buffer_
  std::vector<char> buffer_;
  std::span<const char> left_;
};

std::string bytes_text(uint64_t bytes, uint64_t expected) {
  return "has " + std::to_string(bytes) + " bytes instead of " + std::to_string(expected);
}

/// True: the error says nothing about the objects.
bool cannot_tell(const Status& status) {
  return status.code() == Code::io || status.code() == Code::bad_config ||
         status.code() == Code::aborted;
}

}  // namespace

Status CheckpointBucket::verify_shard(const std::string& key, const ShardRecord& record,
                                      const std::vector<TensorEntry>& expected) {
  const auto bad = [&](const std::string& what) {
    return Status(Code::bad_data, store_->url(key) + ": " + what);
  };
  SS_ASSIGN(const ObjectFacts object, store_->head(key));
  if (object.bytes != record.bytes) return bad(bytes_text(object.bytes, record.bytes));
  ObjectBytes bytes(*store_, object, options_.part_bytes);
  std::string header;
  const auto append = [&](std::span<const char> piece) {
    header.append(piece.data(), piece.size());
  };
  uint64_t length = 0;
  if (object.bytes < sizeof length) return bad("it has no header");
  SS_RETURN_IF_ERROR(bytes.next(sizeof length, append));
  std::memcpy(&length, header.data(), sizeof length);
  const uint64_t rest = object.bytes - sizeof length;
  if (length > std::min(rest, kSafetensorsHeaderMax)) return bad("its header is damaged");
  SS_RETURN_IF_ERROR(bytes.next(length, append));
  if (hash128(header.data(), header.size()) != record.header)
    return bad("the checksum of its header is wrong");
  const auto tensors = parse_safetensors_header(header.substr(sizeof length), rest - length);
  if (!tensors.ok()) return bad(tensors.status().message());
  for (const TensorEntry& each : expected) {
    const auto tensor = std::ranges::find(*tensors, each.name, &TensorEntry::name);
    if (tensor == tensors->end() || tensor->dtype != each.dtype || tensor->shape != each.shape)
      return bad("tensor " + each.name + " is missing or has another type or shape");
  }
  for (const TensorEntry& tensor : *tensors) {
    Hasher hasher;
    SS_RETURN_IF_ERROR(bytes.next(tensor.end - tensor.begin, [&](std::span<const char> piece) {
      hasher.update(piece.data(), piece.size());
    }));
    const auto recorded = record.tensors.find(tensor.name);
    if (recorded == record.tensors.end() || recorded->second != hasher.digest())
      return bad("the checksum of " + tensor.name + " is wrong");
  }
  return {};
}

Status CheckpointBucket::verify(const StoredCheckpoint& stored) {
  SS_ASSIGN(const std::string text, manifest_text(stored));
  const auto in_folder = [&](const std::string& name) { return key(stored.folder + "/" + name); };
  const auto manifest = parse_manifest(text);
  if (!manifest.ok()) return Status(manifest.status()).in(store_->url(in_folder(kManifest)));
  const CheckpointInfo& info = manifest->info;
  if (info.step != stored.step)
    return Status(Code::bad_data,
                  store_->url(in_folder(kManifest)) + " says step " + std::to_string(info.step));
  const std::vector<Unit> units = units_of(info.shape);
  for (size_t shard = 0; shard < info.shards; ++shard) {
    const ShardRecord& record = manifest->records[shard];
    SS_RETURN_IF_ERROR(verify_shard(in_folder(record.file), record,
                                    shard_tensors(units, info.shards, shard, info.state)));
  }
  if (!manifest->tokenizer) return {};
  const std::string tokenizer = in_folder(manifest->tokenizer->file);
  SS_ASSIGN(const ObjectFacts object, store_->head(tokenizer));
  if (object.bytes != manifest->tokenizer->bytes)
    return Status(Code::bad_data, store_->url(tokenizer) + ": " +
                                      bytes_text(object.bytes, manifest->tokenizer->bytes));
  SS_ASSIGN(const ObjectText model, store_->get(tokenizer, object.bytes));
  if (hash128(model.text.data(), model.text.size()) != manifest->tokenizer->hash)
    return Status(Code::bad_data, store_->url(tokenizer) + ": its checksum is wrong");
  return {};
}

Result<VerifyReport> verify_bucket(CheckpointBucket& bucket,
                                   const std::function<void(const StoredCheckpoint&)>& begins) {
  SS_ASSIGN(const std::optional<BucketIndex> index, bucket.read());
  if (!index)
    return Status(Code::not_found, bucket.name() +
                                       ": there is no object `latest`, so no run has uploaded "
                                       "checkpoints to this URL (checkpoint.upload)");
  VerifyReport report;
  size_t valid = 0;
  for (const StoredCheckpoint& stored : index->checkpoints) {
    begins(stored);
    const Status status = bucket.verify(stored);
    if (cannot_tell(status)) return status;
    valid += status.ok();
    if (status.ok()) continue;
    SS_ASSIGN(const std::optional<BucketIndex> now, bucket.read());
    const bool removed =
        !now || std::ranges::find(now->checkpoints, stored) == now->checkpoints.end();
    report.ok = report.ok && removed;
    report.lines.push_back("checkpoints: " +
                           (removed ? stored.folder + " was removed meanwhile" : status.message()));
  }
  report.lines.push_back("checkpoints: " + std::to_string(valid) + " of run \"" + index->run_name +
                         "\" have all their objects, and all checksums match");
  SS_ASSIGN(const std::optional<BucketIndex> now, bucket.read());
  SS_ASSIGN(const std::vector<std::string> others,
            bucket.unlisted(now ? now->checkpoints : index->checkpoints));
  if (!others.empty())
    report.lines.push_back(
        std::to_string(others.size()) +
        " objects of checkpoints that `latest` does not list: an upload is going "
        "on, or was interrupted; the next one removes them");
  return report;
}

Result<VerifyReport> verify_bucket(const std::string& url,
                                   const std::function<void(const StoredCheckpoint&)>& begins) {
  SS_ASSIGN(const S3Url parsed, parse_s3_url(url));
  SS_ASSIGN(std::shared_ptr<ObjectStore> store, open_object_store(parsed));
  CheckpointBucket bucket(std::move(store), {.url = parsed});
  return verify_bucket(bucket, begins);
}

}  // namespace simplescale
