#include "tools/prepare/encode_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "runtime/base/hash.hpp"
#include "tools/prepare/document_cutter.hpp"
#include "tools/prepare/file_lock.hpp"
#include "tools/prepare/token_piece.hpp"

namespace simplescale {

namespace fs = std::filesystem;

namespace {

using Clock = std::chrono::steady_clock;

void add_to(Hasher& hasher, const TextChunk& chunk) {
  hasher.update(&chunk.begins_document, 1);
  hasher.update(chunk.text.data(), chunk.text.size());
  hasher.update(chunk.masked.data(), chunk.masked.size() * sizeof(IndexRange));
}

/// Encodes the chunks of one file and writes their tokens in order: those of the documents as a
/// whole.
class FileEncoder {
 public:
  /// path: of the file. threads: how many may encode now; asked for each batch. written: records that
  /// `out` has.
  FileEncoder(const std::string& path, const Tokenizer& tokenizer, Tokenizer::Cuts cuts,
              int32_t eos, std::function<size_t()> threads, PieceWriter& out, uint64_t written)
      : path_(path),
        tokenizer_(tokenizer),
        cutter_(cuts, [this](TextChunk chunk) { return take(std::move(chunk)); }),
        eos_(eos),
        out_(out),
        written_(written),
        threads_(std::move(threads)),
        batch_max_(kBatch * threads_()) {}

  Status add(TextChunk chunk) { return cutter_.add(std::move(chunk)); }
  Status finish() {
    SS_RETURN_IF_ERROR(cutter_.finish());
    SS_RETURN_IF_ERROR(flush());
    return end_document();
  }
  /// What is added now is in `out` already.
  bool skips() const { return written_ > 0; }

 private:
  static constexpr size_t kBatch = 16;  // chunks of usual size for a thread

  struct Waiting {
    TextChunk chunk;
    uint64_t document;  // its number in the file, from 1
    bool bos_masked, eos_masked;
    TokenRecord record = {};
    Status error = {};
  };

  Status take(TextChunk chunk) {
    document_ += chunk.begins_document;
    const bool whole = chunk.masked == IndexRanges{{0, chunk.text.size()}};
    // The token that ends a text which is masked as a whole does not count, either: EOS, or the next
    // BOS. (Which text is before the first one of a file is not known.)
    const bool bos_masked =
        chunk.begins_document && (eos_ >= 0 || document_ == 1 ? whole : document_masked_);
    document_masked_ = whole && (chunk.begins_document || document_masked_);
    if (skips()) {
      --written_;
      return {};
    }
    batch_bytes_ += chunk.text.size();
    batch_.push_back({std::move(chunk), document_, bos_masked, document_masked_});
    const bool full =
        batch_.size() >= batch_max_ || batch_bytes_ >= 2 * DocumentCutter::piece_bytes * batch_max_;
    return full ? flush() : Status();
  }

  Status flush() {
    const size_t threads = threads_();
    const auto work = [&](size_t first) {
      for (size_t i = first; i < batch_.size(); i += threads) encode(batch_[i]);
    };
    std::vector<std::jthread> helpers;
    for (size_t i = 1; i < std::min(threads, batch_.size()); ++i) helpers.emplace_back(work, i);
    work(0);
    helpers.clear();
    for (Waiting& waiting : batch_) {
      SS_RETURN_IF_ERROR(
          waiting.error.in(path_ + ": document " + std::to_string(waiting.document)));
      SS_RETURN_IF_ERROR(put(std::move(waiting.record), waiting.eos_masked));
    }
    batch_.clear();
    batch_bytes_ = 0;
    batch_max_ = kBatch * threads;
    return {};
  }

  /// Writes the record before this one, of which it is now known whether it ends its document.
  Status put(TokenRecord record, bool eos_masked) {
    if (record.begins_document) SS_RETURN_IF_ERROR(end_document());
    if (last_) SS_RETURN_IF_ERROR(out_.write(*last_));
    last_ = std::move(record);
    eos_masked_ = eos_masked;
    return {};
  }

  Status end_document() {
    if (!last_) return {};
    const uint64_t end = last_->ids.size();
    if (eos_ >= 0) last_->ids.push_back(eos_);
    if (eos_ >= 0 && eos_masked_) append_range(last_->masked, {end, end + 1});
    const Status written = out_.write(*last_);
    last_.reset();
    return written;
  }

