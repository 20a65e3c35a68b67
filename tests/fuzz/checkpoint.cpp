// The files of a checkpoint: manifests, shard records, safetensors headers.
#include "runtime/checkpoint/checkpoint.hpp"

#include "runtime/checkpoint/checkpoint_format.hpp"
#include "runtime/checkpoint/safetensors.hpp"
#include "tests/fuzz/driver.hpp"

using namespace simplescale;

static void run(const uint8_t* data, size_t bytes) {
  const std::string text(reinterpret_cast<const char*>(data), bytes);
  (void)parse_shard_record(text);
  (void)checkpoint_format::parse_manifest(text);
  // Again with a correct hash, to reach the code behind the check of the hash.
  const std::string key = "\"manifest_hash\": \"";
  if (const size_t at = text.find(key); at != std::string::npos) {
    const size_t covered = at + key.size();
    (void)checkpoint_format::parse_manifest(text.substr(0, covered) +
                                            hash128(text.data(), covered).hex() + "\"\n}\n");
  }
  (void)parse_safetensors_header(text, bytes % 4096);
}

static std::vector<std::string> seeds() {
  ShardRecord record{"shard-00000-of-00001.safetensors", 4096, {1, 2}, {}};
  for (const char* name : {"params.embed", "exp_avg.block.0", "exp_avg_sq.head"})
    record.tensors[name] = Hash128{3, 4};
  std::vector<TensorEntry> tensors(2);
  tensors[0].name = "a", tensors[0].dtype = "F32", tensors[0].shape = {8, 16};
  tensors[1].name = "b", tensors[1].dtype = "BF16", tensors[1].shape = {};
  const std::string header = make_safetensors_header(tensors, {{"format", "pt"}});
  checkpoint_format::Manifest manifest;
  manifest.records = {record};
  return {to_json(record), header.substr(8), checkpoint_format::manifest_text(manifest),
          R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})"};
}

static const FuzzTarget target("checkpoint", run, seeds);
