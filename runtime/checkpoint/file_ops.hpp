// All access of the checkpoint code to files. Every change goes through FileOps, one small seam
// that tests replace to stop a write at any operation or byte; reading is InputFile's. Threads:
// stateless; an object belongs to the thread that uses it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/input_file.hpp"
#include "runtime/base/status.hpp"

namespace simplescale {

/// The operating system's file calls. Errors: Code::io with call, path and reason.
class FileOps {
 public:
  virtual ~FileOps() = default;
  /// A file for writing, emptied if it exists. Returns a descriptor.
  virtual Result<int> create(const std::string& path);
  /// Writes all of it.
  virtual Status write(int fd, const std::string& path, const void* data, size_t bytes);
  virtual Status fsync(int fd, const std::string& path);
  virtual Status fsync_folder(const std::string& path);
  virtual Status rename(const std::string& from, const std::string& to);
  virtual Status symlink(const std::string& target, const std::string& path);
  /// Fine if it exists.
  virtual Status mkdir(const std::string& path);
  /// Fine if it is gone already; so is rmdir.
  virtual Status unlink(const std::string& path);
  virtual Status rmdir(const std::string& path);
};
FileOps& system_files();

/// A file being written; closed by the destructor.
class OutputFile {
 public:
  static Result<OutputFile> create(FileOps& ops, const std::string& path);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();
  Status write(const void* data, size_t bytes);
  Status write(const std::string& text) { return write(text.data(), text.size()); }
  /// On disk when this returns ok.
  Status sync();
  const std::string& path() const { return path_; }

 private:
  OutputFile(FileOps& ops, std::string path, int fd)
      : ops_(&ops), path_(std::move(path)), fd_(fd) {}
  FileOps* ops_;
  std::string path_;
  int fd_;
};

/// A whole small file; bad_data if it is larger than bytes_max.
Result<std::string> read_text_file(const std::string& path, size_t bytes_max);
/// Writes and syncs a small file.
Status write_text_file(FileOps& ops, const std::string& path, const std::string& text);
Status copy_file(FileOps& ops, const std::string& from, const std::string& to);
/// Makes a folder and its parents.
Status make_folders(FileOps& ops, const std::string& path);
/// Removes a folder and all in it; symlinks are removed, not followed. Fine if there is none.
Status remove_folder(FileOps& ops, const std::string& path);
/// Names in a folder, sorted; empty if there is none. io: it cannot be read.
Result<std::vector<std::string>> read_folder(const std::string& path);
/// The same; empty also if it cannot be read.
std::vector<std::string> list_folder(const std::string& path);
/// "a/b" from "a/b/c" and from "a/b/c/"; "." if there is no parent in the text.
std::string parent_folder(const std::string& path);

}  // namespace simplescale
