#include "tools/prepare/prepare.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/files.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/own_folder.hpp"
#include "runtime/base/words.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "tools/prepare/encode_files.hpp"
#include "tools/prepare/file_lock.hpp"
#include "tools/prepare/token_piece.hpp"
#include "tools/prepare/token_split.hpp"

namespace simplescale {

namespace fs = std::filesystem;

namespace {

using Progress = std::function<void(const PrepareProgress&)>;

constexpr auto lock_patience = std::chrono::minutes(10);

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

// -- What a folder holds already ------------------------------------------------------------------

std::string lock_file(const std::string& folder) {
  return folder + "/.lock";
}

std::string pieces_folder(const std::string& folder) {
  return folder + "/pieces";
}

/// A file that prepare() would replace by another one and has not written; "": none. It takes the
/// lock before it writes anything, maybe while this function looks.
std::string file_of_others(const PrepareOptions& options) {
  const std::string& folder = options.folder;
  std::error_code error;
  const auto locked = [&] { return fs::exists(lock_file(folder), error); };
  if (read_manifest(folder).ok() || locked()) return "";
  for (const char* name : {"manifest.json", kSentencePieceFile, kTokenizerJsonFile, "train.bin",
                           "validation.bin", "train.mask", "validation.mask", "pieces"})
    if (const std::string path = folder + "/" + name;
        fs::exists(path, error) && !fs::equivalent(path, options.tokenizer_path, error))
      return locked() ? "" : path;
  return "";
}

Status other_tokens(const PrepareOptions& options, const std::string& what) {
  return Status(Code::bad_config, options.folder + " was prepared " + what +
                                      ": name another data.folder, or remove this one");
}

// -- Tokenizer ------------------------------------------------------------------------------------

std::string file_of_tokenizer(const PrepareOptions& options) {
  return options.tokenizer_path.empty() ? trained_tokenizer_file(options.byte_level)
                                        : tokenizer_file_name(options.tokenizer_path);
}

Status other_tokenizer(const PrepareOptions& options, const Manifest& old) {
  const auto text = [](const std::string& path, const std::string& name, int64_t vocab) {
    return path.empty() ? fmt::format("a trained {} of {} tokens", name, vocab) : path;
  };
  return other_tokens(options,
                      "with another tokenizer, " +
                          text(old.tokenizer_path, old.tokenizer.name, old.vocab) + ", not with " +
                          text(options.tokenizer_path, file_of_tokenizer(options), options.vocab));
}

/// bad_config: another user could have planted something in the folder.
Status check_folder(const PrepareOptions& options) {
  return options.trust_folder ? Status() : check_output_folder(options.folder, "data.folder");
}

/// Replaces the tokenizer's file. bad_config: complete tokens were made with another one.
Status write_tokenizer(const PrepareOptions& options, Manifest& old, const std::string& path,
                       const std::string& model) {
  if (old.complete() && old.tokenizer_hash != hash128(model.data(), model.size()).hex())
    return other_tokenizer(options, old);
  if (old.tokenizer_hash == hash128(model.data(), model.size()).hex() &&
      old.tokenizer.name == fs::path(path).filename() && revalidate(options.folder, old.tokenizer))
    return {};
  SS_RETURN_IF_ERROR(check_folder(options));
  return write_file_atomic(path, model);
}

/// Makes or keeps the tokenizer's file in the folder, tokenizer.model or tokenizer.json, and records
/// its inputs in the manifest `made`.
Status make_tokenizer(const PrepareOptions& options, Manifest& old, Manifest& made,
                      const Progress& progress) {
  const std::string name = file_of_tokenizer(options);
  const std::string path = options.folder + "/" + name;
  if (!options.tokenizer_path.empty()) {
    SS_ASSIGN(const std::string model, read_tokenizer(options.tokenizer_path));
    SS_ASSIGN(const Tokenizer tokenizer, Tokenizer::from_bytes(model, options.tokenizer_path));
    if (options.vocab > 0 && tokenizer.vocab() > options.vocab)
      return Status(Code::bad_data,
                    options.tokenizer_path + " has " + std::to_string(tokenizer.vocab()) +
                        " tokens, more than the vocabulary of " + std::to_string(options.vocab));
    made.vocab = tokenizer.vocab();
    made.tokenizer_signature = options.trained_on;
    if (!revalidate(options.folder, old.tokenizer) || old.tokenizer.name != name ||
        old.tokenizer_hash != hash128(model.data(), model.size()).hex())
      SS_RETURN_IF_ERROR(write_tokenizer(options, old, path, model));
  } else {
    made.vocab = options.vocab;
    const std::vector<TrainingText> from = trained_from(options);
    made.tokenizer_signature = old.tokenizer_signature;
    if (!options.keeps_tokenizer || old.tokenizer_signature.empty()) {
      SS_ASSIGN(made.tokenizer_signature, training_signature(from));
    }
    const bool keep = revalidate(options.folder, old.tokenizer) && old.tokenizer.name == name &&
                      old.tokenizer_path.empty() &&
                      old.tokenizer_signature == made.tokenizer_signature &&
                      old.vocab == made.vocab && old.seed == made.seed;
    if (!keep) {
      SS_ASSIGN(const auto texts,
                training_texts(from, options.seed, !options.byte_level, [&](double read) {
                  progress({"read", read});
                }));
      progress({"tokenizer", 0});
      SS_ASSIGN(const std::string model, options.byte_level
                                             ? train_byte_bpe(texts, options.vocab)
                                             : train_tokenizer(texts, options.vocab));
      if (options.byte_level) {  // SentencePiece refuses such a text
        SS_ASSIGN(const Tokenizer trained, Tokenizer::from_bytes(model, name));
        if (trained.vocab() < options.vocab)
          log::warn("the text gives only {} tokens: the other {} of the vocabulary stay unused",
                    trained.vocab(), options.vocab - trained.vocab());
      }
      SS_RETURN_IF_ERROR(write_tokenizer(options, old, path, model));
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

int token_bytes_of(const Tokenizer& tokenizer) {
  return tokenizer.vocab() <= 65536 ? 2 : 4;
}

}  // namespace

Result<int32_t> eos_of(const PrepareOptions& options, const Tokenizer& tokenizer) {
  const bool has = tokenizer.eos() >= 0 && tokenizer.eos() != tokenizer.bos();
  if (options.append_eos == Choice::yes && !has)
    return Status(Code::bad_config,
                  std::string("tokenizer.append_eos = true: the tokenizer has ") +
                      (tokenizer.eos() < 0 ? "no EOS"
                                           : "one token for EOS and BOS, which is "
                                             "between all documents") +
                      "; leave the key out");
  return has && options.append_eos != Choice::no ? tokenizer.eos() : -1;
}

namespace {

/// Encodes the files into pieces, and distributes their tokens in the order of the files.
Status make_tokens(const PrepareOptions& options, const Corpus& corpus, const Tokenizer& tokenizer,
                   Manifest& made, const Progress& progress) {
  const int token_bytes = token_bytes_of(tokenizer);
  const auto began = std::chrono::steady_clock::now();
  PrepareProgress now{.stage = "tokens"};
  progress(now);
  const auto report = [&](const EncodeProgress& encoded) {
    constexpr double kEncoding = 0.9;  // of the work; copying to two files is the rest
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
    now.fraction = kEncoding * encoded.fraction;
    now.mb_per_second = static_cast<double>(encoded.text_bytes) / 1e6 / seconds.count();
    now.kept_files = encoded.kept;
    now.kept_bytes = encoded.kept_bytes;
    progress(now);
  };
  SS_ASSIGN(const auto pieces, encode_files(corpus, tokenizer,
                                            {.folder = pieces_folder(options.folder),
                                             .tokenizer_hash = made.tokenizer_hash,
                                             .token_bytes = token_bytes,
                                             .eos = made.appended_eos,
                                             .jobs = jobs_of(options),
                                             .keep_bytes = options.keep_bytes},
                                            report));
  TokenSplit out(options.folder, {.token_bytes = token_bytes,
                                  .fraction = made.validation_fraction,
                                  .text_bytes = corpus.bytes(),
                                  .bos = tokenizer.bos(),
                                  .eos = made.appended_eos});
  Hasher hasher;
  for (size_t file = 0; file < pieces.size(); ++file) {
    SS_ASSIGN(PieceReader piece, PieceReader::open(pieces[file], token_bytes));
    const PieceFacts& facts = piece.facts();
    made.documents += facts.documents;
    made.text_bytes += facts.text_bytes;
    made.bad_lines += facts.bad_lines;
    hasher.update(&facts.text, sizeof facts.text);
    if (pieces.size() <= Manifest::sources_max)
      made.sources.push_back(
          {corpus.name(file), corpus.bytes(file), facts.documents, facts.text.hex()});
    SS_RETURN_IF_ERROR(piece.read([&](const TokenRecord& record) {
      return out.write(record.ids, record.begins_document, record.masked);
    }));
  }
  if (made.documents == 0) return corpus.no_text();
  made.source_hash = hasher.digest().hex();
  made.validation_split = Manifest::spread_bos;
  made.row_texts = Manifest::exact;
  SS_RETURN_IF_ERROR(out.finish(made));
  now.fraction = 1;
  progress(now);
  return {};
}

/// True if the folder's documents end as tokenizer.append_eos says.
bool eos_suits(const Manifest& manifest, Choice append_eos) {
  return append_eos == Choice::automatic ||
         (append_eos == Choice::yes) == (manifest.appended_eos >= 0);
}

/// Earlier versions recorded sources as they were given.
bool same_path(const std::string& a, const std::string& b) {
  return a == b || (!a.empty() && !b.empty() &&
                    fs::absolute(a).lexically_normal() == fs::absolute(b).lexically_normal());
}

/// bad_config: `old` is complete, and its tokens are those of another text, or split in another way. A
/// run may be using them. A text of the same contents is the same, whatever its files' times are.
Status check_tokens_kept(const PrepareOptions& options, const Corpus& corpus, Manifest& old,
                         const Progress& progress) {
  if (!old.complete()) return {};
  if (old.source_signature != corpus.signature()) {
    SS_ASSIGN(const std::string hash, text_hash(corpus, jobs_of(options), [&](double fraction) {
                progress({"compare", fraction});
              }));
    if (hash != old.source_hash)
      return other_tokens(options, "from another text, " + old.source +
                                       (old.source == options.source
                                            ? ", which has changed or is read with other keys"
                                            : ""));
    if (old.tokenizer_signature == old.source_signature)
      old.tokenizer_signature = corpus.signature();  // it was trained on this text
    old.source_signature = corpus.signature();
  }
  if (old.validation_fraction != options.validation_fraction)
    return other_tokens(options, fmt::format("with data.validation_fraction = {}, not {}",
                                             old.validation_fraction, options.validation_fraction));
  if (!eos_suits(old, options.append_eos))
    return other_tokens(options, std::string(old.appended_eos >= 0 ? "with" : "without") +
                                     " EOS behind each document (tokenizer.append_eos)");
  return {};
}

/// bad_data: more bad lines were left out of a complete folder than may be now.
Status check_bad_lines(const Manifest& manifest, const PrepareOptions& options) {
  if (manifest.bad_lines <= options.corpus.skip_bad) return {};
  const std::string left_out = std::to_string(manifest.bad_lines);
  return Status(Code::bad_data, options.folder + " was prepared without " +
                                    counted(static_cast<int64_t>(manifest.bad_lines), "bad line") +
                                    " of " + options.source + ", but data.skip_bad = " +
                                    std::to_string(options.corpus.skip_bad) +
                                    ": set data.skip_bad = " + left_out +
                                    ", or repair the text and prepare it in another folder");
}

/// True if the tokens of the manifest `old` are what would be made again.
bool keep_tokens(const PrepareOptions& options, Manifest& old, const Manifest& made) {
  const std::string& folder = options.folder;
  return eos_suits(old, options.append_eos) && old.source_signature == made.source_signature &&
         old.tokenizer_hash == made.tokenizer_hash && old.tokenizer.name == made.tokenizer.name &&
         old.validation_fraction == made.validation_fraction && revalidate(folder, old.train) &&
         (old.validation_tokens == 0 || revalidate(folder, old.validation)) &&
         std::ranges::all_of(
             std::array{&old.train_mask, &old.validation_mask},
             [&](FileRecord* mask) { return mask->hash.empty() || revalidate(folder, *mask); });
}

std::string hash_of_tokenizer(const std::string& path) {
  const auto text = read_tokenizer(path);
  return text.ok() ? hash128(text->data(), text->size()).hex() : "";
}

/// True if a complete folder is what the options ask for, as far as this can be told without the
/// source.
bool matches_options(const Manifest& manifest, const PrepareOptions& options) {
  return manifest.complete() &&
         (same_path(manifest.tokenizer_path, options.tokenizer_path) ||
          hash_of_tokenizer(options.tokenizer_path) == manifest.tokenizer_hash) &&
         manifest.tokenizer.name == file_of_tokenizer(options) &&
         eos_suits(manifest, options.append_eos) &&
         (manifest.vocab == options.vocab || !options.tokenizer_path.empty()) &&
         manifest.validation_fraction == options.validation_fraction;
}

// -- Processes that prepare one folder ------------------------------------------------------------

/// True if another process makes the folder's tokens now.
bool is_being_made(const std::string& folder) {
  const auto manifest = read_manifest(folder);
  if (!manifest.ok() || manifest->complete() || manifest->tokenizer.hash.empty()) return false;
  FileLock lock;  // not before: a lock says that prepare() has written what is in the folder
  const auto free = lock.try_take(lock_file(folder));
  return free.ok() && !*free;
}

/// A sign of life where the holder of the lock writes nothing else for long.
void touch_lock(const std::string& folder) {
  std::error_code ignored;  // the file may be another user's
  fs::last_write_time(lock_file(folder), fs::file_time_type::clock::now(), ignored);
}

/// What changes while a process makes the folder.
uint64_t signs_of_life(const std::string& folder) {
  std::error_code none;
  const auto touched = fs::last_write_time(lock_file(folder), none).time_since_epoch().count();
  uint64_t signs = none ? 0 : static_cast<uint64_t>(touched);
  for (const char* part : {"/train.bin.part", "/validation.bin.part"})
    if (const auto bytes = fs::file_size(folder + part, none); !none) signs += bytes;
  for (auto entry = fs::directory_iterator(pieces_folder(folder), none);
       !none && entry != fs::directory_iterator(); entry.increment(none)) {
    std::error_code gone;
    const auto bytes = entry->file_size(gone);
    signs += 1 + (gone ? 0 : bytes);
  }
  return signs;
}

/// Encodes files for the process that makes the folder; returns how many.
uint64_t help(const PrepareOptions& options, const Corpus& corpus) {
  const auto manifest = read_manifest(options.folder);
  if (!manifest.ok() || manifest->source_signature != corpus.signature() ||
      !check_folder(options).ok())
    return 0;
  const auto tokenizer = Tokenizer::load(options.folder + "/" + manifest->tokenizer.name);
  if (!tokenizer.ok()) return 0;
  uint64_t files = 0;
  const auto encoded =
      encode_files(corpus, *tokenizer,
                   {.folder = pieces_folder(options.folder),
                    .tokenizer_hash = manifest->tokenizer_hash,
                    .token_bytes = token_bytes_of(*tokenizer),
                    .eos = manifest->appended_eos,
                    .jobs = jobs_of(options),
                    .keep_bytes = options.keep_bytes,
                    .wanted = [&] { return is_being_made(options.folder); }},
                   [&](const EncodeProgress& progress) { files = progress.files; });
  return files;
}

/// Takes the folder's lock, and helps its holder until then.
Status take_folder(const PrepareOptions& options, const Corpus& corpus, FileLock& lock) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kHelpEvery = std::chrono::seconds(1);
  uint64_t signs = 0;
  for (Clock::time_point alive = Clock::now(), help_at = alive;;) {
    SS_ASSIGN(const bool taken, lock.try_take(lock_file(options.folder)));
    if (taken) return {};
    if (Clock::now() >= help_at) {
      if (is_being_made(options.folder)) help(options, corpus);
      help_at = Clock::now() + kHelpEvery;
      if (const uint64_t now = signs_of_life(options.folder); now != std::exchange(signs, now))
        alive = Clock::now();
    }
    if (Clock::now() > alive + lock_patience)
      return Status(Code::deadline, "another process has been preparing " + options.folder +
                                        " for ten minutes without making anything: wait until it "
                                        "has ended, or stop it");
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // flock has no timeout
  }
}

}  // namespace

uint64_t help_prepare(const PrepareOptions& options) {
  if (!is_being_made(options.folder)) return 0;
  const auto corpus = Corpus::open(options.source, options.corpus);
  return corpus.ok() ? help(options, *corpus) : 0;
}

std::vector<TrainingText> trained_from(const PrepareOptions& options) {
  if (!options.train_tokenizer_on.empty()) return {{options.train_tokenizer_on, options.corpus}};
  if (!options.blend.empty()) return options.blend;
  return {{options.source, options.corpus}};
}

std::string tokenizer_signature(const PrepareOptions& options) {
  if (!options.tokenizer_path.empty()) return options.trained_on;
  const auto there = read_manifest(options.folder);
  const std::string kept = there.ok() ? there->tokenizer_signature : "";
  if (options.keeps_tokenizer && !kept.empty()) return kept;
  const auto text = training_signature(trained_from(options));
  return text.ok() ? *text : kept;
}

namespace {

/// True if the tokens were made from the options' text: by its signature or, where only names and times
/// of its files may differ, by what they hold. Reads the text then, once in a process.
bool is_of_text(const Manifest& made, const PrepareOptions& options, const Corpus& corpus) {
  if (made.source_signature == corpus.signature()) return true;
  bool alike = made.sources.size() == corpus.files();
  for (size_t file = 0; alike && file < corpus.files(); ++file)
    alike = made.sources[file].bytes == corpus.bytes(file);
  if (!alike) return false;
  static std::mutex mutex;
  static std::map<std::string, std::string> hashes;  // by signature
  const std::lock_guard lock(mutex);
  auto known = hashes.find(corpus.signature());
  if (known == hashes.end()) {
    log::warn("{} may be the text that {} was prepared from: comparing their contents",
              options.source, made.source);
    const auto hash = text_hash(corpus, jobs_of(options), [](double) {});
    known = hashes.emplace(corpus.signature(), hash.ok() ? *hash : "").first;
  }
  return known->second == made.source_hash && !made.source_hash.empty();
}

/// Complete prepared folders of this user below `around`, in it or in a folder of it.
std::vector<std::pair<std::string, Manifest>> folders_below(const std::string& around) {
  size_t left = 10'000;  // entries to look at: users may keep other things there
  std::vector<std::string> paths;
  std::error_code error;
  auto entry = fs::recursive_directory_iterator(around, error);
  for (; !error && entry != fs::recursive_directory_iterator() && left-- > 0;
       entry.increment(error)) {
    std::error_code ignored;
    if (!entry->is_directory(ignored)) continue;
    struct stat info {};
    const std::string path = entry->path().string();
    const bool own =
        ::lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid();
    if (!own || entry.depth() > 0) entry.disable_recursion_pending();
    if (own) paths.push_back(path);
  }
  std::ranges::sort(paths);
  std::vector<std::pair<std::string, Manifest>> found;
  for (const std::string& path : paths)
    if (auto made = read_manifest(path); made.ok() && made->complete())
      found.emplace_back(path, made.take());
  return found;
}

}  // namespace

std::string free_folder(const PrepareOptions& options, const std::string& around) {
  const auto there = read_manifest(options.folder);
  const auto corpus = Corpus::open(options.source, options.corpus);
  if (!corpus.ok()) return options.folder;
  const std::string text = corpus->signature(), trained_on = tokenizer_signature(options);
  const std::string hash = hash_of_tokenizer(options.tokenizer_path);
  const bool trains = !trained_on.empty();
  const auto same_tokenizer = [&](const Manifest& made, bool by_contents) {
    if (!hash.empty() && made.tokenizer_hash == hash) return true;
    if (!trains || made.tokenizer_signature.empty()) return false;
    const bool same_text =
        made.tokenizer_signature == trained_on ||
        // trained on the text itself
        (by_contents && options.tokenizer_path.empty() && options.train_tokenizer_on.empty() &&
         options.blend.empty() && made.tokenizer_signature == made.source_signature);
    return same_text && made.vocab == options.vocab && made.seed == options.seed &&
           (made.tokenizer_path.empty() || !options.tokenizer_path.empty());
  };
  const auto suits = [&](const Manifest& made, bool by_contents) {
    return same_tokenizer(made, by_contents) && made.tokenizer.name == file_of_tokenizer(options) &&
           made.validation_fraction == options.validation_fraction &&
           eos_suits(made, options.append_eos) &&
           (by_contents ? is_of_text(made, options, *corpus) : made.source_signature == text);
  };
  // Another name's tokens are taken only if this program would make the same ones.
  const auto as_new = [&](const std::string& folder, const Manifest& made) {
    const auto tokenizer = Tokenizer::load(folder + "/" + made.tokenizer.name);
    if (!tokenizer.ok()) return false;
    const auto eos = eos_of(options, *tokenizer);
    return eos.ok() && *eos == made.appended_eos && made.row_texts == Manifest::exact &&
           made.validation_split == Manifest::spread_bos;
  };
  if (there.ok() && suits(*there, false)) return options.folder;
  const std::string made_from =
      fmt::format("{} {} {} {} {}", text, trains ? trained_on : hash, trains ? options.vocab : 0,
                  trains ? options.seed : 0, options.validation_fraction) +
      (trains && options.byte_level ? " byte_bpe" : "") +
      (options.append_eos == Choice::yes  ? " append_eos"
       : options.append_eos == Choice::no ? " no_eos"
                                          : "");
  const std::string other =
      options.folder + "-" + hash128(made_from.data(), made_from.size()).hex().substr(0, 8);
  const auto others =
      around.empty() ? std::vector<std::pair<std::string, Manifest>>() : folders_below(around);
  for (const bool by_contents : {false, true}) {
    if (by_contents && there.ok() && there->complete() && suits(*there, true))
      return options.folder;
    for (const auto& [folder, made] : others)
      if (made.bad_lines <= options.corpus.skip_bad && suits(made, by_contents) &&
          as_new(folder, made))
        return folder;
  }
  return !there.ok() && file_of_others(options).empty() ? options.folder : other;
}

Status check_tokenizer_kept(const PrepareOptions& options) {
  const auto there = read_manifest(options.folder);
  const std::string& path = options.tokenizer_path;
  if (!there.ok() || !there->complete()) return {};
  const bool same_kind = !path.empty() || there->tokenizer.name == file_of_tokenizer(options);
  if (same_kind && same_path(there->tokenizer_path, path)) return {};
  if (const std::string hash = hash_of_tokenizer(path);
      !path.empty() && (hash.empty() || hash == there->tokenizer_hash))
    return {};
  return other_tokenizer(options, *there);
}

Result<Manifest> prepare(const PrepareOptions& options, const Progress& progress) {
  using Clock = std::chrono::steady_clock;
  const Progress report = [&, touched = Clock::time_point(), seen = std::string(),
                           fraction = -1.0](const PrepareProgress& now) mutable {
    const bool moved = now.stage != seen || now.fraction != fraction;  // else it may hang
    if (moved && Clock::now() > touched + std::chrono::seconds(1)) {
      touch_lock(options.folder);
      touched = Clock::now();
      seen = now.stage;
      fraction = now.fraction;
    }
    if (progress) progress(now);
  };
  // Check the text first: if it is missing, errors in the tokenizer's options do not matter.
  const auto opened = Corpus::open(options.source, options.corpus);
  if (opened.ok() && opened->bytes() == 0)
    return Status(Code::bad_data, options.source + ": no text was found, its files are empty");
  if (opened.ok()) SS_RETURN_IF_ERROR(check(options));
  const auto ready = read_manifest(options.folder);
  const bool suits = ready.ok() && matches_options(*ready, options);
  const bool same_source = suits && same_path(ready->source, options.source);
  const bool changed = opened.ok() && same_source && options.of_run &&
                       ready->source_signature != opened->signature();
  if (!opened.ok() || changed) {
    // A run compares the tokens with those that it has trained.
    if (!same_source && !(suits && options.of_run)) return opened.status();
    SS_RETURN_IF_ERROR(check_bad_lines(*ready, options));
    log::warn("{}; using {}, which was prepared from it",
              changed ? options.source + " has changed" : opened.status().message(),
              options.folder);
    return *ready;
  }
  const Corpus& corpus = *opened;
  if (const std::string file = file_of_others(options); !file.empty())
    return Status(Code::bad_config, file +
                                        " is in the way: prepare has not written it and would "
                                        "replace it; name another data.folder, or move it away");
  if (!ready.ok() || !ready->complete()) SS_RETURN_IF_ERROR(check_folder(options));
  std::error_code error;
  fs::create_directories(options.folder, error);
  if (error) return Status(Code::io, "cannot create " + options.folder + ": " + error.message());
  FileLock lock;
  SS_RETURN_IF_ERROR(take_folder(options, corpus, lock));

  const auto read = read_manifest(options.folder);
  Manifest old =
      read.ok() ? *read : Manifest{};  // damaged or of another format: make everything again
  SS_RETURN_IF_ERROR(check_tokens_kept(options, corpus, old, report));
  Manifest made;
  made.source = options.source;
  made.source_signature = corpus.signature();
  made.tokenizer_path = options.tokenizer_path;
  made.validation_fraction = options.validation_fraction;
  made.seed = options.seed;
  SS_RETURN_IF_ERROR(make_tokenizer(options, old, made, report));
  if (keep_tokens(options, old, made)) {
    SS_RETURN_IF_ERROR(check_bad_lines(old, options));
    if (!old.tokenizer_signature.empty() && !options.tokenizer_path.empty() &&
        options.trained_on.empty()) {  // what trained it is known, and free_folder() looks for it
      made.tokenizer_path = old.tokenizer_path;
      made.tokenizer_signature = old.tokenizer_signature;
      made.seed = old.seed;
    }
    made.source_hash = old.source_hash;
    made.documents = old.documents;
    made.text_bytes = old.text_bytes;
    made.bad_lines = old.bad_lines;
    made.train_tokens = old.train_tokens;
    made.validation_tokens = old.validation_tokens;
    // Its runs need the same tokens again.
    made.validation_split = old.validation_split;
    made.row_texts = old.row_texts;
    made.appended_eos = old.appended_eos;
    made.sources = old.sources;
    made.masked_tokens = old.masked_tokens;
    made.train = old.train;
    made.validation = old.validation;
    made.train_mask = old.train_mask;
    made.validation_mask = old.validation_mask;
    // What another user has prepared is only read.
    if (read.ok() && (made == *read || !check_folder(options).ok())) return made;
    // The same text with other names or times; next time it is compared again.
    if (const Status written = write_manifest(options.folder, made); !written.ok())
      log::info("{}", written.message());
    fs::remove_all(pieces_folder(options.folder), error);
    return made;
  }
  SS_RETURN_IF_ERROR(check_folder(options));
  // A manifest without tokens: if this is interrupted, the folder is not complete() but the
  // tokenizer is kept.
  SS_ASSIGN(const Tokenizer tokenizer, Tokenizer::load(options.folder + "/" + made.tokenizer.name));
  SS_ASSIGN(made.appended_eos, eos_of(options, tokenizer));
  SS_RETURN_IF_ERROR(write_manifest(options.folder, made));
  SS_RETURN_IF_ERROR(make_tokens(options, corpus, tokenizer, made, report));
  SS_RETURN_IF_ERROR(write_manifest(options.folder, made));
  fs::remove_all(pieces_folder(options.folder), error);
  return made;
}

}  // namespace simplescale
