#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "runtime/base/parse_json.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/checkpoint/checkpoint_format.hpp"
#include "runtime/checkpoint/run_checkpoints.hpp"
#include "runtime/checkpoint/shard_writer.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace simplescale {

using namespace checkpoint_format;

namespace {

Result<ShardRecord> write_shard_file(const std::string& path, const std::vector<Unit>& units,
                                     size_t shards, size_t shard, const StateFormat& format,
                                     const ShardSource& source, const Parallel& parallel,
                                     FileOps& ops) {
  const std::vector<TensorEntry> tensors = shard_tensors(units, shards, shard, format);
  SS_ASSIGN(SafetensorsWriter writer,
            SafetensorsWriter::create(ops, path, tensors, {{"format", "pt"}}));
  std::vector<Hash128> hashes(tensors.size());
  const auto write_tensor = [&](size_t tensor) -> Status {
    const StateKind kind = kStateKinds[tensor / units.size()];
    const size_t unit = tensor % units.size(), bytes = bytes_of(format.dtype(kind));
    const Range range = shard_range(units[unit], shards, shard);
    Hasher hasher;
    for (size_t at = range.begin; at < range.end; at += kPieceElements) {
      const size_t end = std::min(at + kPieceElements, range.end);
      SS_ASSIGN(const std::span<const std::byte> values, source(kind, unit, at, end));
      SS_ASSERT(values.size() == (end - at) * bytes);
      hasher.update(values.data(), values.size());
      SS_RETURN_IF_ERROR(
          writer.write(tensor, (at - range.begin) * bytes, values.data(), values.size()));
    }
    hashes[tensor] = hasher.digest();
    return {};
  };
  SS_RETURN_IF_ERROR(try_tasks(parallel, tensors.size(), write_tensor));
  SS_RETURN_IF_ERROR(writer.finish());
  ShardRecord record{shard_file_name(shard, shards), writer.bytes(), writer.header_hash(), {}};
  for (size_t t = 0; t < tensors.size(); ++t) record.tensors[tensors[t].name] = hashes[t];
  return record;
}

/// Writes and syncs a small file. An existing one is removed first: a deposed publisher that has it
/// open writes to a file without a name (CHECKPOINT-4).
Status write_new_file(FileOps& ops, const std::string& path, const std::string& text) {
  SS_RETURN_IF_ERROR(ops.unlink(path));
  return write_text_file(ops, path, text);
}

/// Checks that all shard files are there, then writes tokenizer and manifest and syncs the folder.
Status write_manifest(const std::string& tmp_folder, const CheckpointInfo& info,
                      std::vector<ShardRecord> records, FileOps& ops) {
  if (const auto resume = parse_json(info.resume); !resume.is_object())
    return {Code::internal, "checkpoint: resume facts are not a JSON object"};
  Manifest manifest{info, {}, {}};
  std::sort(records.begin(), records.end(),
            [](const ShardRecord& a, const ShardRecord& b) { return a.file < b.file; });
  for (size_t s = 0; s < info.shards; ++s) {
    const std::string file = shard_file_name(s, info.shards);
    if (s >= records.size() || records[s].file != file)
      return {Code::bad_data, tmp_folder + ": " + file + " has not been written"};
    std::error_code error;
    const uint64_t bytes = std::filesystem::file_size(tmp_folder + "/" + file, error);
    if (error || bytes != records[s].bytes)
      return {Code::bad_data, tmp_folder + "/" + file +
                                  (error ? " is missing" : " has another size") +
                                  " though its writer has finished: is the checkpoint folder on a "
                                  "file system that all nodes share?"};
  }
  manifest.records = std::move(records);
  if (!info.tokenizer.empty()) {
    SS_ASSIGN(const std::string text, read_tokenizer(info.tokenizer));
    const std::string file = tokenizer_file_name(info.tokenizer);
    manifest.tokenizer = TokenizerRecord{file, text.size(), hash128(text.data(), text.size())};
    SS_RETURN_IF_ERROR(write_new_file(ops, tmp_folder + "/" + file, text));
  }
  const std::string text = manifest_text(manifest);
  // Never write a manifest that cannot be read.
  SS_RETURN_IF_ERROR(parse_manifest(text).status().in("checkpoint manifest"));
  SS_RETURN_IF_ERROR(write_new_file(ops, tmp_folder + "/" + kManifest, text));
  return ops.fsync_folder(tmp_folder);
}

/// CHECKPOINT-4: gives the folder of the shards the name `own`, whichever publisher has it.
/// not_found: there is no such folder.
Status take_shards(const std::string& tmp_folder, const std::string& own, FileOps& ops) {
  const std::string plain = tmp_folder.substr(tmp_folder.find_last_of('/') + 1);
  const std::string parent = tmp_folder.substr(0, tmp_folder.size() - plain.size());
  std::error_code error;
  if (std::filesystem::exists(own, error)) return {};
  SS_ASSIGN(const std::vector<std::string> names, read_folder(parent));
  for (const std::string& name : names)
    if (name == plain || name.starts_with(plain + ".")) return ops.rename(parent + name, own);
  return {Code::not_found, tmp_folder +
                               " is missing though its writers have finished: is the checkpoint "
                               "folder on a file system that all nodes share?"};
}

/// CHECKPOINT-1: an existing folder of the same step is renamed to step-N.replaced, where it stays
/// readable until the new one is in place. It gets its name back if the new one cannot take it.
/// moved: set if it was renamed.
Status move_into_place(const std::string& checkpoints, const std::string& own,
                       const std::string& name, FileOps& ops, bool& moved) {
  const std::string folder = checkpoints + "/" + name, replaced = folder + kReplaced;
  std::error_code error;
  const bool replaces = std::filesystem::exists(folder, error);
  if (replaces) {
    SS_ASSIGN(const std::vector<std::string> runs, owning_runs(checkpoints));
    if (is_of_another_run(folder, runs)) return {Code::bad_data, made_by_another(folder)};
    SS_RETURN_IF_ERROR(remove_checkpoint(checkpoints, name + kReplaced, ops));
    SS_RETURN_IF_ERROR(ops.rename(folder, replaced));
    moved = true;
  }
  Status status = ops.rename(own, folder);
  if (replaces && !status.ok()) (void)ops.rename_back(replaced, folder);
  return status;
}

/// Points `latest` to the checkpoint and removes step-N.replaced, if `moved`. CHECKPOINT-4: if this
/// publisher has not made that folder, a deposed one may have just given the new step-N this name.
Status update_latest(const std::string& checkpoints, const std::string& name,
                     const std::string& publisher, FileOps& ops, bool moved) {
  SS_RETURN_IF_ERROR(replace_link(ops, name, checkpoints + "/" + kTmpPrefix + "latest." + publisher,
                                  checkpoints + "/latest"));
  return moved ? remove_checkpoint(checkpoints, name + kReplaced, ops) : Status();
}

/// True if another coordinator has renamed the folder and died before it could report.
bool is_published(const std::string& folder, const std::vector<ShardRecord>& records) {
  const auto checkpoint = Checkpoint::open(folder);
  return checkpoint.ok() && std::ranges::is_permutation(checkpoint->records(), records);
}

/// Renames the complete folder of the shards to step-N. Can be tried again after an I/O error.
Status rename_to_step(const std::string& checkpoints, const std::string& tmp_folder,
                      const std::string& own, const CheckpointInfo& info,
                      const std::vector<ShardRecord>& records, FileOps& ops, bool& moved) {
  const std::string name = step_folder_name(info.step);
  if (Status taken = take_shards(tmp_folder, own, ops); !taken.ok()) {
    const bool done = taken.code() == Code::not_found;
    if (!done || !is_published(checkpoints + "/" + name, records)) return taken;
  } else {
    SS_RETURN_IF_ERROR(write_manifest(own, info, records, ops));
    SS_RETURN_IF_ERROR(move_into_place(checkpoints, own, name, ops, moved));
  }
  return ops.fsync_folder(checkpoints);  // before a link or a report names the folder
}

}  // namespace

