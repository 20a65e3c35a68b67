// A disk that loses what was not synced. Its calls change real files at once; crash() leaves what a
// machine that loses its power may leave of them:
//
//   - of a file's data, what was synced; of the rest all, nothing, or half of it;
//   - of a folder's changes (created, renamed, removed names), those before its last sync; of the
//     later ones any selection, so a later change may survive an earlier one.
//
// A rename is one change. All calls of one disk must lie below its root. One thread.
#pragma once

#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/runtime/checkpoint/fixture.hpp"

namespace simplescale::test {

class CrashDisk : public FaultyFiles {
 public:
  /// What lies below `root` now is synced.
  explicit CrashDisk(std::string root) : root_(std::move(root)) { now_[root_] = add_tree(root_); }

  /// Replaces everything below the root by what a crash leaves. The disk cannot be used afterwards.
  void crash(uint32_t seed) {
    std::mt19937 random(seed);
    for (Inode& inode : inodes_) inode.data = inode.synced;
    for (const auto& [path, id] : now_)
      if (inodes_[id].kind == Kind::file) inodes_[id].data = contents(path);
    for (Inode& inode : inodes_) {
      for (const Change& change : inode.changes)
        if (random() % 2 == 0) apply(inode, change);
      if (inode.synced != inode.data && random() % 3 != 0)
        inode.data = random() % 2 == 0 ? inode.synced : inode.data.substr(0, inode.data.size() / 2);
    }
    const size_t root = now_.at(root_);
    std::filesystem::remove_all(root_);
    write(root_, root);
  }

  Result<int> create(const std::string& path) override {
    auto fd = FaultyFiles::create(path);
    if (!fd.ok()) return fd;
    remove(path);  // the new file replaces it
    add(path, {Kind::file});
    return fd;
  }
  Status fsync(int fd, const std::string& path) override {
    SS_RETURN_IF_ERROR(FaultyFiles::fsync(fd, path));
    if (const auto found = now_.find(path); found != now_.end())
      inodes_[found->second].synced = contents(path);
    return {};
  }
  Status fsync_folder(const std::string& path) override {
    SS_RETURN_IF_ERROR(FaultyFiles::fsync_folder(path));
    Inode& folder = inodes_[now_.at(path)];
    for (const Change& change : folder.changes) apply(folder, change);
    folder.changes.clear();
    return {};
  }
  Status rename(const std::string& from, const std::string& to) override {
    SS_RETURN_IF_ERROR(FaultyFiles::rename(from, to));
    SS_ASSERT(parent_folder(from) == parent_folder(to));
    inodes_[now_.at(parent_folder(to))].changes.push_back({name(from), name(to), now_.at(from)});
    std::map<std::string, size_t> moved;
    for (Inode& inode : inodes_) inode.data = inode.synced;
    for (const auto& [path, id] : now_)
      if (path == from || path.starts_with(from + "/"))
        moved[to + path.substr(from.size())] = id;
      else if (path != to)
        moved.emplace(path, id);
    now_ = std::move(moved);
    return {};
  }
  Status symlink(const std::string& target, const std::string& path) override {
    SS_RETURN_IF_ERROR(FaultyFiles::symlink(target, path));
    add(path, {Kind::link, target, target});
    return {};
  }
  Status mkdir(const std::string& path) override {
    SS_RETURN_IF_ERROR(FaultyFiles::mkdir(path));
    if (!now_.contains(path)) add(path, {Kind::folder});
    return {};
  }
  Status unlink(const std::string& path) override {
    SS_RETURN_IF_ERROR(FaultyFiles::unlink(path));
    remove(path);
    return {};
  }
  Status rmdir(const std::string& path) override {
    SS_RETURN_IF_ERROR(FaultyFiles::rmdir(path));
    remove(path);
    return {};
  }

 private:
  enum class Kind : uint8_t { file, folder, link };
  /// A name in a folder. from "": `to` is added. to "": `from` is removed. Otherwise a rename.
  struct Change {
    std::string from, to;
    size_t inode;
  };
  struct Inode {
    Kind kind = Kind::file;
    std::string synced, data = {};               // of a file; of a link: its target
    std::map<std::string, size_t> entries = {};  // of a folder, as synced
    std::vector<Change> changes = {};            // of a folder, not synced
  };

  static std::string name(const std::string& path) {
    return path.substr(path.find_last_of('/') + 1);
  }
  size_t add_tree(const std::string& path) {
    namespace fs = std::filesystem;
    Inode inode;
    if (fs::is_symlink(path)) {
      inode = {Kind::link, fs::read_symlink(path), fs::read_symlink(path)};
    } else if (fs::is_directory(path)) {
      inode.kind = Kind::folder;
      for (const std::string& entry : list_folder(path))
        inode.entries[entry] = now_[path + "/" + entry] = add_tree(path + "/" + entry);
    } else {
      inode.synced = contents(path);
    }
    inodes_.push_back(std::move(inode));
    return inodes_.size() - 1;
  }
  void add(const std::string& path, Inode inode) {
    inodes_.push_back(std::move(inode));
    now_[path] = inodes_.size() - 1;
    inodes_[now_.at(parent_folder(path))].changes.push_back({"", name(path), now_[path]});
  }
  void remove(const std::string& path) {
    const auto found = now_.find(path);
    if (found == now_.end()) return;
    inodes_[now_.at(parent_folder(path))].changes.push_back({name(path), "", found->second});
    now_.erase(found);
  }
  /// Applies a change to the folder's entries, unless an earlier change that was lost prevents it.
  void apply(Inode& folder, const Change& change) const {
    const auto from = folder.entries.find(change.from), to = folder.entries.find(change.to);
    if (!change.from.empty() && (from == folder.entries.end() || from->second != change.inode))
      return;
    const bool taken = to != folder.entries.end();
    // A folder that is not empty, or whose removal was lost, keeps its name.
    if (taken && inodes_[to->second].kind == Kind::folder) return;
    if (change.from.empty() && taken) folder.entries.erase(to);
    if (!change.from.empty()) folder.entries.erase(from);
    if (!change.to.empty()) folder.entries[change.to] = change.inode;
  }
  void write(const std::string& path, size_t id) const {
    const Inode& inode = inodes_[id];
    if (inode.kind == Kind::link) return std::filesystem::create_symlink(inode.data, path);
    if (inode.kind == Kind::file) return spew(path, inode.data);
    std::filesystem::create_directory(path);
    for (const auto& [entry, child] : inode.entries) write(path + "/" + entry, child);
  }

  const std::string root_;
  std::vector<Inode> inodes_;
  std::map<std::string, size_t> now_;  // by path
};

}  // namespace simplescale::test
