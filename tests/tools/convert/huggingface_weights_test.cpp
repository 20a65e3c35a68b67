// Weights and shapes of Hugging Face folders that programs other than ours have written: they are
// read as transformers 5.23.0 reads them, or refused. tests/e2e/test_families.py compares the logits.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

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

struct Tensor {
  TensorEntry entry;
  std::string bytes;
};

std::vector<Tensor> read_tensors(const std::string& path) {
  const auto file = must(SafetensorsFile::open(path));
  std::vector<Tensor> tensors;
  for (const TensorEntry& entry : file->tensors()) {
    tensors.push_back({entry, std::string(entry.end - entry.begin, '\0')});
    REQUIRE(file->read(entry, 0, tensors.back().bytes.data(), tensors.back().bytes.size()).ok());
  }
  return tensors;
}

void write_tensors(const std::string& path, const std::vector<Tensor>& tensors) {
  std::vector<TensorEntry> entries;
  for (const Tensor& tensor : tensors) entries.push_back(tensor.entry);
  auto writer = must(SafetensorsWriter::create(system_files(), path, entries, {{"format", "pt"}}));
  for (size_t i = 0; i < tensors.size(); ++i)
    REQUIRE(writer->write(i, 0, tensors[i].bytes.data(), tensors[i].bytes.size()).ok());
  REQUIRE(writer->finish().ok());
}

/// A folder of transformers, and the weights that an import makes of it.
struct Model {
  explicit Model(bool tied = false) {
    const ModelShape shape = some_shape(tied);
    auto checkpoint = saved(folder, shape);
    REQUIRE(export_hf(*checkpoint, folder / "hf", DType::f32).ok());
    want = weights();
    config = json::parse(contents(path("config.json")));
  }
  std::string path(const std::string& name) const { return folder / ("hf/" + name); }
  /// Digest of what an import makes; the message of its error.
  std::string weights() const {
    const std::string to = folder / "imported";
    fs::remove_all(to);
    if (const Status status = import_hf(folder / "hf", to); !status.ok()) {
      CHECK(status.code() == Code::bad_data);
      CHECK_FALSE(fs::exists(to));
      return status.message();
    }
    auto checkpoint = Checkpoint::open(to);
    const auto text = digest(*checkpoint);
    return text->substr(0, text->find("model.embed_tokens.weight.exp_avg "));
  }
  bool refused(const std::string& part) const {
    const std::string message = weights();
    CHECK_MESSAGE(message.find(part) != std::string::npos, message);
    return message.find(part) != std::string::npos;
  }
  void edit(const std::function<void(std::vector<Tensor>&)>& change) const {
    std::vector<Tensor> tensors = read_tensors(path("model.safetensors"));
    change(tensors);
    write_tensors(path("model.safetensors"), tensors);
  }
  ModelShape shape_of(const std::function<void(json&)>& change) const {
    json changed = config;
    change(changed);
    spew(path("config.json"), changed.dump());
    const auto shape = read_hf_config(path("config.json"));
    spew(path("config.json"), config.dump());
    REQUIRE_MESSAGE(shape.ok(), shape.status().message());
    return *shape;
  }

  MemoryFolder folder;
  std::string want;  // what weights() was at first
  json config;
};

Tensor* find(std::vector<Tensor>& tensors, const std::string& name) {
  for (Tensor& tensor : tensors)
    if (tensor.entry.name == name) return &tensor;
  return nullptr;
}

}  // namespace

TEST_CASE("huggingface: of two sets of weights none is read; of an index, the files are") {
  const Model model;
  const std::string index = model.path("model.safetensors.index.json");
  spew(index, R"({"metadata":{},"weight_map":{"model.norm.weight":"other.safetensors"}})");
  CHECK(
      model.refused("has two sets of weights, model.safetensors and the files of "
                    "model.safetensors.index.json: remove one of them"));
  // The same set.
  spew(index, R"({"metadata":{},"weight_map":{"model.norm.weight":"model.safetensors"}})");
  CHECK(model.weights() == model.want);
  // transformers reads all tensors of the files that the index names.
  const auto all = read_tensors(model.path("model.safetensors"));
  const auto half = static_cast<ptrdiff_t>(all.size() / 2);
  fs::remove(model.path("model.safetensors"));
  write_tensors(model.path("a.safetensors"), {all.begin(), all.begin() + half});
  write_tensors(model.path("b.safetensors"), {all.begin() + half, all.end()});
  const auto map_of = [&](const std::vector<std::pair<std::string, std::string>>& files) {
    json map = json::object();
    for (const auto& [name, file] : files) map[name] = file;
    spew(index, json{{"metadata", json::object()}, {"weight_map", map}}.dump());
  };
  const std::string first = all.front().entry.name, last = all.back().entry.name;
  map_of({{first, "a.safetensors"}, {last, "b.safetensors"}});
  CHECK(model.weights() == model.want);
  map_of({{last, "a.safetensors"}, {first, "b.safetensors"}});
  CHECK(model.refused("though the index says so"));
  // In two files: transformers takes the last one.
  write_tensors(model.path("b.safetensors"), {all.begin() + half - 1, all.end()});
  map_of({{first, "a.safetensors"}, {last, "b.safetensors"}});
  CHECK(model.refused("\" is also in " + model.path("a.safetensors")));
  fs::remove(index);
  fs::remove(model.path("a.safetensors"));
  CHECK(model.refused("no model.safetensors; weights are read from model.safetensors"));
}

