// What an S3 server says, in XML. The text comes from elsewhere: everything in it is checked. Pure
// functions, any thread. Used in runtime/object_store/ only.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/object_store/object_store.hpp"

namespace simplescale::s3_answers {

struct ServerError {
  std::string code;     // "NoSuchKey"; "": the body is no error of S3
  std::string message;  // printable, at most 300 bytes
};
ServerError parse_error(const std::string& body);

/// One page of ListObjectsV2. next: the token of the next page; "": this is the last.
struct ObjectPage {
  std::vector<ObjectFacts> objects;
  std::string next;
};
Result<ObjectPage> parse_objects(const std::string& body);

/// One page of ListMultipartUploads. next_key, next_id: where the next page begins; "": last page.
struct UploadPage {
  std::vector<MultipartUpload> uploads;
  std::string next_key, next_id;
};
Result<UploadPage> parse_uploads(const std::string& body);

/// The id of CreateMultipartUpload.
Result<std::string> parse_upload_id(const std::string& body);

/// The body of CompleteMultipartUpload; etags of the parts 1, 2, ...
std::string completion_text(const std::vector<std::string>& etags);

}  // namespace simplescale::s3_answers
