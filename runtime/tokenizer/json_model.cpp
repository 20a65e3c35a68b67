#include "runtime/tokenizer/json_model.hpp"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "runtime/base/utf8.hpp"
#include "runtime/tokenizer/decode.hpp"
#include "runtime/tokenizer/json_fields.hpp"

namespace simplescale {

using nlohmann::json;

namespace {

constexpr size_t tokens_max = 1 << 22, token_bytes_max = 1 << 16;

/// Ids may have gaps, but not so large ones that a list by id would waste memory.
uint64_t ids_end(size_t tokens) {
  return 2 * tokens + 65536;
}

Result<Vocabulary> read_vocabulary(const json& object, size_t added) {
  if (!object.is_object() || object.empty()) return bad_data("model BPE has no \"vocab\"");
  if (object.size() > tokens_max) return bad_data("model BPE has too many tokens");
  Vocabulary out;
  out.reserve(object.size());
  for (const auto& [token, id] : object.items()) {
    if (token.size() > token_bytes_max)
      return bad_data("model BPE has a token of more than 64 KiB");
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= ids_end(object.size() + added))
      return bad_data("model BPE: the id of token \"" + token + "\" is " + id.dump());
    if (!token.empty()) out.emplace(token, id.get<int32_t>());
  }
  return out;
}

Result<std::vector<AddedToken>> read_added(const json& list) {
  std::vector<AddedToken> out;
  if (list.is_null()) return out;
  if (!list.is_array() || list.size() > tokens_max) return bad_data("added_tokens is no list");
  for (const json& object : list) {
    JsonFields fields(object, "added_tokens: a token");
    const uint64_t id = fields.number("id", UINT64_MAX);
    AddedToken token;
    token.content = fields.text("content");
    token.special = fields.flag("special", false);
    token.normalized = fields.flag("normalized", !token.special);
    token.single_word = fields.flag("single_word", false);
    token.lstrip = fields.flag("lstrip", false);
    token.rstrip = fields.flag("rstrip", false);
    if (id >= ids_end(tokens_max)) fields.fail("has no usable \"id\"");
    if (token.content.size() > token_bytes_max) fields.fail("has more than 64 KiB");
    SS_RETURN_IF_ERROR(fields.finish());
    token.id = static_cast<int32_t>(id);
    if (!token.content.empty()) out.push_back(std::move(token));
  }
  return out;
}

/// Checks that the ids of the list are those that `tokenizers` gives, and leaves out repetitions. It
/// does not read the ids: a token of the vocabulary has that id, and others get the next ones behind
/// the number of tokens in the vocabulary.
Status check_added(const json& object, const Vocabulary& vocabulary,
                   std::vector<AddedToken>& added) {
  std::unordered_map<std::string_view, const AddedToken*, SeededHash, std::equal_to<>> seen;
  size_t next = object.size();
  std::vector<AddedToken> kept;
  kept.reserve(added.size());
  for (const AddedToken& token : added) {
    const auto [before, is_new] = seen.try_emplace(token.content, &token);
    if (!is_new && *before->second == token) continue;
    if (!is_new) return bad_data("added token \"" + token.content + "\" is listed twice");
    const auto known = vocabulary.find(token.content);
    if (known != vocabulary.end() && known->second != token.id)
      return bad_data("added token \"" + token.content + "\" has the id " +
                      std::to_string(token.id) + ", and " + std::to_string(known->second) +
                      " in the model's vocab");
    if (const size_t given = known != vocabulary.end() ? static_cast<size_t>(token.id) : next++;
        given != static_cast<size_t>(token.id))
      return bad_data(
          "added token \"" + token.content + "\" has the id " + std::to_string(token.id) +
          ", but tokenizers and transformers give it " + std::to_string(given) +
          ": they number added tokens in the order of the list, behind the " +
          std::to_string(object.size()) +
          " tokens of the vocab; list it with that id, unless a model was trained with the "
          "other one");
    kept.push_back(token);
  }
  added = std::move(kept);
  return {};
}

/// All tokens by id, those of the model (object, vocabulary) and added ones.
Result<std::vector<std::string>> list_tokens(const json& object,
                                             const std::vector<AddedToken>& added) {
  std::vector<std::string> tokens;
  const auto put = [&](int32_t id, const std::string& text) -> Status {
    const auto at = static_cast<size_t>(id);
    if (at >= tokens.size()) tokens.resize(at + 1);
    if (!tokens[at].empty() && tokens[at] != text)
      return bad_data("tokens \"" + tokens[at] + "\" and \"" + text + "\" have the same id " +
                      std::to_string(id));
    tokens[at] = text;
    return {};
  };
  for (const auto& [text, id] : object.items())  // in order, so that an error is the same each time
    if (!text.empty()) SS_RETURN_IF_ERROR(put(id.get<int32_t>(), text));
  for (const AddedToken& token : added) SS_RETURN_IF_ERROR(put(token.id, token.content));
  return tokens;
}

/// "a b", or ["a", "b"] in newer files.
Result<std::pair<std::string, std::string>> read_merge(const json& merge) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
    return std::pair(merge[0].get<std::string>(), merge[1].get<std::string>());
  const std::string text = merge.is_string() ? merge.get<std::string>() : "";
  const size_t space = text.find(' ');
  if (space == text.npos || space == 0 || space + 1 == text.size() ||
      text.find(' ', space + 1) != text.npos)
    return bad_data("model BPE has a merge that is no pair of tokens");
  return std::pair(text.substr(0, space), text.substr(space + 1));
}

