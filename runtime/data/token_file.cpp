#include "runtime/data/token_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "runtime/data/manifest.hpp"

namespace simplescale {

namespace fs = std::filesystem;

namespace {

Status bad(const std::string& path, uint64_t byte, const std::string& what) {
  return Status(Code::bad_data, path + ": byte " + std::to_string(byte) + ": " + what);
}

uint32_t word(const unsigned char* data, int index) {
  uint32_t value = 0;
  std::memcpy(&value, data + 4 * index, sizeof value);
  return value;
}

struct Mapping {
  void* data = nullptr;
  uint64_t bytes = 0;
  ~Mapping() {
    if (data) munmap(data, bytes);
  }
};

Result<std::shared_ptr<const Mapping>> map_file(const std::string& path) {
  auto fail = [&](int error) {
    return Status(Code::bad_data, "cannot read token file " + path + ": " + std::strerror(error));
  };
  // A pipe that nobody writes to would be waited for; on files the flag does nothing.
  const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return fail(errno);
  struct stat info {};
  auto mapping = std::make_shared<Mapping>();
  int error = fstat(fd, &info) != 0 ? errno : 0;
  const bool file = error == 0 && S_ISREG(info.st_mode);
  if (file && info.st_size > 0) {
    void* data = mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED)
      error = errno;
    else
      mapping->data = data, mapping->bytes = static_cast<uint64_t>(info.st_size);
  }
  ::close(fd);
  if (error != 0) return fail(error);
  if (!file) return Status(Code::bad_data, "token file " + path + " is not a file");
  if (mapping->bytes == 0) return bad(path, 0, "the file is empty");
  return std::shared_ptr<const Mapping>(mapping);
}

// What the header of an llm.c file says, checked against the size of the file.
Status parse_llmc(const std::string& path, const Mapping& file, int& token_bytes, uint64_t& count) {
  const auto* data = static_cast<const unsigned char*>(file.data);
  if (file.bytes < 4 || (word(data, 0) != llmc::magic_u16 && word(data, 0) != llmc::magic_u32))
    return bad(path, 0, "wrong magic for llm.c tokens, which begin with 20240520 or 20240801");
  if (file.bytes < llmc::header_bytes)
    return bad(path, file.bytes, "the file ends within its header of 1024 bytes");
  const bool wide = word(data, 0) == llmc::magic_u32;
  const uint32_t version = wide ? llmc::version_u32 : llmc::version_u16;
  if (word(data, 1) != version)
    return bad(path, 4,
               "version " + std::to_string(word(data, 1)) + ", but only " +
                   std::to_string(version) + " is known for this magic");
  token_bytes = wide ? 4 : 2;
  count = word(data, 2) | uint64_t{word(data, 3)} << 32;
  const uint64_t rest = file.bytes - llmc::header_bytes;
  if (rest % token_bytes != 0 || count != rest / token_bytes)
    return bad(path, 8,
               "the header promises " + std::to_string(count) + " tokens of " +
                   std::to_string(token_bytes) + " bytes, but " + std::to_string(rest) +
                   " bytes follow it");
  if (count == 0) return bad(path, 8, "the file holds no tokens");
  return {};
}

// The largest of a block of constant length, so that the compiler makes vector code of it.
constexpr uint64_t block = 4096;
template <class Token>
Token largest(const Token* tokens) {
  Token most = 0;
  for (uint64_t i = 0; i < block; ++i) most = tokens[i] > most ? tokens[i] : most;
  return most;
}

template <class Token>
bool copy(const unsigned char* data, uint64_t count, uint64_t vocab, int32_t* out) {
  uint64_t most = 0;
  for (uint64_t i = 0; i < count; ++i) {
    Token token;
    std::memcpy(&token, data + i * sizeof token, sizeof token);
    most = std::max<uint64_t>(most, token);
    out[i] = static_cast<int32_t>(token);
  }
  return most < vocab;
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
  SS_ASSIGN(auto file, map_file(path));
  const auto* data = static_cast<const unsigned char*>(file->data);
  auto begins = [&](const char* text) {
    return file->bytes >= std::strlen(text) && std::memcmp(data, text, std::strlen(text)) == 0;
  };
  TokenSource source;
  source.path_ = path;
  source.vocab_ = vocab;
  const uint32_t first = file->bytes >= 4 ? word(data, 0) : 0;
  if (format == "llmc" ||
      (format == "auto" && (first == llmc::magic_u16 || first == llmc::magic_u32))) {
    SS_RETURN_IF_ERROR(parse_llmc(path, *file, source.token_bytes_, source.count_));
    source.offset_ = llmc::header_bytes;
  } else if (format == "auto" && (begins("LITPKDS") || begins("MMIDIDX"))) {
    return bad(path, 0,
               "lit-gpt (LITPKDS) and Megatron (MMIDIDX) files are not read: use raw u16 "
               "tokens (nanoGPT), llm.c's format, or prepare the text");
  } else {
    if (file->bytes % 2 != 0)
      return bad(path, file->bytes - 1,
                 "odd length of " + std::to_string(file->bytes) +
                     " bytes: u16 tokens take two bytes each");
    source.count_ = file->bytes / 2;
  }
  source.data_ = data + source.offset_;
  source.mapping_ = std::shared_ptr<const void>(file, data);
  return source;
}

template <class Token>
uint64_t TokenSource::first_bad(uint64_t first, uint64_t count) const {
  const auto* tokens = reinterpret_cast<const Token*>(data_);
  const uint64_t end = first + count;
  uint64_t i = first;
  while (i + block <= end && largest(tokens + i) < static_cast<uint64_t>(vocab_)) i += block;
  while (i < end && tokens[i] < static_cast<uint64_t>(vocab_)) ++i;
  return i;
}

Status TokenSource::bad_id(uint64_t index) const {
  uint32_t token = 0;
  std::memcpy(&token, data_ + index * token_bytes_, static_cast<size_t>(token_bytes_));
  return bad(path_, offset_ + index * token_bytes_,
             "token id " + std::to_string(token) + " is beyond the vocabulary of " +
                 std::to_string(vocab_));
}

Status TokenSource::validate() const {
  const uint64_t index =
      token_bytes_ == 2 ? first_bad<uint16_t>(0, count_) : first_bad<uint32_t>(0, count_);
  return index < count_ ? bad_id(index) : Status();
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

Status TokenSource::read_sample(uint64_t position, int64_t block_size, int32_t* out) const {
  SS_ASSERT(position < samples(block_size));
  const uint64_t first = position * static_cast<uint64_t>(block_size);
  const uint64_t count = static_cast<uint64_t>(block_size) + 1;
  const auto vocab = static_cast<uint64_t>(vocab_);
  const unsigned char* data = data_ + first * token_bytes_;
  if (token_bytes_ == 2 ? copy<uint16_t>(data, count, vocab, out)
                        : copy<uint32_t>(data, count, vocab, out))
    return {};
  return bad_id(token_bytes_ == 2 ? first_bad<uint16_t>(first, count)
                                  : first_bad<uint32_t>(first, count));
}

TokenSource TokenSource::slice(uint64_t first, uint64_t count) const {
  SS_ASSERT(first <= count_ && count <= count_ - first);
  TokenSource part = *this;
  part.data_ += first * token_bytes_;
  part.offset_ += first * token_bytes_;
  part.count_ = count;
  return part;
}

namespace {

Result<Dataset> open_prepared(const std::string& folder, int64_t vocab) {
  auto manifest = read_manifest(folder);
  if (!manifest.ok()) return Status(Code::bad_data, manifest.status().message());
  if (!manifest->complete())
    return Status(Code::bad_data, folder + " was not prepared to the end: run prepare again");
  if (manifest->vocab > vocab)
    return Status(Code::bad_data, folder + " was prepared for a vocabulary of " +
                                      std::to_string(manifest->vocab) + ", the model has " +
                                      std::to_string(vocab));
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
                                        std::to_string(tokens) + ": prepare the data again");
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
