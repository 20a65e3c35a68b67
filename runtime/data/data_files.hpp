// The files of data sources: on disk, or objects of a bucket (docs/object-stores.md#data). A path
// names a file or s3://BUCKET/KEY. Any thread; blocks on the disk or the network.
//
// The files of a source are listed once, when a run starts. All processes of the run read that list
// (<run>/control/objects.json), and only the objects and token files in it. It is an error if one
// of these is replaced meanwhile. A token file on disk is identified by its size and sampled
// blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/input_file.hpp"
#include "runtime/base/status.hpp"
#include "runtime/config/config.hpp"

namespace simplescale {

/// bad_data for the file at path, which is wrong at this byte.
inline Status bad_byte(const std::string& path, uint64_t byte, const std::string& what) {
  return bad_data(path, "byte " + std::to_string(byte) + ": " + what);
}

/// An open file. Any thread may read.
class DataFile {
 public:
  DataFile(const DataFile&) = delete;
  DataFile& operator=(const DataFile&) = delete;
  virtual ~DataFile() = default;
  /// Its path, or s3://BUCKET/KEY.
  virtual const std::string& path() const = 0;
  virtual uint64_t bytes() const = 0;
  /// Reads exactly `bytes` bytes at `offset`. bad_data: it ends before, or is an object that was
  /// replaced; io; aborted: after DataFiles::stop().
  virtual Status read(uint64_t offset, void* data, size_t bytes) const = 0;
  /// Says what read() will be asked for soon. False: say it again later.
  virtual bool read_ahead(uint64_t offset, uint64_t bytes) const = 0;
  /// What an error of read() means while a run trains: io if it may pass.
  virtual Status while_training(const Status& error) const = 0;

 protected:
  DataFile() = default;
};

/// Where files are opened. Copies share their connections.
class DataFiles {
 public:
  enum class Listing : unsigned char {
    of_run,  // that of the run's start, if there is one
    anew,    // of now: a run starts
  };
  /// An object, or a token file on disk, as it was listed.
  struct Object {
    std::string path;
    uint64_t bytes = 0;
    std::string etag;  // of a file on disk: hash of its first, its last and other blocks
  };

  /// Of the disk only: find() of a path in a bucket is bad_config.
  DataFiles() = default;
  /// Lists the sources of a configuration. Token files on disk are read in a few blocks for that, and
  /// of_run only as they were listed. bad_config: no access to a bucket; io: its server cannot be
  /// reached.
  static Result<DataFiles> of(const Config& config, Listing listing = Listing::of_run);
  /// The same of texts to prepare.
  static Result<DataFiles> of_texts(const Config& config);

  /// The source in its canonical form; in a bucket, after listing it. bad_data: a bucket holds no
  /// such object.
  Result<std::string> find(const std::string& source) const;
  // The next three are about what find() has listed, or about the disk.
  bool is_folder(const std::string& path) const;
  bool exists(const std::string& path) const;
  /// The .bin files in a folder, in the order of their names; none if it cannot be read.
  std::vector<std::string> token_files(const std::string& folder) const;

  /// folder: another user may have made it, so a link of another user may not lead out of it; "": the
  /// folder in which the file lies. not_found: there is no such file, or find() has not listed it;
  /// bad_data: a file on disk is not the one that was listed; otherwise errors as
  /// InputFile::open_inside().
  Result<std::shared_ptr<const DataFile>> open(const std::string& path,
                                               const std::string& folder = "") const;
  /// The whole file; at most 64 MiB. Errors as open(), DataFile::read().
  Result<std::string> text(const std::string& path) const;
  /// A file on disk with the contents of `path`: itself, or a copy. hash: of its contents, xxh3-128;
  /// another one is bad_data.
  Result<std::string> on_disk(const std::string& path, const std::string& hash) const;

  bool in_bucket() const { return bucket_ != nullptr; }
  /// What was listed of a source in a bucket, by path.
  std::vector<Object> listed(const std::string& source) const;
  /// Objects of that source whose keys no URL can name. They cannot be read.
  std::vector<std::string> odd(const std::string& source) const;
  /// Writes what was listed, for Listing::of_run.
  Status save_listing(const std::string& file) const;
  /// Ends all reads from buckets with aborted.
  void stop() const;

 private:
  static Result<DataFiles> over(const Config& config, const std::vector<std::string>& sources,
                                Listing listing);
  struct Bucket;
  struct Disk;
  std::shared_ptr<Bucket> bucket_;    // null: no source lies in one
  std::shared_ptr<const Disk> disk_;  // null: no source on disk is listed
};

/// data.cache_folder, or what stands for it.
std::string cache_folder(const Config& config);

/// The file of a run with what its buckets held when it started.
std::string listing_file(const Config& config);

}  // namespace simplescale