Status read_merges(const json& list, const Vocabulary& vocabulary, BpeModel& model) {
  if (!list.is_array() || list.size() > tokens_max) return bad_data("model BPE has no \"merges\"");
  model.merges = FlatMap(list.size());
  bool safe = !model.byte_level && !model.ignore_merges && vocabulary.contains(space_mark);
  uint64_t rank = 0;
  for (const json& merge : list) {
    // The head of a merges.txt, in old files. `tokenizers` skips it in any place.
    if (merge.is_string() && merge.get_ref<const std::string&>().starts_with("#version")) continue;
    SS_ASSIGN(const auto pair, read_merge(merge));
    const auto& [left, right] = pair;
    const auto a = vocabulary.find(left), b = vocabulary.find(right),
               both = vocabulary.find(left + right);
    for (const auto& part : {a, b, both})
      if (part == vocabulary.end())
        return bad_data("model BPE: merge \"" + left + " " + right + "\" has a token without id");
    model.merges.set(pair_key(a->second, b->second),
                     rank++ << 32 | static_cast<uint32_t>(both->second));
    if (right.starts_with(space_mark) && !left.ends_with(space_mark)) safe = false;
  }
  model.words_at_spaces = safe;
  return {};
}

/// The ids of bytes and characters.
void set_symbols(const Vocabulary& vocabulary, BpeModel& model) {
  model.byte_ids.fill(-1);
  const auto id_of = [&](const std::string& token) {
    const auto found = vocabulary.find(token);
    return found == vocabulary.end() ? -1 : found->second;
  };
  for (size_t byte = 0; byte < 256; ++byte) {
    std::string token;
    if (model.byte_level) {
      append_utf8(token, byte_alphabet()[byte]);
    } else {
      char text[8];
      std::snprintf(text, sizeof text, "<0x%02X>", static_cast<unsigned>(byte));
      token = text;
    }
    model.byte_ids[byte] = id_of(token);
  }
  if (model.byte_level) {
    std::string bytes;
    if (model.ignore_merges)  // nothing else needs whole words
      for (const auto& [token, id] : vocabulary)
        if (bytes.clear(); append_alphabet_bytes(token, bytes)) model.ids.emplace(bytes, id);
    return;
  }
  model.character_ids = FlatMap(vocabulary.size());
  for (const auto& [token, id] : vocabulary)
    if (const CodePoint c = code_point_at(token, 0); c.bytes == token.size())
      model.character_ids.set(c.value, static_cast<uint64_t>(id));
  if (model.ignore_merges) model.ids = vocabulary;
}

}  // namespace

Status check_model_type(const json& model) {
  JsonFields fields(model, "model");
  const std::string type = fields.text("type", "BPE");
  return type == "BPE" ? Status() : bad_data("model " + type + " is not supported, only BPE is");
}

Result<ModelAndTokens> read_model(const json& model, const json& added, bool byte_level) {
  ModelAndTokens out;
  SS_ASSIGN(out.added, read_added(added));
  JsonFields fields(model, "model");
  fields.ignore("type");
  out.model.byte_level = byte_level;
  out.model.byte_fallback = fields.flag("byte_fallback", false);
  out.model.fuse_unknown = fields.flag("fuse_unk", false);
  out.model.ignore_merges = fields.flag("ignore_merges", false);
  const std::string unknown = fields.text("unk_token");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!fields.text(key).empty()) fields.fail(std::string("has \"") + key + "\", not supported");
  if (const json& dropout = fields.member("dropout"); !dropout.is_null() && dropout != 0.0)
    fields.fail("has \"dropout\", which is not supported");
  const json& vocab = fields.member("vocab");
  const json& merges = fields.member("merges");
  SS_RETURN_IF_ERROR(fields.finish());

  SS_ASSIGN(const Vocabulary vocabulary, read_vocabulary(vocab, out.added.size()));
  SS_RETURN_IF_ERROR(check_added(vocab, vocabulary, out.added));
  SS_ASSIGN(out.tokens, list_tokens(vocab, out.added));
  if (!unknown.empty()) {
    const auto found = vocabulary.find(unknown);
    if (found == vocabulary.end())
      return bad_data("model BPE: the unk_token \"" + unknown + "\" has no id");
    out.model.unknown = found->second;
  }
  SS_RETURN_IF_ERROR(read_merges(merges, vocabulary, out.model));
  set_symbols(vocabulary, out.model);
  if (byte_level && out.model.byte_fallback &&
      std::ranges::any_of(out.model.byte_ids, [](int32_t id) { return id < 0; }))
    return bad_data(
        "model BPE has \"byte_fallback\" behind ByteLevel, and no tokens for some bytes");
  return out;
}

}  // namespace simplescale
