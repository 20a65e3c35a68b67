// The numerics signature: which keys and constants it has, and what a start makes of a difference.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "runtime/config/schema.hpp"
#include "runtime/config/show.hpp"
#include "runtime/config/signature.hpp"
#include "runtime/training/arithmetic.hpp"
#include "tests/must.hpp"

using namespace simplescale;
using schema::Matters;

namespace {

/// A mixture, a stretched RoPE and two nodes, so that every key has something to say.
const std::string text = R"(
[model]
preset = "micro"
rope_scaling = "yarn"
[data]
blend = [{ name = "a", source = "/a", weight = 1.0 }, { name = "b", source = "/b", weight = 1.0 }]
[train]
max_steps = 1000
global_batch_size = 64
[cluster]
nodes = 2
trainers_per_node = 2
memory_per_trainer_gib = 16
)";

Config parsed(const Overrides& overrides = {}) {
  return must(load_config_text(text, "a.toml", overrides)).take().config;
}

const Arithmetic cpu{false, "avx2", {}};

Signature signature(const Config& config, const Arithmetic& arithmetic = cpu) {
  return signature_of(config, must(make_plan(config)).take(), arithmetic);
}

/// Other values than those of `text` and the defaults, where the rule of changed() gives none that is
/// possible or that means something else.
const std::map<std::string, std::string> other_values = {
    {"model.dim", "256"},
    {"model.hidden", "512"},
    {"model.layers", "2"},
    {"model.heads", "8"},
    {"model.kv_heads", "1"},
    {"model.vocab", "5000"},
    {"model.block_size", "64"},
    {"model.rope_theta", "5e5"},
    {"model.head_dim", "64"},
    {"model.sliding_window", "16"},
    {"model.rope_scaling", "\"linear\""},
    {"model.rope_factor", "2.0"},
    {"model.rope_low_factor", "2.0"},
    {"model.rope_high_factor", "64.0"},
    {"model.rope_original_block_size", "4096"},
    {"model.rope_attention_factor", "1.5"},
    {"train.validation_lengths", "[64]"},
    {"model.experts_per_token", "3"},
    {"model.expert_hidden", "64"},
    {"model.router_normalize", "\"false\""},
    {"model.router_groups", "2"},
    {"model.router_groups_per_token", "2"},
    {"data.blend",
     "[{ name = \"a\", source = \"/a\", weight = 2.0 }, { name = \"b\", source = "
     "\"/b\", weight = 1.0 }]"},
    {"data.stage", "[{ from_tokens = 100000, weights = { a = 1.0 } }]"},
    {"data.skip_samples", "\"84-87\""},
    {"data.token_bytes", "4"},
    {"train.max_tokens", "100000"},
    {"train.max_iters", "10"},
    {"train.micro_batch_size", "4"},
    {"train.global_batch_size", "128"},
    {"train.batch_warmup", "[{ until_tokens = 100000, global_batch_size = 32 }]"},
    {"train.warmup_tokens", "100000"},
    {"train.group", "[{ pattern = \"*norm*\", learning_rate_factor = 0.5 }]"},
    {"parallel.strategy", "\"full_shard\""},
    {"parallel.group_nodes", "2"},
    {"parallel.wave", "2"},
    {"parallel.offload", "\"none\""},
    {"cluster.trainers_per_node", "1"},
    {"cluster.memory_per_trainer_gib", "17.0"},
    {"sweep.keys", "{ \"train.eps\" = [1e-8] }"},
    {"inject.faults", "[{ step = 5, kind = \"kill_trainer\", target = \"n0.0\" }]"},
    {"run.change_numerics", "\"train.fp8\""},
    {"run.name", "\"other\""},
    {"train.min_learning_rate", "1e-5"},
    {"cluster.nodes", "4"},
    {"cluster.max_nodes", "2"},
    {"checkpoint.upload", "\"s3://bucket/other\""},
    {"transport.trusted_networks", "\"ib0\""},
};

/// What a change of a key needs beside it.
const std::map<std::string, std::string> needed = {
    {"data.source", "--data.blend=[]"},
    {"run.with_optimizer", "--run.from=/parent"},
    {"train.tasks_every_steps", "--train.tasks=/tasks"},
    {"checkpoint.keep_best", "--train.validation_every_steps=5"},
    {"model.router_groups_per_token", "--model.router_groups=4"},
};
bool needs_experts(const std::string& key) {
  return key.starts_with("model.expert") || key.starts_with("model.router_") ||
         key.starts_with("train.router_") || key == "model.shared_experts" ||
         key == "parallel.experts" || key == "model.dense_layers";
}

