#include <sentencepiece_trainer.h>

#include "runtime/tokenizer/tokenizer.hpp"

namespace simplescale {

namespace {

class Lines : public sentencepiece::SentenceIterator {
 public:
  explicit Lines(const std::vector<std::string>& lines) : lines_(lines) {}
  bool done() const override { return next_ == lines_.size(); }
  void Next() override { ++next_; }
  const std::string& value() const override { return lines_[next_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::vector<std::string>& lines_;
  size_t next_ = 0;
};

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
       {"max_sentence_length", std::to_string(1 << 24)},
       {"num_threads", "2"},  // recorded in the model, so it must be the same on every machine
       {"minloglevel", "2"}},
      &iterator, &model);
  if (!status.ok())
    return Status(Code::bad_data,
                  "cannot train a tokenizer of " + std::to_string(vocab) +
                      " tokens: is the text large enough? Use more text or a smaller "
                      "tokenizer.vocab (" +
                      status.ToString() + ")");
  return model;
}

}  // namespace simplescale
