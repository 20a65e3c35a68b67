// Checks the bytes of a SentencePiece tokenizer.model before the library reads them. The library
// (0.1.97 of Debian 12, CVE-2026-1260; parts of it also later ones) trusts such a file: a long piece
// overflows its stack, and the table of the normalizer makes it read anywhere in memory. What passes
// here is what SentencePiece's trainer writes. Pure; any thread.
#pragma once

#include <string>
#include <string_view>

#include "runtime/base/status.hpp"

namespace simplescale {

/// bad_data says what is wrong with the model; the caller adds the name of the file.
Status check_sentencepiece_model(std::string_view model);

/// What the model does besides merging pieces.
struct SentencePieceSettings {
  bool byte_fallback = false;  // characters without a piece become bytes; otherwise <unk>
  bool dummy_prefix = true;    // a space is put before each text
  /// Why byte-pair merges of the text with these two do not give the model's ids; "" if they do.
  std::string beyond_merges;
};
/// Requires a model that passes check_sentencepiece_model().
SentencePieceSettings sentencepiece_settings(std::string_view model);

}  // namespace simplescale
