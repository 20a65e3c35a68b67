#include "runtime/checkpoint/safetensors.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/base/dtype.hpp"
#include "runtime/base/files.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/base/printable.hpp"

namespace simplescale {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");
using nlohmann::json;

namespace {

Status bad(const std::string& text) {
  return {Code::bad_data, text};
}

float f16_to_f32(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  const uint32_t fraction = half & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
  if (exponent > 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
  const float value = std::ldexp(static_cast<float>(fraction), -24);  // subnormal or zero: exact
  return sign ? -value : value;
}

/// Parses an entry of the header. Does all checks that do not involve other tensors.
Result<TensorEntry> parse_entry(const std::string& name, const json& entry, uint64_t data_bytes) {
  const std::string at = "tensor \"" + shown_name(name) + "\"";
  if (!entry.is_object()) return bad(at + ": not an object");
  const auto dtype = entry.find("dtype"), shape = entry.find("shape"),
             offsets = entry.find("data_offsets");
  if (dtype == entry.end() || !dtype->is_string()) return bad(at + ": no dtype");
  if (shape == entry.end() || !shape->is_array()) return bad(at + ": no shape");
  if (offsets == entry.end() || !offsets->is_array() || offsets->size() != 2 ||
      !(*offsets)[0].is_number_unsigned() || !(*offsets)[1].is_number_unsigned())
    return bad(at + ": no data_offsets");
  TensorEntry tensor{name, dtype->get<std::string>(), {}, (*offsets)[0], (*offsets)[1]};
  uint64_t bytes = safetensors_element_bytes(tensor.dtype);
  if (bytes == 0) return bad(at + ": dtype \"" + shown_name(tensor.dtype) + "\" is not known");
  for (const json& n : *shape) {
    if (!n.is_number_unsigned()) return bad(at + ": a dimension is not a whole number");
    const uint64_t size = n;
    if (size > uint64_t{1} << 62 || __builtin_mul_overflow(bytes, size, &bytes))
      return bad(at + ": the shape is too large");
    tensor.shape.push_back(static_cast<int64_t>(size));
  }
  if (tensor.begin > tensor.end || tensor.end > data_bytes)
    return bad(at + ": data_offsets [" + std::to_string(tensor.begin) + ", " +
               std::to_string(tensor.end) + ") are outside of the file's " +
               std::to_string(data_bytes) + " bytes of data");
  if (tensor.end - tensor.begin != bytes)
    return bad(at + ": its shape needs " + std::to_string(bytes) + " bytes, it has " +
               std::to_string(tensor.end - tensor.begin));
  return tensor;
}

/// The header's values. twice: a member that stands in an object more than once, of which the JSON
/// library keeps the last one.
json parse_header(const std::string& text, std::optional<std::string>& twice) {
  if (!json_depth_at_most(text)) return json(json::value_t::discarded);
  std::vector<std::set<std::string>> members;  // of the objects that are open
  const auto see = [&](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) members.emplace_back();
    if (event == json::parse_event_t::object_end) members.pop_back();
    if (event == json::parse_event_t::key &&
        !members.back().insert(value.get<std::string>()).second)
      twice = value.get<std::string>();
    return true;
  };
  return json::parse(text, see, false);
}

}  // namespace

uint64_t TensorEntry::count() const {
  return (end - begin) / safetensors_element_bytes(dtype);
}

size_t safetensors_element_bytes(const std::string& dtype) {
  static const std::map<std::string, size_t> sizes = {
      {"F64", 8},     {"I64", 8},     {"U64", 8}, {"F32", 4}, {"I32", 4},
      {"U32", 4},     {"BF16", 2},    {"F16", 2}, {"I16", 2}, {"U16", 2},
      {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"I8", 1},  {"U8", 1},  {"BOOL", 1}};
  const auto found = sizes.find(dtype);
  return found == sizes.end() ? 0 : found->second;
}

Result<std::vector<TensorEntry>> parse_safetensors_header(const std::string& text,
                                                          uint64_t data_bytes) {
  if (text.empty() || text[0] != '{') return bad("the header does not begin with '{'");
  std::optional<std::string> twice;
  const json header = parse_header(text, twice);
  if (!header.is_object()) return bad("the header is not JSON");
  if (twice) return bad("\"" + shown_name(*twice) + "\" stands twice in the header");
  std::vector<TensorEntry> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      if (!entry.is_object() ||
          !std::all_of(entry.begin(), entry.end(), [](const json& v) { return v.is_string(); }))
        return bad("__metadata__ is not a map of strings");
      continue;
    }
    SS_ASSIGN(TensorEntry tensor, parse_entry(name, entry, data_bytes));
    tensors.push_back(std::move(tensor));
  }
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  uint64_t at = 0;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.begin != at)
      return bad("tensor \"" + shown_name(tensor.name) + "\": begins at " +
                 std::to_string(tensor.begin) + ", " +
                 (tensor.begin < at ? "inside the tensor before it" : "after a gap"));
    at = tensor.end;
  }
  if (at != data_bytes)
    return bad("the tensors end at byte " + std::to_string(at) + " of " +
               std::to_string(data_bytes));
  return tensors;
}

