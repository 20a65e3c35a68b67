// Reads what reference.py writes: texts, and what Hugging Face's tokenizers make of them.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace simplescale::test {

class ReferenceFile {
 public:
  explicit ReferenceFile(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(in), {});
  }
  bool empty() const { return at_ >= bytes_.size(); }
  std::string text() {
    const size_t size = number();
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }
  std::vector<int32_t> ids() {
    std::vector<int32_t> out(number());
    std::memcpy(out.data(), bytes_.data() + at_, out.size() * 4);
    at_ += out.size() * 4;
    return out;
  }

 private:
  uint32_t number() {
    uint32_t value = 0;
    std::memcpy(&value, bytes_.data() + at_, 4);
    at_ += 4;
    return value;
  }
  std::string bytes_;
  size_t at_ = 0;
};

inline std::vector<std::string> reference_texts(const std::string& folder) {
  std::vector<std::string> out;
  for (ReferenceFile file(folder + "/texts.bin"); !file.empty();) out.push_back(file.text());
  return out;
}

}  // namespace simplescale::test
