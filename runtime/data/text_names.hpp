// What a file of text is by its name. Pure functions, any thread.
#pragma once

#include <string>
#include <string_view>

namespace simplescale {

/// A file's name without the suffix of its compression: "a.jsonl.zst" -> "a.jsonl".
std::string_view without_compression(std::string_view name);
bool is_json_lines(std::string_view path);
bool is_parquet(std::string_view path);
/// data.text_key matters for the file.
bool has_text_key(std::string_view path);
/// True for the files of a folder that are read. A .json in a folder is rather a configuration.
bool is_text_file(std::string_view path);
/// True for what can be read as text where the user names it, compressed or not.
bool is_text_name(std::string_view path);

}  // namespace simplescale
