// File access of the checkpoint code. Every change goes through FileOps, which tests replace to
// fail at any operation or byte; reading uses InputFile. FileOps is stateless; an OutputFile
// belongs to one thread, but for write_at().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/input_file.hpp"
#include "runtime/base/status.hpp"

namespace simplescale {

/// The operating system's file calls. Errors: io with what failed, path and reason.
class FileOps {
 public:
  virtual ~FileOps() = default;
  /// Opens a new file for writing, in place of what has its name (open_output()). Returns a
  /// descriptor.
  virtual Result<int> create(const std::string& path);
  /// Writes all bytes at `offset`. Any thread, also several at once.
  virtual Status write(int fd, const std::string& path, uint64_t offset, const void* data,
                       size_t bytes);
  virtual Status fsync(int fd, const std::string& path);
  virtual Status fsync_folder(const std::string& path);
  virtual Status rename(const std::string& from, const std::string& to);
  /// Undoes the rename of `to` to `from`.
  virtual Status rename_back(const std::string& from, const std::string& to) {
    return rename(from, to);
  }
  virtual Status symlink(const std::string& target, const std::string& path);
  /// ok if the folder exists.
  virtual Status mkdir(const std::string& path);
  /// unlink() and rmdir(): ok if there is none.
  virtual Status unlink(const std::string& path);
  virtual Status rmdir(const std::string& path);
};
/// The FileOps that use the operating system.
FileOps& system_files();

/// The files of a publisher that another supervisor's publisher may replace. LEAD-1: `leads` is
/// asked before each rename; once it returns false, rename() returns aborted and changes nothing.
/// rename_back() is always allowed, since it restores what another publisher has made.
class LeaderFiles : public FileOps {
 public:
  /// leads: may block. Null: always true.
  explicit LeaderFiles(std::function<bool()> leads) : leads_(std::move(leads)) {}
  Status rename(const std::string& from, const std::string& to) override;
  Status rename_back(const std::string& from, const std::string& to) override {
    return FileOps::rename(from, to);
  }

 private:
  const std::function<bool()> leads_;
};

/// A file being written. The destructor closes it. Several threads may call write_at() at once.
class OutputFile {
 public:
  static Result<OutputFile> create(FileOps& ops, const std::string& path);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();
  /// Appends to what write() has written.
  Status write(const void* data, size_t bytes);
  Status write(const std::string& text) { return write(text.data(), text.size()); }
  Status write_at(uint64_t offset, const void* data, size_t bytes) const;
  /// The file is on disk when this returns ok.
  Status sync();
  const std::string& path() const { return path_; }

 private:
  OutputFile(FileOps& ops, std::string path, int fd)
      : ops_(&ops), path_(std::move(path)), fd_(fd) {}
  FileOps* ops_;
  std::string path_;
  int fd_;
  uint64_t end_ = 0;  // of what write() has written
};

/// Writes and syncs a small file.
Status write_text_file(FileOps& ops, const std::string& path, const std::string& text);
/// Makes the link `path` point to `target`, by way of the link `temporary` in the same folder, and
/// syncs the folder.
Status replace_link(FileOps& ops, const std::string& target, const std::string& temporary,
                    const std::string& path);
/// Creates a folder and its parents.
Status make_folders(FileOps& ops, const std::string& path);
/// Removes a folder with its contents; symlinks are removed, not followed. ok if there is none.
Status remove_folder(FileOps& ops, const std::string& path);
/// The names in a folder, sorted; empty if there is no folder. io: it cannot be read.
Result<std::vector<std::string>> read_folder(const std::string& path);
/// The same; empty also if it cannot be read.
std::vector<std::string> list_folder(const std::string& path);
/// "a/b" from "a/b/c" and from "a/b/c/"; "." if there is no parent in the text.
std::string parent_folder(const std::string& path);

}  // namespace simplescale
