// manifest.json of a prepared folder: what was made from what. Written last, so that a folder with
// a manifest is whole.
//
// A prepared folder holds tokenizer.model, train.bin and validation.bin (llm.c format,
// token_file.hpp), manifest.json.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/hash.hpp"
#include "runtime/base/status.hpp"

namespace simplescale {

/// A file as it was: equal size and time of change mean unchanged; otherwise its hash decides.
struct FileRecord {
  std::string name;  // relative to the folder
  uint64_t bytes = 0;
  int64_t changed_ns = 0;  // mtime
  std::string hash;        // xxh3-128, 32 hex digits; empty: there is no such file
  bool operator==(const FileRecord&) const = default;
};

struct Manifest {
  static constexpr int current_format = 1;

  int format = current_format;
  // what it was made from
  std::string source;               // as given: a file, a folder, debian:bible-kjv
  std::string source_signature;     // of names, sizes and times
  std::string source_hash;          // xxh3-128 of the text
  std::string tokenizer_path;       // empty: trained on the source
  std::string tokenizer_signature;  // of the text it was trained on
  std::string tokenizer_hash;       // xxh3-128 of tokenizer.model
  int64_t vocab = 0;
  double validation_fraction = 0;
  uint64_t seed = 0;
  // what came out
  uint64_t documents = 0, text_bytes = 0;
  uint64_t train_tokens = 0, validation_tokens = 0;
  FileRecord tokenizer, train, validation;

  bool complete() const { return !tokenizer.hash.empty() && !train.hash.empty(); }
  bool operator==(const Manifest&) const = default;
};

/// folder/manifest.json. not_found: there is none; bad_data: it is damaged or of another format.
Result<Manifest> read_manifest(const std::string& folder);
/// Replaces folder/manifest.json atomically. bad_data or io.
Status write_manifest(const std::string& folder, const Manifest& manifest);

/// Size, time and hash of folder/name as it is now. not_found, io.
Result<FileRecord> record_file(const std::string& folder, const std::string& name);
/// Whether folder/record.name still is what was recorded. Reads the file only if its time has
/// changed, and notes the new time if the contents have not.
bool revalidate(const std::string& folder, FileRecord& record);

/// xxh3-128 of a file's contents, in hex. not_found, io.
Result<std::string> hash_file(const std::string& path);

}  // namespace simplescale
