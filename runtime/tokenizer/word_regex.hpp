// The regular expressions of tokenizer.json: the syntax and meaning of Oniguruma, which Hugging
// Face's tokenizers use, matched by PCRE2 with its compiler (JIT). Parts of the syntax that mean
// something else in PCRE2 are translated, or refused by name. A WordRegex is immutable; a
// PatternScratch belongs to one thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "runtime/base/status.hpp"

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;
struct pcre2_real_jit_stack_8;

namespace simplescale {

/// The characters of Unicode's White_Space, for use inside [...]. PCRE2's \s has U+180E, too.
inline constexpr const char* kWhiteSpace =
    "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}"
    "\\x{3000}";
/// All other characters.
inline constexpr const char* kNotWhiteSpace =
    "\\x00-\\x08\\x0e-\\x1f\\x21-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}"
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}"
    "\\x{3001}-\\x{10ffff}";

/// The pattern in PCRE2's syntax. bad_data names the part that is not supported.
Result<std::string> translate_regex(const std::string& pattern);

/// Memory for matching, and a bound for what the patterns may cost for a text.
class PatternScratch {
 public:
  PatternScratch();
  ~PatternScratch();
  PatternScratch(const PatternScratch&) = delete;
  PatternScratch& operator=(const PatternScratch&) = delete;

  /// Begins a text: all find() up to the next begin() may together need a number of steps that grows
  /// with its bytes.
  void begin(size_t bytes);
  /// bad_data: a pattern needed more steps or memory for the text. find() finds nothing then.
  const Status& status() const { return status_; }

 private:
  friend class WordRegex;
  pcre2_real_match_data_8* data_;
  pcre2_real_match_context_8* context_;
  pcre2_real_jit_stack_8* stack_;
  uint64_t steps_left_ = 0;
  Status status_;
};

class WordRegex {
 public:
  struct Match {
    size_t begin = 0, end = 0;  // never empty
  };

  /// pattern: Oniguruma's syntax. bad_data: not supported, wrong, or it matches the empty text.
  static Result<WordRegex> compile(const std::string& pattern);

  /// Finds the first match at or behind `from`. text: valid UTF-8. False: there is none, or the
  /// scratch has an error.
  bool find(std::string_view text, size_t from, PatternScratch& scratch, Match& match) const;

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  int search(std::string_view text, size_t from, uint64_t steps, bool partial,
             PatternScratch& scratch) const;

  std::string pattern_;
  std::unique_ptr<pcre2_real_code_8, Free> code_;
  bool jit_ = false;
};

}  // namespace simplescale
