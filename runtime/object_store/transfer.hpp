// Whole files to an object store. Blocks; any thread.
#pragma once

#include <string>

#include "runtime/object_store/object_store.hpp"

namespace simplescale {

/// Uploads a file: at once if it has at most part_bytes bytes, else in parts of that size, or of a
/// larger one if there would be more than kPartsMax. Holds one part in memory. The object appears as
/// a whole. After an error the parts are removed if the server can be reached. part_bytes: at least
/// kPartBytesMin. Errors as those of ObjectStore, and those of InputFile.
Status upload_file(ObjectStore& store, const std::string& key, const std::string& path,
                   size_t part_bytes);

}  // namespace simplescale
