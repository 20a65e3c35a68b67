// Loading of files, inheritance, overrides, and error messages.
#include <doctest/doctest.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "runtime/base/utf8.hpp"
#include "runtime/config/check.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/schema.hpp"
#include "runtime/config/show.hpp"
#include "runtime/config/topology.hpp"
#include "tests/must.hpp"
#include "tests/paths.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;
namespace fs = std::filesystem;

namespace {

std::string error_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  const auto loaded = load_config_text(text, "a.toml", overrides);
  if (loaded.ok()) return "no error";
  CHECK(loaded.status().code() == Code::bad_config);
  CHECK(loaded.status().message().find('\n') == std::string::npos);
  return loaded.status().message();
}

Config parsed(const std::string& text, const std::vector<std::string>& overrides = {}) {
  auto loaded = must(load_config_text(text, "a.toml", overrides));
  return loaded->config;
}

const std::string configs = source_dir() + "/configs/";

}  // namespace

TEST_SUITE("config load") {
  TEST_CASE("config: an empty file gives the defaults and the name of the file") {
    const auto loaded = must(load_config_text("", "configs/first-run.toml"));
    CHECK(loaded->config.run.name == "first-run");
    CHECK(loaded->config.train.micro_batch_size == 8);
    CHECK(loaded->origin.size() == schema::keys().size());
    for (const auto& [key, origin] : loaded->origin) CHECK_MESSAGE(origin == "default", key);
  }

  TEST_CASE("config: every kind of value is read, with the line of its origin") {
    const auto loaded = must(load_config_text(
        "[run]\nname = \"r\"\n[data]\nshuffle = false\n[train]\nprecision = \"fp32\"\n"
        "learning_rate = 1\nbetas = [0.8, 0.99]\nmax_steps = 1_000\n[inject]\n"
        "faults = [{ step = 40, kind = \"kill_trainer\", target = \"n1.0\" }]\n",
        "a.toml"));
    const Config& c = loaded->config;
    CHECK(c.data.shuffle == false);
    CHECK(c.train.precision == DType::f32);
    CHECK(c.train.learning_rate == 1.0);
    CHECK(c.train.betas == std::array<double, 2>{0.8, 0.99});
    CHECK(c.train.max_steps == 1000);
    CHECK(c.inject.faults == std::vector<FaultSpec>{{40, "kill_trainer", "n1.0"}});
    CHECK(loaded->origin.at("train.betas") == "a.toml:8");
    CHECK(loaded->origin.at("inject.faults") == "a.toml:11");
    CHECK(loaded->origin.at("train.eps") == "default");
  }

  TEST_CASE("config: an unknown key is an error with its line and the nearest known key") {
    CHECK(error_of("[train]\n\nmax_step = 3\n") ==
          "a.toml:3: unknown key train.max_step; nearest known key: train.max_steps");
    CHECK(error_of("[train]\nblock_size = 3\n") ==
          "a.toml:2: unknown key train.block_size; nearest known key: model.block_size");
    CHECK(error_of("max_steps = 3\n") ==
          "a.toml:1: unknown key max_steps; nearest known key: train.max_steps");
    for (const auto& [word, key] : {std::pair{"train.lr", "train.learning_rate"},
                                    {"train.wd", "train.weight_decay"},
                                    {"train.warmup", "train.warmup_steps"},
                                    {"train.batch_size", "train.micro_batch_size"},
                                    {"optimizer.lr", "train.learning_rate"}})
      CHECK(error_of("", {std::string("--") + word + "=1"})
                .ends_with(std::string("nearest known key: ") + key));
    CHECK(error_of("[trian]\nmax_steps = 3\n")
              .starts_with("a.toml:1: unknown section [trian]: did you mean 'train'?"));
    CHECK(error_of("train = 3\n") == "a.toml:1: train must be a section, [train]");
  }

  TEST_CASE("config: a wrong type gives an error with the expected type") {
    CHECK(error_of("[train]\nmax_steps = \"many\"\n") ==
          "a.toml:2: train.max_steps = \"many\" must be an integer");
    CHECK(error_of("[train]\nmax_steps = 1.5\n").ends_with("must be an integer"));
    CHECK(error_of("[train]\nmax_steps = true\n").ends_with("must be an integer"));
    CHECK(error_of("[train]\nlearning_rate = \"x\"\n").ends_with("must be a number"));
    CHECK(error_of("[data]\nshuffle = 1\n").ends_with("must be true or false"));
    CHECK(error_of("[run]\nname = 3\n").ends_with("must be a string"));
    CHECK(error_of("[train]\nbetas = [0.9]\n").ends_with("must be two numbers, [a, b]"));
    CHECK(error_of("[run.name]\nx = 1\n").ends_with("must be a string"));
    CHECK(has(error_of("[inject]\nfaults = [{ step = 1 }]\n"), "must be a list of"));
    CHECK(error_of("[inject]\nfaults = [3]\n").find("must be a list of") != std::string::npos);
    CHECK(error_of("[inject]\nfaults = [{ step = 1, kind = \"nan_loss\", target = \"n0\" }, "
                   "{ step = 1, knd = \"nan_loss\" }]\n")
              .starts_with("a.toml:2: inject.faults = { knd = 'nan_loss', step = 1 } must be"));
  }

  TEST_CASE("config: a value that is not allowed gives an error that lists the allowed values") {
    CHECK(error_of("[parallel]\nstrategy = \"fsdp\"\n") ==
          "a.toml:2: parallel.strategy = \"fsdp\" must be \"auto\", \"full_shard\", "
          "\"shard_grad_op\", \"hybrid_shard\" or \"no_shard\"");
    CHECK(error_of("[train]\nprecision = \"fp16\"\n").ends_with("must be \"fp32\" or \"bf16\""));
    CHECK(error_of("[inject]\nfaults = [{ step = 1, kind = \"explode\", target = \"n0\" }]\n")
              .starts_with(
                  "a.toml:2: inject.faults: unknown kind \"explode\"; known are kill_trainer"));
    CHECK(error_of("[inject]\nfaults = [{ step = -1, kind = \"nan_loss\", target = \"n0\" }]\n")
              .find("step must be at least 1, the first step") != std::string::npos);
  }

  TEST_CASE("config: a number out of range gives an error with the range") {
    CHECK(error_of("[train]\nmicro_batch_size = 0\n") ==
          "a.toml:2: train.micro_batch_size = 0 is out of range: 1 to 4096");
    CHECK(error_of("[train]\nbetas = [0.9, 1.0]\n").ends_with("out of range: 0 or more, below 1"));
    CHECK(error_of("[train]\neps = 0\n").ends_with("out of range: above 0 to 1"));
    CHECK(error_of("[train]\nlearning_rate = nan\n").ends_with("out of range: 0 to 1"));
    CHECK(error_of("[train]\nlearning_rate = inf\n").ends_with("out of range: 0 to 1"));
    CHECK(error_of("[train]\nlearning_rate = 3\n") ==
          "a.toml:2: train.learning_rate = 3 is out of range: 0 to 1");
    CHECK(error_of("[metrics]\nhttp_port = 65536\n").ends_with("out of range: 0 to 65535"));
    CHECK(error_of("[metrics]\nevery_steps = 0\n").ends_with("at least 1"));
  }

  TEST_CASE("config: what does not work with experts is refused by name") {
    const auto error = [](const std::string& train, const std::string& device = "cpu") {
      return error_of("[model]\npreset = \"moe-micro\"\n[train]\n" + train +
                      "[cluster]\ndevice = \"" + device + "\"\n");
    };
    for (const char* fine : {"optimizer = \"muon\"\n", "activation_checkpointing = true\n",
                             "ema_decay = 0.9\n", "router_z_loss = 0.001\n"})
      CHECK_FALSE(has(error(fine), "experts"));
    CHECK(error("fp8 = true\n")
              .starts_with("a.toml:4: train.fp8 = true cannot be true with model.experts"));
    CHECK(has(error("", "cuda"), "only CPU trainers compute experts"));
    for (const char* loss : {"router_z_loss", "router_balance_loss"})
      CHECK(has(error_of("[model]\npreset = \"micro\"\n[train]\n" + std::string(loss) + " = 0.1\n"),
                std::string("train.") + loss + " = 0.1 has no effect without experts"));
  }

  TEST_CASE("config: an impossible combination of values gives an error with a line") {
    CHECK(error_of("[model]\npreset = \"micro\"\nheads = 5\n") ==
          "a.toml:3: model.heads = 5 does not divide dim = 128");
    CHECK(error_of("[model]\npreset = \"micro\"\nkv_heads = 3\n") ==
          "a.toml:3: model.kv_heads = 3 does not divide heads = 4");
    CHECK(error_of("[model]\npreset = \"huge\"\n")
              .starts_with("a.toml:2: model.preset = \"huge\" is not known; presets are micro, "
                           "moe-micro, mini"));
    CHECK(error_of("[model]\ndim = 128\n") ==
          "a.toml: model.hidden is not set: set it, or model.preset");
    CHECK(error_of("[model]\npreset = \"micro\"\n[tokenizer]\nvocab = 5000\n") ==
          "a.toml:4: tokenizer.vocab = 5000 is more than the model's vocab = 4096");
    CHECK(error_of("[train]\nlearning_rate = 1e-5\nmin_learning_rate = 1e-4\n")
              .starts_with("a.toml:3: train.min_learning_rate"));
    CHECK(error_of("[run]\nwith_optimizer = true\n").ends_with("needs run.from"));
    const std::string fp8 = "[train]\nfp8 = true\n[model]\npreset = \"mini\"\n";
    for (const char* device : {"", "[cluster]\ndevice = \"cuda\"\n"}) {
      CHECK(error_of(fp8 + device).find("fp8") == std::string::npos);
      CHECK(error_of(fp8 + "hidden = 1000\n" + device)
                .starts_with("a.toml:2: train.fp8 = true cannot be: products in fp8 on a GPU need "
                             "hidden as a multiple of 16, and it is 1000"));
    }
    CHECK_FALSE(has(error_of(fp8 + "hidden = 1000\n[cluster]\ndevice = \"cpu\"\n"), "fp8"));
    CHECK(error_of("[train]\nmin_learning_rate = -0.5\n").find("must be -1") != std::string::npos);
    CHECK(error_of("[transport]\ntrusted_networks = \"eth0, *\"\n")
              .starts_with("a.toml:2: transport.trusted_networks = \"eth0, *\" has an entry that "
                           "cannot be trusted: \"*\" would trust"));
    CHECK(error_of("[data]\nskip_samples = \"4-3\"\n")
              .starts_with("a.toml:2: data.skip_samples = \"4-3\" must be a list of samples"));
    const auto keep_best = [](const std::string& validated, const std::string& saved) {
      return error_of("[checkpoint]\nkeep_best = 1\ndisk_every_steps = " + saved +
                      "\n[train]\nvalidation_every_steps = " + validated + "\n");
    };
    CHECK(keep_best("0", "20").find("needs train.validation_every_steps") != std::string::npos);
    CHECK(keep_best("20", "0").find("needs checkpoint.disk_every_steps") != std::string::npos);
    CHECK(keep_best("20", "30").find("must be a multiple of") != std::string::npos);
    CHECK(keep_best("20", "40").find("keep_best") == std::string::npos);
    CHECK(keep_best("40", "20").find("keep_best") == std::string::npos);
    const std::string micro = "[model]\npreset = \"micro\"\n[train]\n";  // of 256 tokens
    CHECK(error_of(micro + "validation_lengths = [64, 96]\n") ==
          "a.toml:4: train.validation_lengths = [64, 96] has 96, which does not divide "
          "model.block_size = 256");
    CHECK(error_of(micro + "validation_lengths = [512]\n").find("has 512, which") !=
          std::string::npos);
    CHECK(error_of(micro + "validation_lengths = [64]\nvalidation_samples = 0\n")
              .ends_with("needs train.validation_samples above 0"));
    CHECK_FALSE(has(error_of(micro + "validation_lengths = [1, 64, 256]\n"), "lengths"));
    CHECK(error_of("[supervision]\nsilence_ms = 100\n")
              .starts_with("a.toml:2: supervision.silence_ms"));
    CHECK(error_of("[run]\nname = \"a/b\"\n").starts_with("a.toml:2: run.name = \"a/b\" must be"));
  }

  TEST_CASE("config: what `wandb sync` would refuse after the run is refused before it") {
    const std::string on = "[metrics]\nwandb = true\n";
    const auto project = [&](const std::string& name) {
      return error_of(on + "wandb_project = \"" + name + "\"");
    };
    CHECK(project("a project of umlauts \u00e4").find("no error") == 0);
    CHECK(project(std::string(128, 'p')) == "no error");
    CHECK(project(std::string(129, 'p')).find("at most 128 characters") != std::string::npos);
    for (const char forbidden : std::string("/#?%:"))
      CHECK(project(std::string("a") + forbidden).find("wandb_project") != std::string::npos);
    const auto tags = [&](const std::string& text) {
      return error_of(on + "wandb_tags = \"" + text + "\"");
    };
    CHECK(tags("red,, big one, " + std::string(64, 't')) == "no error");
    CHECK(tags("red, " + std::string(65, 't')).find("at most 64 characters") != std::string::npos);
    CHECK(error_of("[metrics]\nwandb_project = \"a/b\"") == "no error");  // it is not written
  }

  TEST_CASE("config: invalid TOML is an error with its line") {
    CHECK(error_of("[run]\nname = \n").starts_with("a.toml:2: "));
    CHECK(error_of("[run]\nname = \"a\"\nname = \"b\"\n").starts_with("a.toml:3: "));
    CHECK(error_of(std::string("\xff\xfe\0x", 4)).starts_with("a.toml:1: "));
  }

  TEST_CASE("config: a missing file, a folder and a file that is too large are errors") {
    const test::TempFolder folder;
    const auto missing = load_config(folder / "none.toml");
    CHECK(missing.status().code() == Code::bad_config);
    CHECK(missing.status().message().ends_with("none.toml: No such file or directory"));
    CHECK(load_config(folder.path).status().code() == Code::bad_config);
    const std::string large = folder.write("large.toml", std::string((1 << 20) + 1, '#'));
    CHECK(load_config(large).status().message().ends_with("has more than 1048576 bytes"));
    CHECK(load_config("/dev/zero").status().code() == Code::bad_config);
    const Status long_name = load_config(folder / std::string(300, 'a')).status();
    CHECK(long_name.code() == Code::bad_config);
    // Reading the memory of a process at address 0 gives EIO.
    const Status unreadable = load_config("/proc/self/mem").status();
    CHECK(unreadable.code() == Code::io);
    CHECK(unreadable.message() == "config: cannot read /proc/self/mem: Input/output error");
  }

  TEST_CASE(
      "config: base inherits through several files, the last value wins and has its file as "
      "origin") {
    const test::TempFolder folder;
    folder.write("lib/root.toml",
                 "[train]\nmax_steps = 5\nlearning_rate = 1e-3\n[data]\nsource = \"x\"\n");
    folder.write("lib/middle.toml", "base = \"root.toml\"\n[train]\nmax_steps = 6\n");
    const std::string top =
        folder.write("top.toml", "base = \"lib/middle.toml\"\n[train]\nmicro_batch_size = 2\n");
    const auto loaded = must(load_config(top, {"--train.learning_rate=2e-3"}));
    CHECK(loaded->config.train.max_steps == 6);
    CHECK(loaded->config.train.micro_batch_size == 2);
    CHECK(loaded->config.train.learning_rate == 2e-3);
    CHECK(loaded->config.data.source == "x");
    CHECK(loaded->config.run.name == "top");
    CHECK(loaded->origin.at("train.max_steps") == folder / "lib/middle.toml:3");
    CHECK(loaded->origin.at("data.source") == folder / "lib/root.toml:5");
    CHECK(loaded->origin.at("train.learning_rate") == "command line");
  }

  TEST_CASE("config: inheritance that is circular, too deep or of a missing file is an error") {
    const test::TempFolder folder;
    const std::string a = folder.write("a.toml", "base = \"b.toml\"\n");
    folder.write("b.toml", "\nbase = \"./a.toml\"\n");
    CHECK(load_config(a).status().message() ==
          folder / "b.toml:2" + ": base = \"./a.toml\" inherits from itself");
    const std::string self = folder.write("self.toml", "base = \"self.toml\"\n");
    CHECK(load_config(self).status().code() == Code::bad_config);
    for (int i = 0; i < 40; ++i)
      folder.write("d" + std::to_string(i) + ".toml",
                   "base = \"d" + std::to_string(i + 1) + ".toml\"\n");
    CHECK(has(load_config(folder / "d0.toml").status(), "files inherit"));
    const std::string orphan = folder.write("orphan.toml", "base = \"none.toml\"\n");
    CHECK(load_config(orphan).status().message().starts_with(orphan + ":1: cannot read "));
    CHECK(has(load_config(folder.write("n.toml", "base = 3\n")).status(), "n.toml:1: base = 3"));
    // Inheriting the same file twice is not circular.
    folder.write("leaf.toml", "[train]\nmax_steps = 3\n");
    folder.write("left.toml", "base = \"leaf.toml\"\n");
    CHECK(load_config(folder.write("right.toml", "base = \"left.toml\"\n")).ok());
  }

  TEST_CASE("config: overrides take TOML values and bare strings") {
    const Config c =
        parsed("[train]\nmax_steps = 3\n",
               {"--train.max_steps=20", "run.name=x-1", "--run.folder=\"a b\"",
                "--data.source=debian:bible-kjv", "--parallel.strategy=no_shard",
                "--train.precision=\"fp32\"", "--train.betas=[0.5, 0.6]", "--data.shuffle=false",
                "--train.learning_rate=1e-3", "--train.sample_prompt=a = b # c",
                "--inject.faults=[{step=1,kind=\"nan_loss\",target=\"n0.0\"}]"});
    CHECK(c.train.max_steps == 20);
    CHECK(c.run.name == "x-1");
    CHECK(c.run.folder == "a b");
    CHECK(c.data.source == "debian:bible-kjv");
    CHECK(c.parallel.strategy == Strategy::no_shard);
    CHECK(c.train.precision == DType::f32);
    CHECK(c.train.betas[1] == 0.6);
    CHECK(c.data.shuffle == false);
    CHECK(c.train.learning_rate == 1e-3);
    CHECK(c.train.sample_prompt == "a = b # c");
    CHECK(c.inject.faults.size() == 1);
    CHECK(parsed("", {"--run.name=a", "--run.name=b"}).run.name == "b");
  }

  TEST_CASE("config: the error of a wrong override quotes it") {
    CHECK(error_of("", {"--train.max_step=3"}) ==
          "command line: --train.max_step=3: unknown key train.max_step; nearest known key: "
          "train.max_steps");
    CHECK(error_of("", {"--train.max_steps=abc"}) ==
          "command line: --train.max_steps=abc: train.max_steps must be an integer");
    CHECK(error_of("", {"--train.max_steps"})
              .ends_with("a value is missing: --train.max_steps=VALUE"));
    CHECK(error_of("", {"--train.max_steps="}).ends_with("must be an integer"));
    CHECK(has(error_of("", {"--train.max_steps=1\n[x]"}), "must be an integer"));
    CHECK(has(error_of("", {"--train.max_steps=1\ny=2"}), "must be an integer"));
    CHECK(error_of("", {"--train.max_steps=-1"}).find("out of range") != std::string::npos);
    CHECK(error_of("", {"--"}).find("unknown key") != std::string::npos);
    CHECK(error_of("", {""}).find("unknown key") != std::string::npos);
    CHECK(error_of("", {"--parallel.strategy=ddp"}).find("must be \"auto\"") != std::string::npos);
    CHECK(error_of("", {"--run.name=a b"}).starts_with("command line: run.name = \"a b\" must be"));
  }

  TEST_CASE("config: to_toml() reads back to the same config") {
    const uint64_t seed = std::random_device()();
    INFO("seed ", seed);
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<double> uniform(0, 1);
    Config c;
    c.run.name = "round-trip";
    c.run.folder = "quotes \" and \\ and \n and \x01 and \x7f and ü";
    c.train.learning_rate = uniform(random);
    c.train.min_learning_rate = c.train.learning_rate * uniform(random);
    c.train.eps = 1e-12 * uniform(random) + 1e-20;
    c.cluster.memory_per_trainer_gib = 1e-300 * uniform(random) + 1e-310;
    c.train.betas = {uniform(random), uniform(random) / 3};
    c.cluster.peak_flops = 989e12;
    c.train.max_tokens = static_cast<int64_t>(random() % 1'000'000'000'000);
    c.parallel.strategy = Strategy::shard_grad_op;
    c.train.precision = DType::f32;
    c.inject.faults = {{40, "kill_trainer", "n1.0"}, {41, "slow_node", "n1"}};
    const std::string text = to_toml(c);
    const Config back = parsed(text);
    CHECK(to_toml(back) == text);
    CHECK(back.run.folder == c.run.folder);
    CHECK(back.train.learning_rate == c.train.learning_rate);
    CHECK(back.train.eps == c.train.eps);
    CHECK(back.cluster.memory_per_trainer_gib == c.cluster.memory_per_trainer_gib);
    CHECK(back.train.betas == c.train.betas);
    CHECK(back.train.max_tokens == c.train.max_tokens);
    CHECK(back.inject.faults == c.inject.faults);
    CHECK(back.parallel.strategy == c.parallel.strategy);
  }

  TEST_CASE("config: configs/reference.toml is generated from the table and holds the defaults") {
    const std::string path = configs + "reference.toml";
    if (std::getenv("SIMPLESCALE_WRITE_REFERENCE")) std::ofstream(path) << reference_toml();
    CHECK_MESSAGE(test::contents(path) == reference_toml(),
                  "run this test with SIMPLESCALE_WRITE_REFERENCE=1 to rewrite it");
    auto loaded = must(load_config(path));
    loaded->config.run.name.clear();
    CHECK(to_toml(loaded->config) == to_toml(Config()));
  }

  TEST_CASE("config: every config of the repository can be trained, except the reference") {
    int found = 0;
    for (const auto& entry : fs::directory_iterator(configs)) {
      if (entry.path().extension() != ".toml" || entry.path().stem() == "reference" ||
          entry.path().stem() == "log_rules")
        continue;
      ++found;
      const CheckedConfig checked = check_user_config(entry.path().string());
      const auto problems = validate_config(checked);
      REQUIRE_MESSAGE(problems.empty(), problems.front().message());
      CHECK(checked.loaded.config.run.name == entry.path().stem());
      CHECK(valid_text(checked.loaded)->find(": valid; ") != std::string::npos);
    }
    CHECK(found >= 15);
  }

  TEST_CASE("config show: prints every key, its origin, the results of rules, and the plan") {
    auto loaded = must(load_config(configs + "quickstart.toml", {"--run.name=shown"}));
    const std::string text = show_config(*loaded);
    for (const schema::Key& key : schema::keys())
      CHECK_MESSAGE(text.find(key.full_name() + " ") != std::string::npos, key.full_name());
    CHECK(text.find("command line") != std::string::npos);
    CHECK(text.find("0  (32)") != std::string::npos);  // global_batch_size
    CHECK(text.find("2 groups x 2 shards = 4 trainers on 2 nodes") != std::string::npos);
    CHECK(text.find("g1   n1.0 n1.1") != std::string::npos);
    for (const char* nodes : {"2", "16", "128"}) {
      const auto large = must(load_config(configs + "tinyllama-" + nodes + "-nodes.toml"));
      CHECK(show_config(*large).find(" GiB per GPU: state ") != std::string::npos);
    }
    const auto reference = load_config(configs + "reference.toml");
    CHECK(show_config(*reference).find("none: ") != std::string::npos);
    CHECK(valid_text(*reference).status().code() == Code::bad_config);
  }

  TEST_CASE("config show: tells the wave of the groups that a lost node leaves, if it is another") {
    const auto shown = [](const std::string& global_batch_size) {
      const auto loaded = must(load_config(
          configs + "quickstart.toml",
          {"--cluster.nodes=4", "--parallel.strategy=hybrid_shard", "--parallel.group_nodes=2",
           "--train.global_batch_size=" + global_batch_size}));
      std::istringstream text(show_config(*loaded));
      std::string words, word;
      while (text >> word) words += word + " ";
      return words;
    };
    const std::string waves = shown("256");
    CHECK(waves.find(" 4 micro-batches pass a unit at a time") != std::string::npos);
    CHECK(waves.find(" more; 1 passes in groups of 1 node, after a node is lost ") !=
          std::string::npos);
    CHECK(shown("64").find("after a node is lost") == std::string::npos);  // 1 in both
  }

  TEST_CASE("config show: tells how sums leave a GPU whose state does, if that saves memory") {
    const auto hint = [](const std::string& preset, int64_t batch, std::vector<std::string> more) {
      std::vector<std::string> keys = {"--model.preset=" + preset,
                                       "--cluster.device=cuda",
                                       "--train.precision=bf16",
                                       "--train.activation_checkpointing=true",
                                       "--train.micro_batch_size=1",
                                       "--train.max_steps=10",
                                       "--train.global_batch_size=" + std::to_string(batch)};
      keys.insert(keys.end(), more.begin(), more.end());
      const auto loaded = must(load_config_text("", "a.toml", keys));
      std::istringstream text(show_config(*loaded));
      std::string words, word;
      while (text >> word) words += word + " ";
      REQUIRE(words.find(" offload ") != std::string::npos);
      const size_t at = words.find("since a trainer's ");
      return at == std::string::npos ? "" : words.substr(at, words.find(" are one", at) - at);
    };
    const std::string offload = "--parallel.offload=optimizer";
    CHECK(hint("llama3-8b", 6, {}) == "");  // the state is on the GPU, too
    CHECK(hint("llama3-8b", 6, {offload}) ==
          "since a trainer's 6 micro-batches are several waves; with train.global_batch_size = 4 "
          "or 8 they");
    for (const int64_t batch : {4, 8}) CHECK(hint("llama3-8b", batch, {offload}) == "");
    CHECK(hint("llama3-8b", 8, {offload, "--parallel.wave=2"}) ==
          "since a trainer's 8 micro-batches are several waves; with train.global_batch_size = 8 "
          "or 16 and parallel.wave = 0 they");
    // A wave's activations are larger than the sums.
    CHECK(hint("micro", 96,
               {offload, "--train.activation_checkpointing=false", "--train.precision=fp32",
                "--train.micro_batch_size=16"}) == "");
  }

  TEST_CASE("config show: only changed keys, each with its origin") {
    const auto loaded = must(load_config_text("[train]\nmax_steps = 5\neps = 1e-8\n", "a.toml",
                                              {"--run.name=x", "--data.shuffle=false"}));
    CHECK(show_changed(*loaded) ==
          "run.name         \"x\"    command line\n"
          "data.shuffle     false  command line\n"
          "train.max_steps  5      a.toml:2\n");
  }

  TEST_CASE("config explain: a key's meaning, values and default; a section's keys") {
    CHECK(*explain_key("checkpoint.keep") ==
          "checkpoint.keep\n  " + std::string(schema::find("checkpoint.keep")->comment) +
              "\n  must be: an integer, 1 to 1000000\n  default: 3\n  in a run that exists: may "
              "change; the results stay the same\n");
    CHECK(explain_key("train")->find("  train.max_steps = ") != std::string::npos);
    CHECK(explain_key("train.lr").status().message() ==
          "unknown key train.lr; nearest known key: train.learning_rate");
    for (const schema::Key& key : schema::keys()) CHECK(explain_key(key.full_name()).ok());
  }

  TEST_CASE("config validate: reports all errors: values, combinations, the plan, missing keys") {
    const test::TempFolder folder;
    const std::string file = folder.write("a.toml",
                                          "[train]\nlearning_rate = 3\nmax_step = 7\n"
                                          "global_batch_size = 7\nmax_steps = 20\n"
                                          "warmup_iters = 90\n[supervision]\nsilence_ms = 1\n"
                                          "log_rules = \"none.toml\"\n[cluster]\nnodes = 2\n"
                                          "[parallel]\nstrategy = \"fsdp\"\ngroup_nodes = 1\n");
    const auto problems = validate_config(check_user_config(file, {"--train.lr=1"}));
    std::string text;
    for (const Status& problem : problems) text += problem.message() + "\n";
    for (const char* part :
         {":2: train.learning_rate = 3 is out of range: 0 to 1", ":3: unknown key train.max_step;",
          "strategy = \"fsdp\" must be",
          "command line: --train.lr=1: unknown key train.lr; nearest "
          "known key: train.learning_rate",
          ":8: supervision.silence_ms = 1 must be more than", "model.dim is not set",
          ":4: train.global_batch_size = 7", ":6: train.warmup_iters = 90 takes", "none.toml",
          "data.source is not set"})
      CHECK_MESSAGE(text.find(part) != std::string::npos, part << " in\n" << text);
    CHECK(problems.size() == 10);
    size_t before = 0;  // in the order of the lines
    for (size_t i = 0; i < 6; ++i) {
      const std::string& message = problems[i].message();
      REQUIRE(message.starts_with(file + ":"));
      const size_t line = std::stoul(message.substr(file.size() + 1));
      CHECK(line >= before);
      before = line;
    }
    const auto broken = validate_config(check_user_config(folder.write("b.toml", "[train\n")));
    CHECK(broken.size() == 1);  // nothing is known of the keys
    CHECK(validate_config(check_user_config("/nowhere/c.toml")).size() == 1);
  }

  TEST_CASE(
      "config: relative paths in a file are relative to it, others to the working directory") {
    const test::TempFolder folder;
    folder.write("base/b.toml", "[data]\nsource = \"corpus\"\n[supervision]\nlog_rules = \"/r\"\n");
    const std::string file =
        folder.write("a.toml", "base = \"base/b.toml\"\n[run]\nfolder = \"../runs/a\"\n");
    const auto loaded = must(load_user_config(file, {"--checkpoint.folder=kept"}));
    const Config& c = loaded->config;
    CHECK(c.data.source == folder / "base/corpus");
    CHECK(c.run.folder == fs::path(folder.path).parent_path() / "runs/a");
    CHECK(c.supervision.log_rules == "/r");
    CHECK(c.checkpoint.folder == "kept");
    CHECK(c.data.folder.empty());
    CHECK(load_config(file)->config.run.folder == "../runs/a");  // a run's config.toml is like this
    const std::string bible = folder.write("c.toml", "[data]\nsource = \"debian:bible-kjv\"\n");
    CHECK(load_user_config(bible)->config.data.source == "debian:bible-kjv");
    // Earlier versions wrote some paths as they were given.
    Config before = c;
    before.data.source = "corpus";
    Config now = before;
    make_paths_absolute(now);
    CHECK(now.data.source == (fs::current_path() / "corpus").string());
    CHECK(diff(before, now).defining.empty());
    for (const KeyDifference& d : diff(before, now).allowed)
      FAIL_CHECK(d.key, " ", d.was, " ", d.now);
  }

  TEST_CASE("config: paths may hold any bytes, and one place has one name") {
    const test::TempFolder folder;
    Config config, mixed;
    config.data.source = folder / "caf\xE9/\xF0\x9F.bin";
    config.tokenizer.path = "/\u00e9\"\\\n";
    mixed.data.blend = {{.name = "a", .source = "/\xFF", .weight = 1, .folder = "/b\xFE//c/"}};
    for (const Config& one : {config, mixed}) {
      const std::string text = to_toml(one);
      CHECK(first_invalid_utf8(text) == text.size());
      const auto read = load_config(folder.write("a.toml", text));
      REQUIRE(read.status().message() == "");
      CHECK(read->config.data.source == one.data.source);
      CHECK(read->config.tokenizer.path == one.tokenizer.path);
      CHECK(read->config.data.blend == one.data.blend);
    }
    make_paths_absolute(mixed);
    CHECK(mixed.data.blend[0].folder == "/b\xFE/c");
    config.data.source = "s3://bucket/a/";
    make_paths_absolute(config);
    CHECK(config.data.source == "s3://bucket/a");
    for (const char* kept : {"s3://", "debian:bible-kjv", "/"}) {
      config.data.source = kept;
      make_paths_absolute(config);
      CHECK(config.data.source == kept);
    }
    std::filesystem::create_directory(folder / "real");
    std::filesystem::create_symlink("real", folder / "link");
    Config a, b;
    a.data.source = folder / "real/x.bin", b.data.source = folder / "link/x.bin";
    CHECK(diff(a, b).allowed.empty());
    CHECK(diff(a, b).defining.empty());
  }

  std::vector<std::string> keys_of(const std::vector<KeyDifference>& differences) {
    std::vector<std::string> keys;
    for (const KeyDifference& difference : differences) keys.push_back(difference.key);
    return keys;
  }

  TEST_CASE("config: diff() tells what makes another run from what a run may change") {
    using Keys = std::vector<std::string>;
    const std::string text =
        "[model]\npreset = \"micro\"\n[data]\nsource = \"x\"\n[train]\nmax_steps = 100\n"
        "global_batch_size = 64\n[cluster]\nnodes = 2\ntrainers_per_node = 2\n";
    const Config a = parsed(text);
    const auto against = [&](const Overrides& overrides) {
      return diff(a, parsed(text, overrides));
    };
    const auto defining = [&](const Overrides& o) { return keys_of(against(o).defining); };
    const auto allowed = [&](const Overrides& o) { return keys_of(against(o).allowed); };
    CHECK(keys_of(diff(a, a).defining).empty());
    CHECK(keys_of(diff(a, a).allowed).empty());
    const Overrides others = {"--checkpoint.keep=9", "--supervision.silence_ms=9999",
                              "--metrics.tensorboard=true", "--run.folder=elsewhere"};
    CHECK(defining(others).empty());
    CHECK(allowed(others) ==
          Keys{"checkpoint.keep", "supervision.silence_ms", "metrics.tensorboard"});
    CHECK(defining({"--cluster.nodes=4", "--parallel.strategy=no_shard"}).empty());
    CHECK(allowed({"--cluster.nodes=4"}) == Keys{"cluster.nodes"});
    // The values that the rules give, set explicitly.
    const Overrides same = {"--model.dim=128", "--train.min_learning_rate=4e-5",
                            "--train.max_tokens=1638400", "--data.seed=1337"};
    CHECK(defining(same).empty());
    CHECK(allowed(same).empty());
    const auto changed = against({"--train.learning_rate=1e-3", "--model.layers=5"});
    REQUIRE(keys_of(changed.defining) == Keys{"model.layers"});
    CHECK(changed.defining[0].was == "4");
    CHECK(changed.defining[0].now == "5");
    CHECK(keys_of(changed.allowed) == Keys{"train.learning_rate", "train.min_learning_rate"});
    // What the rule of warmup_iters gives differs, too, but the user has not changed that key.
    CHECK(allowed({"--train.max_steps=200"}) == Keys{"train.max_steps"});
    CHECK(allowed({"--train.warmup_iters=7"}) == Keys{"train.warmup_iters"});
    CHECK(defining({"--train.max_steps=200"}).empty());
    CHECK(defining({"--train.global_batch_size=32"}) == Keys{"train.global_batch_size"});
    CHECK(defining({"--train.precision=fp32"}) == Keys{"train.precision"});
    CHECK(defining({"--data.ledger=false"}) == Keys{"data.ledger"});
    CHECK(allowed({"--data.skip_samples=84-87"}) == Keys{"data.skip_samples"});
    CHECK(defining({"--data.token_bytes=2"}).empty());  // what is not said is read so
    CHECK(defining({"--data.token_bytes=4"}) == Keys{"data.token_bytes"});
    CHECK(defining({"--tokenizer.kind=bpe"}).empty());  // so did versions without the key
    CHECK(defining({"--tokenizer.kind=byte_bpe"}) == Keys{"tokenizer.kind"});
    CHECK(diff(parsed(text, {"--tokenizer.path=y", "--tokenizer.kind=bpe"}),
               parsed(text, {"--tokenizer.path=y", "--tokenizer.kind=byte_bpe"}))
              .defining.empty());
    // What lies at a place counts, not its name: record_start() compares it.
    CHECK(defining({"--data.source=y", "--tokenizer.train_on=z"}).empty());
    CHECK(allowed({"--data.source=y"}) == Keys{"data.source"});
    CHECK(allowed({"--data.source=./x/", "--data.folder="}).empty());
    CHECK(defining({"--tokenizer.path=y"}) == Keys{"tokenizer.path", "tokenizer.train_on"});
    CHECK(defining({"--run.from=z"}) == Keys{"run.from"});
    const Config loose = parsed(text, {"--train.deterministic=false"});
    CHECK(diff(loose, parsed(text, {"--train.deterministic=false", "--cluster.nodes=4"}))
              .defining[0]
              .key == "cluster.nodes");
  }

  TEST_CASE("config: a changed length or learning rate says what becomes of the cosine") {
    const std::string text =
        "[model]\npreset = \"micro\"\n[data]\nsource = \"x\"\n[train]\nmax_steps = 900\n";
    const Config a = parsed(text);
    CHECK(schedule_change(a, parsed(text, {"--checkpoint.keep=9"}), 900).empty());
    CHECK(schedule_change(a, parsed(text, {"--train.max_steps=950"}), 900) ==
          "the learning rate's cosine, planned to end at step 900, now ends at step 950: step 901 "
          "has learning rate 4.27e-05 instead of 4e-05");
    CHECK(schedule_change(a, parsed(text, {"--train.learning_rate=1e-3"}), 900) ==
          "the learning rate follows its new schedule: step 901 has learning rate 0.0001 instead "
          "of 4e-05");
    const Config constant = parsed(text, {"--train.schedule=constant"});
    const Overrides longer = {"--train.schedule=constant", "--train.max_steps=950"};
    CHECK(schedule_change(constant, parsed(text, longer), 900).empty());
    CHECK(
        schedule_change(a, parsed(text, longer), 900) ==
        "the learning rate follows its new schedule: step 901 has learning rate 0.0004 instead of "
        "4e-05");
    const Overrides decayed = {"--train.schedule=wsd", "--train.max_steps=950"};
    CHECK(schedule_change(constant, parsed(text, decayed), 900) ==
          "the learning rate follows its new schedule: step 901 has learning rate 0.000226 instead "
          "of 0.0004");
    // 1e-3 was set in the console: it holds, unless the configuration has a new rate.
    const std::vector<RateChange> set = {{500, 1e-3}};
    CHECK(schedule_change(a, parsed(text, {"--train.max_steps=950"}), 900, set)
              .ends_with("step 901 has learning rate 0.000107 instead of 0.0001"));
    CHECK(schedule_change(a, parsed(text, {"--train.learning_rate=2e-3"}), 900, set)
              .ends_with("step 901 has learning rate 0.0002 instead of 0.0001"));
    const Overrides warm = {"--train.warmup_iters=90", "--train.global_batch_size=64"};
    Overrides more_nodes = warm;
    more_nodes.push_back("--cluster.nodes=4");
    CHECK(has(schedule_change(parsed(text, warm), parsed(text, more_nodes), 10),
              "steps in this layout, since train.warmup_iters counts micro-batches of a "
              "trainer: step 11 has"));
  }

  TEST_CASE("config: folders, seeds and threads follow from other keys unless set") {
    Config c;
    c.run.name = "x";
    CHECK(run_folder(c) == "runs/x");
    CHECK(data_folder(c) == "data/x");
    CHECK(checkpoint_folder(c) == "runs/x/checkpoints");
    CHECK(data_seed(c) == 1337);
    c.run.folder = "/a";
    c.data.seed = 7;
    CHECK(checkpoint_folder(c) == "/a/checkpoints");
    CHECK(data_seed(c) == 7);
    CHECK(threads_per_trainer(c, 8, 2) == 4);
    CHECK(threads_per_trainer(c, 2, 4) == 1);
    CHECK(threads_per_trainer(c, 0, 0) == 1);
    c.cluster.threads_per_trainer = 3;
    CHECK(threads_per_trainer(c, 8, 2) == 3);
  }

  TEST_CASE("model: presets are the published shapes and explicit keys override them") {
    const std::pair<const char*, size_t> counts[] = {{"micro", 1787008},
                                                     {"tinyllama", 1100048384},
                                                     {"llama2-7b", 6738415616},
                                                     {"llama3-8b", 8030261248},
                                                     {"llama-3.1-8b", 8030261248},
                                                     {"llama-3.2-1b", 1235814400},
                                                     {"llama-3.2-3b", 3212749824},
                                                     {"mistral-7b", 7241732096},
                                                     {"qwen2.5-0.5b", 494032768},
                                                     {"qwen2.5-7b", 7615616512},
                                                     {"qwen3-0.6b", 596049920},
                                                     {"qwen3-8b", 8190735360},
                                                     {"olmo2-1b", 1484916736},
                                                     {"olmo2-7b", 7298617344},
                                                     {"olmoe-1b-7b", 6919161856},
                                                     {"qwen3-30b-a3b", 30532122624},
                                                     {"mixtral-8x7b", 46702792704},
                                                     {"moe-micro", 3413120}};
    for (const auto& [name, count] : counts) {
      Config c;
      c.model.preset = name;
      const auto shape = must(model_shape(c));
      CHECK_MESSAGE(parameter_count(*shape) == count, name);
    }
    Config c;
    c.model.preset = "llama3-8b";
    c.model.layers = 2;
    c.model.norm_eps = 1e-6;
    c.model.tie_embeddings = Choice::yes;
    const auto shape = model_shape(c);
    CHECK(shape->layers == 2);
    CHECK(shape->rope_theta == 500'000);
    CHECK(shape->norm_eps == 1e-6);
    CHECK(shape->tie_embeddings);
    CHECK(model_presets().size() == 20);
  }

  TEST_CASE("model: the keys that a shape gives, give the shape again, for every preset") {
    for (const std::string& preset : model_presets())
      for (const bool with_name : {true, false}) {
        CAPTURE(preset);
        Config c;
        c.model.preset = preset;
        const auto shape = must(model_shape(c));
        Config again;
        again.model = model_config(*shape, with_name ? preset : "");
        REQUIRE_MESSAGE(model_shape(again).ok(), model_shape(again).status().message());
        CHECK(*model_shape(again) == *shape);
        const auto read = must(load_config_text(to_toml(again), "a.toml"));
        CHECK(*model_shape(read->config) == *shape);
        CHECK(hugging_face_class(*shape));
      }
  }

  TEST_CASE("model: options of a block override the preset, and false is a choice") {
    const auto shape_of = [](const std::string& keys) {
      const auto loaded = must(load_config_text("[model]\n" + keys, "a.toml"));
      const auto shape = must(model_shape(loaded->config));
      return *shape;
    };
    const ModelShape qwen = shape_of("preset = \"qwen3-0.6b\"\n");
    CHECK(qwen.head_dim() == 128);
    CHECK(qwen.q_dim() == 2048);
    CHECK(qwen.tie_embeddings);
    CHECK_FALSE(shape_of("preset = \"qwen3-0.6b\"\ntie_embeddings = false\n").tie_embeddings);
    CHECK(shape_of("preset = \"qwen3-0.6b\"\nqk_norm = \"none\"\nhead_dim = 64\n") == [&] {
      ModelShape s = qwen;
      s.qk_norm = QkNorm::none, s.head_width = 0;  // 1024 / 16
      return s;
    }());
    CHECK(shape_of("preset = \"mistral-7b\"\nsliding_window = 0\n").sliding_window == 0);
    CHECK(shape_of("preset = \"micro\"\nqkv_bias = true\n").qkv_bias);
    const RopeScaling rope = shape_of("preset = \"llama-3.2-1b\"\nrope_factor = 4\n").rope_scaling;
    CHECK(rope.factor == 4);
    CHECK(rope.original_block_size == 8192);
    CHECK(shape_of("preset = \"llama-3.2-1b\"\nrope_scaling = \"none\"\n").rope_scaling ==
          RopeScaling());
    CHECK(shape_of("preset = \"micro\"\nrope_scaling = \"yarn\"\nrope_factor = 4\n").rope_scaling ==
          RopeScaling{RopeScaling::Kind::yarn, 4, 1, 32, 8192});
    CHECK(error_of("[model]\npreset = \"micro\"\nrope_scaling = \"dynamic\"\n")
              .starts_with("a.toml:3: model.rope_scaling = \"dynamic\" is not supported"));
    CHECK(error_of("[model]\npreset = \"micro\"\nrope_factor = 2\n")
              .starts_with("a.toml:3: model.rope_factor has no effect"));
    CHECK(error_of("[model]\npreset = \"micro\"\nhead_dim = 33\n") ==
          "a.toml:3: model.head_dim = 33 must be even for RoPE");
    const std::string narrow = "[model]\npreset = \"micro\"\nhead_dim = 12\n[cluster]\ndevice = ";
    CHECK(error_of(narrow + "\"cpu\"\n").find("heads of") == std::string::npos);
    CHECK(error_of(narrow + "\"cuda\"\n")
              .find("cannot be \"cuda\": heads of 12 elements: on a GPU") != std::string::npos);
    CHECK(error_of("[model]\npreset = \"micro\"\nrope_scaling = \"linear\"\nrope_factor = 0.5\n")
              .starts_with("a.toml:4: model.rope_factor must be at least 1"));
    CHECK(error_of("[model]\ntie_embeddings = \"maybe\"\n") ==
          "a.toml:2: model.tie_embeddings = \"maybe\" must be \"auto\", false or true");
  }
}
