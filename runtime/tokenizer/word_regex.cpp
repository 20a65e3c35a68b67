#include "runtime/tokenizer/word_regex.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <new>
#include <vector>

namespace simplescale {

namespace {

constexpr size_t pattern_bytes_max = 4096;
constexpr uint32_t heap_limit_kib = 64 << 10;
// A step is a character that is looked at, or a choice that PCRE2 takes back. For its size, a text may
// need some hundred times the steps that it needs with any known tokenizer: about 2 s for 1 MB.
constexpr uint64_t steps_of_text = 4'000'000, steps_of_byte = 1000;
// What nearly every match needs. PCRE2 does not say what it has needed, so more is tried by and by.
constexpr uint64_t usual_steps = 1000, more_steps = 8;
constexpr size_t usual_bytes = 256, more_bytes = 2;
constexpr size_t jit_stack_bytes = 1 << 20;

Status refused(const std::string& what) {
  return {Code::bad_data, "its regular expression has " + what + ", which is not supported"};
}

/// Translates a pattern from left to right.
class Translator {
 public:
  explicit Translator(const std::string& pattern) : in_(pattern) {}

  Result<std::string> run() {
    while (at_ < in_.size()) SS_RETURN_IF_ERROR(in_class_ ? class_item() : item());
    if (in_class_) return refused("a [ without ]");
    return out_;
  }

 private:
  bool follows(const char* text) const { return in_.compare(at_, std::strlen(text), text) == 0; }
  void copy(size_t count) {
    out_ += in_.substr(at_, count);
    at_ += count;
  }

  Status item() {
    switch (in_[at_]) {
      case '\\':
        return escape();
      case '[':
        copy(1);
        in_class_ = true;
        if (follows("^")) copy(1);
        if (follows("]")) return refused("\"[]\"");
        return {};
      case '(':
        if (!follows("(?") || follows("(?:") || follows("(?=") || follows("(?!") ||
            follows("(?>") || follows("(?i:")) {
          ignores_case_.push_back(follows("(?i:") || ignores_case());
          break;
        }
        return refused("the group \"" + in_.substr(at_, 4) + "\"");
      case ')':
        if (!ignores_case_.empty()) ignores_case_.pop_back();
        break;
      case '^':
      case '$':
        return refused(std::string("the anchor ") + in_[at_]);
      case '{':
        if (follows("{,")) return refused("\"{,\"");
        break;
      case '}':
        if (follows("}+")) return refused("\"}+\"");  // Oniguruma repeats it, PCRE2 is possessive
        if (follows("}?") && in_.find(',', std::min(in_.rfind('{', at_), at_)) > at_)
          return refused("\"{n}?\"");  // Oniguruma: n times or never
        break;
      default:
        if (ignores_case() && is_in_ligature())
          return refused("\"" + in_.substr(at_, 2) + "\" inside (?i:...)");
        break;
    }
    copy(1);
    return {};
  }

  bool ignores_case() const { return !ignores_case_.empty() && ignores_case_.back(); }

  /// Without case, Oniguruma takes these letters for one character, too, such as U+00DF, U+FB01.
  bool is_in_ligature() const {
    std::string pair = in_.substr(at_, 2);
    for (char& c : pair) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return pair == "ss" || pair == "st" || pair == "ff" || pair == "fi" || pair == "fl";
  }

  Status class_item() {
    if (follows("\\")) return escape();
    if (follows("[")) return refused("a [ inside [...]");
    if (follows("&&")) return refused("&& inside [...]");
    in_class_ = !follows("]");
    copy(1);
    return {};
  }

  /// A backslash and what belongs to it.
  Status escape() {
    const char c = at_ + 1 < in_.size() ? in_[at_ + 1] : '\0';
    const auto replace = [&](const std::string& set) {
      out_ += in_class_ ? set : "[" + set + "]";
      at_ += 2;
      return Status();
    };
    const std::string word = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
    // Oniguruma takes these for words only outside of [...].
    const std::string latin_numbers = "\\xb2\\xb3\\xb9\\xbc-\\xbe";
    switch (c) {
      case 's':
        return replace(kWhiteSpace);
      case 'S':
        return replace(kNotWhiteSpace);
      case 'w':
        return replace(in_class_ ? word : word + latin_numbers);
      case 'W':
        if (in_class_) return refused("\\W inside [...]");
        return replace("^" + word + latin_numbers);
      case 'd':
        return replace("\\p{Nd}");
      case 'D':
        return replace("\\P{Nd}");
      case 'u':  // \uHHHH
        if (at_ + 6 > in_.size() ||
            in_.find_first_not_of("0123456789abcdefABCDEF", at_ + 2) < at_ + 6)
          return refused("a \\u without four digits");
        out_ += "\\x{" + in_.substr(at_ + 2, 4) + "}";
        at_ += 6;
        return {};
      case 'p':
      case 'P':
      case 'x':
        if (c != 'x' && in_.compare(at_ + 2, 1, "{") != 0)
          return refused(std::string("\\") + c + " without {");  // Oniguruma: the letter itself
        copy(2);
        if (!follows("{")) return {};
        copy(follows("{^") ? 2 : 1);
        // A long name is that of a script, which PCRE2 would take with its extensions.
        if (const size_t bytes = std::min(in_.find('}', at_), in_.size()) - at_;
            c != 'x' && bytes > 2 && !follows("Any}") && !follows("Alphabetic}"))
          out_ += "sc:";
        copy(std::min(in_.find('}', at_), in_.size() - 1) + 1 - at_);
        return {};
      case 'r':
      case 'n':
      case 't':
      case 'f':
      case 'v':
        copy(2);
        if (c == 'v') out_.replace(out_.size() - 2, 2, "\\x0b");  // PCRE2: any vertical space
        return {};
      default:
        if (c == '\0' || std::isalnum(static_cast<unsigned char>(c)) || (c & 0x80))
          return refused(std::string("\\") + c);
        copy(2);
        return {};
    }
  }

