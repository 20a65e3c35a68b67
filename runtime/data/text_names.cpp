#include "runtime/data/text_names.hpp"

#include <algorithm>
#include <array>

#include "runtime/base/words.hpp"

namespace simplescale {

std::string_view without_compression(std::string_view name) {
  for (const std::string_view suffix : {".gz", ".zst", ".xz", ".bz2"})
    if (has_ending(name, suffix)) return name.substr(0, name.size() - suffix.size());
  return name;
}

bool is_json_lines(std::string_view path) {
  const std::string_view name = without_compression(path);
  return has_ending(name, ".jsonl") || has_ending(name, ".ndjson") || has_ending(name, ".json");
}

bool is_parquet(std::string_view path) {
  return has_ending(path, ".parquet");
}

bool has_text_key(std::string_view path) {
  return is_json_lines(path) || is_parquet(path);
}

bool is_text_file(std::string_view path) {
  return has_ending(without_compression(path), ".txt") ||
         (has_text_key(path) && !has_ending(path, ".json"));
}

bool is_text_name(std::string_view path) {
  return std::ranges::any_of(
      std::array{".txt", ".jsonl", ".ndjson", ".json", ".parquet", ".gz", ".zst", ".xz", ".bz2"},
      [&](const char* ending) { return has_ending(path, ending); });
}

}  // namespace simplescale
