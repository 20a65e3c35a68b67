#include "runtime/tokenizer/json_steps.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "runtime/base/json_members.hpp"
#include "runtime/tokenizer/json_fields.hpp"

namespace simplescale {

using nlohmann::json;

namespace {

// The split of ByteLevel, as in GPT-2.
constexpr const char* gpt2_words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr size_t steps_max = 64;
constexpr double invalid_growth = 3;  // a byte that is no UTF-8 becomes U+FFFD
constexpr double growth_max = 64;     // of a text, by all steps; NFKC and a Replace need 33

std::string type_of(const json& step) {
  return text_of(step, "type");
}

Status unsupported(const std::string& part, const json& step) {
  const std::string type = type_of(step);
  return {Code::bad_data,
          part + (type.empty() ? " is damaged: it has no type" : " " + type + " is not supported")};
}

/// Calls `take` for a step, or for each step of a Sequence. null: for none.
template <class Take>
Status for_each_step(const json& value, const std::string& part, const char* list, Take take) {
  if (value.is_null()) return {};
  if (type_of(value) != "Sequence") return take(value);
  JsonFields fields(value, part + " Sequence");
  fields.ignore("type");
  const json& steps = fields.member(list);
  if (!steps.is_array() || steps.size() > steps_max) fields.fail("has no list of steps");
  SS_RETURN_IF_ERROR(fields.finish());
  for (const json& step : steps) {
    if (type_of(step) == "Sequence") return {Code::bad_data, part + " has nested Sequences"};
    SS_RETURN_IF_ERROR(take(step));
  }
  return {};
}

/// {"String": "a"} or {"Regex": "a+"}.
Result<Pattern> read_pattern(const json& value, const std::string& what) {
  JsonFields fields(value, what + " pattern");
  Pattern pattern;
  pattern.text = fields.text("String");
  const std::string regex = fields.text("Regex");
  if (pattern.text.empty() == regex.empty()) fields.fail("is neither a String nor a Regex");
  SS_RETURN_IF_ERROR(fields.finish());
  if (regex.empty()) return pattern;
  auto compiled = WordRegex::compile(regex);
  if (!compiled.ok()) return compiled.status().in(what);
  pattern.regex = compiled.take();
  return pattern;
}

Result<ReplaceText> read_replace(const json& step, const std::string& what) {
  JsonFields fields(step, what);
  fields.ignore("type");
  ReplaceText out;
  SS_ASSIGN(out.pattern, read_pattern(fields.member("pattern"), what));
  out.by = fields.text("content");
  SS_RETURN_IF_ERROR(fields.finish());
  return out;
}

/// Refuses steps that together may make a text more than growth_max times as long: 64 times
/// "a" -> "aa" would need 2^64 bytes.
class Growth {
 public:
  explicit Growth(std::string part) : part_(std::move(part)) {}
  Status by(double factor) { return plus(factor_ * (std::max(1.0, factor) - 1)); }
  /// Before each text between added tokens, which may have one byte.
  Status plus(double bytes) {
    if ((factor_ += bytes) <= growth_max) return {};
    return {Code::bad_data, part_ + " may make a text more than " +
                                std::to_string(static_cast<int>(growth_max)) + " times as long"};
  }
  Status by(const ReplaceText& step) {
    const size_t shortest = step.pattern.regex ? 1 : step.pattern.text.size();
    return by(static_cast<double>(step.by.size()) / static_cast<double>(shortest));
  }

