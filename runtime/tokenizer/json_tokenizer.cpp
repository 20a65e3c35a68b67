#include "runtime/tokenizer/json_tokenizer.hpp"

#include <algorithm>
#include <utility>

#include "runtime/base/utf8.hpp"

namespace simplescale {

namespace {

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

std::vector<int32_t> JsonTokenizer::encode(std::string_view text, bool continues,
                                           TokenPlaces* places, Status* error) const {
  std::string repaired;
  if (first_invalid_utf8(text) != text.size()) text = repaired = replace_invalid_utf8(text);
  Borrowed borrowed(*idle_);
  Scratch& scratch = borrowed.get();
  scratch.regex.begin(text.size());
  Output out{.places = places};
  out.ids.reserve(text.size() / 3);
  scratch.parts.clear();
  data_->raw_tokens.split(text, scratch.parts);
  for (const TextPart& part : scratch.parts) {
    if (part.id >= 0) {
      append_token(part, out);
      continue;
    }
    const bool at_start = part.text.data() == text.data();
    encode_part(part.text, at_start && !continues, at_start && continues, scratch, out);
  }
  if (error && !scratch.regex.status().ok()) *error = scratch.regex.status();
  return std::move(out.ids);
}

void JsonTokenizer::encode_part(std::string_view text, bool at_start, bool continues,
                                Scratch& scratch, Output& out) const {
  const TokenizerJson& d = *data_;
  std::string normalized;
  if (!d.normalizer.empty())
    text = normalized = normalize(d.normalizer, text, continues, scratch.regex);
  if (d.normalized_tokens.empty()) return encode_words(text, at_start, scratch, out);
  scratch.inner.clear();
  d.normalized_tokens.split(text, scratch.inner);
  for (const TextPart& part : scratch.inner)
    if (part.id >= 0)
      append_token(part, out);
    else
      encode_words(part.text, at_start && part.text.data() == text.data(), scratch, out);
}

void JsonTokenizer::encode_words(std::string_view text, bool at_start, Scratch& scratch,
                                 Output& out) const {
  const BpeModel& model = data_->model;
  pre_tokenize(data_->pre_tokenizer, text, at_start, scratch.regex, scratch.words);
  for (const Words::Word& word : scratch.words.words)
    for_each_part(model, word.text, [&](std::string_view part) {
      const size_t first = out.ids.size();
      encode_word(model, part, scratch.bpe, out.ids);
      if (out.places) place_word(part.size(), first, out.ids, *out.places);
    });
}

// -- Places of ids --------------------------------------------------------------------------------

void JsonTokenizer::append_token(const TextPart& part, Output& out) const {
  out.ids.push_back(part.id);
  if (out.places) place_word(part.text.size(), out.ids.size() - 1, out.ids, *out.places);
}

/// How many bytes of a word the id stands for.
size_t JsonTokenizer::bytes_of(int32_t id) const {
  const std::string& token = data_->tokens[static_cast<size_t>(id)];
  const BpeModel& model = data_->model;
  if (model.byte_level)  // each character stands for a byte
    return static_cast<size_t>(std::ranges::count_if(
        token, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
  const bool byte = model.byte_fallback && token.size() == 6 && token.starts_with("<0x");
  return byte ? 1 : token.size();
}

/// ids[first_id], ...: of a word of so many bytes, or the id of an added token. Where ids do not
/// say what they stand for (unknown ones, added tokens), each one stands for the whole word.
void JsonTokenizer::place_word(size_t bytes, size_t first_id, const std::vector<int32_t>& ids,
                               TokenPlaces& places) const {
  size_t sum = 0;
  for (size_t i = first_id; i < ids.size(); ++i) sum += bytes_of(ids[i]);
  uint64_t at = places.length;
  places.length += bytes;
  for (size_t i = first_id; i < ids.size(); ++i) {
    places.of_ids.push_back({at, sum == bytes ? at + bytes_of(ids[i]) : places.length});
    if (sum == bytes) at = places.of_ids.back().end;
  }
}

/// Turns ranges of bytes of the text into their places in the words, which have `length` bytes. A
/// normalizer may replace text: so much of the words comes from the front of the text as the front
/// alone becomes. The front is measured in parts, each once, unless the parts do not add up.
/// Neighbouring ranges become one if measuring them all would take too long: a text may come from a
/// stranger, have no blanks, and a range for every second byte.
void JsonTokenizer::place_ranges(std::string_view text, bool continues, uint64_t length,
                                 IndexRanges& ranges) const {
  constexpr size_t kPart = 256;            // bytes that a range encodes again
  constexpr uint64_t kAgainForEach = 256;  // bytes, for each byte of the text
  struct Front {
    uint64_t bytes, length;
  };
  const auto longer = [&](const Front& front, uint64_t byte) {
    TokenPlaces part;
    (void)encode(text.substr(front.bytes, byte - front.bytes), continues || front.bytes > 0, &part,
                 nullptr);
    return Front{byte, front.length + part.length};
  };
  const auto blank = [](char c) { return c == ' ' || c == '\n'; };
  std::vector<Front> fronts = {{0, 0}};
  for (size_t at = kPart; at + 1 < text.size(); ++at)
    if (at - fronts.back().bytes >= kPart && blank(text[at]) && !blank(text[at - 1]) &&
        !blank(text[at + 1]))
      fronts.push_back(longer(fronts.back(), at));
  if (longer(fronts.back(), text.size()).length != length) fronts.resize(1);
  const auto front_of = [&](uint64_t byte) {
    return *(std::ranges::upper_bound(fronts, byte, {}, &Front::bytes) - 1);
  };
  uint64_t again = 0;
  for (const IndexRange& range : ranges)
    again += range.begin - front_of(range.begin).bytes + range.end - front_of(range.end).bytes;
  const size_t together = 1 + again / (kAgainForEach * text.size() + 1);
  IndexRanges placed;
  for (size_t i = 0; i < ranges.size(); i += together) {
    const uint64_t begin = ranges[i].begin,
                   end = ranges[std::min(i + together, ranges.size()) - 1].end;
    placed.push_back({longer(front_of(begin), begin).length, longer(front_of(end), end).length});
  }
  ranges = std::move(placed);
}

std::vector<int32_t> JsonTokenizer::encode_masked(std::string_view text, bool continues,
                                                  const IndexRanges& ranges,
                                                  std::vector<bool>& masked, Status* error) const {
  TokenPlaces places;
  std::vector<int32_t> ids = encode(text, continues, &places, error);
  IndexRanges wanted = ranges;
  if (!keeps_bytes(text)) {
    // The front must not end within an added token, which would be other text there.
    std::vector<TextPart> parts;
    data_->raw_tokens.split(text, parts);
    for (const TextPart& part : parts) {
      const auto begin = static_cast<uint64_t>(part.text.data() - text.data());
      if (part.id >= 0 && touches(ranges, begin, begin + part.text.size()))
        wanted.push_back({begin, begin + part.text.size()});
    }
    wanted = union_of(std::move(wanted));
    place_ranges(text, continues, places.length, wanted);
  }
  masked.clear();
  for (const IndexRange& place : places.of_ids)
    masked.push_back(touches(wanted, place.begin, std::max(place.end, place.begin + 1)));
  return ids;
}

/// True if the words are the text itself: the normalizer replaces nothing in it, and no step puts
/// in or leaves out anything.
bool JsonTokenizer::keeps_bytes(std::string_view text) const {
  for (const NormalizerStep& step : data_->normalizer) {
    const auto* form = std::get_if<NormalForm>(&step);
    if (!form || to_normal_form(text, *form) != text) return false;
  }
  return std::ranges::all_of(data_->pre_tokenizer, [](const PreTokenizerStep& step) {
    const auto* split = std::get_if<SplitStep>(&step);
    return split && split->behavior != SplitBehavior::removed;
  });
}

std::string JsonTokenizer::decode(std::span<const int32_t> ids) const {
  const TokenizerJson& d = *data_;
  std::vector<std::string> tokens;
  size_t bytes = 0;
  for (const int32_t id : ids) {
    const auto at = static_cast<size_t>(id);
    if (id < 0 || at >= d.tokens.size() || d.special[at] || d.tokens[at].empty()) continue;
    const auto normalized = d.normalized.find(id);
    const std::string& text = normalized == d.normalized.end() ? d.tokens[at] : normalized->second;
    tokens.push_back((d.spaces_between_tokens && !tokens.empty() ? " " : "") + text);
    bytes += tokens.back().size();
  }
  Borrowed borrowed(*idle_);
  Scratch& scratch = borrowed.get();
  scratch.regex.begin(bytes);
  return decode_tokens(d.decoder, std::move(tokens), scratch.regex);
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
        scratch.regex.begin(front.size() + back.size());
        append_words(front + back, false, whole);
        append_words(front, false, cut);
        append_words(back, true, cut);
        if (whole != cut || !scratch.regex.status().ok()) return false;
      }
  return true;
}

}  // namespace simplescale
