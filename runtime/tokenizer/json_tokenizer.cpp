#include "runtime/tokenizer/json_tokenizer.hpp"

#include <algorithm>
#include <utility>

#include "runtime/base/utf8.hpp"

namespace simplescale {

namespace {

constexpr std::string_view space_mark = "\xE2\x96\x81";  // U+2581

/// Words for a model that splits none: cut before each run of U+2581, which gives the same ids if
/// no merge leads over such a cut (BpeModel::words_at_spaces), and lets the cache work.
template <class Take>
void for_each_part(const BpeModel& model, std::string_view word, Take take) {
  size_t begin = 0;
  if (model.words_at_spaces)
    for (size_t at = word.find(space_mark); at != word.npos;) {
      if (at > begin) take(word.substr(begin, at - begin));
      begin = at;
      while (word.substr(at).starts_with(space_mark)) at += space_mark.size();
      at = word.find(space_mark, at);
    }
  take(word.substr(begin));
}

}  // namespace

/// Takes scratch memory from the idle ones, or makes some; gives it back when destroyed.
class JsonTokenizer::Borrowed {
 public:
  explicit Borrowed(Idle& idle) : idle_(idle) {
    const std::lock_guard lock(idle_.mutex);
    if (idle_.all.empty()) return;
    scratch_ = std::move(idle_.all.back());
    idle_.all.pop_back();
  }
  ~Borrowed() {
    const std::lock_guard lock(idle_.mutex);
    idle_.all.push_back(std::move(scratch_));
  }
  Scratch& get() {
    if (!scratch_) scratch_ = std::make_unique<Scratch>();
    return *scratch_;
  }

 private:
  Idle& idle_;
  std::unique_ptr<Scratch> scratch_;
};

Result<JsonTokenizer> JsonTokenizer::from_text(std::string_view text) {
  SS_ASSIGN(TokenizerJson data, parse_tokenizer_json(text));
  JsonTokenizer out;
  out.data_ = std::make_unique<const TokenizerJson>(std::move(data));
  out.idle_ = std::make_unique<Idle>();
  return out;
}

std::vector<int32_t> JsonTokenizer::encode(std::string_view text, bool continues) const {
  std::string repaired;
  if (first_invalid_utf8(text) != text.size()) text = repaired = replace_invalid_utf8(text);
  Borrowed borrowed(*idle_);
  Scratch& scratch = borrowed.get();
  std::vector<int32_t> out;
  out.reserve(text.size() / 3);
  scratch.parts.clear();
  data_->raw_tokens.split(text, scratch.parts);
  for (const TextPart& part : scratch.parts) {
    if (part.id >= 0) {
      out.push_back(part.id);
      continue;
    }
    const bool at_start = part.text.data() == text.data();
    encode_part(part.text, at_start && !continues, at_start && continues, scratch, out);
  }
  return out;
}

void JsonTokenizer::encode_part(std::string_view text, bool at_start, bool continues,
                                Scratch& scratch, std::vector<int32_t>& out) const {
  const TokenizerJson& d = *data_;
  std::string normalized;
  if (!d.normalizer.empty())
    text = normalized = normalize(d.normalizer, text, continues, scratch.regex);
  if (d.normalized_tokens.empty()) return encode_words(text, at_start, scratch, out);
  scratch.inner.clear();
  d.normalized_tokens.split(text, scratch.inner);
  for (const TextPart& part : scratch.inner)
    if (part.id >= 0)
      out.push_back(part.id);
    else
      encode_words(part.text, at_start && part.text.data() == text.data(), scratch, out);
}

void JsonTokenizer::encode_words(std::string_view text, bool at_start, Scratch& scratch,
                                 std::vector<int32_t>& out) const {
  const BpeModel& model = data_->model;
  pre_tokenize(data_->pre_tokenizer, text, at_start, scratch.regex, scratch.words);
  for (const Words::Word& word : scratch.words.words)
    for_each_part(model, word.text,
                  [&](std::string_view part) { encode_word(model, part, scratch.bpe, out); });
}

std::string JsonTokenizer::decode(std::span<const int32_t> ids) const {
  const TokenizerJson& d = *data_;
  std::vector<std::string> tokens;
  for (const int32_t id : ids) {
    const auto at = static_cast<size_t>(id);
    if (id < 0 || at >= d.tokens.size() || d.special[at] || d.tokens[at].empty()) continue;
    tokens.push_back((d.spaces_between_tokens && !tokens.empty() ? " " : "") + d.tokens[at]);
  }
  Borrowed borrowed(*idle_);
  return decode_tokens(d.decoder, std::move(tokens), borrowed.get().regex);
}

bool JsonTokenizer::cuts_at_spaces() const {
  if (data_->token_has_spaces) return false;
  for (const NormalizerStep& step : data_->normalizer)  // it may replace what is around a space
    if (const auto* replace = std::get_if<ReplaceText>(&step);
        replace &&
        (replace->pattern.regex ||
         (replace->pattern.text != " " && replace->pattern.text.find(' ') != std::string::npos)))
      return false;
  Borrowed borrowed(*idle_);
  Scratch& scratch = borrowed.get();
  const auto append_words = [&](std::string_view text, bool continues,
                                std::vector<std::string>& out) {
    const std::string normalized = normalize(data_->normalizer, text, continues, scratch.regex);
    pre_tokenize(data_->pre_tokenizer, normalized, !continues, scratch.regex, scratch.words);
    for (const Words::Word& word : scratch.words.words)
      for_each_part(data_->model, word.text,
                    [&](std::string_view part) { out.emplace_back(part); });
  };
  // Looks at every pair of ASCII letters, alone and inside longer words. Patterns have no
  // lookbehind (word_regex.cpp), so what is further away has no influence on this cut.
  std::vector<std::string> whole, cut;
  for (const char* around : {"", "qwert"})
    for (char left = 'A'; left <= 'z'; ++left)
      for (char right = 'A'; right <= 'z'; ++right) {
        if ((left > 'Z' && left < 'a') || (right > 'Z' && right < 'a')) continue;
        const std::string front = std::string(around) + left;
        const std::string back = std::string(" ") + right + around;
        whole.clear(), cut.clear();
        append_words(front + back, false, whole);
        append_words(front, false, cut);
        append_words(back, true, cut);
        if (whole != cut) return false;
      }
  return true;
}

}  // namespace simplescale
