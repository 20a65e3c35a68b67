// From text to a prepared folder (manifest.hpp): corpus -> tokenizer -> tokens. Blocks its caller
// for as long as it takes.
//
//   PREPARE-1 A file under its final name is whole: everything is written beside it and renamed.
//   PREPARE-2 A stage's output is kept if what it was made from is unchanged; a folder that is ready costs
//   a few stat() calls. PREPARE-3 The same text and options give the same bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "runtime/base/status.hpp"
#include "runtime/data/manifest.hpp"

namespace simplescale {

struct PrepareOptions {
  std::string source;  // see corpus.hpp: a text file, a folder of .txt files, debian:bible-kjv
  std::string folder;  // created if it is not there
  std::string tokenizer_path;      // an existing tokenizer.model; empty: train one
  std::string train_tokenizer_on;  // a source; empty: the text itself
  int64_t vocab = 0;  // of the tokenizer to train; of an existing one: at most this many, 0: any
  double validation_fraction = 0.01;  // the last of the tokens; 0: none
  uint64_t seed = 0;  // chooses the lines that the tokenizer is trained on where there are too many
};

struct PrepareProgress {
  std::string stage;    // "read", "tokenizer", "tokens"
  double fraction = 0;  // of the stage, 0 to 1
};

/// Makes the folder ready and returns its manifest. One process at a time; another one waits for up
/// to ten minutes. bad_data: unreadable or unfit text or tokenizer. bad_config: impossible options.
/// io: disk full, not writable. deadline: somebody else holds the folder. progress may be empty; it
/// is called on this thread.
Result<Manifest> prepare(const PrepareOptions& options,
                         const std::function<void(const PrepareProgress&)>& progress = {});

}  // namespace simplescale
