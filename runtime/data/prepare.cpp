#include "runtime/data/prepare.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "runtime/base/files.hpp"
#include "runtime/base/log.hpp"
#include "runtime/data/encode_files.hpp"
#include "runtime/data/token_piece.hpp"
#include "runtime/data/token_split.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace simplescale {

namespace fs = std::filesystem;

namespace {

using Progress = std::function<void(const PrepareProgress&)>;

// Text to train the tokenizer on. More makes it no better, only training slower.
constexpr uint64_t training_bytes_max = 32 << 20;
constexpr auto lock_patience = std::chrono::minutes(10);

/// Locks folder/.lock until destroyed; the kernel releases it when the process dies.
class FolderLock {
 public:
  FolderLock() = default;
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock() {
    if (fd_ >= 0) ::close(fd_);
  }

  Status take(const std::string& folder) {
    const std::string path = folder + "/.lock";
    fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    // A process that may only read needs no lock if the folder is complete; else its writes fail.
    if (fd_ < 0 && (errno == EACCES || errno == EROFS)) return {};
    if (fd_ < 0) return system_error("cannot write", path, errno);
    const auto deadline = std::chrono::steady_clock::now() + lock_patience;
    while (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EINTR) continue;
      // A file system without locks: PREPARE-1 and PREPARE-3 hold all the same.
      if (errno != EWOULDBLOCK) return {};
      if (std::chrono::steady_clock::now() > deadline)
        return Status(Code::deadline, "another process has been preparing " + folder +
                                          " for ten minutes: wait until it has ended, or stop it");
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return {};
  }

 private:
  int fd_ = -1;
};

Status check(const PrepareOptions& options) {
  if (options.folder.empty())
    return Status(Code::bad_config, "no folder is given to prepare the data in");
  if (options.tokenizer_path.empty() && (options.vocab < 300 || options.vocab > 1 << 20))
    return Status(Code::bad_config, "tokenizer.vocab = " + std::to_string(options.vocab) +
                                        ": a byte-pair tokenizer needs 300 to 1048576 tokens");
  if (!(options.validation_fraction >= 0 && options.validation_fraction < 1))
    return Status(Code::bad_config, "data.validation_fraction must be at least 0 and below 1");
  return {};
}

// -- Tokenizer ------------------------------------------------------------------------------------

std::string file_of_tokenizer(const PrepareOptions& options) {
  return options.tokenizer_path.empty() ? trained_tokenizer_file(options.byte_level)
                                        : tokenizer_file_name(options.tokenizer_path);
}

/// The lines to train a tokenizer on: all, or about training_bytes_max of them, chosen by a hash of
/// seed and line number.
Result<std::vector<std::string>> training_lines(const Corpus& corpus, uint64_t seed,
                                                const Progress& progress) {
  const double kept =
      std::min(1.0, static_cast<double>(training_bytes_max) / static_cast<double>(corpus.bytes()));
  std::vector<std::string> lines;
  uint64_t number[2] = {seed, 0};
  const auto read = corpus.read([&](const TextChunk& chunk, double fraction) {
    progress({"read", fraction});
    for (size_t at = 0; at < chunk.text.size(); ++number[1]) {
      const size_t end = std::min(chunk.text.find('\n', at), chunk.text.size());
      const double draw =
          std::ldexp(static_cast<double>(hash128(number, sizeof number).low >> 11), -53);
      if (end > at && draw < kept) lines.push_back(chunk.text.substr(at, end - at));
      at = end + 1;
    }
    return Status();
  });
  SS_RETURN_IF_ERROR(read.status());
  return lines;
}

/// Makes or keeps the tokenizer's file in the folder, tokenizer.model or tokenizer.json, and records
/// its inputs in the manifest `made`.
Status make_tokenizer(const PrepareOptions& options, const Corpus& corpus, Manifest& old,
                      Manifest& made, const Progress& progress) {
  const std::string name = file_of_tokenizer(options);
  const std::string path = options.folder + "/" + name;
  if (!options.tokenizer_path.empty()) {
    std::ifstream in(options.tokenizer_path, std::ios::binary);
    const std::string model{std::istreambuf_iterator<char>(in), {}};
    SS_ASSIGN(const Tokenizer tokenizer, Tokenizer::from_bytes(model, options.tokenizer_path));
    if (options.vocab > 0 && tokenizer.vocab() > options.vocab)
      return Status(Code::bad_data,
                    options.tokenizer_path + " has " + std::to_string(tokenizer.vocab()) +
                        " tokens, more than the vocabulary of " + std::to_string(options.vocab));
    made.vocab = tokenizer.vocab();
    if (!revalidate(options.folder, old.tokenizer) || old.tokenizer.name != name ||
        old.tokenizer_hash != hash128(model.data(), model.size()).hex())
      SS_RETURN_IF_ERROR(write_file_atomic(path, model));
  } else {
    made.vocab = options.vocab;
    const Corpus* text = &corpus;
    Result<Corpus> other = Status(Code::not_found, "");
    if (!options.train_tokenizer_on.empty()) {
      other = Corpus::open(options.train_tokenizer_on, options.corpus);
      SS_RETURN_IF_ERROR(other.status());
      text = &*other;
    }
    made.tokenizer_signature = text->signature();
    const bool keep = revalidate(options.folder, old.tokenizer) && old.tokenizer.name == name &&
                      old.tokenizer_path.empty() &&
                      old.tokenizer_signature == made.tokenizer_signature &&
                      old.vocab == made.vocab && old.seed == made.seed;
    if (!keep) {
      SS_ASSIGN(auto lines, training_lines(*text, options.seed, progress));
      progress({"tokenizer", 0});
      if (options.byte_level)
        for (std::string& line : lines) line += '\n';
      SS_ASSIGN(const std::string model, options.byte_level
                                             ? train_byte_bpe(lines, options.vocab)
                                             : train_tokenizer(lines, options.vocab));
      SS_RETURN_IF_ERROR(write_file_atomic(path, model));
      progress({"tokenizer", 1});
    }
  }
  SS_ASSIGN(made.tokenizer, record_file(options.folder, name));
  std::error_code ignored;  // the folder holds one tokenizer
  for (const char* other : {kSentencePieceFile, kTokenizerJsonFile})
    if (name != other) fs::remove(options.folder + "/" + other, ignored);
  made.tokenizer_hash = made.tokenizer.hash;
  return {};
}

// -- Tokens ---------------------------------------------------------------------------------------

/// jobs: of the options, or one for each core.
int jobs_of(const PrepareOptions& options) {
  constexpr unsigned most = 1024;
  if (options.jobs > 0) return options.jobs;
  return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, most));
}