std::string make_safetensors_header(std::vector<TensorEntry>& tensors,
                                    const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t at = 0;
  for (TensorEntry& tensor : tensors) {
    uint64_t bytes = safetensors_element_bytes(tensor.dtype);
    SS_ASSERT(bytes > 0);
    for (const int64_t n : tensor.shape) bytes *= static_cast<uint64_t>(n);
    tensor.begin = at;
    tensor.end = at += bytes;
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  SS_ASSERT(length <= kSafetensorsHeaderMax);
  return std::string(reinterpret_cast<const char*>(&length), 8) + text;
}

// -- SafetensorsFile ----------------------------------------------------------------------------

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  SS_ASSIGN(InputFile input, InputFile::open(path));
  return of(std::move(input));
}

Result<SafetensorsFile> SafetensorsFile::of(InputFile input) {
  const std::string path = input.path();
  uint64_t length = 0;
  if (input.bytes() < 8) return bad(path + ": too short for a safetensors file");
  SS_RETURN_IF_ERROR(input.read(0, &length, 8));
  if (length > kSafetensorsHeaderMax || length > input.bytes() - 8)
    return bad(path + ": a header of " + std::to_string(length) + " bytes does not fit");
  std::string head(8 + length, '\0');
  SS_RETURN_IF_ERROR(input.read(0, head.data(), head.size()));

  SafetensorsFile file(std::move(input));
  file.header_hash_ = hash128(head.data(), head.size());
  file.data_offset_ = head.size();
  auto tensors = parse_safetensors_header(head.substr(8), file.bytes() - file.data_offset_);
  if (!tensors.ok()) return tensors.status().in(path);
  file.tensors_ = tensors.take();
  for (size_t i = 0; i < file.tensors_.size(); ++i) file.index_[file.tensors_[i].name] = i;
  return file;
}

const TensorEntry* SafetensorsFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

Status SafetensorsFile::read(const TensorEntry& tensor, uint64_t first, void* out,
                             size_t bytes) const {
  SS_ASSERT(first <= tensor.end - tensor.begin && bytes <= tensor.end - tensor.begin - first);
  return file_.read(data_offset_ + tensor.begin + first, out, bytes);
}

Status SafetensorsFile::read_f32(const TensorEntry& tensor, uint64_t first, size_t count,
                                 float* out) const {
  if (tensor.dtype == "F32") return read(tensor, first * 4, out, count * 4);
  if (tensor.dtype == "F64") return read_f64(tensor, first, count, out);
  if (tensor.dtype != "BF16" && tensor.dtype != "F16")
    return bad(path() + ": tensor \"" + shown_name(tensor.name) + "\" is " + tensor.dtype +
               ", not F32, BF16, F16 or F64");
  // Read the two-byte values to the upper half of `out`, then widen them in place from the front.
  auto* narrow = reinterpret_cast<unsigned char*>(out) + count * 2;
  SS_RETURN_IF_ERROR(read(tensor, first * 2, narrow, count * 2));
  const bool brain = tensor.dtype == "BF16";
  for (size_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, narrow + i * 2, 2);
    const float value = brain ? bf16_to_f32(bits) : f16_to_f32(bits);
    std::memcpy(out + i, &value, 4);
  }
  return {};
}

/// Rounds to nearest, ties to even, as torch does.
Status SafetensorsFile::read_f64(const TensorEntry& tensor, uint64_t first, size_t count,
                                 float* out) const {
  std::vector<double> wide(std::min<size_t>(count, 64 << 10));
  for (size_t done = 0; done < count;) {
    const size_t n = std::min(wide.size(), count - done);
    SS_RETURN_IF_ERROR(read(tensor, (first + done) * 8, wide.data(), n * 8));
    for (size_t i = 0; i < n; ++i) out[done + i] = static_cast<float>(wide[i]);
    done += n;
  }
  return {};
}

// -- SafetensorsFolder --------------------------------------------------------------------------

