// Hugging Face folders of models with experts: their classes, their names, and what is refused.
// tests/e2e/test_families.py compares the logits with those of transformers.
#include <doctest/doctest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/base/dtype.hpp"
#include "runtime/checkpoint/safetensors.hpp"
#include "tests/must.hpp"
#include "tests/runtime/checkpoint/fixture.hpp"
#include "tools/convert/digest.hpp"
#include "tools/convert/huggingface.hpp"

using namespace simplescale;
using namespace simplescale::test;
using nlohmann::json;
namespace fs = std::filesystem;

TEST_SUITE_BEGIN("huggingface");

namespace {

std::string weights_digest(const std::string& folder) {
  auto checkpoint = must(Checkpoint::open(folder));
  const auto text = must(digest(*checkpoint));
  return text->substr(0, text->find("model.embed_tokens.weight.exp_avg "));
}

ModelShape mixtral() {
  ModelShape s = some_shape();
  s.experts = {.count = 4, .per_token = 2, .hidden = s.hidden};
  return s;
}
ModelShape qwen() {
  ModelShape s = some_shape();
  s.qk_norm = QkNorm::head, s.head_width = 10;
  s.experts = {.count = 4, .per_token = 2, .hidden = 24, .dense_layers = 1, .normalize = false};
  return s;
}
ModelShape olmoe() {
  ModelShape s = mixtral();
  s.qk_norm = QkNorm::whole, s.experts.normalize = false;
  return s;
}
ModelShape dots() {
  ModelShape s = some_shape();
  s.qk_norm = QkNorm::head;
  s.experts = {.count = 6,
               .per_token = 2,
               .hidden = 8,
               .shared = 2,
               .dense_layers = 1,
               .score = RouterScore::sigmoid,
               .scale = 2.5,
               .bias = true,
               .groups = 3,
               .groups_per_token = 2};
  return s;
}
ModelShape glm() {
  ModelShape s = dots();
  s.qk_norm = QkNorm::none, s.qkv_bias = true;
  return s;
}

struct Exported {
  explicit Exported(const ModelShape& shape, DType dtype = DType::f32) {
    auto checkpoint = saved(folder, shape);
    must(export_hf(*checkpoint, folder / "hf", dtype));
  }
  json config() const { return json::parse(contents(folder / "hf/config.json")); }
  /// The error of an import with a changed config.json.
  Status changed(const std::function<void(json&)>& edit) const {
    const std::string path = folder / "hf/config.json", right = contents(path);
    json now = json::parse(right);
    edit(now);
    spew(path, now.dump());
    const Status status = read_hf_config(path).status();
    spew(path, right);
    return status;
  }
  bool refused(const char* key, const json& value, const std::string& part) const {
    return says(changed([&](json& c) { c[key] = value; }), Code::bad_data,
                "\"" + std::string(key) + "\" " + part);
  }
  MemoryFolder folder;
};

}  // namespace

TEST_CASE("huggingface: every family with experts comes back with the same options and weights") {
  const auto check = [](const char* architecture, ModelShape shape, const auto& edit) {
    edit(shape);
    shape = canonical(shape);
    CAPTURE(options_text(shape));
    MemoryFolder folder;
    auto checkpoint = saved(folder, shape);
    REQUIRE(checkpoint.ok());
    CHECK(checkpoint->info().shape == shape);
    const Status exported = export_hf(*checkpoint, folder / "hf", DType::f32);
    if (!architecture) {
      CHECK(says(exported, Code::bad_config, options_text(shape)));
      return;
    }
    REQUIRE_MESSAGE(exported.ok(), exported.message());
    CHECK(json::parse(contents(folder / "hf/config.json"))["architectures"][0] == architecture);
    must(import_hf(folder / "hf", folder / "back"));
    CHECK(Checkpoint::open(folder / "back")->info().shape == shape);
    CHECK(weights_digest(folder / "latest") == weights_digest(folder / "back"));
  };
  const auto as_is = [](ModelShape&) {};
  check("MixtralForCausalLM", mixtral(), as_is);
  check("MixtralForCausalLM", mixtral(),
        [](ModelShape& s) { s.sliding_window = 7, s.tie_embeddings = true, s.rope_theta = 5e5; });
  check(nullptr, mixtral(), [](ModelShape& s) { s.experts.normalize = false; });
  check(nullptr, mixtral(), [](ModelShape& s) { s.experts.shared = 1; });
  check(nullptr, mixtral(), [](ModelShape& s) { s.experts.dense_layers = 1; });
  check(nullptr, mixtral(), [](ModelShape& s) { s.experts.scale = 2; });
  check(nullptr, mixtral(), [](ModelShape& s) { s.experts.bias = true; });
  check(nullptr, mixtral(), [](ModelShape& s) { s.experts.groups = 2; });
  check(nullptr, mixtral(), [](ModelShape& s) { s.qkv_bias = true; });
  check("Qwen3MoeForCausalLM", qwen(), as_is);
  check("Qwen3MoeForCausalLM", qwen(), [](ModelShape& s) {
    s.experts.dense_layers = 0, s.experts.normalize = true, s.sliding_window = 5;
  });
  check("OlmoeForCausalLM", olmoe(), as_is);
  check(nullptr, olmoe(), [](ModelShape& s) { s.sliding_window = 5; });
  check(nullptr, olmoe(), [](ModelShape& s) { s.head_width = 10; });
  check("Dots1ForCausalLM", dots(), as_is);
  check("Dots1ForCausalLM", dots(), [](ModelShape& s) {
    s.sliding_window = 5, s.experts.dense_layers = 0, s.experts.groups = 1,
    s.experts.groups_per_token = 1;
  });
  check(nullptr, dots(), [](ModelShape& s) { s.experts.bias = false; });
  check(nullptr, dots(), [](ModelShape& s) { s.experts.shared = 0; });
  check(nullptr, dots(), [](ModelShape& s) { s.experts.groups = 6; });
  check("Glm4MoeForCausalLM", glm(), as_is);
  check("Glm4MoeForCausalLM", glm(),
        [](ModelShape& s) { s.qk_norm = QkNorm::head, s.experts.normalize = false; });
  check("Glm4MoeForCausalLM", glm(), [](ModelShape& s) { s.qkv_bias = false; });
  check(nullptr, glm(), [](ModelShape& s) { s.sliding_window = 5; });
}

