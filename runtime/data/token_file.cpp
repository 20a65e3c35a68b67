#include "runtime/data/token_file.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <vector>

#include "runtime/data/manifest.hpp"

namespace simplescale {

namespace fs = std::filesystem;

namespace {

Status bad(const std::string& path, uint64_t byte, const std::string& what) {
  return Status(Code::bad_data, path + ": byte " + std::to_string(byte) + ": " + what);
}

Result<std::shared_ptr<const InputFile>> open_file(const std::string& path) {
  auto opened = InputFile::open(path);
  if (!opened.ok()) return Status(Code::bad_data, "token file: " + opened.status().message());
  if (opened->bytes() == 0) return bad(path, 0, "the file is empty");
  return std::make_shared<const InputFile>(opened.take());
}

/// The first bytes of a file, padded with zeros.
using Head = std::array<unsigned char, 16>;

uint32_t word(const Head& head, size_t index) {
  uint32_t value = 0;
  std::memcpy(&value, head.data() + 4 * index, sizeof value);
  return value;
}

/// Parses the header of an llm.c file and checks it against the size of the file.
Status parse_llmc(const std::string& path, uint64_t bytes, const Head& head, int& token_bytes,
                  uint64_t& count) {
  if (word(head, 0) != llmc::magic_u16 && word(head, 0) != llmc::magic_u32)
    return bad(path, 0, "wrong magic for llm.c tokens, which begin with 20240520 or 20240801");
  if (bytes < llmc::header_bytes)
    return bad(path, bytes, "the file ends within its header of 1024 bytes");
  const bool wide = word(head, 0) == llmc::magic_u32;
  const uint32_t version = wide ? llmc::version_u32 : llmc::version_u16;
  if (word(head, 1) != version)
    return bad(path, 4,
               "version " + std::to_string(word(head, 1)) + ", but only " +
                   std::to_string(version) + " is known for this magic");
  token_bytes = wide ? 4 : 2;
  count = word(head, 2) | uint64_t{word(head, 3)} << 32;
  const uint64_t rest = bytes - llmc::header_bytes;
  if (rest % token_bytes != 0 || count != rest / token_bytes)
    return bad(path, 8,
               "the header says " + std::to_string(count) + " tokens of " +
                   std::to_string(token_bytes) + " bytes, but " + std::to_string(rest) +
                   " bytes follow it");
  if (count == 0) return bad(path, 8, "the file holds no tokens");
  return {};
}

/// The largest token of a block. Its length is constant, so that the compiler vectorizes the loop.
constexpr uint64_t block = 4096;
template <class Token>
Token largest(const Token* tokens) {
  Token most = 0;
  for (uint64_t i = 0; i < block; ++i) most = tokens[i] > most ? tokens[i] : most;
  return most;
}

/// Index of the first id that is not below the vocabulary; `count` if there is none.
template <class Token>
uint64_t first_bad(const Token* tokens, uint64_t count, uint64_t vocab) {
  uint64_t i = 0;
  while (i + block <= count && largest(tokens + i) < vocab) i += block;
  while (i < count && tokens[i] < vocab) ++i;
  return i;
}

}  // namespace

std::string llmc::header(int token_bytes, uint64_t tokens) {
  SS_ASSERT(token_bytes == 2 || token_bytes == 4);
  const uint32_t words[4] = {token_bytes == 2 ? magic_u16 : magic_u32,
                             token_bytes == 2 ? version_u16 : version_u32,
                             static_cast<uint32_t>(tokens), static_cast<uint32_t>(tokens >> 32)};
  std::string bytes(header_bytes, '\0');
  std::memcpy(bytes.data(), words, sizeof words);
  return bytes;
}

Result<TokenSource> TokenSource::open(const std::string& path, const std::string& format,
                                      int64_t vocab) {
  SS_ASSERT(vocab > 0 && vocab <= INT32_MAX);
  if (format != "auto" && format != "llmc" && format != "nanogpt")
    return Status(Code::bad_config,
                  "data.format \"" + format + "\" is not one of auto, prepared, llmc, nanogpt");
  SS_ASSIGN(const auto file, open_file(path));
  Head head{};
  SS_RETURN_IF_ERROR(file->read(0, head.data(), std::min<uint64_t>(head.size(), file->bytes())));
  auto begins = [&](const char* text) {
    return std::memcmp(head.data(), text, std::strlen(text)) == 0;
  };
  TokenSource source;
  source.path_ = path;
  source.vocab_ = vocab;
  source.file_ = file;
  const uint32_t first = word(head, 0);
  if (format == "llmc" ||
      (format == "auto" && (first == llmc::magic_u16 || first == llmc::magic_u32))) {
    SS_RETURN_IF_ERROR(parse_llmc(path, file->bytes(), head, source.token_bytes_, source.count_));
    source.offset_ = llmc::header_bytes;
  } else if (format == "auto" && (begins("LITPKDS") || begins("MMIDIDX"))) {
    return bad(path, 0,
               "lit-gpt (LITPKDS) and Megatron (MMIDIDX) files are not read: use raw u16 "
               "tokens (nanoGPT), llm.c's format, or prepare the text");
  } else {
    if (file->bytes() % 2 != 0)
      return bad(path, file->bytes() - 1,
                 "odd length of " + std::to_string(file->bytes()) +
                     " bytes: u16 tokens take two bytes each");
    source.count_ = file->bytes() / 2;
  }
  return source;
}

Status TokenSource::reopen() {
  SS_ASSIGN(auto file, open_file(path_));
  if (file->bytes() != file_->bytes())
    return bad(path_, file->bytes(),
               "the file ends here, it had " + std::to_string(file_->bytes()) + " bytes");
  file_ = std::move(file);
  return {};
}

uint64_t TokenSource::byte_of(uint64_t index) const {
  return offset_ + index * static_cast<uint64_t>(token_bytes_);
}

Status TokenSource::bad_id(uint64_t index, uint64_t id) const {
  return bad(
      path_, byte_of(index),
      "token id " + std::to_string(id) + " is beyond the vocabulary of " + std::to_string(vocab_));
}

template <class Token>
Status TokenSource::validate_as() const {
  std::vector<Token> chunk(std::min<uint64_t>(count_, (1 << 20) / sizeof(Token)));
  for (uint64_t first = 0; first < count_; first += chunk.size()) {
    const uint64_t count = std::min<uint64_t>(chunk.size(), count_ - first);
    SS_RETURN_IF_ERROR(file_->read(byte_of(first), chunk.data(), count * sizeof(Token)));
    const uint64_t bad = first_bad(chunk.data(), count, static_cast<uint64_t>(vocab_));
    if (bad < count) return bad_id(first + bad, chunk[bad]);
  }
  return {};
}

Status TokenSource::validate() const {
  return token_bytes_ == 2 ? validate_as<uint16_t>() : validate_as<uint32_t>();
}

Status TokenSource::require_block(int64_t block_size) const {
  if (count_ > static_cast<uint64_t>(block_size)) return {};
  return Status(Code::bad_data, path_ + ": " + std::to_string(count_) +
                                    " tokens are fewer than one sample of block_size + 1 = " +
                                    std::to_string(block_size + 1) + " tokens");
}

uint64_t TokenSource::samples(int64_t block_size) const {
  SS_ASSERT(block_size > 0);
  return count_ == 0 ? 0 : (count_ - 1) / static_cast<uint64_t>(block_size);
}

/// Reads narrow ids to the end of `out` and widens them in place from the front: an id is
/// overwritten only after it has been read.
template <class Token>
Status TokenSource::read_as(uint64_t first, uint64_t count, int32_t* out) const {
  static_assert(sizeof(Token) <= sizeof *out);
  unsigned char* narrow =
      reinterpret_cast<unsigned char*>(out) + count * (sizeof *out - sizeof(Token));
  SS_RETURN_IF_ERROR(file_->read(byte_of(first), narrow, count * sizeof(Token)));
  uint64_t most = 0;
  for (uint64_t i = 0; i < count; ++i) {
    Token id;
    std::memcpy(&id, narrow + i * sizeof id, sizeof id);
    most = std::max<uint64_t>(most, id);
    out[i] = static_cast<int32_t>(id);
  }
  const auto vocab = static_cast<uint64_t>(vocab_);
  if (most < vocab) return {};
  uint64_t bad = 0;
  while (static_cast<uint32_t>(out[bad]) < vocab) ++bad;
  return bad_id(first + bad, static_cast<uint32_t>(out[bad]));
}

Status TokenSource::read_sample(uint64_t position, int64_t block_size, int32_t* out) const {
  SS_ASSERT(position < samples(block_size));
  const uint64_t first = position * static_cast<uint64_t>(block_size);
  const uint64_t count = static_cast<uint64_t>(block_size) + 1;
  return token_bytes_ == 2 ? read_as<uint16_t>(first, count, out)
                           : read_as<uint32_t>(first, count, out);
}

TokenSource TokenSource::slice(uint64_t first, uint64_t count) const {
  SS_ASSERT(first <= count_ && count <= count_ - first);
  TokenSource part = *this;
  part.offset_ = byte_of(first);
  part.count_ = count;
  return part;
}

namespace {

constexpr uint64_t kHashBytesMax = uint64_t{256} << 20;  // opening larger files must not take long

Result<Dataset> open_prepared(const std::string& folder, int64_t vocab) {
  auto manifest = read_manifest(folder);
  if (!manifest.ok()) return Status(Code::bad_data, manifest.status().message());
  if (!manifest->complete())
    return Status(Code::bad_data,
                  folder + ": its preparation was interrupted; prepare the data again");
  if (manifest->vocab > vocab)
    return Status(Code::bad_data, folder + " was prepared for a vocabulary of " +
                                      std::to_string(manifest->vocab) + ", the model has " +
                                      std::to_string(vocab));
  SS_RETURN_IF_ERROR(check_files(folder, *manifest, kHashBytesMax));
  Dataset data;
  data.tokenizer = folder + "/" + manifest->tokenizer.name;
  SS_ASSIGN(data.train, TokenSource::open(folder + "/" + manifest->train.name, "llmc", vocab));
  if (manifest->validation_tokens > 0) {
    SS_ASSIGN(data.validation,
              TokenSource::open(folder + "/" + manifest->validation.name, "llmc", vocab));
  }
  for (const auto& [source, tokens] : {std::pair{&data.train, manifest->train_tokens},
                                       std::pair{&data.validation, manifest->validation_tokens}})
    if (source->tokens() != tokens)
      return Status(Code::bad_data, source->path() + " holds " + std::to_string(source->tokens()) +
                                        " tokens, its manifest.json says " +
                                        std::to_string(tokens) + "; prepare the data again");
  return data;
}

}  // namespace

Result<Dataset> open_dataset(const std::string& path, const std::string& format, int64_t vocab,
                             double validation_fraction) {
  std::error_code ignored;
  const bool folder = fs::is_directory(path, ignored);
  const bool manifest = folder && fs::exists(path + "/manifest.json", ignored);
  if (format == "prepared" || (format == "auto" && manifest)) return open_prepared(path, vocab);
  Dataset data;
  if (!folder) {
    SS_ASSERT(validation_fraction >= 0 && validation_fraction < 1);
    SS_ASSIGN(auto whole, TokenSource::open(path, format, vocab));
    const auto held_back =
        static_cast<uint64_t>(static_cast<double>(whole.tokens()) * validation_fraction);
    data.train = whole.slice(0, whole.tokens() - held_back);
    data.validation = whole.slice(whole.tokens() - held_back, held_back);
    return data;
  }
  SS_ASSIGN(data.train, TokenSource::open(path + "/train.bin", format, vocab));
  for (const char* name : {"/validation.bin", "/val.bin"})
    if (data.validation.tokens() == 0 && fs::exists(path + name, ignored)) {
      SS_ASSIGN(data.validation, TokenSource::open(path + name, format, vocab));
    }
  return data;
}

}  // namespace simplescale
