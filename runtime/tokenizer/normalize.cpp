#include "runtime/tokenizer/normalize.hpp"

namespace simplescale {

std::string replace_all(std::string_view text, const Pattern& pattern, const std::string& by,
                        PatternScratch& scratch) {
  std::string out;
  size_t done = 0;
  for (WordRegex::Match match; pattern.find(text, done, scratch, match); done = match.end) {
    out += text.substr(done, match.begin - done);
    out += by;
  }
  out += text.substr(done);
  return out;
}

std::string normalize(const std::vector<NormalizerStep>& steps, std::string_view text,
                      bool continues, PatternScratch& scratch) {
  std::string out(text);
  for (const NormalizerStep& step : steps) {
    if (const auto* form = std::get_if<NormalForm>(&step)) {
      out = to_normal_form(out, *form);
    } else if (const auto* prepend = std::get_if<PrependText>(&step)) {
      if (!out.empty() && !continues) out.insert(0, prepend->text);
    } else if (std::holds_alternative<Lowercase>(step)) {
      out = to_lowercase(out);
    } else if (std::holds_alternative<StripMarks>(step)) {
      out = without_marks(out);
    } else {
      const auto& replace = std::get<ReplaceText>(step);
      out = replace_all(out, replace.pattern, replace.by, scratch);
    }
  }
  return out;
}

}  // namespace simplescale