std::string pieces_folder(const std::string& folder) {
  return folder + "/pieces";
}

/// Encodes the files into pieces, and distributes their tokens in the order of the files.
Status make_tokens(const PrepareOptions& options, const Corpus& corpus, Manifest& made,
                   const Progress& progress) {
  SS_ASSIGN(const Tokenizer tokenizer, Tokenizer::load(options.folder + "/" + made.tokenizer.name));
  const int token_bytes = tokenizer.vocab() <= 65536 ? 2 : 4;
  const auto began = std::chrono::steady_clock::now();
  PrepareProgress now{.stage = "tokens"};
  progress(now);
  const auto report = [&](const EncodeProgress& encoded) {
    constexpr double kEncoding = 0.9;  // of the work; copying to two files is the rest
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
    now.fraction = kEncoding * encoded.fraction;
    now.mb_per_second = static_cast<double>(encoded.text_bytes) / 1e6 / seconds.count();
    now.kept_files = encoded.kept;
    progress(now);
  };
  SS_ASSIGN(const auto pieces, encode_files(corpus, tokenizer,
                                            {.folder = pieces_folder(options.folder),
                                             .tokenizer_hash = made.tokenizer_hash,
                                             .token_bytes = token_bytes,
                                             .jobs = jobs_of(options)},
                                            report));
  TokenSplit out(options.folder, token_bytes, made.validation_fraction, corpus.bytes());
  Hasher hasher;
  for (const std::string& path : pieces) {
    SS_ASSIGN(PieceReader piece, PieceReader::open(path, token_bytes));
    const PieceFacts& facts = piece.facts();
    made.documents += facts.documents;
    made.text_bytes += facts.text_bytes;
    made.bad_lines += facts.bad_lines;
    hasher.update(&facts.text, sizeof facts.text);
    SS_RETURN_IF_ERROR(piece.read([&](const TokenRecord& record) {
      return out.write(record.ids, record.begins_document, record.masked);
    }));
  }
  if (made.documents == 0) return corpus.no_text();
  made.source_hash = hasher.digest().hex();
  made.validation_split = Manifest::spread;
  SS_RETURN_IF_ERROR(out.finish(made));
  now.fraction = 1;
  progress(now);
  return {};
}

/// True if the tokens of the manifest `old` are what would be made again.
bool keep_tokens(const std::string& folder, Manifest& old, const Manifest& made) {
  return old.source_signature == made.source_signature &&
         old.tokenizer_hash == made.tokenizer_hash && old.tokenizer.name == made.tokenizer.name &&
         old.validation_fraction == made.validation_fraction && revalidate(folder, old.train) &&
         (old.validation_tokens == 0 || revalidate(folder, old.validation)) &&
         std::ranges::all_of(
             std::array{&old.train_mask, &old.validation_mask},
             [&](FileRecord* mask) { return mask->hash.empty() || revalidate(folder, *mask); });
}

/// Earlier versions recorded sources as they were given.
bool same_path(const std::string& a, const std::string& b) {
  return a == b || (!a.empty() && !b.empty() &&
                    fs::absolute(a).lexically_normal() == fs::absolute(b).lexically_normal());
}

