#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "runtime/base/bare_path.hpp"
#include "runtime/checkpoint/imported_facts.hpp"
#include "tools/convert/hf_config.hpp"
#include "tools/convert/hf_tokenizer.hpp"
#include "tools/convert/huggingface.hpp"

namespace simplescale {

using nlohmann::ordered_json;

namespace {

/// A bias of a router keeps its bits, as in transformers: it decides between scores that are close.
DType stored_as(const Parameter& parameter, DType dtype) {
  return parameter.is_router_bias() ? DType::f32 : dtype;
}

/// The parameters of each file: in order, beginning a new file when one would exceed bytes_max.
std::vector<std::vector<const Parameter*>> plan_files(const std::vector<Unit>& units, DType dtype,
                                                      uint64_t bytes_max) {
  std::vector<std::vector<const Parameter*>> files(1);
  uint64_t bytes = 0;
  for (const Unit& unit : units)
    for (const Parameter& parameter : unit.parameters) {
      const uint64_t more = parameter.count * bytes_of(stored_as(parameter, dtype));
      if (!files.back().empty() && bytes + more > bytes_max) {
        files.emplace_back();
        bytes = 0;
      }
      files.back().push_back(&parameter);
      bytes += more;
    }
  return files;
}

std::string weights_name(size_t file, size_t files) {
  if (files == 1) return "model.safetensors";
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", file + 1, files);
  return name;
}

/// Writes the weights as a stream, to one file after the other.
class WeightsWriter {
 public:
  WeightsWriter(const Checkpoint& checkpoint, std::string folder, DType dtype, uint64_t bytes_max,
                FileOps& ops)
      : shape_(checkpoint.info().shape),
        files_(plan_files(checkpoint.units(), dtype, bytes_max)),
        folder_(std::move(folder)),
        dtype_(dtype),
        ops_(ops) {}

  Status append(const Parameter& parameter, size_t offset, std::span<const float> values) {
    if (offset == 0 && next_file_ < files_.size() && &parameter == files_[next_file_].front())
      SS_RETURN_IF_ERROR(open_next());
    if (offset == 0) ++tensors_;
    if (stored_as(parameter, dtype_) == DType::f32)
      return writer_->write(tensors_ - 1, offset * 4, values.data(), values.size_bytes());
    narrow_.resize(values.size());
    for (size_t i = 0; i < values.size(); ++i) narrow_[i] = f32_to_bf16(values[i]);
    return writer_->write(tensors_ - 1, offset * 2, narrow_.data(), narrow_.size() * 2);
  }

  Status finish() {
    SS_RETURN_IF_ERROR(writer_->finish());
    if (files_.size() == 1) return {};
    ordered_json map = ordered_json::object();
    uint64_t total = 0;
    for (size_t f = 0; f < files_.size(); ++f)
      for (const Parameter* parameter : files_[f]) {
        map[hf_tensor_name(shape_, parameter->name)] = weights_name(f, files_.size());
        total += parameter->count * bytes_of(stored_as(*parameter, dtype_));
      }
    const ordered_json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
    return write_text_file(ops_, folder_ + "/model.safetensors.index.json", index.dump(2) + "\n");
  }

 private:
  Status open_next() {
    if (writer_) SS_RETURN_IF_ERROR(writer_->finish());
    writer_.reset();
    std::vector<TensorEntry> tensors;
    for (const Parameter* parameter : files_[next_file_])
      tensors.push_back({hf_tensor_name(shape_, parameter->name),
                         stored_as(*parameter, dtype_) == DType::f32 ? "F32" : "BF16",
                         parameter->shape});
    const std::string path = folder_ + "/" + weights_name(next_file_, files_.size());
    SS_ASSIGN(SafetensorsWriter writer,
              SafetensorsWriter::create(ops_, path, std::move(tensors), {{"format", "pt"}}));
    writer_.emplace(std::move(writer));
    ++next_file_;
    tensors_ = 0;
    return {};
  }

  const ModelShape shape_;
  std::vector<std::vector<const Parameter*>> files_;
  std::string folder_;
  DType dtype_;
  FileOps& ops_;
  size_t next_file_ = 0, tensors_ = 0;  // tensors_: of the current file, begun so far
  std::optional<SafetensorsWriter> writer_;
  std::vector<uint16_t> narrow_;
};

/// The generation_config.json of the folder that was imported; {} if there was none.
ordered_json generation_config_of(const ordered_json& facts) {
  const bool known =
      facts.contains(kGenerationConfigFact) && facts[kGenerationConfigFact].is_object();
  return known ? facts[kGenerationConfigFact] : ordered_json::object();
}

Status export_into(Checkpoint& checkpoint, const std::string& folder, DType dtype, StateKind kind,
                   uint64_t bytes_max, FileOps& ops) {
  SS_RETURN_IF_ERROR(make_folders(ops, folder));
  SpecialTokens special;
  const CheckpointInfo& info = checkpoint.info();
  const ordered_json facts = ordered_json::parse(imported_facts(info));
  if (!info.tokenizer.empty()) {
    SS_ASSIGN(special,
              write_hf_tokenizer(info.tokenizer, folder, info.shape.block_size, facts, ops));
  }
  WeightsWriter weights(checkpoint, folder, dtype, bytes_max, ops);
  auto sink = [&](const Parameter& parameter, size_t offset, std::span<const float> values) {
    return weights.append(parameter, offset, values);
  };
  for (size_t unit = 0; unit < checkpoint.units().size(); ++unit)
    SS_RETURN_IF_ERROR(stream_parameters(checkpoint, kind, unit, sink));
  SS_RETURN_IF_ERROR(weights.finish());
  ordered_json config = hf_config(info.shape, dtype);
  ordered_json generation = generation_config_of(facts);
  const bool imported = !generation.empty();
  // Without EOS, the BOS of the next document ends a text.
  const std::pair<const char*, int> tokens[] = {
      {"bos_token_id", special.bos},
      {"eos_token_id", special.eos >= 0 ? special.eos : special.bos}};
  for (const auto& [key, id] : tokens) {
    if (id >= 0) config[key] = id;
    if (id >= 0 && !imported) generation[key] = id;
  }
  SS_RETURN_IF_ERROR(
      write_text_file(ops, folder + "/generation_config.json", generation.dump(2) + "\n"));
  SS_RETURN_IF_ERROR(write_text_file(ops, folder + "/config.json", config.dump(2) + "\n"));
  return ops.fsync_folder(folder);
}

}  // namespace

Status export_hf(Checkpoint& checkpoint, const std::string& folder, DType dtype, StateKind kind,
                 uint64_t file_bytes_max, FileOps& ops) {
  const ModelShape& shape = checkpoint.info().shape;
  if (!hugging_face_class(shape))
    return {Code::bad_config, "no class of transformers computes a model with " +
                                  options_text(shape) + "; docs/models.md lists the families"};
  std::error_code error;
  if (std::filesystem::exists(folder, error) && !std::filesystem::is_empty(folder, error))
    return {Code::bad_data, folder + ": exists and is not empty; name another folder or remove it"};
  const std::string target = bare_path(folder);
  const std::string partial = target + ".partial";
  SS_RETURN_IF_ERROR(remove_folder(ops, partial));
  Status status = export_into(checkpoint, partial, dtype, kind, file_bytes_max, ops);
  if (status.ok()) status = ops.rename(partial, target);
  if (status.ok()) status = ops.fsync_folder(parent_folder(target));
  if (!status.ok()) (void)remove_folder(ops, partial);
  return status;
}

}  // namespace simplescale
