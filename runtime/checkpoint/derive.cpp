#include "runtime/checkpoint/derive.hpp"

#include <algorithm>
#include <vector>

#include "runtime/checkpoint/shard_writer.hpp"

namespace simplescale {

namespace {

/// Reads whole units, since only a whole tensor can be verified, and passes on their pieces.
class UnitSource {
 public:
  UnitSource(Checkpoint& from, bool with_optimizer)
      : from_(from), with_optimizer_(with_optimizer) {}

  Result<std::span<const float>> read(StateKind kind, size_t unit, size_t begin, size_t end) {
    if (values_.empty() || kind != kind_ || unit != unit_) {
      kind_ = kind, unit_ = unit;
      values_.assign(from_.units()[unit].count, 0.0f);
      if (kind == StateKind::params || with_optimizer_)
        SS_RETURN_IF_ERROR(
            from_.stream_unit(kind, unit, [this](size_t offset, std::span<const float> piece) {
              std::ranges::copy(piece, values_.begin() + static_cast<ptrdiff_t>(offset));
              return Status();
            }));
    }
    return std::span<const float>(values_).subspan(begin, end - begin);
  }

 private:
  Checkpoint& from_;
  const bool with_optimizer_;
  StateKind kind_ = StateKind::params;
  size_t unit_ = 0;
  std::vector<float> values_;
};

}  // namespace

Status derive_checkpoint(Checkpoint& from, bool with_optimizer, const CheckpointInfo& info,
                         const std::string& checkpoints, FileOps& ops) {
  ModelShape shape = from.info().shape;
  shape.block_size = info.shape.block_size;  // no weight depends on it
  if (shape != info.shape)
    return {Code::bad_config, from.folder() +
                                  " holds a model of another shape than the configuration's; set "
                                  "[model] to that model's sizes"};
  UnitSource source(from, with_optimizer);
  const std::string partial = checkpoint_tmp_folder(checkpoints, info.step, 0);
  SS_RETURN_IF_ERROR(remove_folder(ops, partial));
  auto record = write_shard_from(
      partial, from.units(), 1, 0,
      [&](StateKind kind, size_t unit, size_t begin, size_t end) {
        return source.read(kind, unit, begin, end);
      },
      {}, ops);
  if (!record.ok()) {
    (void)remove_folder(ops, partial);
    return record.status();
  }
  return publish_checkpoint(checkpoints, partial, "derived", info, {*record}, ops).status();
}

}  // namespace simplescale