TEST_CASE("huggingface: a Mixtral has its own names of routers and experts") {
  const Exported model(canonical(mixtral()));
  const auto file = must(SafetensorsFile::open(model.folder / "hf/model.safetensors"));
  std::set<std::string> names;
  for (const TensorEntry& entry : file->tensors()) names.insert(entry.name);
  const std::string at = "model.layers.1.block_sparse_moe.";
  for (const char* name : {"gate.weight", "experts.3.w1.weight", "experts.3.w2.weight"})
    CHECK_MESSAGE(names.contains(at + name), name);
  auto from = must(Checkpoint::open(model.folder / "latest"));
  const auto up = must(read_parameter(*from, "model.layers.1.mlp.experts.3.up_proj.weight"));
  for (const TensorEntry& entry : file->tensors())
    if (entry.name == at + "experts.3.w3.weight") {
      std::vector<float> values(up->size());
      REQUIRE(file->read(entry, 0, values.data(), values.size() * 4).ok());
      CHECK(values == *up);
    }
  CHECK(names.contains(at + "experts.3.w3.weight"));
}

TEST_CASE("huggingface: in a bf16 export the biases of routers keep their bits") {
  const ModelShape shape = canonical(dots());
  const Exported model(shape, DType::bf16);
  must(import_hf(model.folder / "hf", model.folder / "back"));
  auto from = must(Checkpoint::open(model.folder / "latest")),
       back = must(Checkpoint::open(model.folder / "back"));
  const std::string router = "model.layers.1.mlp.gate.";
  CHECK(*must(read_parameter(*from, router + "e_score_correction_bias")) ==
        *must(read_parameter(*back, router + "e_score_correction_bias")));
  CHECK(*must(read_parameter(*from, router + "weight")) !=
        *must(read_parameter(*back, router + "weight")));
}

TEST_CASE("huggingface: what a router or an expert cannot do is refused with the key") {
  const Exported m(canonical(mixtral())), q(canonical(qwen())), o(canonical(olmoe())),
      d(canonical(dots())), g(canonical(glm()));
  CHECK(says(m.changed([](json& c) { c["num_experts"] = 5; }), Code::bad_data,
             "\"num_local_experts\" is 4; num_experts is 5"));
  CHECK(m.refused("num_experts_per_tok", nullptr, "is missing"));
  CHECK(says(m.changed([](json& c) { c["num_experts_per_tok"] = 5; }), Code::bad_data,
             "experts_per_token = 5 must be from 1 to experts = 4"));
  CHECK(m.changed([](json& c) { c["router_jitter_noise"] = 0.1; }).ok());  // only in training
  CHECK(q.refused("decoder_sparse_step", 2, "is 2; all layers"));
  CHECK(q.refused("mlp_only_layers", {1}, "is [1]; only the first layers"));
  CHECK(q.refused("mlp_only_layers", "all", "is \"all\"; only the first layers"));
  CHECK(says(q.changed([](json& c) {
    c["mlp_only_layers"] = {1, 0};
  }),
             Code::bad_data, "dense_layers = 2 must be from 0 to below layers = 2"));
  CHECK(q.refused("attention_bias", true, "is true; biases"));
  CHECK(q.refused("moe_intermediate_size", nullptr, "is missing"));
  CHECK(o.refused("clip_qkv", 8.0, "is 8.0; clipping"));
  CHECK(o.refused("attention_bias", true, "is true; biases"));
  CHECK(o.refused("sliding_window", 8, "is 8; "));
  CHECK(d.refused("topk_method", "greedy", "is \"greedy\"; only noaux_tc"));
  CHECK(d.refused("scoring_func", "softmax", "is \"softmax\"; only sigmoid"));
  CHECK(d.changed([](json& c) {
           c["topk_method"] = "noaux_tc", c["scoring_func"] = "noaux_tc";
         }).ok());
  CHECK(d.refused("moe_layer_freq", 2, "is 2; all layers"));
  CHECK(d.refused("n_shared_experts", nullptr, "is 0 or missing"));
  CHECK(d.refused("n_group", 6, "is 6, so that groups have fewer than two experts"));
  CHECK(says(d.changed([](json& c) { c["topk_group"] = 4; }), Code::bad_data,
             "router_groups_per_token = 4 must be from 1 to router_groups = 3"));
  CHECK(says(d.changed([](json& c) { c["n_group"] = 4, c["topk_group"] = 1; }), Code::bad_data,
             "n_group"));
  CHECK(d.refused("n_routed_experts", 0, "is 0; a model without experts"));
  CHECK(g.refused("partial_rotary_factor", nullptr, "is missing, which means 0.5"));
  CHECK(g.refused("partial_rotary_factor", 0.5, "is 0.5; only whole heads"));
  CHECK(g.changed([](json& c) {
           c.erase("partial_rotary_factor");
           c["rope_parameters"] = {{"rope_type", "default"}, {"partial_rotary_factor", 1.0}};
         }).ok());
  CHECK(d.refused("kv_lora_rank", 512, "is set: multi-head latent attention (MLA)"));
  CHECK(says(d.changed([](json& c) {
    c["architectures"] = {"DeepseekV3ForCausalLM"}, c["model_type"] = "deepseek_v3",
    c["kv_lora_rank"] = 512;
  }),
             Code::bad_data, "(MLA), as in DeepSeek-V2 and -V3, is not supported"));
  CHECK(says(m.changed([](json& c) { c["architectures"] = {"Qwen2MoeForCausalLM"}; }),
             Code::bad_data, "\"architectures\" names none of"));
}

