// What other users and servers write: rows and tasks of a data set, a Hugging Face config, traces of a
// run, answers and indices of an object store, rules for logs, samples to skip.
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/checkpoint/bucket_index.hpp"
#include "runtime/checkpoint/huggingface.hpp"
#include "runtime/data/json_row.hpp"
#include "runtime/data/task_file.hpp"
#include "runtime/exports/trace_parts.hpp"
#include "runtime/object_store/answers.hpp"
#include "runtime/object_store/given_credentials.hpp"
#include "runtime/observe/log_rules.hpp"
#include "runtime/training/skipped_samples.hpp"
#include "tests/fuzz/driver.hpp"

using namespace simplescale;
using namespace simplescale::s3_answers;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
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
  const int fd = memfd_create("foreign", 0);
  if (fd < 0) return 0;
  if (write(fd, data, bytes) == static_cast<ssize_t>(bytes)) {
    const std::string path = "/proc/self/fd/" + std::to_string(fd);
    (void)read_hf_config(path);
    (void)read_tasks(path);
    (void)read_trace_part(path);
  }
  close(fd);
  return 0;
}

std::vector<std::string> fuzz_seeds() {
  const std::string rule =
      "[[rule]]\nname = 'x'\nseverity = 'error'\ncause = 'root'\naction = 'diagnose'\n"
      "contains = ['GPU']\npattern = '^NVRM: (Xid|[^]|]+) \\(PCI'\n";
  return {
      R"({"text":"some text \u00e9","mask":[[0,4],[5,9]]})",
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
      R"({"model_type":"llama","hidden_size":64,"intermediate_size":128,"num_attention_heads":4,)"
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
