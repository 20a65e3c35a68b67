#include "runtime/object_store/answers.hpp"

#include <algorithm>
#include <charconv>
#include <pugixml.hpp>
#include <sstream>

#include "runtime/base/printable.hpp"

namespace simplescale::s3_answers {

namespace {

constexpr size_t kMessageBytesMax = 300, kKeyBytesMax = 1024, kUploadIdBytesMax = 1024,
                 kEtagBytesMax = 256;

Status bad(const std::string& what) {
  return {Code::io, "the server's answer " + what};
}

Result<pugi::xml_node> root_of(pugi::xml_document& document, const std::string& body,
                               const char* name) {
  if (!document.load_buffer(body.data(), body.size())) return bad("is no XML");
  const pugi::xml_node root = document.child(name);
  if (!root) return bad(std::string("has no ") + name);
  return root;
}

std::string text_of(const pugi::xml_node& node, const char* child) {
  return node.child_value(child);
}

/// True if a request can have the ETag in its header If-Match: XML can hold the end of a line.
bool is_etag(const std::string& text) {
  return text.size() <= kEtagBytesMax &&
         std::ranges::all_of(text, [](unsigned char c) { return c >= 0x20 && c < 0x7f; });
}

bool is_upload_id(const std::string& text) {
  return !text.empty() && text.size() <= kUploadIdBytesMax;
}

/// Whether there is another page.
bool is_truncated(const pugi::xml_node& page) {
  return text_of(page, "IsTruncated") == "true";
}

}  // namespace

ServerError parse_error(const std::string& body) {
  pugi::xml_document document;
  const auto root = root_of(document, body, "Error");
  if (!root.ok()) return {};
  auto shown = [&](const char* child) {
    std::string text = printable(text_of(*root, child).substr(0, kMessageBytesMax));
    std::ranges::replace(text, '\n', ' ');
    return text;
  };
  return {shown("Code"), shown("Message")};
}

Result<ObjectPage> parse_objects(const std::string& body) {
  pugi::xml_document document;
  SS_ASSIGN(const pugi::xml_node root, root_of(document, body, "ListBucketResult"));
  ObjectPage page;
  for (const pugi::xml_node& node : root.children("Contents")) {
    ObjectFacts object{text_of(node, "Key"), 0, text_of(node, "ETag")};
    const std::string size = text_of(node, "Size");
    const auto [end, error] = std::from_chars(size.data(), size.data() + size.size(), object.bytes);
    if (error != std::errc() || end != size.data() + size.size() || object.key.empty() ||
        object.key.size() > kKeyBytesMax)
      return bad("lists an object without a size, or without a key of at most 1024 bytes");
    if (!is_etag(object.etag)) return bad("lists an object whose ETag is none");
    page.objects.push_back(std::move(object));
  }
  if (!is_truncated(root)) return page;
  page.next = text_of(root, "NextContinuationToken");
  if (page.next.empty()) return bad("is truncated and does not say where it continues");
  return page;
}

Result<UploadPage> parse_uploads(const std::string& body) {
  pugi::xml_document document;
  SS_ASSIGN(const pugi::xml_node root, root_of(document, body, "ListMultipartUploadsResult"));
  UploadPage page;
  for (const pugi::xml_node& node : root.children("Upload")) {
    MultipartUpload upload{text_of(node, "Key"), text_of(node, "UploadId")};
    if (upload.key.empty() || upload.key.size() > kKeyBytesMax || !is_upload_id(upload.id))
      return bad("lists an upload without a key or an UploadId of at most 1024 bytes");
    page.uploads.push_back(std::move(upload));
  }
  if (!is_truncated(root)) return page;
  page.next_key = text_of(root, "NextKeyMarker"),
  page.next_id = text_of(root, "NextUploadIdMarker");
  if (page.next_key.empty()) return bad("is truncated and does not say where it continues");
  return page;
}

Result<std::string> parse_upload_id(const std::string& body) {
  pugi::xml_document document;
  SS_ASSIGN(const pugi::xml_node root, root_of(document, body, "InitiateMultipartUploadResult"));
  std::string id = text_of(root, "UploadId");
  if (!is_upload_id(id)) return bad("has no UploadId of at most 1024 bytes");
  return id;
}

std::string completion_text(const std::vector<std::string>& etags) {
  pugi::xml_document document;
  pugi::xml_node root = document.append_child("CompleteMultipartUpload");
  for (size_t i = 0; i < etags.size(); ++i) {
    pugi::xml_node part = root.append_child("Part");
    part.append_child("PartNumber").text().set(static_cast<unsigned long long>(i + 1));
    part.append_child("ETag").text().set(etags[i].c_str());
  }
  std::ostringstream out;
  document.save(out, "", pugi::format_raw | pugi::format_no_declaration);
  return out.str();
}

}  // namespace simplescale::s3_answers
