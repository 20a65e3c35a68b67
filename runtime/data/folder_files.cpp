#include "runtime/data/folder_files.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "runtime/base/words.hpp"
#include "runtime/data/token_format.hpp"

namespace simplescale {

namespace fs = std::filesystem;

namespace {

class Walk {
 public:
  Walk(const std::string& folder, Below below) : below_(below), folder_(folder) {
    std::error_code ignored;
    real_ = fs::canonical(folder, ignored);
  }

  Result<FolderFiles> run() {
    waiting_.push_back({folder_, false});
    // Real folders first: a folder keeps its own name if links lead to it, too.
    while (!waiting_.empty() || !links_.empty()) {
      std::deque<Folder>& next = waiting_.empty() ? links_ : waiting_;
      const Folder folder = next.front();
      next.pop_front();
      SS_RETURN_IF_ERROR(enter(folder));
    }
    std::ranges::sort(found_.files);
    std::ranges::sort(found_.linked);
    for (const std::string& path : found_.linked)
      if (struct stat info{};
          stat(path.c_str(), &info) == 0 && names_[{info.st_dev, info.st_ino}] > 1)
        found_.again.push_back(path);
    std::ranges::sort(found_.others);
    return std::move(found_);
  }

 private:
  struct Folder {
    std::string path;
    bool linked = false;  // a link leads to it, or to a folder above
  };

  Status enter(const Folder& folder) {
    const std::string& path = folder.path;
    struct stat info {};
    if (stat(path.c_str(), &info) != 0)
      return bad_data(path, std::string("cannot read the folder: ") + std::strerror(errno));
    if (!entered_.insert({info.st_dev, info.st_ino}).second) {
      found_.others.push_back(path + "/");
      return {};
    }
    std::error_code error;
    std::vector<std::string> entries;
    for (auto entry = fs::directory_iterator(path, error);
         !error && entry != fs::directory_iterator(); entry.increment(error))
      entries.push_back(entry->path().string());
    if (error) return bad_data(path, "cannot read the folder: " + error.message());
    std::ranges::sort(entries);
    for (const std::string& entry : entries) SS_RETURN_IF_ERROR(take(entry, folder.linked));
    return {};
  }

  Status take(const std::string& path, bool linked) {
    struct stat link {
    }, file{};
    if (lstat(path.c_str(), &link) != 0) return {};  // removed meanwhile
    const bool is_link = S_ISLNK(link.st_mode);
    const bool there = stat(path.c_str(), &file) == 0;
    const int error = there ? 0 : errno;
    const bool folder = there && S_ISDIR(file.st_mode);
    if (fs::path(path).filename().string().starts_with('.')) {  // of tools, such as .git
      found_.others.push_back(folder ? path + "/" : path);
      return {};
    }
    const bool wanted = below_ == Below::yes || is_token_name(path) || path.ends_with(".idx");
    if (!there && is_link && wanted) {
      std::error_code ignored;
      return bad_data(path, "it is a link to " + fs::read_symlink(path, ignored).string() + ": " +
                                std::strerror(error) + "; correct the link, or remove it");
    }
    if (there && S_ISREG(file.st_mode)) {
      found_.files.push_back(path);
      ++names_[{file.st_dev, file.st_ino}];
      if (linked || is_link) found_.linked.push_back(path);
    } else if (!folder || below_ == Below::no) {
      found_.others.push_back(folder ? path + "/" : path);
    } else if (is_link) {
      SS_RETURN_IF_ERROR(check_link(path, link.st_uid));
      links_.push_back({path, true});
    } else {
      waiting_.push_back({path, linked});
    }
    return {};
  }

  /// Of a folder: what lies in a private one must not be named for another user.
  Status check_link(const std::string& path, uid_t owner) const {
    if (owner == 0 || owner == geteuid()) return {};
    std::error_code error;
    const fs::path to = fs::canonical(path, error);
    if (!error &&
        std::mismatch(real_.begin(), real_.end(), to.begin(), to.end()).first == real_.end())
      return {};
    return bad_data(path,
                    "it is a link of another user to " + to.string() +
                        ", outside of the folder; replace it by the folder itself if you trust it");
  }

  const Below below_;
  const std::string folder_;
  fs::path real_;
  std::deque<Folder> waiting_, links_;  // to enter
  using Identity = std::pair<dev_t, ino_t>;
  std::set<Identity> entered_;
  std::map<Identity, int> names_;  // of each file
  FolderFiles found_;
};

}  // namespace

Result<FolderFiles> list_folder(const std::string& folder, Below below) {
  return Walk(folder, below).run();
}

std::string counted_files(const std::string& folder, const std::vector<std::string>& paths,
                          const std::string& does) {
  constexpr size_t kNamed = 10;
  const std::string prefix = folder.ends_with('/') ? folder : folder + "/";
  std::vector<std::string> names;
  for (const std::string& path : paths) {
    if (names.size() == kNamed) break;
    names.push_back(path.starts_with(prefix) ? path.substr(prefix.size()) : path);
  }
  return counted(static_cast<int64_t>(paths.size()), "file") +
         (paths.size() == 1 ? " is " : " are ") + does + ": " + joined(names) +
         (paths.size() > kNamed ? " and " + std::to_string(paths.size() - kNamed) + " more" : "");
}

}  // namespace simplescale
