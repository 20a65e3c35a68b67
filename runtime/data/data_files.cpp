#include "runtime/data/data_files.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "runtime/base/files.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/base/json_members.hpp"
#include "runtime/base/json_text.hpp"
#include "runtime/base/own_folder.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/base/utf8.hpp"
#include "runtime/base/words.hpp"
#include "runtime/data/data_sources.hpp"
#include "runtime/data/loss_mask.hpp"
#include "runtime/data/manifest.hpp"
#include "runtime/data/token_format.hpp"
#include "runtime/object_store/object_reader.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kTextBytesMax = 64 << 20;
constexpr double kGigabyte = 1e9;

/// How many files a process may hold open here: a part of its limit.
int held_files_max() {
  constexpr rlim_t kMost = 256, kShare = 4;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  return static_cast<int>(std::min(kMost, limit.rlim_cur / kShare));
}

/// The first files stay open. Each further one is opened for each read, so that a source may have
/// more files than a process may open.
class LocalFile final : public DataFile {
 public:
  LocalFile(InputFile file, std::string folder)
      : path_(file.path()), folder_(std::move(folder)), identity_(file.identity()) {
    static const int most = held_files_max();
    if (held_++ < most)
      file_.emplace(std::move(file));
    else
      --held_;
  }
  ~LocalFile() override {
    if (file_) --held_;
  }
  const std::string& path() const override { return path_; }
  uint64_t bytes() const override { return identity_.bytes; }
  Status read(uint64_t offset, void* data, size_t bytes) const override {
    if (file_) return file_->read(offset, data, bytes);
    SS_ASSIGN(const InputFile file, InputFile::open_inside(folder_, path_, LinksOut::own));
    if (file.identity() != identity_)
      return {Code::bad_data, path_ + ": it was replaced or written since it was opened"};
    return file.read(offset, data, bytes);
  }
  bool read_ahead(uint64_t, uint64_t) const override { return true; }
  /// The file was long enough when it was opened: it is being replaced, or its disk fails.
  Status while_training(const Status& error) const override { return {Code::io, error.message()}; }

 private:
  static inline std::atomic<int> held_ = 0;
  const std::string path_, folder_;
  const InputFile::Identity identity_;
  std::optional<InputFile> file_;  // none: opened for each read
};

class BucketFile final : public DataFile {
 public:
  BucketFile(std::shared_ptr<ObjectReader> reader, ChunkedObject object)
      : reader_(std::move(reader)), object_(std::move(object)), path_(object_.url.text()) {}
  const std::string& path() const override { return path_; }
  uint64_t bytes() const override { return object_.bytes; }
  Status read(uint64_t offset, void* data, size_t bytes) const override {
    return reader_->read(object_, offset, {static_cast<char*>(data), bytes});
  }
  bool read_ahead(uint64_t offset, uint64_t bytes) const override {
    return reader_->read_ahead(object_, offset, bytes);
  }
  /// An object that was replaced does not come back by itself; credentials may be renewed.
  Status while_training(const Status& error) const override {
    return error.code() == Code::bad_data ? error : Status(Code::io, error.message());
  }

 private:
  const std::shared_ptr<ObjectReader> reader_;
  const ChunkedObject object_;
  const std::string path_;
};

/// Reads wait for a slow server almost as long as trainers wait for their tokens.
StoreLimits limits_of(const Config& config) {
  StoreLimits limits;
  limits.tries = 10'000;
  limits.deadline_ms = config.supervision.progress_timeout_ms / 4 * 3;
  limits.http.request_timeout_ms = limits.deadline_ms;
  limits.http.stall_timeout_s = std::clamp<int64_t>(limits.deadline_ms / 4000, 1, 20);
  return limits;
}

Status no_object(const std::string& path) {
  return {Code::bad_data,
          path + ": the bucket holds no such object; correct the name, or upload it"};
}