/// Another valid value of a key, in TOML syntax.
std::string changed(const schema::Key& key, const Config& config) {
  if (const auto other = other_values.find(key.full_name()); other != other_values.end())
    return other->second;
  const schema::Ref value = key.in(config);
  if (const auto* flag = std::get_if<bool*>(&value)) return **flag ? "false" : "true";
  if (const auto* number = std::get_if<int64_t*>(&value))
    return std::to_string(**number == 1 || **number < 0 ? 2 : **number + 1);
  if (const auto* real = std::get_if<double*>(&value)) return **real == 0.5 ? "0.25" : "0.5";
  if (std::holds_alternative<std::string*>(value)) return "\"/other\"";
  if (std::holds_alternative<schema::Pair*>(value)) return "[0.5, 0.5]";
  if (std::holds_alternative<schema::Integers*>(value)) return "[5]";
  const auto names = std::get<schema::EnumRef>(value).names;
  const auto* now = std::get<schema::EnumRef>(value).value;
  return "\"" + std::string(names[*now + size_t{1} == names.size() ? 0 : names.size() - 1]) + "\"";
}

}  // namespace

TEST_SUITE("signature") {
  TEST_CASE("signature: a key is in it exactly if it matters, each key of the schema") {
    for (const bool deterministic : {true, false}) {
      for (const schema::Key& key : schema::keys()) {
        const std::string name = key.full_name();
        if (name == "model.preset") continue;  // what it stands for is in the other keys
        Overrides overrides = {std::string("--train.deterministic=") +
                               (deterministic ? "true" : "false")};
        if (const auto other = needed.find(name); other != needed.end())
          overrides.push_back(other->second);
        if (needs_experts(name)) overrides.push_back("--model.experts=8");
        const Config config = parsed(overrides);
        if (name == "model.experts") overrides.pop_back();  // the key itself, which is changed
        overrides.push_back("--" + name + "=" + changed(key, config));
        INFO("deterministic = ", deterministic, ", ", overrides.back());
        const auto made = load_config_text(text, "a.toml", overrides);
        REQUIRE(made.status().message() == "");
        const Config& other = made->config;
        CHECK(schema::to_toml(key.in(other)) != schema::to_toml(key.in(config)));
        const bool matters =
            key.matters != Matters::never && (key.matters != Matters::layout || !deterministic);
        CHECK((signature(other).hash() != signature(config).hash()) == matters);
      }
    }
  }

  TEST_CASE("signature: equal for all that mean the same bits") {
    const Signature before = signature(parsed());
    // A layout, the places of data, and the values that rules give.
    for (const char* same :
         {"--cluster.nodes=4", "--parallel.strategy=no_shard", "--data.seed=1337",
          "--train.max_tokens=16384000", "--train.warmup_tokens=819200", "--model.dim=128",
          "--data.token_bytes=2", "--data.folder=/elsewhere", "--tokenizer.kind=bpe",
          "--data.blend=[{ name = \"a\", source = \"/c\", weight = 1 }, { name = \"b\", source = "
          "\"/d\", folder = \"/e\", weight = 1 }]"}) {
      INFO(same);
      CHECK(signature(parsed({same})).text() == before.text());
    }
    CHECK(signature(parsed({"--data.blend=[]", "--data.source=/x"})) ==
          signature(parsed({"--data.blend=[]", "--data.source=/y"})));
    Config shaped = parsed();
    shaped.model = model_config(must(model_shape(shaped)).take(), "");
    CHECK(signature(shaped) == before);
  }

  TEST_CASE("signature: the arithmetic has the constants of the kernels and of the sums") {
    const auto names = [](const Signature& of) {
      std::string all;
      for (const auto& [key, value] : of.fields)
        if (key.starts_with("arithmetic.")) all += key.substr(11) + " ";
      return all;
    };
    const Config config = parsed();
    const Signature on_cpu = signature(config);
    CHECK(
        names(on_cpu) ==
        "compiler device head_rows instructions leaf libtorch logit_bytes packed_bytes packed_rows "
        "query_rows rows seq_chunks shard_align sum_blocks tied_gradients version weight_rows "
        "weight_tokens ");
    CHECK(names(signature(parsed({"--train.optimizer=muon"}))).find(" muon muon_rows ") !=
          std::string::npos);
    const Signature in_fp8 = signature(parsed({"--train.precision=bf16", "--train.fp8=true"}));
    CHECK(in_fp8.fields.at("arithmetic.fp8_block") == std::to_string(arithmetic::kFp8Block));
    const Signature on_gpus = signature(config, {true, "avx2", {{"H100/head", "17"}}});
    CHECK(names(on_gpus) ==
          "device leaf libtorch part_bytes products.H100/head seq_chunks shard_align sum_blocks "
          "tied_gradients version ");
    const auto value = [&](const std::string& name) {
      return on_cpu.fields.at("arithmetic." + name);
    };
    CHECK(value("version") == std::to_string(arithmetic::kVersion));
    namespace a = arithmetic;
    const std::map<std::string, int64_t> sizes = {{"rows", a::kRows},
                                                  {"head_rows", a::kHeadRows},
                                                  {"query_rows", a::kQueryRows},
                                                  {"weight_rows", a::kWeightRows},
                                                  {"weight_tokens", a::kWeightTokens},
                                                  {"logit_bytes", a::kLogitBytes},
                                                  {"packed_bytes", a::kPackedBytes},
                                                  {"packed_rows", a::kPackedRows}};
    for (const auto& [name, size] : sizes) CHECK(value(name) == std::to_string(size));
    CHECK(on_gpus.fields.at("arithmetic.part_bytes") == std::to_string(a::kPartBytes));
    CHECK(value("tied_gradients") == a::kTiedGradients);
    CHECK(value("shard_align") == std::to_string(kShardAlign));
    CHECK(value("device") == "cpu");
    CHECK(value("instructions") == "avx2");
    CHECK(on_gpus.fields.at("arithmetic.products.H100/head") == "17");
    CHECK_FALSE(signature(config, {false, "", {}}).fields.contains("arithmetic.instructions"));
  }

  TEST_CASE("signature: its text has a line for each field, sorted; a record reads back") {
    const Signature some{{{"b", "2"}, {"a", "\"x y\""}}};
    CHECK(some.text() == "a = \"x y\"\nb = 2\n");
    CHECK(some.hash() == hash128(some.text().data(), some.text().size()));
    const nlohmann::json record = json_of(some);
    CHECK(record["hash"] == some.hash().hex());
    CHECK(signature_in(record) == some);
    for (const char* none : {"null", "{}", "[]", "{\"fields\":3}"})
      CHECK_FALSE(signature_in(nlohmann::json::parse(none)));
    CHECK(has(show_config(must(load_config_text(text, "a.toml")).take()),
              signature(parsed(), arithmetic_of_host(parsed())).hash().hex()));
  }

  TEST_CASE("signature: SIGNATURE-1, a field that was recorded and is another one now differs") {
    const auto changed = [](const Signature& was, const Signature& now) {
      std::string all;
      for (const KeyDifference& d : changed_fields(was, now))
        all += d.key + ": " + d.was + ", " + d.now + "; ";
      return all;
    };
    const Config config = parsed();
    const Signature was = signature(config);
    CHECK(changed(was, was).empty());
    CHECK(changed(was, signature(config, {false, "avx512", {}})) ==
          "arithmetic.instructions: avx2, avx512; ");
    CHECK(changed(was, signature(parsed({"--train.eps=1e-7"}))) == "train.eps: 1e-08, 1e-07; ");
    // Not what the CPU's arithmetic alone has.
    CHECK(changed(was, signature(config, {true, "", {}})) == "arithmetic.device: cpu, cuda; ");
    const Signature gpu = signature(config, {true, "", {{"H100/head", "17"}}});
    const Signature chosen =
        signature(config, {true, "", {{"H100/head", "17"}, {"H200/head", "18"}}});
    CHECK(changed(gpu, chosen).empty());  // chosen since
    CHECK(changed(chosen, gpu) == "arithmetic.products.H200/head: 18, missing; ");
  }

  TEST_CASE("signature: --change-numerics names what changes bits alone") {
    CHECK(allows({"train.fp8", "arithmetic.products"}, "train.fp8"));
    CHECK(allows({"arithmetic.products"}, "arithmetic.products.H100/head"));
    CHECK(allows({"cluster.nodes"}, "cluster.nodes"));
    CHECK_FALSE(allows({"train.fp8"}, "train.precision"));
    CHECK_FALSE(allows({"arithmetic.rows"}, "arithmetic.rows_of_something"));
    CHECK_FALSE(allows({"model.dim"}, "model.dim"));
    CHECK_FALSE(allows({"data"}, "data.source"));
    const auto error = [](const std::string& names) {
      return load_config_text(text, "a.toml", {"--run.change_numerics=" + names})
          .status()
          .message();
    };
    CHECK(error("train.precision, arithmetic.device,arithmetic.products").empty());
    CHECK(error("train.lr") ==
          "command line: run.change_numerics = \"train.lr\" train.lr: there is no such field; "
          "`config show CONFIG "
          "--signature` lists all; nearest known key: train.learning_rate");
    CHECK(has(error("train.eps"), "train.eps: this key may change without it"));
    CHECK(has(error("model.dim"), "model.dim: a run cannot change this key"));
    Config named = parsed();
    named.run.change_numerics = "train.fp8";
    CHECK(diff(parsed(), named).allowed.empty());
  }
}
