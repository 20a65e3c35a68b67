// Samples of whole documents: what TokenSource reads after pack().
#include <sys/stat.h>

#include <algorithm>

#include "runtime/base/hash.hpp"
#include "runtime/base/log.hpp"
#include "runtime/data/token_file.hpp"

namespace simplescale {

namespace {

constexpr uint64_t kScanTokens = 1 << 20;          // tokens that are read at once
constexpr uint64_t kScanTold = uint64_t{1} << 30;  // more tokens take long to read

/// Changes whenever a file is written or replaced.
std::string file_identity(const std::string& path) {
  struct stat info {};
  if (path.empty() || ::stat(path.c_str(), &info) != 0) return path;
  return path + " " + std::to_string(info.st_size) + " " + std::to_string(info.st_ino) + " " +
         std::to_string(info.st_mtim.tv_sec) + "." + std::to_string(info.st_mtim.tv_nsec);
}

}  // namespace

/// Visits the documents in order. What is before the first one counts as one.
Status TokenSource::each_document(
    const std::function<Status(uint64_t first, uint64_t count)>& visit) const {
  uint64_t first = 0;
  const auto begin_at = [&](uint64_t token) {
    if (token == first) return Status();
    Status visited = visit(first, token - first);
    first = token;
    return visited;
  };
  std::vector<int32_t> ids(std::min(kScanTokens, count_));
  int32_t before = -1;
  for (const Part& part : parts_)
    for (uint64_t at = part.first, end = at + part.layout.count; at < end;) {
      const uint64_t count = std::min(kScanTokens, end - at);
      if (documents_.by_index) {
        SS_ASSIGN(const auto begins,
                  part.documents->begins(at + part.to_file, at + count + part.to_file));
        for (const uint64_t token : begins) SS_RETURN_IF_ERROR(begin_at(token - part.to_file));
      } else {
        SS_RETURN_IF_ERROR(read_tokens(at, count, ids.data()));
        for (uint64_t i = 0; i < count; before = ids[i++])
          if (documents_.begins(ids[i], before)) SS_RETURN_IF_ERROR(begin_at(at + i));
      }
      at += count;
    }
  return begin_at(count_);
}

Status TokenSource::pack(int64_t block_size, const std::string& folder) {
  packing_.reset();
  if (count_ == 0) return {};
  std::string text = std::to_string(block_size) + " " + std::to_string(documents_.first) + " " +
                     std::to_string(documents_.last) + (documents_.by_index ? " index" : "");
  for (const Part& part : parts_)
    text += "\n" + file_identity(part.file->path()) + " " + file_identity(part.layout.index) + " " +
            std::to_string(part.layout.offset) + " " + std::to_string(part.layout.count);
  const std::string key = hash128(text.data(), text.size()).hex();
  auto packing = SamplePacking::open(folder, key, block_size, count_, [this](const auto& visit) {
    if (count_ > kScanTold && !documents_.by_index)
      log::info("looking for the documents of {}", path());
    return each_document(visit);
  });
  SS_RETURN_IF_ERROR(packing.status());
  packing_ = std::make_shared<const SamplePacking>(packing.take());
  return {};
}

Status TokenSource::read_packed(uint64_t position, std::span<int32_t> tokens) const {
  SS_ASSIGN(const std::vector<PackedPiece> pieces, packing_->sample(position));
  const int32_t padding = std::max(0, std::max(documents_.first, documents_.last)) | kNotTrained;
  size_t at = 0;
  for (const PackedPiece& piece : pieces) {
    SS_RETURN_IF_ERROR(read_tokens(piece.first, piece.count, tokens.data() + at));
    at += piece.count;
  }
  // The target of the last input is what follows it in the source.
  const PackedPiece& last = pieces.back();
  const uint64_t behind = last.first + last.count;
  std::ranges::fill(tokens.subspan(at), padding);
  if (behind < count_) SS_RETURN_IF_ERROR(read_tokens(behind, 1, &tokens[at]));
  if (documents_.marks()) {
    int32_t before = -1;
    if (documents_.first_ends && documents_.end >= 0 && pieces.front().begins) {
      SS_ASSIGN(before, id_before(pieces.front().first));
    }
    size_t begin = 0;
    for (const PackedPiece& piece : pieces) {
      if (piece.begins) mark_document(documents_, tokens, begin, before);
      begin += piece.count;
    }
    if (last.ends) mark_document(documents_, tokens, at, before);
  }
  size_t begin = 0;
  for (const PackedPiece& piece : pieces) {
    // A rest is no continuation of what is before it in the sample.
    if (begin > 0 && !piece.begins)
      tokens[begin] |= kNotTrained | (documents_.mask ? kBeginsDocument : 0);
    const size_t skipped = begin == 0;  // the first token of a sample is no target
    SS_RETURN_IF_ERROR(mark_untrained(piece.first + skipped,
                                      tokens.subspan(begin + skipped, piece.count - skipped)));
    begin += piece.count;
  }
  if (behind < count_) SS_RETURN_IF_ERROR(mark_untrained(behind, tokens.subspan(at, 1)));
  return {};
}

}  // namespace simplescale
