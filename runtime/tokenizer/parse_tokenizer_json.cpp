#include <algorithm>
#include <cctype>
#include <map>

#include "runtime/base/parse_json.hpp"
#include "runtime/tokenizer/json_fields.hpp"
#include "runtime/tokenizer/json_model.hpp"
#include "runtime/tokenizer/json_steps.hpp"
#include "runtime/tokenizer/json_tokenizer.hpp"

namespace simplescale {

using nlohmann::json;

namespace {

constexpr size_t file_bytes_max = 256 << 20;
constexpr size_t added_bytes_max = 64 << 10;       // of an added token
constexpr size_t normalized_bytes_max = 64 << 20;  // of all

/// The tokens that a template puts around a text.
struct Around {
  std::string before, behind;  // "": none
};

std::string special_of(const json& part) {
  const json* name = &part;
  for (const char* key : {"SpecialToken", "id"}) {
    const auto found = name->is_object() ? name->find(key) : name->end();
    if (!name->is_object() || found == name->end()) return "";
    name = &*found;
  }
  return name->is_string() ? name->get<std::string>() : "";
}

/// `tokenizers` takes a word for the first one if it is made of the text's first character. Here it is
/// the front of the text, which is the same unless a step before divides what one character became.
Status check_first_mark(const TokenizerJson& read) {
  const auto is_form = [](const NormalizerStep& step) {
    return std::holds_alternative<NormalForm>(step);
  };
  bool same = std::ranges::all_of(read.normalizer, is_form);
  for (const PreTokenizerStep& step : read.pre_tokenizer) {
    const auto* metaspace = std::get_if<MetaspaceStep>(&step);
    if (metaspace && metaspace->prepend == MetaspaceStep::first && !same)
      return {Code::bad_data,
              "pre_tokenizer Metaspace with \"prepend_scheme\": \"first\" is not supported behind "
              "this normalizer or the steps before it"};
    same = same && read.normalizer.empty() && std::holds_alternative<SplitStep>(step);
  }
  return {};
}

/// Reads one post-processor, or those of a Sequence.
Status read_post_processor(const json& value, Around& out) {
  if (value.is_null()) return {};
  JsonFields fields(value, "post_processor");
  const std::string type = fields.required_text("type");
  if (type == "Sequence") {
    const json& list = fields.member("processors");
    if (!list.is_array()) fields.fail("Sequence has no list");
    SS_RETURN_IF_ERROR(fields.finish());
    for (const json& step : list) {  // kJsonDepthMax bounds the recursion
      SS_RETURN_IF_ERROR(read_post_processor(step, out));
    }
    return {};
  }
  if (type == "ByteLevel") {  // changes positions, not ids
    for (const char* key : {"add_prefix_space", "trim_offsets", "use_regex"}) fields.ignore(key);
    return fields.finish();
  }
  if (type != "TemplateProcessing")
    return {Code::bad_data, "post_processor " + type + " is not supported"};
  fields.ignore("pair");
  fields.ignore("special_tokens");
  const json& single = fields.member("single");
  if (!single.is_array()) fields.fail("TemplateProcessing has no \"single\"");
  SS_RETURN_IF_ERROR(fields.finish());
  bool behind = false;
  for (const json& part : single) {
    const std::string token = special_of(part);
    std::string& place = behind ? out.behind : out.before;
    if (!token.empty() && !place.empty())
      return {Code::bad_data, "post_processor TemplateProcessing puts more than one token " +
                                  std::string(behind ? "behind" : "before") + " a text, \"" +
                                  place + "\" and \"" + token +
                                  "\", which is not supported: leave one of them"};
    if (token.empty()) behind = true;
    if (!token.empty()) place = token;
  }
  return {};
}

/// Ids of BOS and EOS. tokenizer.json names them only in a template. Without one, EOS is the first
/// of the usual names that is a special token, and BOS is EOS: GPT-2, Qwen and OLMo 2 separate
/// documents by <|endoftext|>.
void set_bos_and_eos(const Around& around, const std::vector<AddedToken>& added,
                     TokenizerJson& out) {
  std::map<std::string, int32_t> special;
  for (const AddedToken& token : added)
    if (token.special) special[token.content] = token.id;
  const auto id_of = [&](const std::string& name) {
    const auto found = special.find(name);
    return found == special.end() ? -1 : found->second;
  };
  out.eos = id_of(around.behind);
  for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>",
                           "<\xEF\xBD\x9C"
                           "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
                           "<|im_end|>"})
    if (out.eos < 0) out.eos = id_of(name);
  out.bos = id_of(around.before);
  for (const char* name : {"<s>", "<|begin_of_text|>", "<bos>"})
    if (out.bos < 0) out.bos = id_of(name);
  if (out.bos < 0) out.bos = out.eos;
}