  const std::string& in_;
  std::string out_;
  size_t at_ = 0;
  bool in_class_ = false;
  std::vector<bool> ignores_case_;  // of the groups around at_
};

}  // namespace

Result<std::string> translate_regex(const std::string& pattern) {
  return Translator(pattern).run();
}

PatternScratch::PatternScratch()
    : data_(pcre2_match_data_create(1, nullptr)),
      context_(pcre2_match_context_create(nullptr)),
      stack_(pcre2_jit_stack_create(32 << 10, jit_stack_bytes, nullptr)) {
  if (!data_ || !context_) throw std::bad_alloc();
  pcre2_set_heap_limit(context_, heap_limit_kib);
  if (stack_) pcre2_jit_stack_assign(context_, nullptr, stack_);
  begin(0);
}

void PatternScratch::begin(size_t bytes) {
  steps_left_ = steps_of_text + steps_of_byte * bytes;
  status_ = {};
}

PatternScratch::~PatternScratch() {
  pcre2_match_data_free(data_);
  pcre2_match_context_free(context_);
  if (stack_) pcre2_jit_stack_free(stack_);
}

void WordRegex::Free::operator()(pcre2_code* code) const {
  pcre2_code_free(code);
}

Result<WordRegex> WordRegex::compile(const std::string& pattern) {
  if (pattern.size() > pattern_bytes_max) return refused("more than 4096 bytes");
  SS_ASSIGN(const std::string text, translate_regex(pattern));
  int error = 0;
  size_t offset = 0;
  WordRegex regex;
  regex.pattern_ = pattern;
  regex.code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset,
                                  nullptr));
  if (!regex.code_) {
    char message[256] = "";
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof message);
    return Status(Code::bad_data,
                  "its regular expression \"" + pattern + "\" is wrong: " + message);
  }
  uint32_t matches_empty = 0;
  pcre2_pattern_info(regex.code_.get(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty) return refused("an alternative that matches the empty text");
  regex.jit_ =
      pcre2_jit_compile(regex.code_.get(), PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) == 0;
  return regex;
}

int WordRegex::search(std::string_view text, size_t from, uint64_t steps, bool partial,
                      PatternScratch& scratch) const {
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const uint32_t options = partial ? PCRE2_PARTIAL_HARD : 0;
  pcre2_set_match_limit(scratch.context_,
                        static_cast<uint32_t>(std::min<uint64_t>(steps, UINT32_MAX)));
  int found = PCRE2_ERROR_JIT_STACKLIMIT;
  if (jit_)
    found = pcre2_jit_match(code_.get(), subject, text.size(), from, options, scratch.data_,
                            scratch.context_);
  if (found == PCRE2_ERROR_JIT_STACKLIMIT)
    found =
        pcre2_match(code_.get(), subject, text.size(), from,
                    options | PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, scratch.data_, scratch.context_);
  return found;
}

/// PCRE2 bounds the choices that it takes back for each place where a match may begin, but not how
/// far it looks: "a*b" looks through all of a text of "a". So it gets only the next bytes of the text,
/// and more if it looks beyond them.
bool WordRegex::find(std::string_view text, size_t from, PatternScratch& scratch,
                     Match& match) const {
  if (!scratch.status_.ok()) return false;
  uint64_t steps = usual_steps;
  for (size_t bytes = usual_bytes;;) {
    size_t end = from + std::min(bytes, text.size() - from);
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
    const int found = search(text.substr(0, end), from, std::min(steps, scratch.steps_left_),
                             end < text.size(), scratch);
    const bool begins = found >= 0 || found == PCRE2_ERROR_PARTIAL;
    const size_t* range = pcre2_get_ovector_pointer(scratch.data_);
    const uint64_t tried = begins                         ? range[0] - from + 1
                           : found == PCRE2_ERROR_NOMATCH ? end - from
                                                          : 1;
    const uint64_t spent =
        (found >= 0 ? 0 : end - from) + (steps > usual_steps ? tried * steps : 0);
    scratch.steps_left_ -= std::min(spent, scratch.steps_left_);
    if (found >= 0) {
      match = {range[0], range[1]};
      return match.begin < match.end;
    }
    if (found == PCRE2_ERROR_NOMATCH && end == text.size()) return false;
    if (scratch.steps_left_ == 0 || (found != PCRE2_ERROR_NOMATCH && found != PCRE2_ERROR_PARTIAL &&
                                     found != PCRE2_ERROR_MATCHLIMIT)) {
      scratch.status_ = {Code::bad_data,
                         "its regular expression \"" + pattern_ +
                             "\" needs too many steps or too much memory for this text"};
      return false;
    }
    if (found == PCRE2_ERROR_PARTIAL) bytes *= more_bytes;
    if (found == PCRE2_ERROR_MATCHLIMIT) steps *= more_steps;
    if (found == PCRE2_ERROR_NOMATCH) {  // none begins before `end`
      from = end;
      steps = usual_steps;
    }
  }
}

}  // namespace simplescale
