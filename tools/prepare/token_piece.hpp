// The tokens of one file of a text, as a file of their own. `prepare` keeps these pieces while it
// works, so that files can be encoded in parallel, and so that an interruption costs little. One
// thread for each writer and reader.
//
//   PieceFacts    see below; machine's byte order, since a piece is read on the machine type that
//                 wrote it. Of a piece that is being written: the records that are on the disk
//
// A small piece is not synced, since many of them would take long. Its hash says whether a crash of
// the machine has damaged it.
//
//   records       u32 count of ids; its highest bit: the record begins a document; its second
//                 highest: some tokens are masked. Then, if so, u32 count of ranges and these, u32
//                 begin and end each; then the ids
#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/hash.hpp"
#include "runtime/base/index_ranges.hpp"
#include "runtime/base/input_file.hpp"
#include "runtime/base/open_output.hpp"
#include "runtime/base/status.hpp"
#include "tools/prepare/token_split.hpp"

namespace simplescale {

struct PieceFacts {
  uint64_t magic = 0;  // filled in by the writer
  uint64_t documents = 0, text_bytes = 0, bad_lines = 0;
  uint64_t bytes = 0, records = 0;  // of all records, their count; filled in by the writer
  Hash128 text;                     // xxh3-128 of the documents' texts
  Hash128 made_from;                // the file, how it is read, and the tokenizer
  Hash128 stored;                   // of the bytes of all records; zero: they are synced
};

/// Tokens that follow each other: of a document, or of a part of one.
struct TokenRecord {
  bool begins_document = false;
  std::vector<int32_t> ids;
  IndexRanges masked;  // indices of those that do not count in the loss
};

class PieceWriter {
 public:
  /// Writes a file of its own beside `path` until finish(). The holder of the piece's lock writes
  /// PATH.RANDOM.part: whenever keep_bytes more have been written, they are synced, and a later
  /// holder may go on behind them. keep_bytes is unset for a process without the lock. That process
  /// writes PATH.RANDOM.alone, which no holder takes over: its writer may live.
  PieceWriter(const std::string& path, int token_bytes, std::optional<uint64_t> keep_bytes);
  PieceWriter(const PieceWriter&) = delete;
  PieceWriter& operator=(const PieceWriter&) = delete;
  /// Leaves what a later writer may go on with; else removes what is not finished.
  ~PieceWriter();
  /// Before the first write(): takes over what a holder of the piece's lock whose process died has
  /// left. Returns how many records are there already. Requires the lock.
  Result<uint64_t> resume();
  /// What is there is of another text: the destructor removes it.
  void forget() { kept_ = 0; }
  Status write(const TokenRecord& record);
  /// Gives the piece its final name. A piece under its final name is whole, unless the machine has
  /// crashed since and PieceReader::check() says otherwise.
  Status finish(PieceFacts facts);

 private:
  void put(std::string_view bytes);
  Status keep();
  Status put_facts(PieceFacts facts);

  const std::string path_, part_;
  const std::optional<uint64_t> keep_bytes_;
  NarrowTokens narrow_;
  OutputStream out_;
  uint64_t bytes_ = 0, records_ = 0;
  uint64_t kept_ = 0;  // bytes
  Hasher stored_;      // of what this writer has written
};

class PieceReader {
 public:
  /// not_found: there is none; bad_data: it is damaged.
  static Result<PieceReader> open(const std::string& path, int token_bytes);
  const PieceFacts& facts() const { return facts_; }
  /// bad_data: a crash of the machine has damaged the piece, which was not synced. Reads all of it.
  Status check() const;
  /// Calls take(const TokenRecord&) for each record. bad_data: the piece is damaged.
  template <class Take>
  Status read(Take take) {
    for (uint64_t at = sizeof facts_; at < file_.bytes();) {
      SS_RETURN_IF_ERROR(read_record(at));
      SS_RETURN_IF_ERROR(take(record_));
    }
    return {};
  }

 private:
  PieceReader(InputFile file, const PieceFacts& facts, int token_bytes)
      : file_(std::move(file)), facts_(facts), token_bytes_(static_cast<size_t>(token_bytes)) {}
  Status read_record(uint64_t& at);

  InputFile file_;
  PieceFacts facts_;
  size_t token_bytes_;
  TokenRecord record_;
  std::string buffer_;
};

}  // namespace simplescale
