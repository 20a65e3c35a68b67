// manifest.json of a prepared folder (docs/formats.md): what was made from what. Any thread; blocks
// on the disk.
//
// A prepared folder:
//   tokenizer.model   SentencePiece
//   train.bin         tokens in llm.c format (token_file.hpp)
//   validation.bin    the same; missing if validation_fraction is 0
//   train.mask, validation.mask   which of them do not count in the loss (loss_mask.hpp); missing if
//                     all count
//   manifest.json     written last, so a folder with a complete() manifest is complete
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/hash.hpp"
#include "runtime/base/status.hpp"
#include "runtime/data/data_files.hpp"

namespace simplescale {

/// A file at the time of recording. It counts as unchanged if size and modification time are the
/// same, or else if its hash is.
struct FileRecord {
  std::string name;  // relative to the folder
  uint64_t bytes = 0;
  int64_t changed_ns = 0;  // mtime
  std::string hash;        // xxh3-128, 32 hex digits; "": there is no such file
  bool operator==(const FileRecord&) const = default;
};

/// A file of the text, as it was when it was encoded.
struct SourceFile {
  std::string path;  // in `source` if that is a folder
  uint64_t bytes = 0, documents = 0;
  std::string hash;  // xxh3-128 of the texts of its documents
  bool operator==(const SourceFile&) const = default;
};

struct Manifest {
  static constexpr int current_format = 1;
  // Values of validation_split. spread_bos: as spread, and each part of a document that does not
  // follow its file's last part of it begins with BOS.
  static constexpr const char *end = "end", *spread = "spread", *spread_bos = "spread-bos";
  // Values of row_texts: rows of .jsonl and .parquet without the blanks at their ends, or as they are.
  static constexpr const char *trimmed = "trimmed", *exact = "exact";
  static constexpr size_t sources_max = 100'000;

  int format = current_format;
  // Inputs.
  std::string source;               // PrepareOptions::source
  std::string source_signature;     // Corpus::signature()
  std::string source_hash;          // xxh3-128 of the text
  std::string tokenizer_path;       // "": the tokenizer was trained
  std::string tokenizer_signature;  // Corpus::signature() of the text that it was trained on
  std::string tokenizer_hash;       // xxh3-128 of tokenizer.model
  int64_t vocab = 0;
  double validation_fraction = 0;
  uint64_t seed = 0;
  // Outputs.
  uint64_t documents = 0, text_bytes = 0;
  uint64_t bad_lines = 0;  // of the text, left out (data.skip_bad)
  uint64_t train_tokens = 0, validation_tokens = 0;
  uint64_t masked_tokens = 0;          // of both: they do not count in the loss
  std::string validation_split = end;  // from where in the text the validation tokens are
  std::string row_texts = trimmed;
  int32_t appended_eos = -1;        // is behind each document; -1: nothing is
  std::vector<SourceFile> sources;  // none: more than sources_max, or of an earlier version
  FileRecord tokenizer, train, validation;
  FileRecord train_mask, validation_mask;  // loss_mask.hpp

  /// False: the tokens are missing, because preparation was interrupted.
  bool complete() const { return !tokenizer.hash.empty() && !train.hash.empty(); }
  /// All records; those without a hash are of files that do not exist.
  std::array<const FileRecord*, 5> files() const {
    return {&tokenizer, &train, &validation, &train_mask, &validation_mask};
  }
  bool operator==(const Manifest&) const = default;
};

/// Reads folder/manifest.json. not_found: there is none; bad_data: it is damaged or of another
/// format.
Result<Manifest> read_manifest(const std::string& folder, const DataFiles& files = {});
/// Replaces folder/manifest.json atomically. bad_data or io.
Status write_manifest(const std::string& folder, const Manifest& manifest);

/// Current size, time and hash of folder/name. not_found, io.
Result<FileRecord> record_file(const std::string& folder, const std::string& name);
/// True if folder/record.name still has the recorded contents. Hashes the file only if its time has
/// changed; if the contents have not, stores the new time in the record.
bool revalidate(const std::string& folder, FileRecord& record);

/// bad_data: one of the files that folder/manifest.json records has been replaced by another one. A
/// file with the recorded size and time is not read. hash_bytes_max: larger files are not hashed. Of
/// a folder in a bucket, only the sizes are compared.
Status check_files(const std::string& folder, const Manifest& manifest, const DataFiles& files,
                   uint64_t hash_bytes_max = UINT64_MAX);

/// xxh3-128 of a file's contents in hex. Errors as InputFile::open_inside() of own links.
Result<std::string> hash_file(const std::string& path);

}  // namespace simplescale
