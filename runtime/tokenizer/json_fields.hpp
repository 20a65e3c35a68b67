// Reads typed members of a JSON object whose unknown members are errors. Used in runtime/tokenizer/
// only.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "runtime/base/status.hpp"

namespace simplescale {

class JsonFields {
 public:
  /// what: names the object in messages. The object must outlive this.
  JsonFields(const nlohmann::json& object, std::string what)
      : object_(object), what_(std::move(what)) {
    if (!object.is_object()) fail("is no object");
  }

  /// A missing member and null give `otherwise`.
  bool flag(const char* key, bool otherwise) {
    const auto* value = find(key);
    if (value && !value->is_boolean()) fail(std::string("has a \"") + key + "\" that is no bool");
    return value && value->is_boolean() ? value->get<bool>() : otherwise;
  }
  uint64_t number(const char* key, uint64_t otherwise) {
    const auto* value = find(key);
    if (value && !value->is_number_unsigned())
      fail(std::string("has a \"") + key + "\" that is no whole number");
    return value && value->is_number_unsigned() ? value->get<uint64_t>() : otherwise;
  }
  std::string text(const char* key, const std::string& otherwise = "") {
    const auto* value = find(key);
    if (value && !value->is_string()) fail(std::string("has a \"") + key + "\" that is no text");
    return value && value->is_string() ? value->get<std::string>() : otherwise;
  }
  std::string required_text(const char* key) {
    std::string value = text(key);
    if (value.empty()) fail(std::string("has no \"") + key + "\"");
    return value;
  }
  /// The member, or null.
  const nlohmann::json& member(const char* key) {
    static const nlohmann::json null;
    const auto* value = find(key);
    return value ? *value : null;
  }
  void ignore(const char* key) { known_.insert(key); }
  void fail(const std::string& what) {
    if (status_.ok()) status_ = {Code::bad_data, what_ + " " + what};
  }
  /// The first error. Call it after all members have been read: a member that has not is an error.
  Status finish() {
    if (status_.ok())
      for (const auto& [key, value] : object_.items())
        if (!known_.contains(key) && !value.is_null())
          fail("has \"" + key + "\", which is not supported");
    return status_;
  }

 private:
  const nlohmann::json* find(const char* key) {
    known_.insert(key);
    if (!object_.is_object()) return nullptr;
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  const nlohmann::json& object_;
  const std::string what_;
  std::set<std::string, std::less<>> known_;
  Status status_;
};

}  // namespace simplescale
