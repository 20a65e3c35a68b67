#include "tools/prepare/document_cutter.hpp"

#include <cctype>
#include <utility>

namespace simplescale {

namespace {
bool letter(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0;  // ASCII: programs use the locale "C"
}
}  // namespace

Status DocumentCutter::add(TextChunk chunk) {
  if (cuts_ == Tokenizer::Cuts::newline) return take_(std::move(chunk));
  if (chunk.begins_document) {
    SS_RETURN_IF_ERROR(finish());
    pending_ = std::move(chunk);
  } else {
    if (pending_.text.size() >= piece_bytes_max) SS_RETURN_IF_ERROR(finish());
    append_ranges(pending_.masked, chunk.masked, pending_.text.size());
    pending_.text += chunk.text;
  }
  if (cuts_ != Tokenizer::Cuts::space) return {};
  const std::string& text = pending_.text;
  size_t begin = 0;
  for (; searched_ + 1 < text.size(); ++searched_) {
    if (searched_ - begin < piece_bytes || text[searched_] != ' ' || !letter(text[searched_ - 1]) ||
        !letter(text[searched_ + 1]))
      continue;
    SS_RETURN_IF_ERROR(emit(begin, searched_));
    begin = searched_;
  }
  if (begin > 0 && !pending_.masked.empty())
    pending_.masked = cut_ranges(pending_.masked, begin, text.size());
  pending_.text.erase(0, begin);
  searched_ -= begin;
  return {};
}

Status DocumentCutter::finish() {
  searched_ = 1;
  const Status done = pending_.text.empty() ? Status() : emit(0, pending_.text.size());
  pending_.text.clear();
  if (pending_.text.capacity() > piece_bytes_max) pending_.text.shrink_to_fit();
  pending_.masked.clear();
  return done;
}

/// Bytes [begin, end) of what is pending.
Status DocumentCutter::emit(size_t begin, size_t end) {
  return take_({std::exchange(pending_.begins_document, false),
                pending_.text.substr(begin, end - begin), cut_ranges(pending_.masked, begin, end)});
}

}  // namespace simplescale
