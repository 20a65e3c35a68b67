#include "runtime/data/token_format.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <vector>

#include "runtime/base/words.hpp"
#include "runtime/data/raw_tokens.hpp"

namespace simplescale {

namespace fs = std::filesystem;

namespace {

/// The first bytes of a file, padded with zeros.
using Head = std::array<unsigned char, 40>;

Result<Head> head_of(const DataFile& file) {
  Head head{};
  SS_RETURN_IF_ERROR(file.read(0, head.data(), std::min<uint64_t>(head.size(), file.bytes())));
  return head;
}

template <class Number>
Number number_at(const Head& head, size_t byte) {
  Number value = 0;
  std::memcpy(&value, head.data() + byte, sizeof value);
  return value;
}

bool begins(const Head& head, const char* magic) {
  return std::memcmp(head.data(), magic, std::strlen(magic)) == 0;
}
bool begins_as_llmc(const Head& head) {
  const auto magic = number_at<uint32_t>(head, 0);
  return magic == llmc::magic_u16 || magic == llmc::magic_u32;
}

Result<TokenLayout> llmc_layout(const DataFile& file, const Head& head) {
  const std::string& path = file.path();
  if (!begins_as_llmc(head))
    return bad_byte(path, 0, "wrong magic for llm.c tokens, which begin with 20240520 or 20240801");
  if (file.bytes() < llmc::header_bytes)
    return bad_byte(path, file.bytes(), "the file ends within its header of 1024 bytes");
  const bool wide = number_at<uint32_t>(head, 0) == llmc::magic_u32;
  const uint32_t version = wide ? llmc::version_u32 : llmc::version_u16;
  if (number_at<uint32_t>(head, 4) != version)
    return bad_byte(path, 4,
                    "version " + std::to_string(number_at<uint32_t>(head, 4)) + ", but only " +
                        std::to_string(version) + " is known for this magic");
  const int token_bytes = wide ? 4 : 2;
  const auto count = number_at<uint64_t>(head, 8);
  const uint64_t rest = file.bytes() - llmc::header_bytes;
  if (rest % token_bytes != 0 || count != rest / token_bytes)
    return bad_byte(path, 8,
                    "the header says " + std::to_string(count) + " tokens of " +
                        std::to_string(token_bytes) + " bytes, but " + std::to_string(rest) +
                        " bytes follow it");
  if (count == 0) return bad_byte(path, 8, "the file holds no tokens");
  return TokenLayout{.offset = llmc::header_bytes, .count = count, .token_bytes = token_bytes};
}

Result<TokenLayout> litgpt_layout(const DataFile& file, const Head& head) {
  constexpr uint64_t kHeader = 24;
  if (!begins(head, "LITPKDS"))
    return bad_byte(file.path(), 0,
                    "wrong magic for lit-gpt's packed tokens, which begin with LITPKDS");
  if (file.bytes() < kHeader)
    return bad_byte(file.path(), file.bytes(), "the file ends within its header of 24 bytes");
  if (const auto version = number_at<uint64_t>(head, 7); version != 1)
    return bad_byte(file.path(), 7, "version " + std::to_string(version) + ", but only 1 is known");
  if (head[15] != 4 && head[15] != 8)
    return bad_byte(
        file.path(), 15,
        "tokens of type " + std::to_string(head[15]) + "; 4 (i32) and 8 (u16) are read");
  SS_ASSIGN(const TokenLayout layout, rest_of(file, kHeader, head[15] == 4 ? 4 : 2));
  if (const auto count = number_at<uint64_t>(head, 16); count != layout.count)
    return bad_byte(file.path(), 16,
                    "the header says " + std::to_string(count) + " tokens, but " +
                        std::to_string(layout.count) + " follow it");
  return layout;
}

std::string index_of(const std::string& bin) {
  return fs::path(bin).replace_extension(".idx").string();
}

/// Where the tables of a Megatron index lie.
struct Index {
  int token_bytes = 0;
  uint64_t sequences = 0, documents = 0;
  uint64_t lengths = 34;  // byte of the lengths: int32 of each sequence
  uint64_t pointers() const { return lengths + 4 * sequences; }  // int64 bytes in the .bin file
  uint64_t boundaries() const { return pointers() + 8 * sequences; }  // int64: sequences
};

Result<Index> read_index(const DataFile& file) {
  const std::string& path = file.path();
  SS_ASSIGN(const Head head, head_of(file));
  if (!begins(head, "MMIDIDX"))
    return bad_byte(path, 0, "wrong magic for a Megatron index, which begins with MMIDIDX");
  if (file.bytes() < 34)
    return bad_byte(path, file.bytes(), "the file ends within its header of 34 bytes");
  if (const auto version = number_at<uint64_t>(head, 9); version != 1)
    return bad_byte(path, 9, "version " + std::to_string(version) + ", but only 1 is known");
  if (head[17] != 4 && head[17] != 8)
    return bad_byte(
        path, 17, "tokens of type " + std::to_string(head[17]) + "; 4 (i32) and 8 (u16) are read");
  Index index{.token_bytes = head[17] == 4 ? 4 : 2,
              .sequences = number_at<uint64_t>(head, 18),
              .documents = number_at<uint64_t>(head, 26)};
  const uint64_t documents = index.documents;
  const uint64_t most = file.bytes() / 8;  // so that the sum below does not overflow
  if (index.sequences == 0 || index.sequences > most || documents > most ||
      index.pointers() + 8 * (index.sequences + documents) != file.bytes())
    return bad_byte(path, 18,
                    "the header says " + std::to_string(index.sequences) + " sequences and " +
                        std::to_string(documents) +
                        " document boundaries, which do not fit a file of " +
                        std::to_string(file.bytes()) + " bytes");
  return index;
}

Result<TokenLayout> megatron_layout(const DataFile& file, const DataFiles& files) {
  const std::string path = index_of(file.path());
  auto found = files.open(path);
  if (!found.ok())
    return Status(found.status().code() == Code::io ? Code::io : Code::bad_data,
                  "Megatron tokens need their index: " + found.status().message());
  const DataFile& opened = **found;
  SS_ASSIGN(const Index index, read_index(opened));
  int32_t length = 0;
  int64_t pointer = 0;
  const uint64_t last = index.sequences - 1;
  SS_RETURN_IF_ERROR(opened.read(index.lengths + 4 * last, &length, sizeof length));
  SS_RETURN_IF_ERROR(opened.read(index.pointers() + 8 * last, &pointer, sizeof pointer));
  if (length < 0 || pointer < 0 ||
      static_cast<uint64_t>(pointer) + static_cast<uint64_t>(length) * index.token_bytes !=
          file.bytes())
    return bad_byte(path, index.pointers() + 8 * last,
                    "the last sequence does not end where " + file.path() + " ends, at byte " +
                        std::to_string(file.bytes()));
  SS_ASSIGN(TokenLayout layout, rest_of(file, 0, index.token_bytes));
  layout.index = path;
  return layout;
}

}  // namespace

std::string token_file_of(const std::string& source, const DataFiles& files) {
  if (fs::path(source).extension() == ".idx")
    return fs::path(source).replace_extension(".bin").string();
  const bool prefix = !files.exists(source) && files.exists(source + ".idx");
  return prefix ? source + ".bin" : source;
}

bool is_token_name(const std::string& path) {
  return has_ending(path, ".bin") || has_ending(path, ".npy");
}

namespace {

/// Of the format that the user or the file names; nothing else is checked.
Result<TokenLayout> layout_of(const DataFile& file, const std::string& format,
                              const DataFiles& files) {
  SS_ASSIGN(const Head head, head_of(file));
  const bool automatic = format == "auto";
  const auto as = [](const char* name, Result<TokenLayout> layout) {
    if (layout.ok()) layout->format = name;
    return layout;
  };
  if (format == "llmc" || (automatic && begins_as_llmc(head)))
    return as("llmc", llmc_layout(file, head));
  if (format == "litgpt" || (automatic && begins(head, "LITPKDS")))
    return as("litgpt", litgpt_layout(file, head));
  if (automatic && begins(head, "MMIDIDX"))
    return bad_byte(
        file.path(), 0,
        "this is a Megatron index; its name must end in .idx, and its tokens lie beside it "
        "in a file that ends in .bin");
  if ((automatic || format == "nanogpt") && has_ending(file.path(), ".npy") &&
      begins(head, "\x93NUMPY"))
    return npy_layout(file);
  if (format == "megatron" || (automatic && files.exists(index_of(file.path()))))
    return as("megatron", megatron_layout(file, files));
  return Status(Code::not_found, "");
}

}  // namespace

Result<TokenLayout> token_layout(const DataFile& file, const TokenKind& kind, int64_t vocab,
                                 const DataFiles& files) {
  const std::string& path = file.path();
  auto layout = layout_of(file, kind.format, files);
  if (layout.status().code() == Code::not_found) {
    if (kind.format != "nanogpt" && kind.format != "auto")
      return Status(Code::bad_config,
                    "data.format \"" + kind.format +
                        "\" is not one of auto, text, prepared, nanogpt, llmc, megatron, litgpt");
    // Megatron's tools name their files so.
    if (kind.token_bytes == 0 && kind.format == "auto" && path.ends_with("_document.bin"))
      return Status(Code::bad_data, "Megatron tokens need their index: there is no " +
                                        index_of(path) +
                                        "; if these are no Megatron tokens, set data.token_bytes");
    return raw_layout(file, kind, vocab);
  }
  if (layout.ok() && kind.token_bytes != 0 && layout->token_bytes != kind.token_bytes)
    return Status(Code::bad_data,
                  (layout->index.empty() ? path : layout->index) + ": its header says ids of " +
                      std::to_string(layout->token_bytes) + " bytes, but data.token_bytes = " +
                      std::to_string(kind.token_bytes) + ": leave that key out");
  return layout;
}

namespace {

const std::string by_token = "; data.document_end names the token that ends a document instead";

/// The boundaries of documents are in order.
Status check_documents(const DataFile& file, const Index& index) {
  std::vector<int64_t> boundaries(std::min<uint64_t>(64 << 10, index.documents));
  int64_t before = 0;
  for (uint64_t first = 0; first < index.documents; first += boundaries.size()) {
    const uint64_t count = std::min<uint64_t>(boundaries.size(), index.documents - first);
    SS_RETURN_IF_ERROR(file.read(index.boundaries() + 8 * first, boundaries.data(), 8 * count));
    for (uint64_t i = 0; i < count; before = boundaries[i++])
      if (boundaries[i] < before || static_cast<uint64_t>(boundaries[i]) > index.sequences)
        return bad_byte(file.path(), index.boundaries() + 8 * (first + i),
                        "document boundary " + std::to_string(first + i) + " is sequence " +
                            std::to_string(boundaries[i]) + ", the one before is " +
                            std::to_string(before) + " of " + std::to_string(index.sequences) +
                            by_token);
  }
  return {};
}

}  // namespace

Status check_megatron_index(const TokenLayout& layout, bool documents, const DataFiles& files) {
  SS_ASSIGN(const auto opened, files.open(layout.index));
  const DataFile& file = *opened;
  SS_ASSIGN(const Index index, read_index(file));
  constexpr uint64_t kPiece = 64 << 10;
  std::vector<int32_t> lengths(std::min(kPiece, index.sequences));
  std::vector<int64_t> pointers(lengths.size());
  uint64_t byte = 0;  // in the .bin file
  for (uint64_t first = 0; first < index.sequences; first += lengths.size()) {
    const uint64_t count = std::min<uint64_t>(lengths.size(), index.sequences - first);
    SS_RETURN_IF_ERROR(file.read(index.lengths + 4 * first, lengths.data(), 4 * count));
    SS_RETURN_IF_ERROR(file.read(index.pointers() + 8 * first, pointers.data(), 8 * count));
    for (uint64_t i = 0; i < count; ++i) {
      if (lengths[i] < 0 || pointers[i] < 0 || static_cast<uint64_t>(pointers[i]) != byte)
        return bad_byte(layout.index, index.pointers() + 8 * (first + i),
                        "sequence " + std::to_string(first + i) + " begins at byte " +
                            std::to_string(pointers[i]) +
                            " of the tokens, the one before ends at " + std::to_string(byte) +
                            "; only files whose sequences follow each other are read");
      byte += static_cast<uint64_t>(lengths[i]) * static_cast<uint64_t>(index.token_bytes);
    }
  }
  return documents ? check_documents(file, index) : Status();
}

Result<MegatronDocuments> MegatronDocuments::open(const std::string& path, const DataFiles& files) {
  SS_ASSIGN(auto file, files.open(path));
  SS_ASSIGN(const Index index, read_index(*file));
  if (index.documents == 0) return bad_byte(path, 26, "it has no document boundaries" + by_token);
  for (const uint64_t i : {uint64_t{0}, index.documents - 1}) {
    int64_t sequence = 0;
    SS_RETURN_IF_ERROR(file->read(index.boundaries() + 8 * i, &sequence, sizeof sequence));
    if (const uint64_t wanted = i == 0 ? 0 : index.sequences;
        static_cast<uint64_t>(sequence) != wanted)
      return bad_byte(path, index.boundaries() + 8 * i,
                      std::string(i == 0 ? "the first" : "the last") +
                          " document boundary is sequence " + std::to_string(sequence) + ", not " +
                          std::to_string(wanted) + by_token);
  }
  return MegatronDocuments(std::move(file), index.token_bytes, index.sequences, index.documents,
                           index.pointers());
}

/// The first token of a document. The last entry of the index is behind the last document.
Result<uint64_t> MegatronDocuments::begin_of(uint64_t document) const {
  const uint64_t entry = pointers_ + 8 * (sequences_ + document);
  int64_t sequence = 0, byte = 0;
  SS_RETURN_IF_ERROR(file_->read(entry, &sequence, sizeof sequence));
  if (sequence < 0 || static_cast<uint64_t>(sequence) > sequences_)
    return bad_byte(file_->path(), entry,
                    "document " + std::to_string(document) + " begins with sequence " +
                        std::to_string(sequence) + " of " + std::to_string(sequences_));
  if (static_cast<uint64_t>(sequence) == sequences_) return UINT64_MAX;
  SS_RETURN_IF_ERROR(
      file_->read(pointers_ + 8 * static_cast<uint64_t>(sequence), &byte, sizeof byte));
  return static_cast<uint64_t>(byte) / static_cast<uint64_t>(token_bytes_);
}

Result<std::vector<uint64_t>> MegatronDocuments::begins(uint64_t begin, uint64_t end) const {
  uint64_t low = 0, high = documents_;  // the first document from `begin` on is in [low, high]
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    SS_ASSIGN(const uint64_t token, begin_of(middle));
    if (token < begin)
      low = middle + 1;
    else
      high = middle;
  }
  std::vector<uint64_t> found;
  for (; low < documents_; ++low) {
    SS_ASSIGN(const uint64_t token, begin_of(low));
    if (token >= end) break;
    if (token < (found.empty() ? begin : found.back()))  // replaced after it was checked
      return bad_byte(file_->path(), pointers_ + 8 * (sequences_ + low),
                      "document " + std::to_string(low) + " begins before token " +
                          std::to_string(found.empty() ? begin : found.back()));
    found.push_back(token);
  }
  return found;
}

std::string llmc::header(int token_bytes, uint64_t tokens) {
  SS_ASSERT(token_bytes == 2 || token_bytes == 4);
  const uint32_t words[4] = {token_bytes == 2 ? magic_u16 : magic_u32,
                             token_bytes == 2 ? version_u16 : version_u32,
                             static_cast<uint32_t>(tokens), static_cast<uint32_t>(tokens >> 32)};
  std::string bytes(header_bytes, '\0');
  std::memcpy(bytes.data(), words, sizeof words);
  return bytes;
}

}  // namespace simplescale