  /// BOS is in no range: no character stands for it.
  void encode(Waiting& waiting) const {
    const TextChunk& chunk = waiting.chunk;
    const bool begins = chunk.begins_document;
    TokenRecord& out = waiting.record;
    out.begins_document = begins;
    std::vector<bool> masked;
    if (chunk.masked.empty())
      out.ids = begins ? tokenizer_.encode(chunk.text, &waiting.error)
                       : tokenizer_.encode_rest(chunk.text, &waiting.error);
    else
      out.ids = tokenizer_.encode_masked(chunk.text, !begins, chunk.masked, masked, &waiting.error);
    const size_t before = begins && tokenizer_.bos() >= 0 ? 1 : 0;
    if (before > 0) out.ids.insert(out.ids.begin(), tokenizer_.bos());
    if (before > 0 && waiting.bos_masked) append_range(out.masked, {0, 1});
    for (size_t i = 0; i < masked.size(); ++i)
      if (masked[i]) append_range(out.masked, {before + i, before + i + 1});
  }

  const std::string& path_;
  const Tokenizer& tokenizer_;
  DocumentCutter cutter_;
  const int32_t eos_;
  PieceWriter& out_;
  uint64_t written_;
  const std::function<size_t()> threads_;
  size_t batch_max_, batch_bytes_ = 0;
  std::vector<Waiting> batch_;
  uint64_t document_ = 0;            // that of the last chunk
  bool document_masked_ = false;     // as a whole, up to the last chunk
  std::optional<TokenRecord> last_;  // is not written yet
  bool eos_masked_ = false;          // of last_, if it ends its document
};

/// Called by the process that prepares. Removes stale part files of pieces that are not in
/// `pieces`, unless a living process holds the lock of the piece. Also removes files that were
/// written without a lock: only an earlier process that prepared can have left them.
void remove_unfinished(const std::string& folder, const std::vector<std::string>& pieces) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const fs::path& path = entry.path();
    if (path.extension() == ".alone") fs::remove(path, ignored);
    if (path.extension() != ".part") continue;
    const std::string piece = path.stem().stem().string();  // HASH.tokens.RANDOM.part
    if (std::ranges::find(pieces, folder + "/" + piece) != pieces.end()) continue;
    FileLock lock;
    const auto free = lock.try_take(folder + "/" + piece + ".lock");
    if (free.ok() && *free) fs::remove(path, ignored);
  }
}

/// Calls `work` on `count` threads, and progress() ten times a second until all have returned.
void run_workers(size_t count, const std::function<void()>& work,
                 const std::function<void()>& progress) {
  std::mutex mutex;
  std::condition_variable ended;
  size_t active = count;
  std::vector<std::jthread> workers;
  for (size_t i = 0; i < count; ++i)
    workers.emplace_back([&] {
      work();
      const std::lock_guard lock(mutex);
      --active;
      ended.notify_one();
    });
  std::unique_lock lock(mutex);
  while (!ended.wait_for(lock, std::chrono::milliseconds(100), [&] { return active == 0; })) {
    lock.unlock();
    progress();
    lock.lock();
  }
}

