// What other users and servers write: rows and tasks of a data set, compressed text, the manifest of
// prepared data, files of a Hugging Face folder, traces of a run, answers and indices of an object
// store, rules for logs, samples to skip.
#include <archive.h>
#include <archive_entry.h>

#include <algorithm>

#include "runtime/checkpoint/bucket_index.hpp"
#include "runtime/checkpoint/safetensors.hpp"
#include "runtime/data/manifest.hpp"
#include "runtime/object_store/answers.hpp"
#include "runtime/object_store/given_credentials.hpp"
#include "runtime/observe/log_rules.hpp"
#include "runtime/observe/trace_parts.hpp"
#include "runtime/training/skipped_samples.hpp"
#include "tests/fuzz/driver.hpp"
#include "tests/temp_folder.hpp"
#include "tools/convert/huggingface.hpp"
#include "tools/prepare/corpus.hpp"
#include "tools/prepare/json_row.hpp"
#include "tools/prepare/task_file.hpp"

using namespace simplescale;
using namespace simplescale::s3_answers;

namespace {

constexpr const char* kHfConfig =
    R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":4,)"
    R"("intermediate_size":4,"num_attention_heads":2,)"
    R"("num_key_value_heads":1,"num_hidden_layers":1,"vocab_size":6,"max_position_embeddings":8})";

void read_text_of(const std::string& path) {
  if (const auto corpus = Corpus::open(path, {.mask_key = "mask", .skip_bad = 3}); corpus.ok())
    (void)corpus->read([](TextChunk, double) { return Status(); });
}

/// A Hugging Face folder of zeros without a tokenizer's configuration.
std::string make_hf_folder(const test::TempFolder& scratch) {
  const std::string config = scratch.write("hf/config.json", kHfConfig);
  std::vector<TensorEntry> tensors;
  std::vector<size_t> counts;
  for (const Unit& unit : units_of(read_hf_config(config).take()))
    for (const Parameter& parameter : unit.parameters) {
      TensorEntry tensor;
      tensor.name = parameter.name, tensor.dtype = "F32", tensor.shape = parameter.shape;
      tensors.push_back(std::move(tensor));
      counts.push_back(parameter.count);
    }
  auto out = SafetensorsWriter::create(system_files(), scratch / "hf/model.safetensors",
                                       std::move(tensors), {});
  const std::vector<float> zeros(std::ranges::max(counts));
  for (size_t i = 0; i < counts.size(); ++i)
    if (!out.ok() || !out->write(i, 0, zeros.data(), counts[i] * sizeof(float)).ok()) abort();
  scratch.write("hf/tokenizer.model", "a file that only has to be there");
  return scratch / "hf";
}

/// Imports a folder whose generation_config.json and tokenizer_config.json are this text. Of an
/// import that works, the checkpoint can be read.
void import_with(const test::TempFolder& scratch, const std::string& text) {
  static const std::string folder = make_hf_folder(scratch);
  scratch.write("hf/generation_config.json", text);
  scratch.write("hf/tokenizer_config.json", text);
  const std::string made = scratch / "imported";
  if (!import_hf(folder, made).ok()) return;
  if (!Checkpoint::open(made).ok()) abort();
  (void)remove_folder(system_files(), made);
}

std::string compressed(const std::string& text, int (*add_filter)(archive*)) {
  std::string bytes(4096 + text.size(), '\0');
  size_t used = 0;
  archive* out = archive_write_new();
  add_filter(out);
  archive_write_set_format_raw(out);
  archive_write_set_bytes_in_last_block(out, 1);
  archive_entry* entry = archive_entry_new();
  archive_entry_set_filetype(entry, AE_IFREG);
  if (archive_write_open_memory(out, bytes.data(), bytes.size(), &used) != ARCHIVE_OK ||
      archive_write_header(out, entry) != ARCHIVE_OK ||
      archive_write_data(out, text.data(), text.size()) < 0)
    abort();
  archive_entry_free(entry);
  archive_write_close(out);
  archive_write_free(out);
  bytes.resize(used);
  return bytes;
}

}  // namespace

