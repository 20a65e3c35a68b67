#include "runtime/data/token_file.hpp"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <vector>

#include "runtime/data/manifest.hpp"
#include "runtime/object_store/s3_url.hpp"

namespace simplescale {

namespace fs = std::filesystem;

namespace {

Result<std::shared_ptr<const DataFile>> open_file(const std::string& path, const DataFiles& files) {
  auto opened = files.open(path);
  if (!opened.ok()) {
    const bool io = opened.status().code() == Code::io;
    return Status(io ? Code::io : Code::bad_data, "token file: " + opened.status().message());
  }
  if ((*opened)->bytes() == 0) return bad_byte(path, 0, "the file is empty");
  return opened.take();
}

/// The loss mask beside a token file of so many tokens; null: there is none.
Result<std::shared_ptr<const LossMask>> open_mask(const std::string& token_file, uint64_t tokens,
                                                  const DataFiles& files) {
  const std::string path = loss_mask_of(token_file);
  if (path == token_file || !files.exists(path)) return std::shared_ptr<const LossMask>();
  SS_ASSIGN(LossMask mask, LossMask::open(path, tokens, files));
  return std::shared_ptr<const LossMask>(std::make_shared<const LossMask>(std::move(mask)));
}

/// The largest token of a block. Its length is constant, so that the compiler vectorizes the loop.
constexpr uint64_t block = 4096;
template <class Token>
Token largest(const Token* tokens) {
  Token most = 0;
  for (uint64_t i = 0; i < block; ++i) most = tokens[i] > most ? tokens[i] : most;
  return most;
}

/// Index of the first id that is not below the vocabulary; `count` if there is none.
template <class Token>
uint64_t first_bad(const Token* tokens, uint64_t count, uint64_t vocab) {
  uint64_t i = 0;
  while (i + block <= count && largest(tokens + i) < vocab) i += block;
  while (i < count && tokens[i] < vocab) ++i;
  return i;
}

/// Calls use() with a number of the type that an id of so many bytes has: 2, 4 or 8.
template <class Use>
Status with_width(int64_t token_bytes, const Use& use) {
  return token_bytes == 2 ? use(uint16_t{}) : token_bytes == 4 ? use(uint32_t{}) : use(uint64_t{});
}

}  // namespace

Result<TokenSource> TokenSource::open(const std::vector<std::string>& paths, const TokenKind& kind,
                                      int64_t vocab, const DataFiles& files) {
  SS_ASSERT(vocab > 0 && vocab - 1 <= kLargestTokenId && !paths.empty());
  TokenSource source;
  source.vocab_ = vocab;
  source.files_ = files;
  for (const std::string& path : paths) {
    SS_ASSIGN(const auto file, open_file(path, files));
    SS_ASSIGN(const TokenLayout layout, token_layout(*file, kind, vocab, files));
    SS_ASSIGN(auto mask, open_mask(path, layout.count, files));
    source.parts_.push_back({.file = file,
                             .layout = layout,
                             .first = source.count_,
                             .documents = nullptr,
                             .mask = std::move(mask),
                             .to_file = uint64_t{0} - source.count_});
    SS_RETURN_IF_ERROR(check_format(source.parts_.front(), source.parts_.back()));
    source.count_ += layout.count;
  }
  return source;
}

Result<TokenSource> TokenSource::open(const std::string& path, const TokenKind& kind, int64_t vocab,
                                      const DataFiles& files) {
  return open(std::vector{path}, kind, vocab, files);
}

Status TokenSource::reopen() {
  std::vector<Part> parts = parts_;
  for (Part& part : parts) {
    SS_ASSIGN(auto file, open_file(part.file->path(), files_));
    if (file->bytes() != part.file->bytes())
      return bad_byte(
          file->path(), file->bytes(),
          "the file ends here, it had " + std::to_string(part.file->bytes()) + " bytes");
    part.file = std::move(file);
    if (!part.mask) continue;
    SS_ASSIGN(LossMask mask, LossMask::open(part.mask->path(), part.mask->tokens(), files_));
    part.mask = std::make_shared<const LossMask>(std::move(mask));
  }
  parts_ = std::move(parts);
  return {};
}

uint64_t TokenSource::Part::byte_of(uint64_t index) const {
  return layout.offset + (index - first) * static_cast<uint64_t>(layout.token_bytes);
}

Status TokenSource::bad_id(const Part& part, uint64_t index, uint64_t id) const {
  const bool is_signed = part.layout.token_bytes == 4 && !part.layout.index.empty();  // Megatron's
  if (is_signed && id > INT32_MAX)
    return bad_byte(part.file->path(), part.byte_of(index),
                    "token id " + std::to_string(static_cast<int32_t>(id)) + " is negative");
  return bad_byte(
      part.file->path(), part.byte_of(index),
      "token id " + std::to_string(id) + " is beyond the vocabulary of " + std::to_string(vocab_));
}

template <class Token>
Status TokenSource::validate_as(const Part& part) const {
  const uint64_t end = part.first + part.layout.count;
  std::vector<Token> chunk(std::min<uint64_t>(part.layout.count, (1 << 20) / sizeof(Token)));
  for (uint64_t first = part.first; first < end; first += chunk.size()) {
    const uint64_t count = std::min<uint64_t>(chunk.size(), end - first);
    SS_RETURN_IF_ERROR(part.file->read(part.byte_of(first), chunk.data(), count * sizeof(Token)));
    const uint64_t bad = first_bad(chunk.data(), count, static_cast<uint64_t>(vocab_));
    if (bad < count) return bad_id(part, first + bad, chunk[bad]);
  }
  return {};
}

Status TokenSource::validate_tables() const {
  for (const Part& part : parts_) {
    if (!part.layout.index.empty())
      SS_RETURN_IF_ERROR(check_megatron_index(part.layout, part.documents != nullptr, files_));
    if (part.mask) SS_RETURN_IF_ERROR(part.mask->validate());
  }
  return {};
}

Status TokenSource::validate() const {
  SS_RETURN_IF_ERROR(validate_tables());
  for (const Part& part : parts_) {
    // All tokens of a bucket would take too long: each sample is checked when it is read.
    if (is_s3_url(part.file->path())) continue;
    SS_RETURN_IF_ERROR(with_width(part.layout.token_bytes,
                                  [&](auto token) { return validate_as<decltype(token)>(part); }));
  }
  return {};
}

Status TokenSource::require_block(int64_t block_size) const {
  if (count_ > static_cast<uint64_t>(block_size)) return {};
  return Status(Code::bad_data, path() + ": " + std::to_string(count_) +
                                    " tokens are fewer than one sample of block_size + 1 = " +
                                    std::to_string(block_size + 1) + " tokens");
}

uint64_t TokenSource::samples(int64_t block_size) const {
  SS_ASSERT(block_size > 0 && (!packing_ || packing_->block_size() == block_size));
  if (packing_) return packing_->samples();
  return count_ == 0 ? 0 : (count_ - 1) / static_cast<uint64_t>(block_size);
}

/// Reads narrow ids to the end of `out` and widens them in place from the front: an id is
/// overwritten only after it has been read. Wider ones do not fit there.
template <class Token>
Status TokenSource::read_as(const Part& part, uint64_t first, uint64_t count, int32_t* out) const {
  constexpr bool kFits = sizeof(Token) <= sizeof *out;
  std::vector<Token> wide(kFits ? 0 : count);
  auto* narrow = reinterpret_cast<unsigned char*>(wide.data());
  if constexpr (kFits)
    narrow = reinterpret_cast<unsigned char*>(out) + count * (sizeof *out - sizeof(Token));
  if (Status read = part.file->read(part.byte_of(first), narrow, count * sizeof(Token)); !read.ok())
    return part.file->while_training(read);
  uint64_t most = 0;
  for (uint64_t i = 0; i < count; ++i) {
    Token id;
    std::memcpy(&id, narrow + i * sizeof id, sizeof id);
    most = std::max<uint64_t>(most, id);
    out[i] = static_cast<int32_t>(id);
  }
  const auto vocab = static_cast<uint64_t>(vocab_);
  if (most < vocab) return {};
  uint64_t bad = 0;
  while (static_cast<uint32_t>(out[bad]) < vocab && (kFits || wide[bad] < vocab)) ++bad;
  return bad_id(part, first + bad, kFits ? static_cast<uint32_t>(out[bad]) : wide[bad]);
}

std::vector<std::string> TokenSource::paths() const {
  std::vector<std::string> all;
  for (const Part& part : parts_) {
    all.push_back(part.file->path());
    if (!part.layout.index.empty()) all.push_back(part.layout.index);
    if (part.mask) all.push_back(part.mask->path());
  }
  return all;
}

std::vector<std::string> TokenSource::guessed() const {
  std::vector<std::string> paths;
  for (const Part& part : parts_)
    if (part.layout.guessed) paths.push_back(part.file->path());
  return paths;
}

Status TokenSource::check_format(const Part& one, const Part& other) {
  if (one.layout.format == other.layout.format) return {};
  const auto text = [](const Part& part) {
    return part.file->path() + " is of " +
           (part.layout.format == "nanogpt" ? "bare ids, without a header" : part.layout.format);
  };
  return Status(Code::bad_data, text(one) + ", but " + text(other) +
                                    ": a folder holds one format; restore the file if its header "
                                    "or its index is lost, or move it to a folder of its own");
}

Status TokenSource::check_format(const TokenSource& other) const {
  return parts_.empty() || other.parts_.empty()
             ? Status()
             : check_format(parts_.front(), other.parts_.front());
}

bool TokenSource::has_document_index() const {
  return !parts_.empty() &&
         std::ranges::none_of(parts_, [](const Part& part) { return part.layout.index.empty(); });
}

Status TokenSource::use_documents(const DocumentRule& rule) {
  documents_ = rule;
  for (Part& part : parts_) {
    part.documents.reset();
    if (!rule.finds() || !rule.by_index || part.layout.index.empty()) continue;
    SS_ASSIGN(MegatronDocuments documents, MegatronDocuments::open(part.layout.index, files_));
    part.documents = std::make_shared<const MegatronDocuments>(std::move(documents));
  }
  return {};
}

/// The id before the sample that begins with token `first`; -1: there is none.
Result<int32_t> TokenSource::id_before(uint64_t first) const {
  int32_t id = -1;
  if (first == 0) return id;
  const Part& part = *std::prev(std::ranges::upper_bound(parts_, first - 1, {}, &Part::first));
  SS_RETURN_IF_ERROR(with_width(part.layout.token_bytes, [&](auto token) {
    return read_as<decltype(token)>(part, first - 1, 1, &id);
  }));
  return id;
}

/// tokens: [first, first + tokens.size()) of this source, without marks.
Status TokenSource::mark_documents(uint64_t first, std::span<int32_t> tokens) const {
  int32_t before = -1;
  if (documents_.first_ends && documents_.end >= 0 && tokens[0] == documents_.first) {
    SS_ASSIGN(before, id_before(first));
  }
  if (!documents_.by_index) {
    mark_by_ids(documents_, tokens, before);
    return {};
  }
  const uint64_t end = first + tokens.size();
  for (const Part& part : parts_) {
    const uint64_t begin = std::max(first, part.first),
                   stop = std::min(end, part.first + part.layout.count);
    if (begin >= stop || !part.documents) continue;
    SS_ASSIGN(const auto begins, part.documents->begins(begin + part.to_file, stop + part.to_file));
    for (const uint64_t token : begins)
      mark_document(documents_, tokens, static_cast<size_t>(token - part.to_file - first), before);
  }
  return {};
}

/// tokens: targets, [first, first + tokens.size()) of this source.
Status TokenSource::mark_untrained(uint64_t first, std::span<int32_t> tokens) const {
  for (const Part& part : parts_) {
    const uint64_t begin = std::max(first, part.first),
                   stop = std::min(first + tokens.size(), part.first + part.layout.count);
    if (begin >= stop || !part.mask) continue;
    SS_ASSIGN(const IndexRanges masked,
              part.mask->masked(begin + part.to_file, stop + part.to_file));
    for (const IndexRange& range : masked)
      for (uint64_t token = range.begin; token < range.end; ++token)
        tokens[static_cast<size_t>(token - part.to_file - first)] |= kNotTrained;
  }
  return {};
}

Status TokenSource::read_tokens(uint64_t first, uint64_t count, int32_t* out) const {
  const uint64_t end = first + count;
  auto part = std::prev(std::ranges::upper_bound(parts_, first, {}, &Part::first));
  for (; first < end; ++part) {
    const uint64_t of_part = std::min(end, part->first + part->layout.count) - first;
    SS_RETURN_IF_ERROR(with_width(part->layout.token_bytes, [&](auto token) {
      return read_as<decltype(token)>(*part, first, of_part, out);
    }));
    first += of_part;
    out += of_part;
  }
  return {};
}

Status TokenSource::read_sample(uint64_t position, int64_t block_size, int32_t* out) const {
  SS_ASSERT(position < samples(block_size));
  const std::span tokens(out, static_cast<size_t>(block_size) + 1);
  if (packing_) return read_packed(position, tokens);
  const uint64_t first = position * static_cast<uint64_t>(block_size);
  SS_RETURN_IF_ERROR(read_tokens(first, tokens.size(), out));
  if (documents_.marks()) SS_RETURN_IF_ERROR(mark_documents(first, tokens));
  return mark_untrained(first + 1, tokens.subspan(1));  // the first one is no target
}

std::string TokenSource::place_of(uint64_t position, int64_t block_size) const {
  SS_ASSERT(position < samples(block_size));
  uint64_t first = position * static_cast<uint64_t>(block_size);
  if (packing_) {
    const auto pieces = packing_->sample(position);
    if (!pieces.ok()) return pieces.status().message();
    first = pieces->front().first;
  }
  const Part& part = *std::prev(std::ranges::upper_bound(parts_, first, {}, &Part::first));
  return part.file->path() + ", byte " + std::to_string(part.byte_of(first));
}

bool TokenSource::read_ahead(uint64_t position, int64_t block_size) const {
  if (packing_) return true;  // never in a bucket
  const uint64_t first = position * static_cast<uint64_t>(block_size),
                 end = first + static_cast<uint64_t>(block_size) + 1;
  for (const Part& part : parts_) {
    const uint64_t begin = std::max(first, part.first),
                   stop = std::min(end, part.first + part.layout.count);
    if (begin < stop &&
        !part.file->read_ahead(part.byte_of(begin), part.byte_of(stop) - part.byte_of(begin)))
      return false;
  }
  return true;
}

TokenSource TokenSource::slice(uint64_t first, uint64_t count) const {
  SS_ASSERT(first <= count_ && count <= count_ - first && !packing_);
  TokenSource slice;
  slice.vocab_ = vocab_;
  slice.files_ = files_;
  slice.documents_ = documents_;
  slice.count_ = count;
  for (Part part : parts_) {
    const uint64_t begin = std::max(part.first, first);
    const uint64_t end = std::min(part.first + part.layout.count, first + count);
    if (begin >= end) continue;
    part.layout.offset = part.byte_of(begin);
    part.layout.count = end - begin;
    part.first = begin - first;
    part.to_file += first;
    slice.parts_.push_back(std::move(part));
  }
  return slice;
}

bool is_for_validation(const std::string& path) {
  const std::string name = fs::path(path).filename().string();
  const auto letter = [](char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; };
  for (size_t at = 0, end = 0; at < name.size(); at = end + 1) {
    std::string word;
    for (end = at; end < name.size() && letter(name[end]); ++end)
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(name[end])));
    for (const char* held : {"val", "valid", "validation", "eval", "evaluation"})
      if (word == held) return true;
  }
  return false;
}

