#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <utility>

#include "runtime/base/json_members.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/tokenizer/json_fields.hpp"
#include "runtime/tokenizer/json_model.hpp"
#include "runtime/tokenizer/json_steps.hpp"
#include "runtime/tokenizer/json_tokenizer.hpp"

namespace simplescale {

using nlohmann::json;

namespace {

constexpr size_t file_bytes_max = 256 << 20;
constexpr size_t added_bytes_max = 64 << 10;     // of an added token
constexpr size_t all_added_bytes_max = 8 << 20;  // of all; AddedTokenFinder needs many times that

/// The ids that a template puts around a text.
struct Around {
  bool read = false;                 // there is a template
  int32_t before = -1, behind = -1;  // -1: none
};

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

/// Reads TemplateProcessing. Its `special_tokens` say which ids a name stands for; `tokenizers` does
/// not look the name up among its tokens. tokens: by id.
Status read_template(JsonFields& fields, const std::vector<std::string>& tokens, Around& out) {
  const std::string what = "post_processor TemplateProcessing";
  fields.ignore("pair");
  const json& special = fields.member("special_tokens");
  const json& single = fields.member("single");
  if (!single.is_array()) fields.fail("TemplateProcessing has no \"single\"");
  SS_RETURN_IF_ERROR(fields.finish());
  // Behind the first one, `tokenizers` takes the tokens that it put there for a text of a pair.
  if (std::exchange(out.read, true))
    return {Code::bad_data, what + " occurs twice, which is not supported"};
  bool behind = false;
  for (const json& part : single) {
    JsonFields piece(part, what + ": a piece");
    const json& token = piece.member("SpecialToken");
    const json& sequence = piece.member("Sequence");
    SS_RETURN_IF_ERROR(piece.finish());
    if (token.is_null()) {
      if (std::exchange(behind, true) || text_of(sequence, "id") != "A")
        return {Code::bad_data, what + " has other texts in \"single\" than A, or A twice"};
      continue;
    }
    const std::string name = text_of(token, "id");
    const json& ids = member_of(member_of(special, name.c_str()), "ids");
    if (!ids.is_array())
      return {Code::bad_data, what + " does not say the ids of \"" + name + "\""};
    for (const json& id : ids) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() >= tokens.size() ||
          tokens[id.get<size_t>()].empty())
        return {Code::bad_data, what + " puts the id " + id.dump() + " for \"" + name +
                                    "\", and no token has that id"};
      int32_t& place = behind ? out.behind : out.before;
      if (place >= 0)
        return {Code::bad_data,
                what + " puts more than one token " + std::string(behind ? "behind" : "before") +
                    " a text, \"" + tokens[static_cast<size_t>(place)] + "\" and \"" +
                    tokens[id.get<size_t>()] + "\", which is not supported: leave one of them"};
      place = id.get<int32_t>();
    }
  }
  return behind ? Status() : Status(Code::bad_data, what + " leaves out the text");
}

/// Reads one post-processor, or those of a Sequence.
Status read_post_processor(const json& value, const std::vector<std::string>& tokens, Around& out) {
  if (value.is_null()) return {};
  JsonFields fields(value, "post_processor");
  const std::string type = fields.required_text("type");
  if (type == "Sequence") {
    const json& list = fields.member("processors");
    if (!list.is_array()) fields.fail("Sequence has no list");
    SS_RETURN_IF_ERROR(fields.finish());
    for (const json& step : list) {  // kJsonDepthMax bounds the recursion
      SS_RETURN_IF_ERROR(read_post_processor(step, tokens, out));
    }
    return {};
  }
  if (type == "ByteLevel") {  // changes positions, not ids
    for (const char* key : {"add_prefix_space", "trim_offsets", "use_regex"}) fields.ignore(key);
    return fields.finish();
  }
  if (type == "TemplateProcessing") return read_template(fields, tokens, out);
  return {Code::bad_data, "post_processor " + type + " is not supported"};
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
  out.eos = around.behind;
  std::string others;
  for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>",
                           "<\xEF\xBD\x9C"
                           "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
                           "<|im_end|>"}) {
    if (around.behind >= 0 || id_of(name) < 0) continue;
    if (out.eos >= 0) others += (others.empty() ? "" : " or ") + std::string(name);
    if (out.eos < 0) out.eos = id_of(name);
  }
  if (!others.empty())
    out.guessed_ends = "it does not say which token is EOS; " +
                       out.tokens[static_cast<size_t>(out.eos)] + " is taken, and " + others +
                       " could be it";
  out.bos = around.before;
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
  std::set<std::string, std::less<>> seen;  // normalized ones
  size_t bytes = 0;
  for (AddedToken& token : added) {
    if (token.content.size() > added_bytes_max)
      return {Code::bad_data, "an added token has more than 64 KiB"};
    if (token.special) out.special[static_cast<size_t>(token.id)] = true;
    if (holds_spaces(token)) out.token_has_spaces = true;
    std::string text = token.content;
    if (token.normalized) {
      scratch.begin(token.content.size());
      text = normalize(out.normalizer, token.content, false, scratch);
      SS_RETURN_IF_ERROR(scratch.status());
      if (text.empty())
        return {Code::bad_data, "the normalizer leaves nothing of the added token \"" +
                                    token.content + "\": set its \"normalized\" to false"};
      if (!seen.insert(text).second)
        return {Code::bad_data, "the normalizer makes the added token \"" + token.content +
                                    "\" the same as another one"};
      out.normalized[token.id] = text;
    }
    bytes += text.size();
    if (bytes > all_added_bytes_max)
      return {Code::bad_data, "its added tokens have more than 8 MiB, after the normalizer"};
    (token.normalized ? normalized_texts : raw_texts).push_back(std::move(text));
    (token.normalized ? normalized : raw).push_back(std::move(token));
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
  if (fields.text("version", "1.0") != "1.0") fields.fail("has another \"version\" than 1.0");
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
  const json& post_processor = fields.member("post_processor");
  const json& added = fields.member("added_tokens");
  SS_RETURN_IF_ERROR(fields.finish());

  SS_ASSIGN(ModelAndTokens read, read_model(model, added, pre_tokenizer.byte_level));
  out.model = std::move(read.model);
  out.tokens = std::move(read.tokens);
  Around around;
  SS_RETURN_IF_ERROR(read_post_processor(post_processor, out.tokens, around));
  set_bos_and_eos(around, read.added, out);
  SS_RETURN_IF_ERROR(set_added_tokens(std::move(read.added), out));
  return out;
}

}  // namespace simplescale