/// True if a complete folder is what the options ask for, as far as this can be told without the
/// source.
bool matches_options(const Manifest& manifest, const PrepareOptions& options) {
  return manifest.complete() && same_path(manifest.source, options.source) &&
         (manifest.tokenizer_path == options.tokenizer_path ||
          same_path(manifest.tokenizer_path, options.tokenizer_path)) &&
         manifest.tokenizer.name == file_of_tokenizer(options) &&
         (manifest.vocab == options.vocab || !options.tokenizer_path.empty()) &&
         manifest.validation_fraction == options.validation_fraction;
}

std::string signature_of(const std::string& source, const CorpusOptions& options) {
  const auto corpus = Corpus::open(source, options);
  return corpus.ok() ? corpus->signature() : "";
}

std::string hash_of_file(const std::string& path) {
  const auto text = read_text(path);
  return text.ok() ? hash128(text->data(), text->size()).hex() : "";
}

}  // namespace

std::string free_folder(const PrepareOptions& options) {
  const auto there = read_manifest(options.folder);
  const std::string text = signature_of(options.source, options.corpus);
  if (!there.ok() || text.empty()) return options.folder;
  const bool trains = options.tokenizer_path.empty();
  const std::string tokenizer = trains
                                    ? options.train_tokenizer_on.empty()
                                          ? text
                                          : signature_of(options.train_tokenizer_on, options.corpus)
                                    : hash_of_file(options.tokenizer_path);
  const bool same_tokenizer =
      trains ? there->tokenizer_path.empty() && there->tokenizer_signature == tokenizer &&
                   there->vocab == options.vocab && there->seed == options.seed
             : there->tokenizer_hash == tokenizer;
  if (same_tokenizer && there->tokenizer.name == file_of_tokenizer(options) &&
      there->source_signature == text && there->validation_fraction == options.validation_fraction)
    return options.folder;
  const std::string made_from =
      fmt::format("{} {} {} {} {}", text, tokenizer, trains ? options.vocab : 0,
                  trains ? options.seed : 0, options.validation_fraction) +
      (trains && options.byte_level ? " byte_bpe" : "");
  return options.folder + "-" + hash128(made_from.data(), made_from.size()).hex().substr(0, 8);
}

Result<Manifest> prepare(const PrepareOptions& options, const Progress& progress) {
  const Progress report = progress ? progress : [](const PrepareProgress&) {};
  // Check the text first: if it is missing, errors in the tokenizer's options do not matter.
  const auto opened = Corpus::open(options.source, options.corpus);
  if (opened.ok() && opened->bytes() == 0)
    return Status(Code::bad_data, options.source + ": no text was found, its files are empty");
  if (opened.ok()) SS_RETURN_IF_ERROR(check(options));
  if (!opened.ok()) {
    const auto ready = read_manifest(options.folder);
    if (!ready.ok() || !matches_options(*ready, options)) return opened.status();
    log::warn("{}; using {}, which was prepared from it", opened.status().message(),
              options.folder);
    return *ready;
  }
  const Corpus& corpus = *opened;
  std::error_code error;
  fs::create_directories(options.folder, error);
  if (error) return Status(Code::io, "cannot create " + options.folder + ": " + error.message());
  FolderLock lock;
  SS_RETURN_IF_ERROR(lock.take(options.folder));

  const auto read = read_manifest(options.folder);
  Manifest old =
      read.ok() ? *read : Manifest{};  // damaged or of another format: make everything again
  Manifest made;
  made.source = options.source;
  made.source_signature = corpus.signature();
  made.tokenizer_path = options.tokenizer_path;
  made.validation_fraction = options.validation_fraction;
  made.seed = options.seed;
  SS_RETURN_IF_ERROR(make_tokenizer(options, corpus, old, made, report));
  if (keep_tokens(options.folder, old, made)) {
    made.source_hash = old.source_hash;
    made.documents = old.documents;
    made.text_bytes = old.text_bytes;
    made.bad_lines = old.bad_lines;
    made.train_tokens = old.train_tokens;
    made.validation_tokens = old.validation_tokens;
    made.validation_split = old.validation_split;  // its runs need the same tokens again
    made.masked_tokens = old.masked_tokens;
    made.train = old.train;
    made.validation = old.validation;
    made.train_mask = old.train_mask;
    made.validation_mask = old.validation_mask;
    if (read.ok() && made == *read) return made;
  } else {
    // A manifest without tokens: if this is interrupted, the folder is not complete() but the
    // tokenizer is kept.
    SS_RETURN_IF_ERROR(write_manifest(options.folder, made));
    SS_RETURN_IF_ERROR(make_tokens(options, corpus, made, report));
  }
  SS_RETURN_IF_ERROR(write_manifest(options.folder, made));
  fs::remove_all(pieces_folder(options.folder), error);
  return made;
}

}  // namespace simplescale