TEST_CASE("huggingface: a missing key of a family with experts has transformers' default") {
  const auto read = [](const Exported& model, std::initializer_list<const char*> erased) {
    const std::string path = model.folder / "hf/config.json";
    json config = json::parse(contents(path));
    for (const char* key : erased) config.erase(key);
    spew(model.folder / "changed.json", config.dump());
    return *must(read_hf_config(model.folder / "changed.json"));
  };
  ModelShape slides = mixtral();
  slides.sliding_window = 5;
  const Exported m(canonical(slides)), q(canonical(qwen())), d(canonical(dots())),
      g(canonical(glm()));
  CHECK(read(m, {}).sliding_window == 5);
  CHECK(read(m, {"sliding_window"}).sliding_window == 0);
  CHECK(read(m, {"rope_theta"}).rope_theta == 1e6);
  CHECK(read(m, {"rms_norm_eps"}).norm_eps == 1e-5);
  CHECK(read(q, {"rope_theta"}).rope_theta == 1e4);
  CHECK_FALSE(read(q, {"norm_topk_prob"}).experts.normalize);
  CHECK(read(q, {"mlp_only_layers"}).experts.dense_layers == 0);
  CHECK(read(d, {"routed_scaling_factor"}).experts.scale == 1);
  CHECK(read(d, {"first_k_dense_replace"}).experts.dense_layers == 0);
  CHECK(read(d, {"n_group", "topk_group"}).experts.groups == 1);
  CHECK(read(g, {"first_k_dense_replace"}).experts.dense_layers == 1);
  CHECK(read(g, {"n_shared_experts"}).experts.shared == 1);
  CHECK(read(g, {"norm_topk_prob"}).experts.normalize);
  CHECK_FALSE(read(g, {"attention_bias"}).qkv_bias);
}

TEST_CASE("huggingface: experts that are stored as one tensor are refused by name") {
  const Exported model(canonical(qwen()));
  const std::string path = model.folder / "hf/model.safetensors";
  const auto file = must(SafetensorsFile::open(path));
  std::vector<TensorEntry> entries;
  std::vector<std::string> bytes;
  for (const TensorEntry& entry : file->tensors()) {
    entries.push_back(entry);
    bytes.emplace_back(entry.end - entry.begin, '\0');
    REQUIRE(file->read(entry, 0, bytes.back().data(), bytes.back().size()).ok());
  }
  entries.push_back({"model.layers.1.mlp.experts.gate_up_proj", "F32", {4, 48, 16}});
  bytes.emplace_back(size_t{4} * 48 * 16 * 4, '\0');
  auto writer =
      must(SafetensorsWriter::create(system_files(), path + ".new", entries, {{"format", "pt"}}));
  for (size_t i = 0; i < entries.size(); ++i)
    REQUIRE(writer->write(i, 0, bytes[i].data(), bytes[i].size()).ok());
  REQUIRE(writer->finish().ok());
  fs::rename(path + ".new", path);
  CHECK(says(import_hf(model.folder / "hf", model.folder / "new"), Code::bad_data,
             "tensor model.layers.1.mlp.experts.gate_up_proj has the weights of all experts"));
}

TEST_SUITE_END();
