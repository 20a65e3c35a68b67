#include "tools/convert/hf_tokenizer.hpp"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <vector>

#include "runtime/base/hash.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/base/seeded_hash.hpp"
#include "runtime/checkpoint/imported_facts.hpp"
#include "runtime/tokenizer/sentencepiece_model.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace simplescale {

using nlohmann::ordered_json;

namespace {

constexpr const char* kSpace = "\u2581";               // SentencePiece's mark of a space
constexpr size_t kMergesBytesMax = size_t{256} << 20;  // parse_tokenizer_json() takes no more

using Processor = sentencepiece::SentencePieceProcessor;

bool is_normal(const Processor& p, int id) {
  return !p.IsControl(id) && !p.IsUnknown(id) && !p.IsUnused(id) && !p.IsByte(id);
}

/// SentencePiece merges the two neighbours whose merged piece has the best score. tokenizer.json
/// wants a list of pairs instead: every split of a piece into two pieces, those of the best piece
/// first. null: they are too large; pieces of up to 1024 times "a" have 524,000 splits.
ordered_json merges_of(const Processor& p) {
  std::unordered_map<std::string, int, SeededHash> ids;
  std::vector<int> order;
  for (int id = 0; id < p.GetPieceSize(); ++id)
    if (is_normal(p, id)) {
      ids[p.IdToPiece(id)] = id;
      order.push_back(id);
    }
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return p.GetScore(a) > p.GetScore(b); });
  ordered_json merges = ordered_json::array();
  size_t bytes = 0;
  for (const int id : order) {
    const std::string piece = p.IdToPiece(id);
    std::vector<std::pair<int, int>> cuts;
    for (size_t at = 1; at < piece.size(); ++at) {
      const auto left = ids.find(piece.substr(0, at)), right = ids.find(piece.substr(at));
      if (left != ids.end() && right != ids.end()) cuts.push_back({left->second, right->second});
    }
    std::sort(cuts.begin(), cuts.end());
    bytes += cuts.size() * piece.size();
    if (bytes > kMergesBytesMax) return nullptr;
    for (const auto& [left, right] : cuts)
      merges.push_back({p.IdToPiece(left), p.IdToPiece(right)});
  }
  return merges;
}

ordered_json added_token(const Processor& p, int id) {
  return {
      {"id", id},        {"content", p.IdToPiece(id)}, {"single_word", false}, {"lstrip", false},
      {"rstrip", false}, {"normalized", false},        {"special", true}};
}

ordered_json post_processor(const Processor& p) {
  const std::string bos = p.IdToPiece(p.bos_id());
  const ordered_json special = {{"SpecialToken", {{"id", bos}, {"type_id", 0}}}};
  const ordered_json a = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const ordered_json special_b = {{"SpecialToken", {{"id", bos}, {"type_id", 1}}}};
  const ordered_json b = {{"Sequence", {{"id", "B"}, {"type_id", 1}}}};
  return {{"type", "TemplateProcessing"},
          {"single", ordered_json::array({special, a})},
          {"pair", ordered_json::array({special, a, special_b, b})},
          {"special_tokens",
           {{bos,
             {{"id", bos},
              {"ids", ordered_json::array({p.bos_id()})},
              {"tokens", ordered_json::array({bos})}}}}}};
}

/// Of a model that merges do not go beyond.
ordered_json tokenizer_json(const Processor& p, const SentencePieceSettings& settings,
                            ordered_json merges) {
  ordered_json vocab = ordered_json::object(), added = ordered_json::array();
  for (int id = 0; id < p.GetPieceSize(); ++id) {
    vocab[p.IdToPiece(id)] = id;
    if (p.IsControl(id) || p.IsUnknown(id)) added.push_back(added_token(p, id));
  }
  ordered_json normalizers = ordered_json::array(), decoders = ordered_json::array();
  if (settings.dummy_prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", kSpace}});
  normalizers.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpace}});
  decoders.push_back({{"type", "Replace"}, {"pattern", {{"String", kSpace}}}, {"content", " "}});
  if (settings.byte_fallback) decoders.push_back({{"type", "ByteFallback"}});
  decoders.push_back({{"type", "Fuse"}});
  if (settings.dummy_prefix)
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", {{"type", "Sequence"}, {"normalizers", normalizers}}},
          {"pre_tokenizer", nullptr},
          {"post_processor", p.bos_id() < 0 ? ordered_json(nullptr) : post_processor(p)},
          {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", p.IdToPiece(p.unk_id())},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", true},
            {"byte_fallback", settings.byte_fallback},
            {"ignore_merges", false},
            {"vocab", vocab},
            {"merges", std::move(merges)}}}};
}

/// The texts of the special tokens, by their names in transformers; and tokenizer.json, which is
/// empty if it cannot express the tokenizer.
struct HfTokenizer {
  ordered_json special = ordered_json::object();
  std::string json;
  SpecialTokens ids;
};

Result<HfTokenizer> from_sentencepiece(const std::string& path, const std::string& bytes) {
  Processor p;
  if (const Status checked = check_sentencepiece_model(bytes); !checked.ok())
    return checked.in(path + " is not a SentencePiece model");
  if (const auto status = p.LoadFromSerializedProto(bytes); !status.ok())
    return Status(Code::bad_data, path + ": not a SentencePiece model");
  HfTokenizer out;
  out.special["unk_token"] = p.IdToPiece(p.unk_id());
  if (p.bos_id() >= 0) out.special["bos_token"] = p.IdToPiece(p.bos_id());
  if (p.eos_id() >= 0) out.special["eos_token"] = p.IdToPiece(p.eos_id());
  out.ids = {p.bos_id(), p.eos_id()};
  SentencePieceSettings settings = sentencepiece_settings(bytes);
  ordered_json merges;
  if (settings.beyond_merges.empty() && (merges = merges_of(p)).is_null())
    settings.beyond_merges = "its merges have more than 256 MiB";
  if (settings.beyond_merges.empty())
    out.json = tokenizer_json(p, settings, std::move(merges)).dump(1) + "\n";
  else
    log::warn(
        "{}: {}, which the tokenizer.json that export writes cannot express; the folder has "
        "tokenizer.model only, to be read with SentencePiece",
        path, settings.beyond_merges);
  return out;
}

