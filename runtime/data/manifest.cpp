#include "runtime/data/manifest.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <vector>

#include "runtime/base/files.hpp"
#include "runtime/base/input_file.hpp"
#include "runtime/base/json_text.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/base/utf8.hpp"
#include "runtime/object_store/s3_url.hpp"

namespace simplescale {

namespace {

using nlohmann::json;

json to_json(const FileRecord& file) {
  return {{"name", file.name},
          {"bytes", file.bytes},
          {"changed_ns", file.changed_ns},
          {"xxh3_128", file.hash}};
}

/// Throws json::exception if a key is missing or of a wrong type; read_manifest() catches it.
FileRecord file_from(const json& value) {
  return {value.at("name"), value.at("bytes"), value.at("changed_ns"), value.at("xxh3_128")};
}

/// True if the file lies in the folder itself: a manifest from a stranger may name no other file.
bool is_plain_name(const std::string& name) {
  return name != "." && name != ".." && name.find('/') == name.npos && name.find('\0') == name.npos;
}

}  // namespace

Result<Manifest> read_manifest(const std::string& folder, const DataFiles& files) {
  const std::string path = folder + "/manifest.json";
  SS_ASSIGN(const std::string text, files.text(path));
  try {
    const json root = parse_json(text);
    if (!root.is_object())
      return Status(Code::bad_data, path +
                                        ": it is damaged, for it holds no JSON object; restore it, "
                                        "or prepare the data again");
    Manifest m;
    m.format = root.at("format");
    if (m.format != Manifest::current_format)
      return Status(Code::bad_data, path + ": format " + std::to_string(m.format) + " is not " +
                                        std::to_string(Manifest::current_format) +
                                        "; prepare the data again");
    m.source = path_of_text(root.at("source").get<std::string>());
    m.source_signature = root.at("source_signature");
    m.source_hash = root.at("source_xxh3_128");
    m.tokenizer_path = path_of_text(root.at("tokenizer_path").get<std::string>());
    m.tokenizer_signature = root.at("tokenizer_signature");
    m.tokenizer_hash = root.at("tokenizer_xxh3_128");
    m.vocab = root.at("vocab");
    m.validation_fraction = root.at("validation_fraction");
    m.seed = root.at("seed");
    m.documents = root.at("documents");
    m.text_bytes = root.at("text_bytes");
    m.bad_lines = root.value("bad_lines", uint64_t{0});
    m.train_tokens = root.at("train_tokens");
    m.validation_tokens = root.at("validation_tokens");
    m.validation_split = root.value("validation_split", Manifest::end);
    m.row_texts = root.value("row_texts", Manifest::trimmed);
    m.appended_eos = root.value("appended_eos", -1);
    for (const json& source : root.value("sources", json::array()))
      m.sources.push_back({path_of_text(source.at("path").get<std::string>()), source.at("bytes"),
                           source.at("documents"), source.at("xxh3_128")});
    m.masked_tokens = root.value("masked_tokens", uint64_t{0});
    const json& files = root.at("files");
    m.tokenizer = file_from(files.at("tokenizer"));
    m.train = file_from(files.at("train"));
    m.validation = file_from(files.at("validation"));
    if (files.contains("train_mask")) m.train_mask = file_from(files["train_mask"]);
    if (files.contains("validation_mask")) m.validation_mask = file_from(files["validation_mask"]);
    for (const FileRecord* file : m.files())
      if (!is_plain_name(file->name))
        return Status(Code::bad_data, path + ": \"" + file->name +
                                          "\" is not the name of a file in this folder; prepare "
                                          "the data again");
    return m;
  } catch (const json::exception& error) {
    // "[json.exception.out_of_range.403] key 'vocab' not found"
    const std::string what = error.what();
    return Status(Code::bad_data, path + ": it is damaged: " + what.substr(what.find("] ") + 2) +
                                      "; restore it, or prepare the data again");
  }
}

Status write_manifest(const std::string& folder, const Manifest& m) {
  json root = {{"format", m.format},
               {"source", path_as_text(m.source)},
               {"source_signature", m.source_signature},
               {"source_xxh3_128", m.source_hash},
               {"tokenizer_path", path_as_text(m.tokenizer_path)},
               {"tokenizer_signature", m.tokenizer_signature},
               {"tokenizer_xxh3_128", m.tokenizer_hash},
               {"vocab", m.vocab},
               {"validation_fraction", m.validation_fraction},
               {"seed", m.seed},
               {"documents", m.documents},
               {"text_bytes", m.text_bytes},
               {"bad_lines", m.bad_lines},
               {"train_tokens", m.train_tokens},
               {"validation_tokens", m.validation_tokens},
               {"validation_split", m.validation_split},
               {"row_texts", m.row_texts},
               {"files",
                {{"tokenizer", to_json(m.tokenizer)},
                 {"train", to_json(m.train)},
                 {"validation", to_json(m.validation)}}}};
  for (const auto& [key, mask] :
       {std::pair{"train_mask", &m.train_mask}, std::pair{"validation_mask", &m.validation_mask}})
    if (!mask->hash.empty()) root["files"][key] = to_json(*mask);
  if (m.appended_eos >= 0) root["appended_eos"] = m.appended_eos;
  for (const SourceFile& source : m.sources)
    root["sources"].push_back({{"path", path_as_text(source.path)},
                               {"bytes", source.bytes},
                               {"documents", source.documents},
                               {"xxh3_128", source.hash}});
  if (m.masked_tokens > 0) root["masked_tokens"] = m.masked_tokens;
  const std::string text = json_text(root, 2) + "\n";
  return write_file_atomic(folder + "/manifest.json", text);
}

Result<std::string> hash_file(const std::string& path) {
  SS_ASSIGN(const InputFile file, InputFile::open_inside("", path, LinksOut::own));
  Hasher hasher;
  std::vector<char> buffer(1 << 20);
  for (uint64_t at = 0; at < file.bytes(); at += buffer.size()) {
    buffer.resize(std::min<uint64_t>(buffer.size(), file.bytes() - at));
    SS_RETURN_IF_ERROR(file.read(at, buffer.data(), buffer.size()));
    hasher.update(buffer.data(), buffer.size());
  }
  return hasher.digest().hex();
}

namespace {
bool stat_of(const std::string& path, FileRecord& record) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return false;
  record.bytes = static_cast<uint64_t>(info.st_size);
  record.changed_ns = info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec;
  return true;
}
}  // namespace

