#include "runtime/data/encode_files.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>
#include <utility>

#include "runtime/base/hash.hpp"
#include "runtime/data/document_cutter.hpp"
#include "runtime/data/token_piece.hpp"

namespace simplescale {

namespace {

/// Encodes the chunks of one file and writes their tokens in order: those of the documents as a
/// whole.
class FileEncoder {
 public:
  /// threads: how many may encode now; asked for each batch.
  FileEncoder(const Tokenizer& tokenizer, Tokenizer::Cuts cuts, std::function<size_t()> threads,
              PieceWriter& out)
      : tokenizer_(tokenizer),
        cutter_(cuts, [this](TextChunk chunk) { return take(std::move(chunk)); }),
        out_(out),
        threads_(std::move(threads)),
        batch_max_(16 * threads_()) {}

  Status add(TextChunk chunk) { return cutter_.add(std::move(chunk)); }
  Status finish() {
    SS_RETURN_IF_ERROR(cutter_.finish());
    return flush();
  }

 private:
  Status take(TextChunk chunk) {
    batch_.push_back(std::move(chunk));
    return batch_.size() < batch_max_ ? Status() : flush();
  }

  Status flush() {
    const size_t threads = threads_();
    std::vector<TokenRecord> ids(batch_.size());
    const auto work = [&](size_t first) {
      for (size_t i = first; i < batch_.size(); i += threads) ids[i] = encode(batch_[i]);
    };
    std::vector<std::jthread> helpers;
    for (size_t i = 1; i < std::min(threads, batch_.size()); ++i) helpers.emplace_back(work, i);
    work(0);
    helpers.clear();
    for (size_t i = 0; i < batch_.size(); ++i) SS_RETURN_IF_ERROR(out_.write(ids[i]));
    batch_.clear();
    batch_max_ = 16 * threads;
    return {};
  }

  /// BOS is in no range: no character stands for it.
  TokenRecord encode(const TextChunk& chunk) const {
    const bool begins = chunk.begins_document;
    TokenRecord out{.begins_document = begins};
    std::vector<bool> masked;
    if (chunk.masked.empty())
      out.ids = begins ? tokenizer_.encode(chunk.text) : tokenizer_.encode_rest(chunk.text);
    else
      out.ids = tokenizer_.encode_masked(chunk.text, !begins, chunk.masked, masked);
    const size_t before = begins && tokenizer_.bos() >= 0 ? 1 : 0;
    if (before > 0) out.ids.insert(out.ids.begin(), tokenizer_.bos());
    for (size_t i = 0; i < masked.size(); ++i)
      if (masked[i]) append_range(out.masked, {before + i, before + i + 1});
    return out;
  }

  const Tokenizer& tokenizer_;
  DocumentCutter cutter_;
  PieceWriter& out_;
  const std::function<size_t()> threads_;
  size_t batch_max_;
  std::vector<TextChunk> batch_;
};

class Encoding {
 public:
  Encoding(const Corpus& corpus, const Tokenizer& tokenizer, const EncodeOptions& options)
      : corpus_(corpus),
        tokenizer_(tokenizer),
        cuts_(tokenizer.cuts()),
        options_(options),
        jobs_(static_cast<size_t>(std::max(1, options.jobs))),
        errors_(corpus.files()) {
    for (size_t file = 0; file < corpus.files(); ++file) {
      const std::string from = corpus.signature(file) + " " + options.tokenizer_hash;
      made_from_.push_back(hash128(from.data(), from.size()));
      pieces_.push_back(options.folder + "/" + made_from_.back().hex() + ".tokens");
    }
  }

  Status run(const std::function<void(const EncodeProgress&)>& progress) {
    {
      std::vector<std::jthread> workers;
      const size_t count = std::min(jobs_, corpus_.files());
      active_ = count;
      for (size_t i = 0; i < count; ++i) workers.emplace_back([this] { work(); });
      std::unique_lock lock(mutex_);
      while (!ended_.wait_for(lock, std::chrono::milliseconds(100), [&] { return active_ == 0; })) {
        lock.unlock();
        progress(now());
        lock.lock();
      }
    }
    for (const Status& error : errors_) SS_RETURN_IF_ERROR(error);
    progress(now());
    return check_bad_lines();
  }