/// A hash of about `count` blocks: the first, the last, and others evenly between. A file of fewer
/// blocks is read as a whole.
Result<std::string> block_hash(const InputFile& file, uint64_t count) {
  constexpr uint64_t kBlock = 4096;
  std::array<char, kBlock> block{};
  Hasher hasher;
  const uint64_t last = file.bytes() - std::min(file.bytes(), kBlock);
  const uint64_t step = std::max(kBlock, last / (count - 1) / kBlock * kBlock);
  for (uint64_t at = 0;; at = std::min(at + step, last)) {
    const size_t bytes = std::min(file.bytes() - at, kBlock);
    SS_RETURN_IF_ERROR(file.read(at, block.data(), bytes));
    hasher.update(block.data(), bytes);
    if (at == last) return hasher.digest().hex();
  }
}

/// Of each file of a source with so many. At least the first and the last one.
uint64_t blocks_of_each(uint64_t files) {
  return std::max<uint64_t>(2, 256 / std::max<uint64_t>(files, 1));
}

/// One name for a file, whether its folder was given with a slash at the end or not.
std::string normal(const fs::path& path) {
  return path.lexically_normal().string();
}

/// The files on disk that make the samples of a source.
std::vector<std::string> sample_files(const std::string& source) {
  const DataFiles disk;
  std::vector<std::string> found;
  if (const auto made = read_manifest(source); made.ok()) {
    for (const FileRecord* record :
         {&made->train, &made->validation, &made->train_mask, &made->validation_mask})
      if (!record->hash.empty()) found.push_back(source + "/" + record->name);
    return found;
  }
  for (const std::string& file :
       disk.is_folder(source) ? disk.token_files(source) : std::vector{token_file_of(source)}) {
    found.push_back(file);
    for (const std::string& beside :
         {loss_mask_of(file), fs::path(file).replace_extension(".idx").string()})
      if (beside != file && disk.exists(beside)) found.push_back(beside);
  }
  return found;
}

}  // namespace

struct DataFiles::Disk {
  struct File {
    Object listed;
    uint64_t blocks = 0;  // of which it has a hash
  };
  std::map<std::string, std::vector<Object>> sources;
  std::map<std::string, File> files;  // all of them, by path

  void add(const std::string& source, std::vector<Object> found) {
    for (const Object& object : found)
      files[normal(object.path)] = {object, blocks_of_each(found.size())};
    sources[source] = std::move(found);
  }
  /// A file that cannot be read is listed without a hash: opening it tells why, and none fits it.
  void list(const std::string& source) {
    const std::vector<std::string> paths = sample_files(source);
    std::vector<Object> found;
    for (const std::string& path : paths) {
      Object object{path, 0, ""};
      if (const auto file = InputFile::open_inside("", path, LinksOut::own); file.ok()) {
        object.bytes = file->bytes();
        if (auto hash = block_hash(*file, blocks_of_each(paths.size())); hash.ok())
          object.etag = std::move(*hash);
      }
      found.push_back(std::move(object));
    }
    add(source, std::move(found));
  }
  const std::vector<Object>* source(const std::string& path) const {
    const auto found = sources.find(path);
    return found == sources.end() ? nullptr : &found->second;
  }
  /// True if what was listed, and not the disk, says whether there is such a file.
  bool decides(const std::string& path) const {
    const fs::path file = path;
    return std::ranges::any_of(std::array{".bin", ".mask", ".idx"},
                               [&](const char* made) { return file.extension() == made; }) &&
           (sources.contains(file.parent_path().string()) ||
            files.contains(normal(fs::path(file).replace_extension(".bin"))) ||
            files.contains(normal(fs::path(file).replace_extension(".npy"))));
  }
  Status check(const InputFile& file) const {
    const auto found = files.find(normal(file.path()));
    if (found == files.end()) return {};
    const Object& listed = found->second.listed;
    SS_ASSIGN(const std::string hash, block_hash(file, found->second.blocks));
    if (file.bytes() == listed.bytes && hash == listed.etag) return {};
    return {Code::bad_data, file.path() +
                                " has changed since this run began; restore it, or start a new run "
                                "with --run=FOLDER"};
  }
};