static void run(const uint8_t* data, size_t bytes) {
  const std::string text(reinterpret_cast<const char*>(data), bytes);
  (void)read_json_row(text, "text", "mask");
  (void)read_json_mask(text, "mask", "some text");
  (void)parse_error(text);
  (void)parse_objects(text);
  (void)parse_uploads(text);
  (void)parse_upload_id(text);
  (void)credentials_of_json(text, "Token");
  if (const auto index = parse_bucket_index(text);
      index.ok() && !parse_bucket_index(bucket_index_text(*index)).ok())
    abort();
  if (const auto skipped = SkippedSamples::parse(text);
      skipped.ok() && !SkippedSamples::parse(skipped->text()).ok())
    abort();
  if (const auto rules = LogRules::parse(text, "fuzz.toml"); rules.ok())
    (void)rules->match("NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.", true);
  static const test::TempFolder scratch("/dev/shm");
  const std::string path = scratch.write("foreign", text);
  (void)read_hf_config(path);
  (void)read_tasks(path);
  (void)read_trace_part(path);
  scratch.write("manifest.json", text);
  (void)read_manifest(scratch.path);
  for (const char* name : {"text.gz", "text.zst", "rows.jsonl.gz", "rows.jsonl.zst"})
    read_text_of(scratch.write(name, text));
  import_with(scratch, text);
}

static std::vector<std::string> seeds() {
  const std::string rule =
      "[[rule]]\nname = 'x'\nseverity = 'error'\ncause = 'root'\naction = 'diagnose'\n"
      "contains = ['GPU']\npattern = '^NVRM: (Xid|[^]|]+) \\(PCI'\n";
  const std::string row = R"({"text":"some text \u00e9","mask":[[0,4],[5,9]]})";
  const test::TempFolder scratch("/dev/shm");
  Manifest manifest;
  manifest.sources = {{"a.txt", 12, 1, "0123"}};
  for (FileRecord* file : {&manifest.tokenizer, &manifest.train, &manifest.validation})
    *file = {"train.bin", 12, 34, "0123"};
  if (!write_manifest(scratch.path, manifest).ok()) abort();
  return {
      row,
      compressed(row + "\n" + row + "\n", archive_write_add_filter_gzip),
      compressed(row + "\n" + row + "\n", archive_write_add_filter_zstd),
      read_text_file(scratch / "manifest.json", 1 << 20).take(),
      R"({"eos_token_id":[1,2],"do_sample":true,"temperature":0.6,"auto_map":{"a":"b"},)"
      R"("chat_template":[{"name":"default","template":"{{ x }}"}]})",
      R"({"task":"a","prompt":"2 + 2 =","choices":["4","5"],"answer":0,"delimiter":" "})"
      "\n"
      R"({"text":"a text"})",
      "<ListBucketResult><Contents><Key>a/b</Key><Size>12</Size><ETag>x</ETag>"
      "<LastModified>2026-11-25T06:00:00Z</LastModified></Contents><IsTruncated>true</IsTruncated>"
      "<NextContinuationToken>t</NextContinuationToken></ListBucketResult>",
      "<ListMultipartUploadsResult><Upload><Key>a</Key><UploadId>u</UploadId></Upload>"
      "<IsTruncated>false</IsTruncated></ListMultipartUploadsResult>",
      "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>",
      "<Error><Code>NoSuchKey</Code><Message>none</Message></Error>",
      R"({"AccessKeyId":"a","SecretAccessKey":"b","Token":"c","Expiration":"2026-11-25T06:00:00Z"})",
      bucket_index_text({"id", "run", {{100, "step-00000100-0123456789abcdef", 2.5}}}),
      R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":64,)"
      R"("intermediate_size":128,"num_attention_heads":4,)"
      R"("num_key_value_heads":2,"num_hidden_layers":2,"vocab_size":300,"rms_norm_eps":1e-5,)"
      R"("max_position_embeddings":128,"rope_theta":10000.0,"tie_word_embeddings":false,)"
      R"("rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,)"
      R"("high_freq_factor":4.0,"original_max_position_embeddings":8192}})",
      R"({"trace":1,"who":"n1","host":"h","begin_ns":1,"end_ns":9})"
      "\n"
      R"({"process":"n1.0","pid":7,"full":false,"threads":["compute"]})"
      "\n"
      R"([2,3,0,0,-1,0,0,"forward","block"])",
      "80-83,92,1000000000000-1000000000007",
      rule,
  };
}

static const FuzzTarget target("foreign", run, seeds);
