// Configuration files: TOML syntax, values, plans.
#include "runtime/config/config.hpp"

#include <fstream>
#include <sstream>

#include "runtime/config/topology.hpp"
#include "tests/fuzz/driver.hpp"
#include "tests/paths.hpp"

using namespace simplescale;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const std::string text(reinterpret_cast<const char*>(data), bytes);
  // `base` would make the target read other files.
  if (text.find("base") != std::string::npos) return 0;
  auto loaded = load_config_text(text, "fuzz.toml");
  if (loaded.ok()) (void)make_plan(*loaded);
  return 0;
}

std::vector<std::string> fuzz_seeds() {
  std::vector<std::string> seeds;
  for (const char* name : {"reference", "quickstart", "tinyllama-16-nodes", "full_shard"}) {
    std::ostringstream text;
    text << std::ifstream(source_dir() + "/configs/" + name + ".toml").rdbuf();
    seeds.push_back(text.str());
  }
  seeds.push_back("[model]\ndim = 48\nheads = 4\nkv_heads = 2\n[cluster]\nnodes = 3\n");
  seeds.push_back("[inject]\nfaults = [{step = 3, kind = \"kill_trainer\", target = \"n1.0\"}]\n");
  return seeds;
}