/// bad_lines: of each file, of which each may have as many as the whole text, which is now counted.
/// The file that has one too many is read again for the error, which names the line.
Status check_bad_lines(const Corpus& corpus, const std::vector<uint64_t>& bad_lines) {
  uint64_t bad = 0;
  for (size_t file = 0; file < bad_lines.size(); ++file) {
    if (bad + bad_lines[file] > corpus.options().skip_bad)
      SS_RETURN_IF_ERROR(
          corpus.read_file(file, bad, [](TextChunk, uint64_t) { return Status(); }).status());
    bad += bad_lines[file];
  }
  return {};
}

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
      // "exact": rows keep the blanks at their ends, unlike in pieces of earlier versions. "ends":
      // those of masked rows do not count, unlike there.
      const std::string from =
          fmt::format("{} {} exact{} {}", corpus.signature(file), options.tokenizer_hash,
                      corpus.options().mask_key.empty() ? "" : " ends", options.eos);
      made_from_.push_back(hash128(from.data(), from.size()));
      pieces_.push_back(options.folder + "/" + made_from_.back().hex() + ".tokens");
    }
  }

  Status run(const std::function<void(const EncodeProgress&)>& progress) {
    if (!helps()) remove_unfinished(options_.folder, pieces_);
    active_ = std::min(jobs_, corpus_.files());
    run_workers(
        active_, [this] { work(); }, [&] { progress(now()); });
    for (const Status& error : errors_) SS_RETURN_IF_ERROR(error);
    progress(now());
    return helps() ? Status() : check_bad_lines();
  }

  std::vector<std::string> pieces() && { return std::move(pieces_); }

 private:
  bool helps() const { return options_.wanted != nullptr; }

  /// Takes one file after the other, then those that other processes were making. After an error
  /// only the files before it are still made, so that the error that counts does not depend on jobs.
  void work() {
    bool again = false;
    while (const auto file = next_file(again)) {
      if (*file >= first_error_) continue;
      const auto made = make(*file, again);
      std::unique_lock lock(mutex_);
      if (!made.ok()) {
        first_error_ = std::min(first_error_.load(), *file);
        errors_[*file] = made.status();
      } else if (*made) {
        newest_ = Clock::now();
      } else if (!helps()) {
        others_.push_back(*file);
        if (next_ < pieces_.size()) continue;
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::milliseconds(100));  // polls: a shared file system
      }
    }
    --active_;
  }

  /// again: another process was making it.
  std::optional<size_t> next_file(bool& again) {
    const std::lock_guard lock(mutex_);
    again = next_ == pieces_.size();
    if (!again) return next_++;
    if (others_.empty()) return std::nullopt;
    const size_t file = others_.front();
    others_.pop_front();
    return file;
  }

  /// Makes the piece of a file, or keeps it. False: another process makes it.
  Result<bool> make(size_t file, bool again) {
    if (keep(file)) return true;
    FileLock lock;
    const std::string lock_file = pieces_[file] + ".lock";
    std::error_code ignored;
    const bool begun = fs::exists(lock_file, ignored);  // by a process that may have died
    SS_ASSIGN(const bool mine, lock.try_take(lock_file));
    if (!mine && !out_of_patience()) return false;
    if (again) list_pieces();
    if (keep(file)) return true;
    if (helps() && !options_.wanted()) {
      first_error_ = 0;  // no further files
      return true;
    }
    SS_RETURN_IF_ERROR(encode(file, mine, begun));
    // After an error the file stays: a process that has it open would hold another lock than the
    // one that creates it anew, and both would go on with what is left of the piece.
    if (mine) fs::remove(lock_file, ignored);
    ++files_;
    return true;
  }

  /// True: the piece of the file is there.
  bool keep(size_t file) {
    const auto piece = PieceReader::open(pieces_[file], options_.token_bytes);
    if (!piece.ok() || piece->facts().made_from != made_from_[file] || !piece->check().ok())
      return false;
    read_ += corpus_.bytes(file);
    ++kept_;
    return true;
  }

  /// A client of NFS sees a file that it has missed before at once only if it lists the folder.
  void list_pieces() const {
    std::error_code ignored;
    for (auto entry = fs::directory_iterator(options_.folder, ignored);
         !ignored && entry != fs::directory_iterator(); entry.increment(ignored)) {
    }
  }

  /// A process that makes a piece may hang. The same piece may be made twice, in two files.
  bool out_of_patience() {
    const std::lock_guard lock(mutex_);
    return !helps() && Clock::now() > newest_ + options_.patience;
  }

  /// mine: no other process makes the piece. begun: one may have made a part of it.
  Status encode(size_t file, bool mine, bool begun) {
    PieceWriter out(pieces_[file], options_.token_bytes,
                    mine ? std::optional(options_.keep_bytes) : std::nullopt);
    uint64_t written = 0;
    if (mine && begun) {
      SS_ASSIGN(written, out.resume());
    }
    const auto threads = [this] {
      return std::max<size_t>(1, jobs_ / std::max<size_t>(1, active_));
    };
    FileEncoder encoder(corpus_.path(file), tokenizer_, cuts_, options_.eos, threads, out, written);
    PieceFacts facts{.made_from = made_from_[file]};
    Hasher hasher;
    uint64_t seen = 0;
    SS_ASSIGN(facts.bad_lines, corpus_.read_file(file, 0, [&](TextChunk chunk, uint64_t read) {
      read_ += read - std::exchange(seen, read);
      (encoder.skips() ? kept_bytes_ : text_) += chunk.text.size();
      facts.documents += chunk.begins_document;
      facts.text_bytes += chunk.text.size();
      add_to(hasher, chunk);
      return encoder.add(std::move(chunk));
    }));
    SS_RETURN_IF_ERROR(encoder.finish());
    if (encoder.skips()) {
      out.forget();
      return Status(Code::bad_data, corpus_.path(file) + ": it has changed; prepare it again");
    }
    read_ += corpus_.bytes(file) - std::min(seen, corpus_.bytes(file));
    facts.text = hasher.digest();
    return out.finish(facts);
  }

  Status check_bad_lines() const {
    std::vector<uint64_t> bad_lines;
    for (const std::string& path : pieces_) {
      SS_ASSIGN(const PieceReader piece, PieceReader::open(path, options_.token_bytes));
      bad_lines.push_back(piece.facts().bad_lines);
    }
    return simplescale::check_bad_lines(corpus_, bad_lines);
  }

  EncodeProgress now() const {
    const auto all = static_cast<double>(std::max<uint64_t>(1, corpus_.bytes()));
    return {std::min(1.0, static_cast<double>(read_) / all), text_, files_, kept_, kept_bytes_};
  }

  const Corpus& corpus_;
  const Tokenizer& tokenizer_;
  const Tokenizer::Cuts cuts_;
  const EncodeOptions& options_;
  const size_t jobs_;
  std::vector<Hash128> made_from_;
  std::vector<std::string> pieces_;

  std::atomic<size_t> active_ = 0, first_error_ = SIZE_MAX;
  std::atomic<uint64_t> read_ = 0, text_ = 0, files_ = 0, kept_ = 0, kept_bytes_ = 0;
  std::mutex mutex_;                         // guards what follows
  size_t next_ = 0;                          // no worker has looked at it and those behind it
  std::deque<size_t> others_;                // files that other processes are making
  Clock::time_point newest_ = Clock::now();  // a file was made, here or elsewhere
  std::vector<Status> errors_;
};

}  // namespace