TEST_CASE("huggingface: weights of a pickle are refused with how to convert them") {
  const Model model;
  fs::rename(model.path("model.safetensors"), model.path("pytorch_model.bin"));
  spew(model.path("training_args.bin"), "x");
  CHECK(model.refused("not from pytorch_model.bin; to convert what transformers loads: python3"));
  fs::remove(model.path("pytorch_model.bin"));
  CHECK(model.weights() == model.folder / "hf: no model.safetensors");
}

TEST_CASE("huggingface: a model without the names of its whole is read, and a tied head alone") {
  for (const bool tied : {false, true}) {
    const Model model(tied);
    model.edit([](std::vector<Tensor>& tensors) {
      for (Tensor& tensor : tensors)
        if (tensor.entry.name.starts_with("model."))
          tensor.entry.name = tensor.entry.name.substr(6);
    });
    json config = model.config;
    config["architectures"] = {"LlamaModel"};
    spew(model.path("config.json"), config.dump());
    CHECK(model.weights() == model.want);
    model.edit([](std::vector<Tensor>& tensors) {  // one of them with both names
      tensors.push_back(*find(tensors, "norm.weight"));
      tensors.back().entry.name = "model.norm.weight";
    });
    CHECK(model.refused("tensor norm.weight does not belong to this model"));
  }
  const Model model(true);
  model.edit([](std::vector<Tensor>& tensors) {
    find(tensors, "model.embed_tokens.weight")->entry.name = "lm_head.weight";
  });
  CHECK(model.weights() == model.want);
  json config = model.config;
  config["tie_word_embeddings"] = false;
  spew(model.path("config.json"), config.dump());
  CHECK(model.refused("model.embed_tokens.weight is missing"));
}

TEST_CASE("huggingface: F64 is rounded; tables that older programs stored are left out") {
  const Model model;
  model.edit([](std::vector<Tensor>& tensors) {
    for (Tensor& tensor : tensors) {
      std::string wide(tensor.bytes.size() * 2, '\0');
      for (size_t i = 0; i < tensor.bytes.size() / 4; ++i) {
        float narrow = 0;
        std::memcpy(&narrow, tensor.bytes.data() + i * 4, 4);
        double value = narrow;  // and a little more, less than half of what fp32 can tell
        value = std::nextafter(value, i % 2 ? HUGE_VAL : -HUGE_VAL);
        std::memcpy(wide.data() + i * 8, &value, 8);
      }
      tensor.entry.dtype = "F64";
      tensor.bytes = wide;
    }
    for (const char* name : {"model.layers.0.self_attn.rotary_emb.inv_freq",
                             "model.layers.0.self_attn.rotary_emb.cos_cached",
                             "model.layers.1.self_attn.rotary_emb.sin_cached",
                             "model.rotary_emb.inv_freq", "rotary_emb.original_inv_freq"})
      tensors.push_back({{name, "F32", {2}}, std::string(8, '\1')});
  });
  CHECK(model.weights() == model.want);
  model.edit([](std::vector<Tensor>& tensors) {
    const double huge = 1e39;
    std::memcpy(find(tensors, "model.norm.weight")->bytes.data(), &huge, 8);
  });
  CHECK(model.refused("model.norm.weight"));
}

