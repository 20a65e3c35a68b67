#include <algorithm>
#include <cstring>

#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/checkpoint/checkpoint_format.hpp"

namespace simplescale {

using namespace checkpoint_format;

namespace {

/// The error of a file that the manifest names, as bad_data. An I/O error stays io: it says nothing
/// about the contents.
Status as_damage(const Status& status) {
  return status.code() == Code::io ? status : bad_data(status.message());
}

Status check_size(const std::string& path, uint64_t expected) {
  const auto bytes = file_bytes(path);
  if (!bytes.ok()) return as_damage(bytes.status());
  if (*bytes != expected)
    return bad_data(path + ": has " + std::to_string(*bytes) + " bytes instead of " +
                    std::to_string(expected));
  return {};
}

/// Rounds to nearest even, which is exact for values that were bf16.
void store(std::span<const float> values, DType dtype, std::byte* to) {
  if (dtype == DType::f32)
    std::memcpy(to, values.data(), values.size_bytes());
  else
    std::ranges::transform(values, reinterpret_cast<uint16_t*>(to), f32_to_bf16);
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const std::string& folder) {
  const std::string path = folder + "/" + kManifest;
  SS_ASSIGN(const std::string text, read_text_file(path, kManifestBytesMax));
  auto manifest = parse_manifest(text);
  if (!manifest.ok()) return manifest.status().in(path);

  Checkpoint out;
  out.folder_ = folder;
  out.info_ = manifest->info;
  out.units_ = units_of(out.info_.shape);
  out.records_ = std::move(manifest->records);
  out.files_.resize(out.records_.size());
  for (const ShardRecord& record : out.records_)
    SS_RETURN_IF_ERROR(check_size(folder + "/" + record.file, record.bytes));
  if (manifest->tokenizer) {
    out.info_.tokenizer = folder + "/" + manifest->tokenizer->file;
    out.tokenizer_hash_ = manifest->tokenizer->hash;
    SS_RETURN_IF_ERROR(check_size(out.info_.tokenizer, manifest->tokenizer->bytes));
  }
  return out;
}

uint64_t Checkpoint::bytes() const {
  uint64_t bytes = 0;
  for (const ShardRecord& record : records_) bytes += record.bytes;
  return bytes;
}

Result<const SafetensorsFile*> Checkpoint::shard_file(size_t shard) {
  const std::lock_guard lock(*opening_);
  auto& slot = files_[shard];
  if (slot) return &*slot;
  const ShardRecord& record = records_[shard];
  auto file = SafetensorsFile::open(folder_ + "/" + record.file);
  if (!file.ok()) return as_damage(file.status());
  if (file->header_hash() != record.header)
    return bad_data(file->path() + ": the checksum of its header is wrong");
  for (const TensorEntry& expected : shard_tensors(units_, info_.shards, shard, info_.state)) {
    const TensorEntry* tensor = file->find(expected.name);
    if (!tensor || tensor->dtype != expected.dtype || tensor->shape != expected.shape)
      return bad_data(file->path() + ": tensor " + expected.name +
                      " is missing or has another type or shape");
  }
  slot.emplace(file.take());
  return &*slot;
}

Status Checkpoint::stream_piece(StateKind kind, size_t unit, size_t shard, const Sink& sink) {
  SS_ASSERT(kind != StateKind::ema || info_.state.ema);
  const Range range = shard_range(units_[unit], info_.shards, shard);
  if (range.begin == range.end) return {};
  SS_ASSIGN(const SafetensorsFile* file, shard_file(shard));
  const std::string name = tensor_name(kind, units_[unit]);
  const TensorEntry* tensor = file->find(name);
  const size_t total = range.end - range.begin;
  const DType dtype = info_.state.dtype(kind);
  const size_t bytes = bytes_of(dtype);
  std::vector<float> values(std::min(kPieceElements, total));
  std::vector<uint16_t> packed(dtype == DType::bf16 ? values.size() : 0);
  void* const stored = packed.empty() ? static_cast<void*>(values.data()) : packed.data();
  Hasher hasher;
  for (size_t at = 0; at < total;) {
    const size_t count = std::min(values.size(), total - at);
    SS_RETURN_IF_ERROR(file->read(*tensor, at * bytes, stored, count * bytes));
    hasher.update(stored, count * bytes);
    if (!packed.empty())
      std::transform(packed.data(), packed.data() + count, values.data(), bf16_to_f32);
    SS_RETURN_IF_ERROR(sink(range.begin + at, {values.data(), count}));
    at += count;
  }
  if (hasher.digest() != records_[shard].tensors.at(name))
    return bad_data(file->path() + ": the checksum of " + name + " is wrong");
  return {};
}

Status Checkpoint::stream_unit(StateKind kind, size_t unit, size_t begin, size_t end,
                               const Sink& sink) {
  for (size_t shard = 0; shard < info_.shards; ++shard) {
    const Range range = shard_range(units_[unit], info_.shards, shard);
    if (range.begin < end && begin < range.end)
      SS_RETURN_IF_ERROR(stream_piece(kind, unit, shard, sink));
  }
  return {};
}

Status Checkpoint::stream_unit(StateKind kind, size_t unit, const Sink& sink) {
  return stream_unit(kind, unit, 0, units_[unit].count, sink);
}

Status Checkpoint::verify() {
  if (!info_.tokenizer.empty()) {
    const auto text = read_text_file(info_.tokenizer, 1 << 30);
    if (!text.ok()) return as_damage(text.status());
    if (hash128(text->data(), text->size()) != tokenizer_hash_)
      return bad_data(info_.tokenizer + ": its checksum is wrong");
  }
  auto ignore = [](size_t, std::span<const float>) { return Status(); };
  // Checks the headers, also of a shard that is all padding and has no data.
  for (size_t shard = 0; shard < info_.shards; ++shard)
    SS_RETURN_IF_ERROR(shard_file(shard).status());
  const size_t tensors = kinds().size() * units_.size();
  return try_tasks(on_threads(all_cores()), info_.shards * tensors, [&](size_t task) {
    const size_t tensor = task % tensors;
    return stream_piece(kStateKinds[tensor / units_.size()], tensor % units_.size(), task / tensors,
                        ignore);
  });
}

Status read_shard(Checkpoint& checkpoint, size_t shards, size_t shard, const TrainState::Side& out,
                  const std::function<bool()>& stopped, const Parallel& parallel) {
  const std::vector<Unit>& units = checkpoint.units();
  const ShardLayout layout = shard_layout(units, shards);
  const StateFormat format = out.format();
  SS_ASSERT(shard < shards);
  const auto read_tensor = [&](size_t tensor) -> Status {
    const StateKind kind = kStateKinds[tensor / units.size()];
    const size_t unit = tensor % units.size(), bytes = bytes_of(format.dtype(kind));
    const bool begins = kind == StateKind::ema && !checkpoint.info().state.ema;
    const std::span<float> side = out.parts()[static_cast<size_t>(kind)];
    SS_ASSERT(side.size_bytes() == layout.total * bytes);
    const std::span<std::byte> target = std::as_writable_bytes(side).subspan(
        layout.offset[unit] * bytes, layout.count[unit] * bytes);
    const Range own = shard_range(units[unit], shards, shard);
    std::ranges::fill(target.subspan((own.end - own.begin) * bytes), std::byte{0});
    auto copy = [&](size_t offset, std::span<const float> values) -> Status {
      if (stopped && stopped()) return {Code::aborted, "stopped while reading a checkpoint"};
      const size_t begin = std::max(offset, own.begin),
                   end = std::min(offset + values.size(), own.end);
      if (begin < end)
        store(values.subspan(begin - offset, end - begin), format.dtype(kind),
              target.data() + (begin - own.begin) * bytes);
      return {};
    };
    return checkpoint.stream_unit(begins ? StateKind::params : kind, unit, own.begin, own.end,
                                  copy);
  };
  return try_tasks(parallel, state_parts(format.ema) * units.size(), read_tensor);
}

Status stream_parameters(Checkpoint& checkpoint, StateKind kind, size_t unit,
                         const ParameterSink& sink) {
  const std::vector<Parameter>& parameters = checkpoint.units()[unit].parameters;
  auto next = parameters.begin();
  return checkpoint.stream_unit(kind, unit,
                                [&](size_t offset, std::span<const float> values) -> Status {
                                  while (!values.empty()) {
                                    while (offset >= next->offset + next->count) ++next;
                                    const size_t at = offset - next->offset,
                                                 count = std::min(values.size(), next->count - at);
                                    SS_RETURN_IF_ERROR(sink(*next, at, values.first(count)));
                                    values = values.subspan(count);
                                    offset += count;
                                  }
                                  return {};
                                });
}

Result<StateKind> weights_kind(const Checkpoint& checkpoint, bool ema) {
  if (!ema) return StateKind::params;
  if (checkpoint.info().state.ema) return StateKind::ema;
  return bad_data(checkpoint.folder() +
                  " holds no average of the weights; a run keeps one with train.ema_decay");
}

}  // namespace simplescale
