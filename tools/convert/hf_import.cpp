#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "runtime/base/bare_path.hpp"
#include "runtime/base/json_text.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/base/printable.hpp"
#include "runtime/base/words.hpp"
#include "runtime/checkpoint/checkpoint_format.hpp"
#include "runtime/checkpoint/imported_facts.hpp"
#include "runtime/checkpoint/shard_writer.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "tools/convert/hf_config.hpp"
#include "tools/convert/hf_tokenizer.hpp"
#include "tools/convert/huggingface.hpp"

namespace simplescale {

using nlohmann::json;
using namespace checkpoint_format;

namespace {

Status bad(const std::string& text) {
  return {Code::bad_data, text};
}

std::string text_of(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

constexpr const char* kHead = "lm_head.weight";
constexpr const char* kEmbeddings = "model.embed_tokens.weight";

/// A parameter as a checkpoint of the whole model names it, or as one of the model without its head
/// does: without "model.". Of a tied model the matrix may be stored as the head.
std::optional<SafetensorsFolder::Place> place_of(const SafetensorsFolder& weights,
                                                 const std::string& name, bool tied) {
  auto place = weights.find(name);
  if (!place && name.starts_with("model.")) place = weights.find(name.substr(6));
  if (!place && tied && name == kEmbeddings) place = weights.find(kHead);
  return place;
}

/// What older programs stored besides the parameters: tables that follow from config.json.
bool is_buffer(const std::string& name) {
  return name.find("rotary_emb.") != std::string::npos || name.ends_with(".position_ids");
}

/// The file of a tied model may repeat the embeddings as lm_head; they must be the same bytes.
Status check_tied_head(const SafetensorsFolder& weights, const std::string& folder) {
  const auto head = weights.find(kHead), embed = place_of(weights, kEmbeddings, true);
  if (!head || !embed || head->tensor == embed->tensor) return {};
  const Status differ =
      bad(folder +
          ": tie_word_embeddings is true, but lm_head.weight differs from the embeddings; "
          "if both are right, set tie_word_embeddings to false in config.json");
  if (head->tensor->dtype != embed->tensor->dtype || head->tensor->shape != embed->tensor->shape)
    return differ;
  const uint64_t bytes = embed->tensor->end - embed->tensor->begin;
  std::vector<char> a(kPieceElements), b(kPieceElements);
  for (uint64_t at = 0; at < bytes; at += a.size()) {
    const size_t n = static_cast<size_t>(std::min<uint64_t>(a.size(), bytes - at));
    SS_RETURN_IF_ERROR(head->file->read(*head->tensor, at, a.data(), n));
    SS_RETURN_IF_ERROR(embed->file->read(*embed->tensor, at, b.data(), n));
    if (!std::equal(a.begin(), a.begin() + static_cast<ptrdiff_t>(n), b.begin())) return differ;
  }
  return {};
}

/// Checks that every parameter exists with its shape and a readable dtype, and that there are no
/// others.
Status check_weights(const SafetensorsFolder& weights, const std::vector<Unit>& units,
                     const ModelShape& shape, const std::string& folder) {
  const bool tied = shape.tie_embeddings;
  std::map<std::string, const Parameter*> expected;
  for (const Unit& unit : units)
    for (const Parameter& parameter : unit.parameters)
      expected[hf_tensor_name(shape, parameter.name)] = &parameter;
  std::vector<std::string> wrong;
  std::set<std::string> used;
  for (const auto& [name, parameter] : expected) {
    const auto place = place_of(weights, name, tied);
    if (place) used.insert(place->tensor->name);
    if (!place)
      wrong.push_back(name + " is missing");
    else if (place->tensor->shape != parameter->shape)
      wrong.push_back(name + " has shape " + text_of(place->tensor->shape) +
                      ", config.json asks for " + text_of(parameter->shape));
    else
      SS_RETURN_IF_ERROR(place->file->read_f32(*place->tensor, 0, 0, nullptr));  // checks the dtype
  }
  for (const std::string& name : weights.names()) {
    if (used.contains(name) || is_buffer(name) || (tied && name == kHead)) continue;
    if (shape.experts.count > 0 && name.ends_with(".experts.gate_up_proj"))
      return bad(folder + ": tensor " + shown_name(name) +
                 " has the weights of all experts; only files with a tensor for each expert are "
                 "read, as save_pretrained() of transformers writes them");
    wrong.push_back(shown_name(name) + " does not belong to this model");
  }
  if (wrong.size() == 1) return bad(folder + ": tensor " + wrong.front());
  if (const size_t count = wrong.size(); count > 0) {
    constexpr size_t kNamed = 12;
    wrong.resize(std::min(count, kNamed));
    return bad(folder + ": " + std::to_string(count) +
               " tensors do not fit config.json: " + joined(wrong, "; ") +
               (count > kNamed ? "; and " + std::to_string(count - kNamed) + " more" : ""));
  }
  return tied ? check_tied_head(weights, folder) : Status();
}

/// A source of shard 0 of 1 that reads the weights; moments are zero.
ShardSource source_of(const SafetensorsFolder& weights, const std::vector<Unit>& units,
                      const ModelShape& shape, std::vector<float>& buffer) {
  return [&weights, &units, &buffer, &shape](StateKind kind, size_t unit, size_t begin,
                                             size_t end) -> Result<std::span<const std::byte>> {
    buffer.assign(end - begin, 0.0f);
    if (kind != StateKind::params) return std::as_bytes(std::span(buffer));
    for (const Parameter& parameter : units[unit].parameters) {
      const size_t first = std::max(begin, parameter.offset);
      const size_t last = std::min(end, parameter.offset + parameter.count);
      if (first >= last) continue;
      const auto place =
          place_of(weights, hf_tensor_name(shape, parameter.name), shape.tie_embeddings);
      const std::span<float> values = std::span(buffer).subspan(first - begin, last - first);
      const size_t element = first - parameter.offset;
      SS_RETURN_IF_ERROR(
          place->file->read_f32(*place->tensor, element, values.size(), values.data()));
      SS_RETURN_IF_ERROR(check_finite(values, element, place->file->path(), place->tensor->name));
    }
    return std::as_bytes(std::span(buffer));
  };
}

}  // namespace

Status check_hf_links(const std::string& folder) {
  const auto names = read_folder(folder);
  if (!names.ok()) return bad(names.status().message());
  for (const std::string& name : *names) {
    const std::string path = folder + "/" + name;
    const bool read = name.ends_with(".json") || name.ends_with(".jinja") ||
                      name.ends_with(".safetensors") || name == kSentencePieceFile;
    std::error_code error;
    if (!read || !std::filesystem::is_symlink(path, error)) continue;
    const auto followed = InputFile::open_inside(folder, path);
    if (!followed.ok()) return bad(followed.status().message());
  }
  return {};
}

namespace {

/// The folder's name, and what export_hf() writes again: its generation_config.json and what
/// hf_tokenizer_facts() says.
Result<std::string> facts_of(const std::string& folder, const std::string& tokenizer) {
  const std::string path = folder + "/generation_config.json";
  SS_ASSIGN(json facts, hf_tokenizer_facts(folder, tokenizer));
  facts["imported_from"] = folder;
  std::error_code error;
  if (std::filesystem::exists(path, error)) {
    SS_ASSIGN(const std::string text, read_text_inside(path, 1 << 20));
    const json generation = parse_json(text);
    if (!generation.is_object()) return bad(path + ": not a JSON object, or nested too deeply");
    facts[kGenerationConfigFact] = generation;
  }
  return json_text(facts);
}

/// Copies the folder's tokenizer to the new checkpoint's: when that is published, the name may be a
/// link to another file. Returns the path of the copy; "": the folder has no tokenizer.
Result<std::string> copy_tokenizer(const std::string& folder, const std::string& checkpoint,
                                   FileOps& ops) {
  const std::string path = find_tokenizer(folder);
  if (path.empty()) return path;
  // Not read_tokenizer(), which follows one's own links: here no link leads out of the folder.
  SS_ASSIGN(const std::string bytes, read_text_inside(path, 256 << 20));
  SS_RETURN_IF_ERROR(make_folders(ops, checkpoint));
  const std::string copy = checkpoint + "/" + tokenizer_file_name(path);
  SS_RETURN_IF_ERROR(write_text_file(ops, copy, bytes));
  return copy;
}

struct HuggingFaceFolder {
  CheckpointInfo info;  // of the checkpoint that it becomes
  std::vector<Unit> units;
  SafetensorsFolder weights;
};

Result<HuggingFaceFolder> open_hf(const std::string& folder) {
  SS_RETURN_IF_ERROR(check_hf_links(folder));
  auto shape = read_hf_config(folder + "/config.json");
  if (!shape.ok()) return Status(Code::bad_data, shape.status().message());
  HuggingFaceFolder opened;
  opened.units = units_of(*shape);
  SS_ASSIGN(opened.weights, SafetensorsFolder::open(folder));
  SS_RETURN_IF_ERROR(check_weights(opened.weights, opened.units, *shape, folder));
  opened.info.shape = *shape;
  opened.info.tokenizer = find_tokenizer(folder);
  SS_ASSIGN(opened.info.resume, facts_of(folder, opened.info.tokenizer));
  return opened;
}

}  // namespace

Result<CheckpointInfo> check_hf(const std::string& folder) {
  SS_ASSIGN(const HuggingFaceFolder opened, open_hf(folder));
  return opened.info;
}

Status import_hf(const std::string& folder, const std::string& checkpoint_folder, FileOps& ops) {
  SS_ASSIGN(const HuggingFaceFolder opened, open_hf(folder));
  const auto& [found, units, weights] = opened;

  const std::string target = bare_path(checkpoint_folder);
  std::error_code error;
  if (std::filesystem::exists(target, error))
    return bad(target + ": exists already; name another folder or remove it");
  SS_RETURN_IF_ERROR(make_folders(ops, parent_folder(target)));
  const std::string partial = target + ".partial";
  SS_RETURN_IF_ERROR(remove_folder(ops, partial));

  CheckpointInfo info = found;
  std::vector<float> buffer;
  const auto write = [&]() -> Result<ShardRecord> {
    SS_ASSIGN(info.tokenizer, copy_tokenizer(folder, partial, ops));
    SS_ASSIGN(info.resume, facts_of(folder, info.tokenizer));
    return write_shard_from(partial, units, 1, 0, info.state,
                            source_of(weights, units, info.shape, buffer), {}, ops);
  };
  auto record = write();
  if (!record.ok()) {
    (void)remove_folder(ops, partial);
    return record.status();
  }
  return publish_checkpoint_as(target, partial, info, {*record}, ops);
}

}  // namespace simplescale
