// The tokens of one file of a text, as a file of their own. `prepare` keeps these pieces while it
// works, so that files can be encoded in parallel and an interruption costs only the files that were
// being read. One thread for each writer and reader.
//
//   PieceFacts    see below; machine's byte order, since a piece is read on the machine type that
//                 wrote it
//   records       u32 count, its highest bit set if the record begins a document, then `count` ids
#pragma once

#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/hash.hpp"
#include "runtime/base/input_file.hpp"
#include "runtime/base/status.hpp"
#include "runtime/data/token_split.hpp"

namespace simplescale {

struct PieceFacts {
  uint64_t magic = 0;  // filled in by the writer
  uint64_t documents = 0, text_bytes = 0, bad_lines = 0;
  uint64_t bytes = 0;  // of the records; filled in by the writer
  Hash128 text;        // xxh3-128 of the documents' texts
  Hash128 made_from;   // the file, how it is read, and the tokenizer
};

class PieceWriter {
 public:
  /// Writes path.part until finish().
  PieceWriter(const std::string& path, int token_bytes);
  Status write(std::span<const int32_t> ids, bool begins_document);
  /// Gives the piece its final name. A piece under its final name is whole.
  Status finish(PieceFacts facts);

 private:
  const std::string path_;
  NarrowTokens narrow_;
  std::ofstream out_;
  uint64_t bytes_ = 0;
};

class PieceReader {
 public:
  /// not_found: there is none; bad_data: it is damaged.
  static Result<PieceReader> open(const std::string& path, int token_bytes);
  const PieceFacts& facts() const { return facts_; }
  /// Calls take(ids, begins_document) for each record. bad_data: the piece is damaged.
  template <class Take>
  Status read(Take take) {
    for (uint64_t at = sizeof facts_; at < file_.bytes();) {
      bool begins = false;
      SS_RETURN_IF_ERROR(read_record(at, begins));
      SS_RETURN_IF_ERROR(take(std::span<const int32_t>(ids_), begins));
    }
    return {};
  }

 private:
  PieceReader(InputFile file, const PieceFacts& facts, int token_bytes)
      : file_(std::move(file)), facts_(facts), token_bytes_(static_cast<size_t>(token_bytes)) {}
  Status read_record(uint64_t& at, bool& begins);

  InputFile file_;
  PieceFacts facts_;
  size_t token_bytes_;
  std::vector<int32_t> ids_;
  std::string buffer_;
};

}  // namespace simplescale
