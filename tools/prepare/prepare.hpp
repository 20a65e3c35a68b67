// Makes a prepared folder (manifest.hpp) from text: corpus -> tokenizer -> tokens. Blocks the
// caller until it is done, and uses all cores.
//
//   PREPARE-1  A file under its final name is complete: it is written under another name, then
//              renamed.
//   PREPARE-2  The output of a stage is kept if its inputs are unchanged; checking a folder that is
//              complete costs a few stat() calls.
//   PREPARE-3  The same text and options give the same bytes, with any number of jobs.
//   PREPARE-4  After an interruption, what was encoded is not encoded again, but for the last 16 MiB
//              of tokens of each file: folder/pieces holds the tokens of the files (token_piece.hpp)
//              until all are done. Files that were encoded as a whole are not read again. A crash of
//              the machine also costs the files with less than that which it had not written yet.
//   PREPARE-5  Processes that prepare one folder, also on several hosts, share its files. If one
//              dies, another one takes over what it was making.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/config/config.hpp"
#include "runtime/data/manifest.hpp"
#include "tools/prepare/corpus.hpp"
#include "tools/prepare/training_text.hpp"

namespace simplescale {

class Tokenizer;

struct PrepareOptions {
  std::string source;  // a source of corpus.hpp
  CorpusOptions corpus;
  std::string folder;          // created if missing
  bool trust_folder = false;   // write there though other users own it or may write it
  std::string tokenizer_path;  // a file of tokenizer.hpp; "": train one
  /// tokenizer_signature() of the text whose preparation trains tokenizer_path; "": none does.
  std::string trained_on;
  /// Documents end with EOS. automatic: if the tokenizer has one that is not BOS; and a folder that
  /// was prepared without keeps its tokens. yes: bad_config if the tokenizer has none.
  Choice append_eos = Choice::automatic;
  bool byte_level = false;  // train a tokenizer.json, else a tokenizer.model
  std::string
      train_tokenizer_on;  // a source of corpus.hpp; "": the text itself, or those of a blend
  std::vector<TrainingText> blend;  // to train the tokenizer on; empty: it is no blend
  bool keeps_tokenizer = false;     // that of the folder, whatever text it was trained on
  /// Size of the vocabulary to train. Of an existing tokenizer: its largest permitted size, 0: any.
  int64_t vocab = 0;
  double validation_fraction =
      0.01;      // share of the tokens, spread over the text, for validation; 0: none
  int jobs = 0;  // threads that encode; 0: one for each core
  uint64_t keep_bytes = 16 << 20;  // of tokens, as in EncodeOptions
  bool of_run = false;  // a run that has begun needs the tokens, also if the text has changed
  uint64_t seed = 0;    // chooses lines to train the tokenizer on if the text is larger than 32 MiB
};

/// What the options' tokenizer is trained on, unless it has a path.
std::vector<TrainingText> trained_from(const PrepareOptions& options);

/// The EOS behind each document; -1: none. bad_config: append_eos is yes, and the tokenizer has none.
Result<int32_t> eos_of(const PrepareOptions& options, const Tokenizer& tokenizer);

struct PrepareProgress {
  std::string stage;  // "compare" (the text with that of the folder), "read", "tokenizer", "tokens"
  double fraction = 0;  // of the stage, 0 to 1
  // Of the stage "tokens":
  double mb_per_second = 0;  // of text, in this call
  uint64_t kept_files = 0;   // of the text, encoded before an interruption
  uint64_t kept_bytes = 0;   // of the other files, likewise
};

/// Completes the folder and returns its manifest. One process holds the folder's lock and makes its
/// files; the others wait for it, and meanwhile help to encode. progress: called on this thread; may
/// be empty. bad_data: text or tokenizer cannot be read or are unfit, or the folder was made with
/// more bad lines than may be left out now. bad_config: impossible options; or the folder
/// is complete with other tokens, or holds files of the same names that prepare() has not written: it
/// replaces neither. io: disk full, not
/// writable. deadline: another process has held the lock for ten minutes without making anything.
Result<Manifest> prepare(const PrepareOptions& options,
                         const std::function<void(const PrepareProgress&)>& progress = {});

/// Encodes files of the text for the process that makes options.folder now, as far as no process is
/// encoding them. Returns how many; 0 if no process makes the folder. Errors are left to that process.
uint64_t help_prepare(const PrepareOptions& options);

/// training_signature() of what the tokenizer is trained on; if a text is gone or keeps_tokenizer, of
/// that on which the prepared folder's was trained. "": it is not trained, or neither is there.
std::string tokenizer_signature(const PrepareOptions& options);

/// The folder for the options' tokens that takes none away from another run: options.folder if it
/// holds them; a folder of this user in `around`, or in a folder there, that holds them; or else
/// options.folder, unless it holds those of another text, tokenizer or split, or files of others; then
/// options.folder, "-" and a hash of what the tokens are made from, which is the same before and after
/// a tokenizer is trained. A text with the same contents is the same text. around: "": no other folder
/// is looked for.
std::string free_folder(const PrepareOptions& options, const std::string& around = "");

/// bad_config: the options' folder is complete, and was prepared with another tokenizer than the
/// options', which prepare() would put in its place.
Status check_tokenizer_kept(const PrepareOptions& options);

}  // namespace simplescale