namespace {

constexpr const char* kSingleFile = "model.safetensors";

/// The file names of a folder and, if there is an index, the file of each tensor.
struct FolderIndex {
  std::vector<std::string> files;
  std::map<std::string, std::string> weight_map;
};

/// Weights of another format that the folder holds, and what to do with them; "": none.
std::string other_weights(const std::string& folder) {
  const auto names = read_folder(folder);
  if (!names.ok()) return "";
  const auto found = std::ranges::find_if(*names, [](const std::string& name) {
    for (const char* end : {".safetensors", ".gguf", ".pth", ".h5", ".msgpack"})
      if (name.ends_with(end)) return true;
    return name.starts_with("pytorch_model");
  });
  if (found == names->end()) return "";
  return "; weights are read from model.safetensors, or the files that its index names, not from " +
         shown_name(*found) +
         "; to convert what transformers loads: python3 -c 'import sys, transformers as t; "
         "t.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=\"auto\")"
         ".save_pretrained(sys.argv[2])' FOLDER NEW_FOLDER, then copy the tokenizer's files";
}

Result<FolderIndex> read_folder_index(const std::string& folder) {
  const std::string path = folder + "/model.safetensors.index.json";
  const auto text = read_text_inside(path, kSafetensorsHeaderMax);
  std::error_code error;
  const bool single = std::filesystem::exists(folder + "/" + kSingleFile, error);
  if (!text.ok() && text.status().code() == Code::not_found) {
    if (!single) return bad(folder + ": no " + kSingleFile + other_weights(folder));
    return FolderIndex{{kSingleFile}, {}};
  }
  if (!text.ok()) return text.status();
  const json index = parse_json(*text);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
    return bad(path + ": no weight_map");
  FolderIndex out;
  std::set<std::string> files;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    const std::string at = path + ": weight_map." + shown_name(tensor);
    if (!file.is_string()) return bad(at + " is not a file name");
    const std::string name = file;
    if (name.empty() || name.find('/') != std::string::npos || name.find('\0') != std::string::npos)
      return bad(at + ": \"" + shown_name(name) + "\" is not a plain file name");
    // check_hf_links() looks at files with this ending.
    if (!name.ends_with(".safetensors"))
      return bad(at + ": \"" + shown_name(name) + "\" is no .safetensors file");
    files.insert(name);
    out.weight_map[tensor] = name;
  }
  out.files.assign(files.begin(), files.end());
  // transformers would read model.safetensors and leave the index out of account.
  if (single && out.files != std::vector<std::string>{kSingleFile})
    return bad(folder + " has two sets of weights, " + kSingleFile + " and the files of " +
               std::filesystem::path(path).filename().string() + ": remove one of them");
  return out;
}

}  // namespace

Result<SafetensorsFolder> SafetensorsFolder::open(const std::string& folder) {
  SS_ASSIGN(const FolderIndex index, read_folder_index(folder));
  SafetensorsFolder out;
  for (const std::string& name : index.files) {
    auto input = InputFile::open_inside(folder, folder + "/" + name);
    if (!input.ok()) return bad(input.status().message());
    auto file = SafetensorsFile::of(input.take());
    if (!file.ok()) return bad(file.status().message());
    for (size_t i = 0; i < file->tensors().size(); ++i) {
      // As transformers does, the index is asked for the files only: all of their tensors count.
      const std::string& tensor = file->tensors()[i].name;
      const auto [at, first] = out.index_.try_emplace(tensor, out.files_.size(), i);
      if (!first)
        return bad(file->path() + ": tensor \"" + shown_name(tensor) + "\" is also in " +
                   out.files_[at->second.first].path());
    }
    out.files_.push_back(file.take());
  }
  for (const auto& [tensor, file] : index.weight_map)
    if (const auto place = out.find(tensor); !place || place->file->path() != folder + "/" + file)
      return bad(folder + "/" + shown_name(file) + ": has no tensor \"" + shown_name(tensor) +
                 "\", though the index says so");
  return out;
}

std::optional<SafetensorsFolder::Place> SafetensorsFolder::find(const std::string& name) const {
  const auto found = index_.find(name);
  if (found == index_.end()) return std::nullopt;
  const SafetensorsFile& file = files_[found->second.first];
  return Place{&file, &file.tensors()[found->second.second]};
}

std::vector<std::string> SafetensorsFolder::names() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : index_) names.push_back(name);
  return names;
}

// -- SafetensorsWriter --------------------------------------------------------------------------

Result<SafetensorsWriter> SafetensorsWriter::create(
    FileOps& ops, const std::string& path, std::vector<TensorEntry> tensors,
    const std::map<std::string, std::string>& metadata) {
  const std::string header = make_safetensors_header(tensors, metadata);
  SS_ASSIGN(OutputFile file, OutputFile::create(ops, path));
  SS_RETURN_IF_ERROR(file.write(header));
  SafetensorsWriter writer(std::move(file));
  writer.header_bytes_ = header.size();
  writer.header_hash_ = hash128(header.data(), header.size());
  writer.data_bytes_ = tensors.empty() ? 0 : tensors.back().end;
  writer.tensors_ = std::move(tensors);
  return writer;
}

Status SafetensorsWriter::write(size_t tensor, uint64_t first, const void* data, size_t bytes) {
  const TensorEntry& to = tensors_.at(tensor);
  SS_ASSERT(first <= to.end - to.begin && bytes <= to.end - to.begin - first);
  std::atomic_ref(written_) += bytes;
  return file_.write_at(header_bytes_ + to.begin + first, data, bytes);
}

Status SafetensorsWriter::finish() {
  SS_ASSERT(written_ == data_bytes_);
  return file_.sync();
}

}  // namespace simplescale
