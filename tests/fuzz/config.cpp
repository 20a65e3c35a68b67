// Configuration files: TOML syntax, values, plans.
#include "runtime/config/config.hpp"

#include "runtime/config/topology.hpp"
#include "tests/fuzz/driver.hpp"
#include "tests/paths.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;

static void run(const uint8_t* data, size_t bytes) {
  const std::string text(reinterpret_cast<const char*>(data), bytes);
  // `base` would make the target read other files.
  if (text.find("base") != std::string::npos) return;
  auto loaded = load_config_text(text, "fuzz.toml");
  if (loaded.ok()) (void)make_plan(*loaded);
}

static std::vector<std::string> seeds() {
  std::vector<std::string> made;
  for (const char* name : {"reference", "quickstart", "tinyllama-16-nodes", "full_shard"})
    made.push_back(test::contents(source_dir() + "/configs/" + name + ".toml"));
  made.push_back("[model]\ndim = 48\nheads = 4\nkv_heads = 2\n[cluster]\nnodes = 3\n");
  made.push_back("[inject]\nfaults = [{step = 3, kind = \"kill_trainer\", target = \"n1.0\"}]\n");
  return made;
}

static const FuzzTarget target("config", run, seeds);
