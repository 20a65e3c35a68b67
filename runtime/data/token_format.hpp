// The formats of token files (docs/formats.md), all little-endian: what a file's name and header
// say of its tokens. Any thread; blocks on the disk.
//
//   llmc       a header of 256 int32 (magic 20240520: u16 tokens, 20240801: u32 tokens; version;
//              token count), then the tokens
//   megatron   a .bin file of u16 or i32 tokens and an .idx file of its sequences (MMIDIDX)
//   litgpt     a header of 24 bytes (LITPKDS), then u16 or i32 tokens
//   nanogpt    u16 tokens and nothing else
//   npy        NumPy's .npy of one dimension
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/data/data_files.hpp"

namespace simplescale {

/// What the user says of token files.
struct TokenKind {
  TokenKind(const char* name) : format(name) {}   // NOLINT: a format is a kind of tokens
  TokenKind(std::string name, int64_t bytes = 0)  // NOLINT
      : format(std::move(name)), token_bytes(static_cast<int>(bytes)) {}
  std::string format;   // one of the above, "prepared", or "auto": as the file says
  int token_bytes = 0;  // 2 or 4; 0: not said
};

/// Where the tokens of a file lie.
struct TokenLayout {
  uint64_t offset = 0;  // byte of the first token
  uint64_t count = 0;
  int token_bytes = 2;      // 2, 4 or 8
  std::string index = {};   // path of the Megatron index; "": none
  std::string format = {};  // one of the above
  bool guessed = false;     // nothing but its contents says that ids have two bytes
};

/// True for the names of token files in a folder: .bin and .npy, in capitals or not.
bool is_token_name(const std::string& path);

/// The token file that `source` means: its own path, or of a Megatron index or prefix (PATH.idx, or
/// PATH with PATH.idx and PATH.bin) the path of the .bin file.
std::string token_file_of(const std::string& source, const DataFiles& files = {});

/// Reads the header; "auto": of the first format that fits, by magic, by an .idx file beside it, or by
/// what raw_tokens.hpp looks at. vocab: of the model. bad_data with file and byte: wrong magic,
/// version or type of token, a length that does not match the count, another width than
/// kind.token_bytes, or as raw_layout() and npy_layout(). bad_config: unknown format.
Result<TokenLayout> token_layout(const DataFile& file, const TokenKind& kind, int64_t vocab,
                                 const DataFiles& files = {});

/// Reads a Megatron index as a whole. bad_data with file and byte: the sequences are not the tokens
/// of the .bin file in their order; documents: or the boundaries of documents are not in order.
Status check_megatron_index(const TokenLayout& layout, bool documents, const DataFiles& files = {});

/// The documents of a Megatron .bin file, as its index tells them. Any thread may ask.
class MegatronDocuments {
 public:
  /// path: of the index. Errors as token_layout(), and bad_data: there are no boundaries of documents,
  /// or they do not reach from the first sequence to the last one.
  static Result<MegatronDocuments> open(const std::string& path, const DataFiles& files = {});
  /// The tokens of [begin, end) that begin a document, in order, counted from the start of the .bin
  /// file. bad_data: the index contradicts itself; io.
  Result<std::vector<uint64_t>> begins(uint64_t begin, uint64_t end) const;

 private:
  MegatronDocuments(std::shared_ptr<const DataFile> file, int token_bytes, uint64_t sequences,
                    uint64_t documents, uint64_t pointers)
      : file_(std::move(file)),
        token_bytes_(token_bytes),
        sequences_(sequences),
        documents_(documents),
        pointers_(pointers) {}
  Result<uint64_t> begin_of(uint64_t document) const;

  std::shared_ptr<const DataFile> file_;
  int token_bytes_;
  uint64_t sequences_, documents_;
  uint64_t pointers_;  // byte of the pointers, which the documents follow
};

namespace llmc {
inline constexpr uint32_t magic_u16 = 20240520, magic_u32 = 20240801;
inline constexpr uint32_t version_u16 = 1, version_u32 = 7;  // as llm.c writes them
inline constexpr uint64_t header_bytes = 1024;
/// The 256 words of the header. Word 2 is the low half of the token count; word 3, which is zero in
/// llm.c, the high half.
std::string header(int token_bytes, uint64_t tokens);
}  // namespace llmc

}  // namespace simplescale