/// True if a letter and a space behind it may belong to the token.
bool holds_spaces(const AddedToken& token) {
  const auto letter = [](char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; };
  return token.content.find(' ') != token.content.npos ||
         (token.rstrip && letter(token.content.back())) ||
         (token.lstrip && letter(token.content.front()));
}

Status set_added_tokens(std::vector<AddedToken> added, TokenizerJson& out) {
  out.special.assign(out.tokens.size(), false);
  std::vector<AddedToken> raw, normalized;
  std::vector<std::string> raw_texts, normalized_texts;
  PatternScratch scratch;
  size_t normalized_bytes = 0;
  for (AddedToken& token : added) {
    if (token.content.size() > added_bytes_max)
      return {Code::bad_data, "an added token has more than 64 KiB"};
    if (token.special) out.special[static_cast<size_t>(token.id)] = true;
    if (holds_spaces(token)) out.token_has_spaces = true;
    if (token.normalized) {
      normalized_texts.push_back(normalize(out.normalizer, token.content, false, scratch));
      normalized_bytes += normalized_texts.back().size();
      if (normalized_bytes > normalized_bytes_max)
        return {Code::bad_data, "its added tokens have more than 64 MiB after the normalizer"};
      if (normalized_texts.back().empty())
        return {Code::bad_data, "the normalizer leaves nothing of the added token \"" +
                                    token.content + "\": set its \"normalized\" to false"};
      out.tokens[static_cast<size_t>(token.id)] = normalized_texts.back();  // decode() gives that
      normalized.push_back(std::move(token));
    } else {
      raw_texts.push_back(token.content);
      raw.push_back(std::move(token));
    }
  }
  out.raw_tokens = AddedTokenFinder(std::move(raw), raw_texts);
  out.normalized_tokens = AddedTokenFinder(std::move(normalized), normalized_texts);
  return {};
}

}  // namespace

Result<TokenizerJson> parse_tokenizer_json(std::string_view text) {
  if (text.size() > file_bytes_max) return Status(Code::bad_data, "it has more than 256 MiB");
  const json root = parse_json(text);
  if (!root.is_object())
    return Status(Code::bad_data,
                  "it is no JSON object, or nested deeper than " + std::to_string(kJsonDepthMax));
  JsonFields fields(root, "it");
  fields.ignore("version");
  for (const char* key : {"truncation", "padding"}) fields.ignore(key);  // transformers does, too
  const json& model = fields.member("model");
  SS_RETURN_IF_ERROR(check_model_type(model));
  TokenizerJson out;
  SS_ASSIGN(out.normalizer, read_normalizer(fields.member("normalizer")));
  SS_ASSIGN(PreTokenizer pre_tokenizer, read_pre_tokenizer(fields.member("pre_tokenizer")));
  out.pre_tokenizer = std::move(pre_tokenizer.steps);
  SS_RETURN_IF_ERROR(check_first_mark(out));
  const json& decoder = fields.member("decoder");
  SS_ASSIGN(out.decoder, read_decoder(decoder));
  out.spaces_between_tokens = decoder.is_null();
  Around around;
  SS_RETURN_IF_ERROR(read_post_processor(fields.member("post_processor"), around));
  const json& added = fields.member("added_tokens");
  SS_RETURN_IF_ERROR(fields.finish());

  SS_ASSIGN(ModelAndTokens read, read_model(model, added, pre_tokenizer.byte_level));
  out.model = std::move(read.model);
  out.tokens = std::move(read.tokens);
  set_bos_and_eos(around, read.added, out);
  SS_RETURN_IF_ERROR(set_added_tokens(std::move(read.added), out));
  return out;
}

}  // namespace simplescale