Result<HfTokenizer> from_json(const std::string& path, const std::string& bytes) {
  auto tokenizer = parse_tokenizer_json(bytes);
  if (!tokenizer.ok()) return tokenizer.status().in(path);
  HfTokenizer out;
  const auto add = [&](const char* name, int32_t id) {
    if (id >= 0) out.special[name] = tokenizer->tokens[static_cast<size_t>(id)];
  };
  add("unk_token", tokenizer->model.unknown);
  add("bos_token", tokenizer->bos);
  add("eos_token", tokenizer->eos);
  out.json = bytes;
  out.ids = {tokenizer->bos, tokenizer->eos};
  return out;
}

constexpr const char* kConfigFile = "/tokenizer_config.json";
constexpr const char* kTemplateFile = "/chat_template.jinja";
constexpr size_t kConfigBytesMax = 1 << 20;
// The keys of special_tokens_map.json.
constexpr const char* kSpecialTokens[] = {
    "unk_token", "bos_token", "eos_token",  "pad_token",
    "sep_token", "cls_token", "mask_token", "additional_special_tokens"};

/// The imported tokenizer_config.json, if it belongs to the tokenizer with these bytes; else {}.
ordered_json imported_config(const ordered_json& facts, const std::string& bytes) {
  const bool same = facts.contains(kTokenizerConfigFact) &&
                    facts[kTokenizerConfigFact].is_object() &&
                    facts.contains(kTokenizerConfigOfFact) &&
                    facts[kTokenizerConfigOfFact] == hash128(bytes.data(), bytes.size()).hex();
  return same ? facts[kTokenizerConfigFact] : ordered_json::object();
}

}  // namespace

Result<nlohmann::json> hf_tokenizer_facts(const std::string& folder, const std::string& path) {
  nlohmann::json facts = nlohmann::json::object();
  std::error_code error;
  if (path.empty() || !std::filesystem::exists(folder + kConfigFile, error)) return facts;
  SS_ASSIGN(const std::string text, read_text_inside(folder + kConfigFile, kConfigBytesMax));
  const nlohmann::json config = parse_json(text);
  if (!config.is_object())
    return Status(Code::bad_data,
                  folder + kConfigFile + ": not a JSON object, or nested too deeply");
  facts[kTokenizerConfigFact] = config;
  facts[kTokenizerConfigFact].erase("auto_map");  // names Python files, which are not kept
  if (std::filesystem::exists(folder + kTemplateFile, error)) {
    SS_ASSIGN(facts[kTokenizerConfigFact]["chat_template"],
              read_text_inside(folder + kTemplateFile, kConfigBytesMax));
  }
  SS_ASSIGN(const std::string bytes, read_tokenizer(path));
  facts[kTokenizerConfigOfFact] = hash128(bytes.data(), bytes.size()).hex();
  return facts;
}

Result<SpecialTokens> write_hf_tokenizer(const std::string& path, const std::string& folder,
                                         int64_t block_size, const ordered_json& facts,
                                         FileOps& ops) {
  SS_ASSIGN(const std::string bytes, read_tokenizer(path));
  const bool model = tokenizer_file_name(path) == kSentencePieceFile;
  SS_ASSIGN(const HfTokenizer made,
            model ? from_sentencepiece(path, bytes) : from_json(path, bytes));
  if (model) SS_RETURN_IF_ERROR(write_text_file(ops, folder + "/" + kSentencePieceFile, bytes));
  const ordered_json imported = imported_config(facts, bytes);
  // A tokenizer of one of these classes has only the special tokens that its config names.
  const ordered_json theirs = imported.value("tokenizer_class", ordered_json());
  const bool named_all = theirs == "TokenizersBackend" || theirs == "PreTrainedTokenizerFast";
  ordered_json config = named_all ? ordered_json::object() : made.special;
  // Not LlamaTokenizer: in transformers 5 that class ignores the normalizer of tokenizer.json and
  // drops the leading space of a text.
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  // transformers replaces the template of tokenizer.json by one with BOS if this is true. A
  // tokenizer.json keeps its own.
  if (model) {
    config["add_bos_token"] = made.ids.bos >= 0;
    config["add_eos_token"] = false;
  }
  config["clean_up_tokenization_spaces"] = false;
  for (const auto& [key, value] : imported.items())
    if (key != "tokenizer_class") config[key] = value;
  config["model_max_length"] = block_size;
  ordered_json special = ordered_json::object();
  for (const char* name : kSpecialTokens)
    if (config.contains(name) && !config[name].is_null()) special[name] = config[name];
  if (!made.json.empty())
    SS_RETURN_IF_ERROR(write_text_file(ops, folder + "/" + kTokenizerJsonFile, made.json));
  SS_RETURN_IF_ERROR(write_text_file(ops, folder + kConfigFile, config.dump(2) + "\n"));
  SS_RETURN_IF_ERROR(
      write_text_file(ops, folder + "/special_tokens_map.json", special.dump(2) + "\n"));
  return made.ids;
}

}  // namespace simplescale