std::string checkpoint_tmp_folder(const std::string& checkpoints, uint64_t step, uint64_t tag) {
  char name[64];
  std::snprintf(name, sizeof name, "/%s%08" PRIu64 "-%" PRIu64, kTmpPrefix, step, tag);
  return checkpoints + name;
}

Result<ShardRecord> write_shard_from(const std::string& tmp_folder, const std::vector<Unit>& units,
                                     size_t shards, size_t shard, const StateFormat& format,
                                     const ShardSource& source, const Parallel& parallel,
                                     FileOps& ops) {
  SS_ASSERT(shard < shards);
  SS_RETURN_IF_ERROR(make_folders(ops, tmp_folder));
  const std::string path = tmp_folder + "/" + shard_file_name(shard, shards);
  auto record = write_shard_file(path, units, shards, shard, format, source, parallel, ops);
  if (record.ok()) {
    if (Status status = ops.fsync_folder(tmp_folder); !status.ok()) record = status;
  }
  if (!record.ok()) (void)ops.unlink(path);  // frees the space of a full disk
  return record;
}

Result<ShardRecord> write_shard(const std::string& tmp_folder, const ModelShape& shape,
                                size_t shards, size_t shard, const TrainState::Side& side,
                                const Parallel& parallel, FileOps& ops) {
  const std::vector<Unit> units = units_of(shape);
  const ShardLayout layout = shard_layout(units, shards);
  const StateFormat format = side.format();
  const auto parts = side.parts();
  for (const StateKind kind : state_kinds(format.ema))
    SS_ASSERT(parts[static_cast<size_t>(kind)].size_bytes() ==
              layout.total * bytes_of(format.dtype(kind)));
  auto source = [&](StateKind kind, size_t unit, size_t begin,
                    size_t end) -> Result<std::span<const std::byte>> {
    const size_t first = layout.offset[unit] + begin - shard * layout.count[unit];
    const size_t bytes = bytes_of(format.dtype(kind));
    return std::as_bytes(parts[static_cast<size_t>(kind)])
        .subspan(first * bytes, (end - begin) * bytes);
  };
  return write_shard_from(tmp_folder, units, shards, shard, format, source, parallel, ops);
}