Result<std::vector<std::string>> encode_files(
    const Corpus& corpus, const Tokenizer& tokenizer, const EncodeOptions& options,
    const std::function<void(const EncodeProgress&)>& progress) {
  if (!options.wanted) {
    std::error_code error;
    fs::create_directories(options.folder, error);
    if (error) return Status(Code::io, "cannot create " + options.folder + ": " + error.message());
  }
  Encoding encoding(corpus, tokenizer, options);
  SS_RETURN_IF_ERROR(encoding.run(progress));
  return std::move(encoding).pieces();
}

Result<std::string> text_hash(const Corpus& corpus, int jobs,
                              const std::function<void(double)>& progress) {
  const size_t files = corpus.files();
  std::vector<Hash128> hashes(files);
  std::vector<uint64_t> bad_lines(files);
  std::vector<Status> errors(files);
  std::atomic<size_t> next = 0, first_error = SIZE_MAX;
  std::atomic<uint64_t> read = 0;
  const auto work = [&] {
    for (size_t file = next++; file < std::min(files, first_error.load()); file = next++) {
      Hasher hasher;
      uint64_t seen = 0;
      const auto bad = corpus.read_file(file, 0, [&](TextChunk chunk, uint64_t bytes) {
        read += bytes - std::exchange(seen, bytes);
        add_to(hasher, chunk);
        return Status();
      });
      hashes[file] = hasher.digest();
      errors[file] = bad.status();
      if (bad.ok()) bad_lines[file] = *bad;
      size_t was = bad.ok() ? 0 : first_error.load();
      while (file < was && !first_error.compare_exchange_weak(was, file)) {
      }
    }
  };
  const auto all = static_cast<double>(std::max<uint64_t>(1, corpus.bytes()));
  progress(0);
  run_workers(std::min(static_cast<size_t>(std::max(1, jobs)), files), work,
              [&] { progress(std::min(1.0, static_cast<double>(read) / all)); });
  for (const Status& error : errors) SS_RETURN_IF_ERROR(error);
  SS_RETURN_IF_ERROR(check_bad_lines(corpus, bad_lines));
  return hash128(hashes.data(), hashes.size() * sizeof(Hash128)).hex();
}

}  // namespace simplescale