Result<FileRecord> record_file(const std::string& folder, const std::string& name) {
  FileRecord record{.name = name};
  const std::string path = folder + "/" + name;
  if (!stat_of(path, record)) return system_error("cannot read", path, errno, Code::not_found);
  SS_ASSIGN(record.hash, hash_file(path));
  return record;
}

bool revalidate(const std::string& folder, FileRecord& record) {
  FileRecord now;
  const std::string path = folder + "/" + record.name;
  if (record.hash.empty() || !stat_of(path, now) || now.bytes != record.bytes) return false;
  if (now.changed_ns == record.changed_ns) return true;
  const auto hash = hash_file(path);
  if (!hash.ok() || *hash != record.hash) return false;
  record.changed_ns = now.changed_ns;
  return true;
}

Status check_files(const std::string& folder, const Manifest& manifest, const DataFiles& files,
                   uint64_t hash_bytes_max) {
  for (const FileRecord* recorded : manifest.files()) {
    FileRecord file = *recorded;
    if (file.hash.empty()) continue;
    const std::string path = folder + "/" + file.name;
    FileRecord now;
    if (is_s3_url(folder)) {
      SS_ASSIGN(const auto object, files.open(path));
      if (object->bytes() != file.bytes)
        return {Code::bad_data, path + ": has " + std::to_string(object->bytes()) +
                                    " bytes, its manifest.json says " + std::to_string(file.bytes) +
                                    "; upload the folder again"};
      continue;
    }
    if (!stat_of(path, now)) return system_error("cannot read", path, errno, Code::bad_data);
    if (now.bytes == file.bytes && now.bytes > hash_bytes_max) continue;
    if (!revalidate(folder, file))
      return {Code::bad_data, path + ": is not the file that " + folder +
                                  "/manifest.json records (another size or another xxh3-128); "
                                  "prepare the data again, or restore the file"};
  }
  return {};
}

}  // namespace simplescale