namespace {

constexpr uint64_t kHashBytesMax = uint64_t{256} << 20;  // opening larger files must not take long
const std::string no_tokens = "; if it holds text, set data.format = \"text\"";

Result<Dataset> open_prepared(const std::string& folder, int token_bytes, int64_t vocab,
                              const DataFiles& files) {
  const TokenKind kind("llmc", token_bytes);
  auto manifest = read_manifest(folder, files);
  if (manifest.status().code() == Code::io) return manifest.status();
  if (!manifest.ok()) return Status(Code::bad_data, manifest.status().message());
  if (!manifest->complete())
    return Status(Code::bad_data,
                  folder + ": its preparation was interrupted; prepare the data again");
  if (manifest->vocab > vocab)
    return Status(Code::bad_data, folder + " was prepared for a vocabulary of " +
                                      std::to_string(manifest->vocab) + ", the model has " +
                                      std::to_string(vocab));
  SS_RETURN_IF_ERROR(check_files(folder, *manifest, files, kHashBytesMax));
  Dataset data;
  data.documents_end = manifest->appended_eos >= 0;
  SS_ASSIGN(data.tokenizer,
            files.on_disk(folder + "/" + manifest->tokenizer.name, manifest->tokenizer.hash));
  SS_ASSIGN(data.train, TokenSource::open(folder + "/" + manifest->train.name, kind, vocab, files));
  if (manifest->validation_tokens > 0) {
    SS_ASSIGN(data.validation,
              TokenSource::open(folder + "/" + manifest->validation.name, kind, vocab, files));
  }
  for (const auto& [source, tokens] : {std::pair{&data.train, manifest->train_tokens},
                                       std::pair{&data.validation, manifest->validation_tokens}})
    if (source->tokens() != tokens)
      return Status(Code::bad_data, source->path() + " holds " + std::to_string(source->tokens()) +
                                        " tokens, its manifest.json says " +
                                        std::to_string(tokens) + "; prepare the data again");
  for (const auto& [source, record] : {std::pair{&data.train, &manifest->train_mask},
                                       std::pair{&data.validation, &manifest->validation_mask}}) {
    const std::string mask = source->tokens() > 0 ? loss_mask_of(source->path()) : "";
    if (record->hash.empty() && !mask.empty() && files.exists(mask))
      return Status(Code::bad_data, mask +
                                        " is not in the folder's manifest.json; remove it, or "
                                        "prepare the data again");
  }
  return data;
}

}  // namespace

