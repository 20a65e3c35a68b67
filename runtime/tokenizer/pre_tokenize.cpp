#include "runtime/tokenizer/pre_tokenize.hpp"

namespace simplescale {

namespace {

using Word = Words::Word;

/// Appends the pieces of a word, each with whether it is a match, and joins them as the step says.
class Joiner {
 public:
  Joiner(const SplitStep& step, const Word& word, std::vector<Word>& out)
      : step_(step), word_(word), out_(out), first_(out.size()) {}

  void add(size_t begin, size_t end, bool match) {
    if (begin == end) return;
    match = match != step_.invert;
    const bool before = matched_;  // the piece before was a match
    const bool any = out_.size() > first_;
    matched_ = match;
    switch (step_.behavior) {
      case SplitBehavior::isolated:
        return append(begin, end);
      case SplitBehavior::removed:
        return match ? void() : append(begin, end);
      case SplitBehavior::merged_with_previous:
        return match && any && !before ? extend(end) : append(begin, end);
      case SplitBehavior::merged_with_next:
        return !match && any && before ? extend(end) : append(begin, end);
      case SplitBehavior::contiguous:
        return any && match == before ? extend(end) : append(begin, end);
    }
  }

 private:
  void append(size_t begin, size_t end) {
    begin_ = begin;
    out_.push_back({word_.text.substr(begin, end - begin), word_.at_start && begin == 0});
  }
  void extend(size_t end) { out_.back().text = word_.text.substr(begin_, end - begin_); }

  const SplitStep& step_;
  const Word& word_;
  std::vector<Word>& out_;
  const size_t first_;
  size_t begin_ = 0;
  bool matched_ = false;
};

void split(const SplitStep& step, const Word& word, PatternScratch& scratch,
           std::vector<Word>& out) {
  Joiner joiner(step, word, out);
  size_t done = 0;
  for (WordRegex::Match match;
       done < word.text.size() && step.pattern.find(word.text, done, scratch, match);
       done = match.end) {
    joiner.add(done, match.begin, false);
    joiner.add(match.begin, match.end, true);
  }
  joiner.add(done, word.text.size(), false);
}

std::string replace_spaces(std::string_view text, const std::string& mark) {
  std::string out;
  for (const char c : text) c == ' ' ? out += mark : out += c;
  return out;
}

void metaspace(const MetaspaceStep& step, const Word& word, PatternScratch& scratch, Words& words) {
  std::string text = replace_spaces(word.text, step.mark);
  const bool wanted = step.prepend == MetaspaceStep::always ||
                      (step.prepend == MetaspaceStep::first && word.at_start);
  if (wanted && !text.starts_with(step.mark)) text.insert(0, step.mark);
  words.changed.push_back(std::move(text));
  const Word whole{words.changed.back(), word.at_start};
  if (!step.split) return words.next.push_back(whole);
  const SplitStep before_mark{{step.mark, {}}, SplitBehavior::merged_with_next, false};
  split(before_mark, whole, scratch, words.next);
}

}  // namespace

void pre_tokenize(const std::vector<PreTokenizerStep>& steps, std::string_view text, bool at_start,
                  PatternScratch& scratch, Words& out) {
  out.changed.clear();
  out.words.assign(1, {text, at_start});
  for (const PreTokenizerStep& step : steps) {
    out.next.clear();
    for (const Word& word : out.words) {
      if (word.text.empty()) continue;
      if (const auto* cut = std::get_if<SplitStep>(&step)) {
        split(*cut, word, scratch, out.next);
      } else if (const auto* spaces = std::get_if<MetaspaceStep>(&step)) {
        metaspace(*spaces, word, scratch, out);
      } else if (word.text.starts_with(' ')) {
        out.next.push_back(word);
      } else {
        out.changed.push_back(" " + std::string(word.text));
        out.next.push_back({out.changed.back(), word.at_start});
      }
    }
    std::swap(out.words, out.next);
  }
}

}  // namespace simplescale