TEST_CASE("huggingface: a config.json says what it says to transformers") {
  const Model model;
  const ModelShape plain = model.shape_of([](json&) {});
  CHECK(model.shape_of([](json& c) { c.erase("architectures"); }) == plain);
  CHECK(model.shape_of([](json& c) { c["architectures"] = nullptr; }) == plain);
  CHECK(model.shape_of([](json& c) { c["architectures"] = json::array(); }) == plain);
  CHECK(model.shape_of([](json& c) { c["architectures"] = {"LlamaModel"}; }) == plain);
  CHECK(model.shape_of([](json& c) { c["hidden_act"] = "swish"; }) == plain);
  CHECK(model.shape_of([](json& c) { c["head_dim"] = nullptr; }) == plain);
  CHECK(model.shape_of([](json& c) {
    c["layer_types"] = {"full_attention", "full_attention"};
  }) == plain);
  CHECK(model.shape_of([](json& c) { c["rope_scaling"] = {{"rope_type", "default"}}; }) == plain);
  CHECK(model.shape_of([](json& c) { c.erase("torch_dtype"), c["dtype"] = "float16"; }) == plain);
  CHECK(model.shape_of([](json& c) { c["num_key_value_heads"] = nullptr; }).kv_heads == 4);
  CHECK(model.shape_of([](json& c) { c.erase("num_key_value_heads"); }).kv_heads == 4);
  const auto mistral = [](json& c) {
    c["architectures"] = {"MistralForCausalLM"}, c["model_type"] = "mistral";
  };
  CHECK(model
            .shape_of([&](json& c) {
              mistral(c), c["num_attention_heads"] = 16, c["head_dim"] = 4,
                          c.erase("num_key_value_heads");
            })
            .kv_heads == 8);
  CHECK(
      model.shape_of([&](json& c) { mistral(c), c.erase("max_position_embeddings"); }).block_size ==
      131072);
  // Of both, rope_scaling counts if it has any member.
  CHECK(model
            .shape_of([](json& c) {
              c["rope_scaling"] = json::object();
              c["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 7.0}};
            })
            .rope_theta == 7);
  CHECK(model
            .shape_of([](json& c) {
              c["rope_theta"] = 5.0;
              c["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
              c["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 7.0}};
            })
            .rope_theta == 5);
}

TEST_CASE("huggingface: layers that all slide, or none, by layer_types") {
  const Model model;
  const auto qwen = [&](const std::function<void(json&)>& change) {
    return model.shape_of([&](json& c) {
      c["architectures"] = {"Qwen2ForCausalLM"}, c["model_type"] = "qwen2";
      c["use_sliding_window"] = true, c["sliding_window"] = 5, c["max_window_layers"] = 1;
      change(c);
    });
  };
  const json all = {"sliding_attention", "sliding_attention"},
             none = {"full_attention", "full_attention"};
  CHECK(qwen([&](json& c) { c["layer_types"] = all; }).sliding_window == 5);
  CHECK(qwen([&](json& c) { c["layer_types"] = none; }).sliding_window == 0);
  CHECK(qwen([&](json& c) {
          c["layer_types"] = none, c["max_window_layers"] = 0;
        }).sliding_window == 0);
  CHECK(qwen([&](json& c) { c["max_window_layers"] = 0; }).sliding_window == 5);
  CHECK(qwen([&](json& c) { c["max_window_layers"] = 2; }).sliding_window == 0);
  CHECK(qwen([&](json& c) { c["sliding_window"] = nullptr; }).sliding_window == 0);
  CHECK(qwen([&](json& c) { c["use_sliding_window"] = false; }).sliding_window == 0);
  const auto refused = [&](const json& types, bool slides) {
    json c = model.config;
    c["architectures"] = {"Qwen2ForCausalLM"}, c["model_type"] = "qwen2";
    c["use_sliding_window"] = slides, c["sliding_window"] = 5, c["layer_types"] = types;
    spew(model.path("config.json"), c.dump());
    const Status status = read_hf_config(model.path("config.json")).status();
    CHECK_MESSAGE(has(status, "\"layer_types\" is not"), status.message());
  };
  refused({"full_attention", "sliding_attention"}, true);
  refused({"full_attention"}, true);
  refused(all, false);  // transformers finds no window and fails
  refused("full_attention", true);
}

// attention_scaling of transformers 5.23.0, Qwen2Config(max_position_embeddings=64, rope_parameters=
// {"rope_type": "yarn", "rope_theta": 1000.0, "original_max_position_embeddings": 16, ...}).
TEST_CASE("huggingface: the temperature of yarn is that of transformers") {
  const Model model;
  const auto rope = [&](const json& keys) {
    return model
        .shape_of([&](json& c) {
          c["max_position_embeddings"] = 64;
          c["rope_parameters"] = {{"rope_type", "yarn"},
                                  {"rope_theta", 1000.0},
                                  {"original_max_position_embeddings", 16}};
          c["rope_parameters"].update(keys);
        })
        .rope_scaling;
  };
  const auto near = [](double value) { return doctest::Approx(value).epsilon(1e-14); };
  CHECK(rope({{"factor", 4.0}}).attention_factor == 0);
  CHECK(rope({{"factor", nullptr}}).factor == 4);
  CHECK(rope({{"factor", nullptr}}).attention_factor == 0);
  CHECK(rope({{"factor", 4.0}, {"attention_factor", 0.7}}).attention_factor == 0.7);
  CHECK(rope({{"factor", 4.0}, {"attention_factor", nullptr}}).attention_factor == 0);
  CHECK(rope({{"factor", 4.0}, {"attention_factor", 0.1 * std::log(4.0) + 1}}).attention_factor ==
        0);
  CHECK(rope({{"factor", 4.0}, {"mscale", 0.7}}).attention_factor == 0);
  CHECK(rope({{"factor", 4.0}, {"mscale", 1.0}, {"mscale_all_dim", 1.0}}).attention_factor == 1);
  CHECK(rope({{"factor", 4.0}, {"mscale", 0.5}, {"mscale_all_dim", 1.5}}).attention_factor ==
        near(0.8852352274451999));
}

TEST_SUITE_END();