Result<Dataset> open_dataset(const std::string& source, const TokenKind& kind, int64_t vocab,
                             double validation_fraction, const DataFiles& files) {
  SS_ASSERT(validation_fraction >= 0 && validation_fraction < 1);
  SS_ASSIGN(const std::string path, files.find(source));
  const bool folder = files.is_folder(path);
  const bool manifest = folder && files.exists(path + "/manifest.json");
  if (kind.format == "prepared" || (kind.format == "auto" && manifest))
    return open_prepared(path, kind.token_bytes, vocab, files);
  Dataset data;
  if (folder && files.exists(path + "/train.bin")) {
    SS_ASSIGN(data.train, TokenSource::open(path + "/train.bin", kind, vocab, files));
    for (const char* name : {"/validation.bin", "/val.bin"})
      if (data.validation.tokens() == 0 && files.exists(path + name)) {
        SS_ASSIGN(data.validation, TokenSource::open(path + name, kind, vocab, files));
      }
    SS_RETURN_IF_ERROR(data.train.check_format(data.validation));
    return data;
  }
  std::vector<std::string> paths =
      folder ? files.token_files(path) : std::vector<std::string>{token_file_of(path, files)};
  const auto held = std::ranges::stable_partition(
      paths, [&](const std::string& file) { return !folder || !is_for_validation(file); });
  const std::vector<std::string> validation(held.begin(), held.end());
  paths.erase(held.begin(), held.end());
  if (paths.empty())
    return Status(Code::bad_data,
                  path + ": the folder holds no token files (.bin or .npy) to train on" +
                      (is_s3_url(path) ? no_tokens : ""));
  SS_ASSIGN(TokenSource all, TokenSource::open(paths, kind, vocab, files));
  if (!validation.empty()) {
    data.train = std::move(all);
    SS_ASSIGN(data.validation, TokenSource::open(validation, kind, vocab, files));
    SS_RETURN_IF_ERROR(data.train.check_format(data.validation));
    return data;
  }
  const auto held_back =
      static_cast<uint64_t>(static_cast<double>(all.tokens()) * validation_fraction);
  data.train = all.slice(0, all.tokens() - held_back);
  data.validation = all.slice(all.tokens() - held_back, held_back);
  return data;
}

}  // namespace simplescale