Result<std::string> publish_checkpoint(const std::string& checkpoints,
                                       const std::string& tmp_folder, const std::string& publisher,
                                       const CheckpointInfo& info,
                                       const std::vector<ShardRecord>& records, FileOps& ops,
                                       const Retries& retries) {
  const std::string name = step_folder_name(info.step), own = tmp_folder + "." + publisher;
  bool moved = false;
  const Status status = with_retries(retries, [&] {
    return rename_to_step(checkpoints, tmp_folder, own, info, records, ops, moved);
  });
  if (!status.ok() && status.code() != Code::aborted) (void)remove_folder(ops, own);
  if (!status.ok()) return status.in("checkpoint of step " + std::to_string(info.step));
  const Status linked = with_retries(
      retries, [&] { return update_latest(checkpoints, name, publisher, ops, moved); });
  if (!linked.ok()) log::warn("{} is saved, but not linked: {}", name, linked.message());
  return checkpoints + "/" + name;
}

Status publish_checkpoint_as(const std::string& folder, const std::string& tmp_folder,
                             const CheckpointInfo& info, const std::vector<ShardRecord>& records,
                             FileOps& ops) {
  Status status = write_manifest(tmp_folder, info, records, ops);
  std::error_code error;
  if (status.ok() && std::filesystem::exists(folder, error))
    status = {Code::bad_data, folder + ": exists already; name another folder or remove it"};
  if (status.ok()) status = ops.rename(tmp_folder, folder);
  if (status.ok()) status = ops.fsync_folder(parent_folder(folder));
  if (!status.ok()) (void)remove_folder(ops, tmp_folder);
  return status;
}

}  // namespace simplescale
