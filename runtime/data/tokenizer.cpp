#include "runtime/data/tokenizer.hpp"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <fstream>
#include <sstream>

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

Tokenizer::Tokenizer() : processor_(std::make_unique<sentencepiece::SentencePieceProcessor>()) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::load(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream bytes;
  if (!in || !(bytes << in.rdbuf())) return Status(Code::bad_data, "cannot read tokenizer " + path);
  return from_bytes(bytes.str(), path);
}

Result<Tokenizer> Tokenizer::from_bytes(const std::string& model, const std::string& name) {
  Tokenizer tokenizer;
  const auto status = tokenizer.processor_->LoadFromSerializedProto(model);
  if (!status.ok() || tokenizer.processor_->GetPieceSize() <= 0)
    return Status(Code::bad_data, name + " is not a SentencePiece model: " + status.ToString());
  return tokenizer;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int> ids;
  const auto status = processor_->Encode(text, &ids);
  SS_ASSERT(status.ok());  // it fails only if no model is loaded
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::vector<int> known(ids.begin(), ids.end());
  const int32_t unknown = processor_->unk_id(), size = processor_->GetPieceSize();
  for (int& id : known)
    if (id < 0 || id >= size) id = unknown;
  std::string text;
  const auto status = processor_->Decode(known, &text);
  SS_ASSERT(status.ok());
  return text;
}

int64_t Tokenizer::vocab() const {
  return processor_->GetPieceSize();
}
int32_t Tokenizer::bos() const {
  return processor_->bos_id();
}
int32_t Tokenizer::eos() const {
  return processor_->eos_id();
}

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