struct DataFiles::Bucket {
  std::string copies;  // folder for on_disk()
  bool trust_folder = false;
  std::shared_ptr<ChunkFiles> cache;
  std::shared_ptr<ObjectReader> reader;
  std::mutex mutex;                                     // guards the next three
  std::map<std::string, std::vector<Object>> sources;   // by canonical path
  std::map<std::string, Object> objects;                // all of them, by path
  std::map<std::string, std::vector<std::string>> odd;  // of DataFiles::odd()

  void add(const std::string& source, std::vector<Object> found) {
    const std::lock_guard lock(mutex);
    for (const Object& object : found) objects[object.path] = object;
    sources[source] = std::move(found);
  }
  bool knows(const std::string& source) {
    const std::lock_guard lock(mutex);
    return sources.contains(source);
  }
  /// True if an object's path begins so.
  bool has_below(const std::string& prefix) {
    const std::lock_guard lock(mutex);
    const auto first = objects.lower_bound(prefix);
    return first != objects.end() && first->first.starts_with(prefix);
  }
  /// Objects of at most this size are worth whole chunks; of larger ones, the cache cannot keep what
  /// a shuffled order reads later.
  size_t chunk_bytes() {
    const std::lock_guard lock(mutex);
    uint64_t total = 0;
    for (const auto& [path, object] : objects) total += object.bytes;
    return total <= cache->bytes_max() ? 4 << 20 : 256 << 10;
  }
  Result<std::vector<Object>> list(const S3Url& url);
};

/// The objects below a prefix, or, without such, the object of that name and those beside it with
/// other endings: its index and its loss mask.
Result<std::vector<DataFiles::Object>> DataFiles::Bucket::list(const S3Url& url) {
  SS_ASSIGN(const auto store, reader->store(url.bucket));
  const std::string below = url.key.empty() ? "" : url.key + "/";
  const std::string stem = fs::path(url.key).replace_extension("").string() + ".";
  std::vector<Object> found;
  std::vector<std::string> without_url;
  for (const std::string& prefix : {below, stem}) {
    if (!found.empty()) break;
    SS_ASSIGN(const std::vector<ObjectFacts> objects, store->list(prefix));
    for (const ObjectFacts& object : objects)
      if (const auto of = parse_s3_url(S3Url{url.bucket, object.key}.text());
          of.ok() && of->key == object.key)
        found.push_back({of->text(), object.bytes, object.etag});
      else if (prefix == below && !object.key.ends_with('/'))  // as consoles make folders
        without_url.push_back(S3Url{url.bucket, object.key}.text());
  }
  const std::lock_guard lock(mutex);
  odd[url.text()] = std::move(without_url);
  return found;
}

std::string cache_folder(const Config& config) {
  return config.data.cache_folder.empty() ? "/var/tmp" : config.data.cache_folder;
}

std::string listing_file(const Config& config) {
  return RunFolder{run_folder(config)}.objects();
}

namespace {

using Listed = std::map<std::string, std::vector<DataFiles::Object>>;  // by source

/// The member of the listing that tells an object or a file from another one of its name.
const char* identity_of(const std::string& path) {
  return is_s3_url(path) ? "etag" : "blocks_xxh3_128";
}

Listed read_listing(const std::string& file) {
  const json root = json_of(read_text(file));
  Listed listed;
  if (!root.is_object()) return listed;
  try {
    for (const auto& [source, objects] : root.items()) {
      std::vector<DataFiles::Object> found;
      for (const json& object : objects)
        found.push_back({path_of_text(object.at("name").get<std::string>()), object.at("bytes"),
                         object.at(identity_of(object.at("name")))});
      listed[path_of_text(source)] = std::move(found);
    }
  } catch (const json::exception&) {
    // damaged: what is missing is listed again
  }
  return listed;
}

}  // namespace

Result<DataFiles> DataFiles::of(const Config& config, Listing listing) {
  std::vector<std::string> paths;
  for (const auto& [name, of] : sources_of(config))
    if (!of.data.source.empty()) paths.push_back(token_path(of));
  return over(config, paths, listing);
}

