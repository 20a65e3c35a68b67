#include "runtime/object_store/transfer.hpp"

#include <algorithm>
#include <vector>

#include "runtime/base/input_file.hpp"

namespace simplescale {

namespace {

Status upload_parts(ObjectStore& store, const MultipartUpload& upload, const InputFile& file,
                    size_t part_bytes) {
  std::vector<std::string> etags;
  std::vector<char> part(part_bytes);
  for (uint64_t at = 0; at < file.bytes(); at += part_bytes) {
    const auto bytes = static_cast<size_t>(std::min<uint64_t>(part_bytes, file.bytes() - at));
    SS_RETURN_IF_ERROR(file.read(at, part.data(), bytes));
    SS_ASSIGN(std::string etag,
              store.upload_part(upload, etags.size() + 1, std::span(part.data(), bytes)));
    etags.push_back(std::move(etag));
  }
  return store.complete_upload(upload, etags, file.bytes());
}

}  // namespace

Status upload_file(ObjectStore& store, const std::string& key, const std::string& path,
                   size_t part_bytes) {
  SS_ASSERT(part_bytes >= kPartBytesMin);
  SS_ASSIGN(const InputFile file, InputFile::open(path));
  if (file.bytes() <= part_bytes) {
    std::vector<char> whole(static_cast<size_t>(file.bytes()));
    SS_RETURN_IF_ERROR(file.read(0, whole.data(), whole.size()));
    return store.put(key, whole).status();
  }
  part_bytes =
      std::max(part_bytes, static_cast<size_t>((file.bytes() + kPartsMax - 1) / kPartsMax));
  SS_ASSIGN(const MultipartUpload upload, store.begin_upload(key));
  const Status status = upload_parts(store, upload, file, part_bytes);
  if (!status.ok() && status.code() != Code::aborted) (void)store.abort_upload(upload);
  return status;
}

}  // namespace simplescale
