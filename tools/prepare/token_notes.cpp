#include "tools/prepare/token_notes.hpp"

#include <filesystem>
#include <set>

#include "runtime/base/bare_path.hpp"
#include "runtime/base/words.hpp"
#include "runtime/data/folder_files.hpp"
#include "runtime/data/manifest.hpp"
#include "runtime/object_store/s3_url.hpp"

namespace simplescale {

namespace {

namespace fs = std::filesystem;

/// What lies in a folder on disk or in a bucket.
Result<FolderFiles> entries_of(const std::string& folder, const DataFiles& files) {
  if (!is_s3_url(folder)) return list_folder(folder, Below::no);
  FolderFiles found{.others = files.odd(folder)};
  const std::string prefix = folder + "/";
  for (const DataFiles::Object& object : files.listed(folder)) {
    const size_t slash = object.path.find('/', prefix.size());
    if (slash == std::string::npos)
      found.files.push_back(object.path);
    else if (const std::string below = object.path.substr(0, slash + 1);
             found.others.empty() || found.others.back() != below)  // they are in order
      found.others.push_back(below);
  }
  return found;
}

std::set<std::string> read_of(const std::string& folder, const Dataset& dataset,
                              const DataFiles& files) {
  std::set<std::string> read;
  for (const TokenSource* tokens : {&dataset.train, &dataset.validation})
    for (const std::string& path : tokens->paths()) read.insert(path);
  const auto manifest = read_manifest(folder, files);
  if (!manifest.ok()) return read;
  for (const char* of_prepare : {"manifest.json", ".lock", "pieces/"})
    read.insert(folder + "/" + of_prepare);
  for (const FileRecord* record : manifest->files()) read.insert(folder + "/" + record->name);
  return read;
}

}  // namespace

Result<std::vector<std::string>> token_notes(const std::string& source, const TokenKind& kind,
                                             const Dataset& dataset, const DataFiles& files) {
  std::vector<std::string> notes;
  SS_ASSIGN(const std::string found, files.find(source));
  const std::string path = bare_path(found);
  if (files.is_folder(path)) {
    SS_ASSIGN(const FolderFiles all, entries_of(path, files));
    std::set<std::string> read;
    for (const std::string& file : read_of(path, dataset, files))
      read.insert(fs::path(file).lexically_normal().string());
    std::vector<std::string> left_out;
    for (const auto* paths : {&all.files, &all.others})
      for (const std::string& file : *paths)
        if (!read.contains(fs::path(file).lexically_normal().string())) left_out.push_back(file);
    const bool pairs = kind.format == "megatron" || kind.format == "auto";
    for (const std::string& file : left_out)
      if (const std::string tokens = fs::path(file).replace_extension(".bin").string();
          pairs && has_ending(file, ".idx") && !files.exists(tokens))
        return Status(Code::bad_data,
                      file + ": the tokens of this index are missing: there is no " + tokens);
    if (!left_out.empty()) notes.push_back(path + ": " + counted_files(path, left_out, "not read"));
  }
  std::set<std::string> guessed;
  for (const TokenSource* tokens : {&dataset.train, &dataset.validation})
    for (const std::string& file : tokens->guessed()) guessed.insert(file);
  if (guessed.size() == 1)
    notes.push_back(*guessed.begin() +
                    " has no header: its ids are read as u16; data.token_bytes = 2 says that this "
                    "is right, 4 that they are u32");
  else if (!guessed.empty())
    notes.push_back(path + ": " + std::to_string(guessed.size()) +
                    " files have no header: their ids are read as u16; data.token_bytes = 2 says "
                    "that this is right, 4 that they are u32");
  return notes;
}

}  // namespace simplescale