Result<DataFiles> DataFiles::of_texts(const Config& config) {
  std::vector<std::string> paths;
  for (const auto& [name, of] : sources_of(config))
    if (is_s3_url(of.data.source) && !source_is_tokens(of)) paths.push_back(of.data.source);
  if (is_s3_url(config.tokenizer.train_on)) paths.push_back(config.tokenizer.train_on);
  return over(config, paths, Listing::anew);
}

Result<DataFiles> DataFiles::over(const Config& config, const std::vector<std::string>& paths,
                                  Listing listing) {
  DataFiles files;
  Listed before;
  if (listing == Listing::of_run) before = read_listing(listing_file(config));
  const auto disk = std::make_shared<Disk>();
  for (const std::string& path : paths) {
    if (is_s3_url(path)) continue;
    if (listing == Listing::anew)
      disk->list(path);
    else if (const auto found = before.find(path); found != before.end())
      disk->add(path, found->second);
  }
  files.disk_ = disk;
  if (std::ranges::none_of(paths, is_s3_url)) return files;
  files.bucket_ = std::make_shared<Bucket>();
  Bucket& b = *files.bucket_;
  SS_ASSIGN(const std::string folder, ChunkFiles::make_folder(cache_folder(config)));
  b.cache =
      std::make_shared<ChunkFiles>(folder, static_cast<uint64_t>(config.data.cache_gb * kGigabyte));
  b.copies = config.run.name.empty() ? folder : data_folder(config);
  b.trust_folder = config.run.trust_folder;
  b.reader = std::make_shared<ObjectReader>(b.cache, limits_of(config));
  for (auto& [source, found] : before)
    if (is_s3_url(source)) b.add(source, std::move(found));
  for (const std::string& path : paths) SS_RETURN_IF_ERROR(files.find(path).status());
  return files;
}

Result<std::string> DataFiles::find(const std::string& source) const {
  if (!is_s3_url(source)) return source;
  SS_ASSIGN(const S3Url url, parse_s3_url(source));
  if (!bucket_) return Status(Code::bad_config, source + ": a bucket cannot be read here");
  const std::string path = url.text();
  if (bucket_->knows(path)) return path;
  SS_ASSIGN(std::vector<Object> found, bucket_->list(url));
  if (found.empty()) return no_object(path);
  bucket_->add(path, std::move(found));
  return path;
}

bool DataFiles::is_folder(const std::string& path) const {
  std::error_code ignored;
  if (!is_s3_url(path)) return fs::is_directory(path, ignored);
  return bucket_ && bucket_->has_below(path + "/");
}

bool DataFiles::exists(const std::string& path) const {
  std::error_code ignored;
  if (!is_s3_url(path))
    return disk_ && disk_->decides(path) ? disk_->files.contains(normal(path))
                                         : fs::exists(path, ignored);
  if (!bucket_) return false;
  const std::lock_guard lock(bucket_->mutex);
  return bucket_->objects.contains(path);
}

std::vector<std::string> DataFiles::token_files(const std::string& folder) const {
  std::vector<std::string> files;
  std::error_code error;
  if (const auto* listed = disk_ ? disk_->source(folder) : nullptr) {
    for (const Object& object : *listed)
      if (is_token_name(object.path)) files.push_back(object.path);
  } else if (!is_s3_url(folder)) {
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error))
      if (is_token_name(entry->path())) files.push_back(entry->path().string());
  } else if (bucket_) {
    const std::lock_guard lock(bucket_->mutex);
    const std::string prefix = folder + "/";
    for (const auto& [path, object] : bucket_->objects)
      if (path.starts_with(prefix) && is_token_name(path) &&
          path.find('/', prefix.size()) == std::string::npos)
        files.push_back(path);
  }
  // Megatron keeps indices beside its tokens: NAME_doc_idx.npy, NAME_sample_idx.npy, ...
  const auto is_index = [](const std::string& path) { return has_ending(path, "_idx.npy"); };
  if (!std::ranges::all_of(files, is_index)) std::erase_if(files, is_index);
  std::ranges::sort(files);
  return files;
}