  std::vector<std::string> pieces() && { return std::move(pieces_); }

 private:
  /// Takes one file after the other. After an error only the files before it are still taken, so
  /// that the error that counts does not depend on jobs.
  void work() {
    for (size_t file = next_++; file < pieces_.size() && file < first_error_; file = next_++) {
      Status done = encode(file);
      if (done.ok()) continue;
      const std::lock_guard lock(mutex_);
      first_error_ = std::min(first_error_.load(), file);
      errors_[file] = std::move(done);
    }
    const std::lock_guard lock(mutex_);
    --active_;
    ended_.notify_one();
  }

  Status encode(size_t file) {
    if (const auto piece = PieceReader::open(pieces_[file], options_.token_bytes);
        piece.ok() && piece->facts().made_from == made_from_[file]) {
      read_ += corpus_.bytes(file);
      ++kept_;
      return {};
    }
    PieceWriter out(pieces_[file], options_.token_bytes);
    const auto threads = [this] {
      return std::max<size_t>(1, jobs_ / std::max<size_t>(1, active_));
    };
    FileEncoder encoder(tokenizer_, cuts_, threads, out);
    PieceFacts facts{.made_from = made_from_[file]};
    Hasher hasher;
    uint64_t seen = 0;
    SS_ASSIGN(facts.bad_lines, corpus_.read_file(file, 0, [&](TextChunk chunk, uint64_t read) {
      read_ += read - std::exchange(seen, read);
      text_ += chunk.text.size();
      facts.documents += chunk.begins_document;
      facts.text_bytes += chunk.text.size();
      hasher.update(&chunk.begins_document, 1);
      hasher.update(chunk.text.data(), chunk.text.size());
      hasher.update(chunk.masked.data(), chunk.masked.size() * sizeof(IndexRange));
      return encoder.add(std::move(chunk));
    }));
    SS_RETURN_IF_ERROR(encoder.finish());
    read_ += corpus_.bytes(file) - std::min(seen, corpus_.bytes(file));
    facts.text = hasher.digest();
    return out.finish(facts);
  }

  /// Each file may have as many bad lines as the whole text, which is now counted. The file that has
  /// one too many is read again for the error, which names the line.
  Status check_bad_lines() const {
    uint64_t bad = 0;
    for (size_t file = 0; file < pieces_.size(); ++file) {
      SS_ASSIGN(const PieceReader piece, PieceReader::open(pieces_[file], options_.token_bytes));
      if (bad + piece.facts().bad_lines > corpus_.options().skip_bad)
        SS_RETURN_IF_ERROR(
            corpus_.read_file(file, bad, [](TextChunk, uint64_t) { return Status(); }).status());
      bad += piece.facts().bad_lines;
    }
    return {};
  }

  EncodeProgress now() const {
    const auto all = static_cast<double>(std::max<uint64_t>(1, corpus_.bytes()));
    return {std::min(1.0, static_cast<double>(read_) / all), text_, kept_};
  }

  const Corpus& corpus_;
  const Tokenizer& tokenizer_;
  const Tokenizer::Cuts cuts_;
  const EncodeOptions& options_;
  const size_t jobs_;
  std::vector<Hash128> made_from_;
  std::vector<std::string> pieces_;

  std::atomic<size_t> next_ = 0, active_ = 0, first_error_ = SIZE_MAX;
  std::atomic<uint64_t> read_ = 0, text_ = 0, kept_ = 0;
  std::mutex mutex_;  // guards errors_ and the end of the workers
  std::condition_variable ended_;
  std::vector<Status> errors_;
};

}  // namespace

Result<std::vector<std::string>> encode_files(
    const Corpus& corpus, const Tokenizer& tokenizer, const EncodeOptions& options,
    const std::function<void(const EncodeProgress&)>& progress) {
  std::error_code error;
  std::filesystem::create_directories(options.folder, error);
  if (error) return Status(Code::io, "cannot create " + options.folder + ": " + error.message());
  Encoding encoding(corpus, tokenizer, options);
  SS_RETURN_IF_ERROR(encoding.run(progress));
  return std::move(encoding).pieces();
}

}  // namespace simplescale
