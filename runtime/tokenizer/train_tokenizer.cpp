#include <sentencepiece_trainer.h>

#include <cstdlib>
#include <string_view>

#include "runtime/tokenizer/tokenizer.hpp"

namespace simplescale {

namespace {

// SentencePiece's trainer ends the process at a word of 32,768 characters or more, and leaves out
// lines that are longer than max_sentence_length.
constexpr size_t word_characters_max = 32'000, line_bytes_max = 1 << 24;

/// Appends the line, or pieces of it: cut within words that are too long, and at a space if it is
/// too long itself.
void append_pieces(std::string_view line, std::vector<std::string_view>& out) {
  size_t begin = 0, characters = 0;  // of the piece, of the word
  for (size_t at = 0; at < line.size(); ++at) {
    const auto byte = static_cast<unsigned char>(line[at]);
    if ((byte & 0xC0) == 0x80) continue;
    characters = byte == ' ' ? 0 : characters + 1;
    const bool long_line =
        characters == 0 && line.size() > line_bytes_max && at - begin >= line_bytes_max / 2;
    if (characters <= word_characters_max && !long_line) continue;
    out.push_back(line.substr(begin, at - begin));
    begin = at;
    characters = 1;
  }
  out.push_back(line.substr(begin));
}

class Lines : public sentencepiece::SentenceIterator {
 public:
  explicit Lines(const std::vector<std::string>& lines) {
    for (const std::string& line : lines) append_pieces(line, pieces_);
    Next();
  }
  bool done() const override { return next_ > pieces_.size(); }
  void Next() override {
    if (next_ < pieces_.size()) value_ = pieces_[next_];
    ++next_;
  }
  const std::string& value() const override { return value_; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  std::vector<std::string_view> pieces_;
  std::string value_;
  size_t next_ = 0;
};

/// What the trainer's message says in our words.
std::string reason_of(const std::string& message, int64_t vocab) {
  const std::string cannot = "cannot train a tokenizer of " + std::to_string(vocab) + " tokens: ";
  // "Vocabulary size is smaller than required_chars. 300 vs 20259. Increase vocab_size or ..."
  if (const size_t at = message.find("smaller than required_chars"); at != message.npos) {
    const size_t number = message.find(" vs ", at);
    const int64_t needed = number == message.npos ? 0 : std::atoll(message.c_str() + number + 4);
    return cannot + "the text has so many different characters that " +
           (needed > 0 ? std::to_string(needed) : "more") +
           " are needed. Use a larger tokenizer.vocab (and model.vocab), or tokenizer.kind = "
           "\"byte_bpe\", which needs no token for each character";
  }
  return cannot + "is the text large enough? Use more text or a smaller tokenizer.vocab (" +
         message + ")";
}

}  // namespace

Result<std::string> train_tokenizer(const std::vector<std::string>& lines, int64_t vocab) {
  if (lines.empty()) return Status(Code::bad_data, "no text to train a tokenizer on");
  Lines iterator(lines);
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      {{"model_type", "bpe"},
       {"vocab_size", std::to_string(vocab)},
       {"byte_fallback", "true"},
       {"split_digits", "true"},
       {"add_dummy_prefix", "true"},
       {"normalization_rule_name", "identity"},
       // Keeps blanks, so that decode(encode(text)) == text, as with Llama's tokenizer.
       {"remove_extra_whitespaces", "false"},
       {"allow_whitespace_only_pieces", "true"},
       {"character_coverage", "0.99995"},
       {"unk_id", "0"},
       {"bos_id", "1"},
       {"eos_id", "2"},
       {"pad_id", "-1"},
       {"max_sentence_length", std::to_string(line_bytes_max)},
       {"num_threads", "2"},  // recorded in the model, so it must be the same on every machine
       {"minloglevel", "2"}},
      &iterator, &model);
  if (!status.ok()) return Status(Code::bad_data, reason_of(status.ToString(), vocab));
  return model;
}

}  // namespace simplescale