 private:
  std::string part_;
  double factor_ = 1;
};

// -- Normalizer -----------------------------------------------------------------------------------

/// How many times as many bytes a text may get (Unicode Standard Annex 15, table of UTF-8).
double form_growth(NormalForm form) {
  return form == NormalForm::nfc || form == NormalForm::nfd ? 3 : 11;
}

Status add_normalizer(const json& step, std::vector<NormalizerStep>& out, Growth& growth) {
  static const std::map<std::string, NormalForm> forms = {{"NFC", NormalForm::nfc},
                                                          {"NFD", NormalForm::nfd},
                                                          {"NFKC", NormalForm::nfkc},
                                                          {"NFKD", NormalForm::nfkd}};
  const std::string type = type_of(step);
  JsonFields fields(step, "normalizer " + type);
  fields.ignore("type");
  if (const auto form = forms.find(type); form != forms.end()) {
    out.emplace_back(form->second);
    SS_RETURN_IF_ERROR(growth.by(form_growth(form->second)));
    return fields.finish();
  }
  if (type == "Prepend") {
    PrependText prepend{fields.required_text("prepend")};
    SS_RETURN_IF_ERROR(growth.plus(static_cast<double>(prepend.text.size())));
    out.emplace_back(std::move(prepend));
    return fields.finish();
  }
  if (type == "Lowercase") {
    out.emplace_back(Lowercase{});
    SS_RETURN_IF_ERROR(growth.by(2));  // at most, by U+023A and others: 3 bytes for 2
    return fields.finish();
  }
  if (type == "StripAccents") {
    out.emplace_back(StripMarks{});
    return fields.finish();
  }
  if (type == "Replace") {
    SS_ASSIGN(ReplaceText replace, read_replace(step, "normalizer Replace"));
    SS_RETURN_IF_ERROR(growth.by(replace));
    out.emplace_back(std::move(replace));
    return {};
  }
  return unsupported("normalizer", step);
}

// -- Pre-tokenizer --------------------------------------------------------------------------------

Result<SplitStep> split_by(const std::string& regex, SplitBehavior behavior) {
  SplitStep step;
  SS_ASSIGN(step.pattern.regex, WordRegex::compile(regex));
  step.behavior = behavior;
  return step;
}

SplitBehavior read_behavior(JsonFields& fields, const std::string& text) {
  static const std::map<std::string, SplitBehavior> behaviors = {
      {"Isolated", SplitBehavior::isolated},
      {"Removed", SplitBehavior::removed},
      {"MergedWithPrevious", SplitBehavior::merged_with_previous},
      {"MergedWithNext", SplitBehavior::merged_with_next},
      {"Contiguous", SplitBehavior::contiguous}};
  const auto behavior = behaviors.find(text);
  if (behavior != behaviors.end()) return behavior->second;
  fields.fail("has an unknown \"behavior\"");
  return {};
}

Status add_split(const json& step, PreTokenizer& out) {
  JsonFields fields(step, "pre_tokenizer Split");
  fields.ignore("type");
  SplitStep split;
  SS_ASSIGN(split.pattern, read_pattern(fields.member("pattern"), "pre_tokenizer Split"));
  split.behavior = read_behavior(fields, fields.required_text("behavior"));
  split.invert = fields.flag("invert", false);
  SS_RETURN_IF_ERROR(fields.finish());
  out.steps.emplace_back(std::move(split));
  return {};
}

Status add_byte_level(const json& step, PreTokenizer& out, Growth& growth) {
  JsonFields fields(step, "pre_tokenizer ByteLevel");
  fields.ignore("type");
  fields.ignore("trim_offsets");
  if (fields.flag("add_prefix_space", true)) {
    SS_RETURN_IF_ERROR(growth.by(2));  // before each word, which may have one byte
    out.steps.emplace_back(PrefixSpaceStep{});
  }
  const bool splits = fields.flag("use_regex", true);
  SS_RETURN_IF_ERROR(fields.finish());
  if (splits) {
    SS_ASSIGN(SplitStep words, split_by(gpt2_words, SplitBehavior::isolated));
    out.steps.emplace_back(std::move(words));
  }
  out.byte_level = true;
  return {};
}

/// "prepend_scheme", or "add_prefix_space" of older files.
MetaspaceStep::Prepend read_prepend(JsonFields& fields) {
  const bool prefix = fields.flag("add_prefix_space", true);
  const std::string scheme = fields.text("prepend_scheme", prefix ? "always" : "never");
  if (scheme != "always" && scheme != "first" && scheme != "never")
    fields.fail("has an unknown \"prepend_scheme\"");
  return scheme == "always"  ? MetaspaceStep::always
         : scheme == "first" ? MetaspaceStep::first
                             : MetaspaceStep::never;
}

Status add_metaspace(const json& step, PreTokenizer& out, Growth& growth) {
  JsonFields fields(step, "pre_tokenizer Metaspace");
  fields.ignore("type");
  fields.ignore("str_rep");
  MetaspaceStep metaspace;
  metaspace.mark = fields.text("replacement", std::string(space_mark));
  metaspace.prepend = read_prepend(fields);
  metaspace.split = fields.flag("split", true);
  if (metaspace.mark.empty()) fields.fail("has an empty \"replacement\"");
  SS_RETURN_IF_ERROR(fields.finish());
  // A word may have one byte.
  const size_t prepended = metaspace.prepend == MetaspaceStep::always ? 1 : 0;
  SS_RETURN_IF_ERROR(growth.by(static_cast<double>(metaspace.mark.size() + prepended)));
  out.steps.emplace_back(std::move(metaspace));
  return {};
}

Status add_digits(const json& step, PreTokenizer& out) {
  JsonFields fields(step, "pre_tokenizer Digits");
  fields.ignore("type");
  const bool each = fields.flag("individual_digits", false);
  SS_RETURN_IF_ERROR(fields.finish());
  SS_ASSIGN(SplitStep digits, split_by(each ? "\\p{N}" : "\\p{N}+", SplitBehavior::isolated));
  out.steps.emplace_back(std::move(digits));
  return {};
}

Status has_only_a_type(const json& step) {
  JsonFields fields(step, "pre_tokenizer " + type_of(step));
  fields.ignore("type");
  return fields.finish();
}

/// Whitespace keeps words, and what stands between words and blanks.
Status add_whitespace(const json& step, PreTokenizer& out) {
  SS_RETURN_IF_ERROR(has_only_a_type(step));
  // \w of Rust's regular expressions, with which `tokenizers` matches here.
  const std::string word = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\u200c\\u200d";
  SS_ASSIGN(SplitStep words,
            split_by("[" + word + "]+|[^" + word + "\\s]+", SplitBehavior::removed));
  words.invert = true;
  out.steps.emplace_back(std::move(words));
  return {};
}

Status add_whitespace_split(const json& step, PreTokenizer& out) {
  SS_RETURN_IF_ERROR(has_only_a_type(step));
  SS_ASSIGN(SplitStep blanks, split_by("\\s", SplitBehavior::removed));
  out.steps.emplace_back(std::move(blanks));
  return {};
}

Status add_punctuation(const json& step, PreTokenizer& out) {
  JsonFields fields(step, "pre_tokenizer Punctuation");
  fields.ignore("type");
  const SplitBehavior behavior = read_behavior(fields, fields.text("behavior", "Isolated"));
  SS_RETURN_IF_ERROR(fields.finish());
  SS_ASSIGN(SplitStep marks, split_by("[\\p{P}$+<=>\\^`|~]", behavior));
  out.steps.emplace_back(std::move(marks));
  return {};
}

Status add_pre_tokenizer(const json& step, PreTokenizer& out, Growth& growth) {
  if (out.byte_level) return {Code::bad_data, "pre_tokenizer ByteLevel is not the last step"};
  const std::string type = type_of(step);
  if (type == "Metaspace") return add_metaspace(step, out, growth);
  if (type == "ByteLevel") return add_byte_level(step, out, growth);
  static const std::map<std::string, Status (*)(const json&, PreTokenizer&)> adders = {
      {"Split", add_split},
      {"Digits", add_digits},
      {"Punctuation", add_punctuation},
      {"Whitespace", add_whitespace},
      {"WhitespaceSplit", add_whitespace_split}};
  if (const auto found = adders.find(type); found != adders.end()) return found->second(step, out);
  return unsupported("pre_tokenizer", step);
}

// -- Decoder --------------------------------------------------------------------------------------

Status add_decoder(const json& step, std::vector<DecoderStep>& out, Growth& growth) {
  const std::string type = type_of(step);
  JsonFields fields(step, "decoder " + type);
  fields.ignore("type");
  if (type == "ByteLevel") {
    for (const char* key : {"add_prefix_space", "trim_offsets", "use_regex"}) fields.ignore(key);
    out.emplace_back(ByteLevelDecoder{});
    SS_RETURN_IF_ERROR(growth.by(invalid_growth));
  } else if (type == "ByteFallback") {
    out.emplace_back(ByteFallbackDecoder{});
  } else if (type == "Fuse") {
    out.emplace_back(FuseDecoder{});
  } else if (type == "Strip") {
    StripDecoder strip{fields.required_text("content"), fields.number("start", 0),
                       fields.number("stop", 0)};
    out.emplace_back(std::move(strip));
  } else if (type == "Metaspace") {
    fields.ignore("str_rep");
    fields.ignore("split");
    const std::string mark = fields.text("replacement", std::string(space_mark));
    if (mark.empty()) fields.fail("has an empty \"replacement\"");
    out.emplace_back(MetaspaceDecoder{mark, read_prepend(fields) != MetaspaceStep::never});
  } else if (type == "Replace") {
    SS_ASSIGN(ReplaceText replace, read_replace(step, "decoder Replace"));
    SS_RETURN_IF_ERROR(growth.by(replace));
    out.emplace_back(std::move(replace));
    return {};
  } else {
    return unsupported("decoder", step);
  }
  return fields.finish();
}

}  // namespace

Result<std::vector<NormalizerStep>> read_normalizer(const json& value) {
  std::vector<NormalizerStep> out;
  Growth growth("normalizer");
  SS_RETURN_IF_ERROR(for_each_step(value, "normalizer", "normalizers", [&](const json& step) {
    return add_normalizer(step, out, growth);
  }));
  return out;
}

Result<PreTokenizer> read_pre_tokenizer(const json& value) {
  PreTokenizer out;
  Growth growth("pre_tokenizer");
  SS_RETURN_IF_ERROR(for_each_step(value, "pre_tokenizer", "pretokenizers", [&](const json& step) {
    return add_pre_tokenizer(step, out, growth);
  }));
  return out;
}

Result<std::vector<DecoderStep>> read_decoder(const json& value) {
  std::vector<DecoderStep> out;
  Growth growth("decoder");
  SS_RETURN_IF_ERROR(for_each_step(value, "decoder", "decoders", [&](const json& step) {
    return add_decoder(step, out, growth);
  }));
  return out;
}

}  // namespace simplescale
