#include "runtime/tokenizer/tokenizer.hpp"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <filesystem>

#include "runtime/base/input_file.hpp"
#include "runtime/tokenizer/sentencepiece_model.hpp"

namespace simplescale {

const char* tokenizer_file_name(const std::string& path) {
  return path.ends_with(".json") ? kTokenizerJsonFile : kSentencePieceFile;
}

std::string find_tokenizer(const std::string& folder) {
  std::error_code error;
  const std::string json = folder + "/" + kTokenizerJsonFile,
                    model = folder + "/" + kSentencePieceFile;
  // Beside a tokenizer.json, tokenizer.model may give other ids: it lacks the added tokens, and in
  // folders of Llama 3 it is tiktoken's.
  for (const std::string& file : {json, model})
    if (std::filesystem::is_regular_file(file, error)) return file;
  return "";
}

Result<std::string> read_tokenizer(const std::string& path) {
  return read_text_inside(path, size_t{256} << 20, LinksOut::own);
}

Tokenizer::Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::load(const std::string& path) {
  SS_ASSIGN(const std::string bytes, read_tokenizer(path));
  auto tokenizer = from_bytes(bytes, path);
  const auto model = std::filesystem::path(path).replace_filename(kSentencePieceFile);
  std::error_code error;
  if (tokenizer.ok() || model == path || !std::filesystem::is_regular_file(model, error))
    return tokenizer;
  return Status(tokenizer.status().code(),
                tokenizer.status().message() + "; " + model.string() +
                    " may give other ids: name that file if it is the one you want");
}

Result<Tokenizer> Tokenizer::from_bytes(const std::string& bytes, const std::string& name) {
  Tokenizer tokenizer;
  if (tokenizer_file_name(name) == kTokenizerJsonFile) {
    auto json = JsonTokenizer::from_text(bytes);
    if (!json.ok()) return json.status().in(name);
    tokenizer.json_ = json.take();
    return tokenizer;
  }
  if (const Status checked = check_sentencepiece_model(bytes); !checked.ok())
    return Status(Code::bad_data, name + " is not a SentencePiece model: " + checked.message());
  tokenizer.processor_ = std::make_unique<sentencepiece::SentencePieceProcessor>();
  const auto status = tokenizer.processor_->LoadFromSerializedProto(bytes);
  if (!status.ok() || tokenizer.processor_->GetPieceSize() <= 0)
    return Status(Code::bad_data, name + " is not a SentencePiece model: " + status.ToString());
  tokenizer.prefix_ = std::max<size_t>(tokenizer.encode("\n").size(), 1) - 1;
  return tokenizer;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, Status* error) const {
  if (json_) return json_->encode(text, false, error);
  std::vector<int> ids;
  const auto status = processor_->Encode(text, &ids);
  // No known model that passes check_sentencepiece_model() fails; the file decides, so no assertion.
  if (!status.ok()) return {processor_->unk_id()};
  return ids;
}

std::vector<int32_t> Tokenizer::encode_rest(std::string_view text, Status* error) const {
  if (json_) return json_->encode(text, true, error);
  // SentencePiece puts a blank before every text. Before the newline with which the rest begins,
  // the blank is a token of its own, which is removed here.
  std::vector<int32_t> ids = encode(text);
  ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(std::min(prefix_, ids.size())));
  return ids;
}

std::vector<int32_t> Tokenizer::encode_masked(std::string_view text, bool rest,
                                              const IndexRanges& ranges, std::vector<bool>& masked,
                                              Status* error) const {
  if (json_) return json_->encode_masked(text, rest, ranges, masked, error);
  std::vector<int32_t> ids;
  masked.clear();
  const auto encoded = processor_->EncodeAsImmutableProto(text);
  // Ids without text of their own, the blank before a text and all bytes of a character but the
  // last, belong to the text behind them.
  for (size_t i = rest ? std::min(prefix_, encoded.pieces_size()) : 0; i < encoded.pieces_size();
       ++i) {
    const auto piece = encoded.pieces(static_cast<int>(i));
    ids.push_back(static_cast<int32_t>(piece.id()));
    masked.push_back(touches(ranges, piece.begin(), std::max(piece.end(), piece.begin() + 1)));
  }
  return ids;
}

Tokenizer::Cuts Tokenizer::cuts() const {
  if (!json_) return Cuts::newline;
  return json_->cuts_at_spaces() ? Cuts::space : Cuts::nowhere;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  if (json_) return json_->decode(ids);
  std::vector<int> known(ids.begin(), ids.end());
  const int32_t unknown = processor_->unk_id(), size = processor_->GetPieceSize();
  for (int& id : known)
    if (id < 0 || id >= size) id = unknown;
  std::string text;
  if (!processor_->Decode(known, &text).ok()) text.clear();
  return text;
}

int64_t Tokenizer::vocab() const {
  return json_ ? json_->vocab() : processor_->GetPieceSize();
}
int32_t Tokenizer::bos() const {
  return json_ ? json_->bos() : processor_->bos_id();
}
int32_t Tokenizer::eos() const {
  return json_ ? json_->eos() : processor_->eos_id();
}
std::string Tokenizer::guessed_ends() const {
  return json_ ? json_->guessed_ends() : "";
}

}  // namespace simplescale