Result<std::shared_ptr<const DataFile>> DataFiles::open(const std::string& path,
                                                        const std::string& folder) const {
  if (!is_s3_url(path)) {
    SS_ASSIGN(InputFile file, InputFile::open_inside(folder, path, LinksOut::own));
    if (disk_) SS_RETURN_IF_ERROR(disk_->check(file));
    return std::shared_ptr<const DataFile>(std::make_shared<LocalFile>(std::move(file), folder));
  }
  if (!exists(path)) return Status(Code::not_found, no_object(path).message());
  SS_ASSIGN(const S3Url url, parse_s3_url(path));
  ChunkedObject object{url, 0, "", bucket_->chunk_bytes()};
  {
    const std::lock_guard lock(bucket_->mutex);
    const Object& listed = bucket_->objects.at(path);
    object.bytes = listed.bytes, object.etag = listed.etag;
  }
  return std::shared_ptr<const DataFile>(
      std::make_shared<BucketFile>(bucket_->reader, std::move(object)));
}

Result<std::string> DataFiles::text(const std::string& path) const {
  SS_ASSIGN(const auto file, open(path));
  if (file->bytes() > kTextBytesMax)
    return Status(Code::bad_data, path + ": has more than 64 MiB; it is not what its name says");
  std::string text(static_cast<size_t>(file->bytes()), '\0');
  SS_RETURN_IF_ERROR(file->read(0, text.data(), text.size()));
  return text;
}

Result<std::string> DataFiles::on_disk(const std::string& path, const std::string& hash) const {
  if (!is_s3_url(path)) return path;
  const std::string folder = bucket_->copies + "/" + hash;
  const std::string copy = folder + "/" + fs::path(path).filename().string();
  const auto is_right = [&](const std::string& text) {
    return hash128(text.data(), text.size()).hex() == hash;
  };
  if (const auto there = read_text(copy); there.ok() && is_right(*there)) return copy;
  SS_ASSIGN(const std::string text, this->text(path));
  if (!is_right(text))
    return Status(Code::bad_data, path +
                                      ": is not the file that the folder's manifest.json records "
                                      "(another xxh3-128); upload the folder again");
  if (!bucket_->trust_folder)
    SS_RETURN_IF_ERROR(check_output_folder(bucket_->copies, "data.folder"));
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return Status(Code::io, "cannot create " + folder + ": " + error.message());
  SS_RETURN_IF_ERROR(write_file_atomic(copy, text));
  return copy;
}

std::vector<DataFiles::Object> DataFiles::listed(const std::string& source) const {
  if (!bucket_) return {};
  const std::lock_guard lock(bucket_->mutex);
  const auto found = bucket_->sources.find(source);
  return found == bucket_->sources.end() ? std::vector<Object>() : found->second;
}

std::vector<std::string> DataFiles::odd(const std::string& source) const {
  if (!bucket_) return {};
  const std::lock_guard lock(bucket_->mutex);
  const auto found = bucket_->odd.find(source);
  return found == bucket_->odd.end() ? std::vector<std::string>() : found->second;
}

Status DataFiles::save_listing(const std::string& file) const {
  Listed all;
  if (disk_) all = disk_->sources;
  if (bucket_) {
    const std::lock_guard lock(bucket_->mutex);
    all.insert(bucket_->sources.begin(), bucket_->sources.end());
  }
  json root = json::object();
  for (const auto& [source, objects] : all)
    for (const Object& object : objects)
      root[path_as_text(source)].push_back({{"name", path_as_text(object.path)},
                                            {"bytes", object.bytes},
                                            {identity_of(object.path), object.etag}});
  return write_file_atomic(file, json_text(root, 1) + "\n");
}

void DataFiles::stop() const {
  if (bucket_) bucket_->reader->stop();
}

}  // namespace simplescale
