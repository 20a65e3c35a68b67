// Export and import of Hugging Face folders, by our own code and by transformers.
#include <doctest/doctest.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "runtime/base/dtype.hpp"
#include "runtime/checkpoint/checkpoint_format.hpp"
#include "runtime/checkpoint/safetensors.hpp"
#include "tests/must.hpp"
#include "tests/runtime/checkpoint/fixture.hpp"
#include "tests/tools/convert/generated_lines.hpp"
#include "tools/convert/commands.hpp"
#include "tools/convert/digest.hpp"
#include "tools/convert/huggingface.hpp"

using namespace simplescale;
using namespace simplescale::test;
using nlohmann::json;
namespace fs = std::filesystem;

TEST_SUITE_BEGIN("huggingface");

namespace {

/// The lines of the digest that are about weights.
std::string weights_digest(const std::string& folder) {
  auto checkpoint = must(Checkpoint::open(folder));
  const auto text = must(digest(*checkpoint));
  return text->substr(0, text->find("model.embed_tokens.weight.exp_avg "));
}

void edit_json(const std::string& path, const std::function<void(json&)>& edit) {
  json object = json::parse(contents(path));
  edit(object);
  spew(path, object.dump());
}

/// A SentencePiece model with Llama's settings, trained on generated text.
std::string train_tokenizer(const MemoryFolder& folder, int vocab) {
  spew(folder / "text.txt", generated_lines(400));
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      "--input=" + (folder / "text.txt") + " --model_prefix=" + (folder / "tokenizer") +
      " --vocab_size=" + std::to_string(vocab) +
      " --model_type=bpe --byte_fallback=true --unk_id=0 --bos_id=1 --eos_id=2 --pad_id=-1 "
      "--normalization_rule_name=identity --add_dummy_prefix=true --split_digits=true "
      "--remove_extra_whitespaces=false --allow_whitespace_only_pieces=true --minloglevel=2 "
      "--num_threads=1");
  REQUIRE_MESSAGE(status.ok(), status.ToString());
  return folder / "tokenizer.model";
}

}  // namespace

TEST_CASE("huggingface: export --ema writes the average of the weights, if there is one") {
  MemoryFolder folder;
  const ModelShape shape = some_shape();
  State whole = random_state(shape, 5, true, true);
  const auto averaged = save(folder / "averaged", whole, info_of(shape, 3), 2);
  whole.values[0] = whole.values[3];  // the same weights, as parameters
  whole.values[3].clear();
  const auto plain = save(folder / "plain", whole, info_of(shape, 3), 1);
  REQUIRE((averaged.ok() && plain.ok()));
  REQUIRE(export_command(*averaged, folder / "a", "float32", true).ok());
  REQUIRE(export_command(*plain, folder / "b", "float32", false).ok());
  CHECK(contents(folder / "a/model.safetensors") == contents(folder / "b/model.safetensors"));
  REQUIRE(export_command(*averaged, folder / "c", "float32", false).ok());
  CHECK(contents(folder / "a/model.safetensors") != contents(folder / "c/model.safetensors"));
  const Status refused = export_command(*plain, folder / "d", "float32", true).status();
  CHECK(refused.code() == Code::bad_data);
  CHECK(refused.message() ==
        *plain + " holds no average of the weights; a run keeps one with train.ema_decay");
  CHECK_FALSE(std::filesystem::exists(folder / "d"));
}

TEST_CASE("huggingface: export and import keep the weights; moments and step become zero") {
  for (const bool tied : {false, true}) {
    for (const uint64_t file_bytes_max : {kExportFileBytesMax, uint64_t{20000}}) {
      MemoryFolder folder;
      ModelShape shape = some_shape(tied);
      shape.rope_theta = 500000.0, shape.norm_eps = 1e-6;
      const auto saved =
          must(save(folder / "checkpoints", random_state(shape, 1, true), info_of(shape, 100), 3));
      auto checkpoint = must(Checkpoint::open(*saved));
      must(export_hf(*checkpoint, folder / "hf/", DType::f32, StateKind::params, file_bytes_max));
      CHECK(fs::exists(folder / "hf/model.safetensors.index.json") == (file_bytes_max == 20000));
      CHECK_FALSE(fs::exists(folder / "hf.partial"));
      must(import_hf(folder / "hf", folder / "new/start"));
      CHECK(weights_digest(*saved) == weights_digest(folder / "new/start"));
      auto back = must(Checkpoint::open(folder / "new/start"));
      CHECK(back->verify().ok());
      CHECK(back->info().step == 0);
      CHECK(back->info().shape == shape);
      State out = empty_state(shape, 1);
      REQUIRE(read_shard(*back, 1, 0, out.side()).ok());
      CHECK(
          std::all_of(out.values[1].begin(), out.values[1].end(), [](float v) { return v == 0; }));
      CHECK(
          std::all_of(out.values[2].begin(), out.values[2].end(), [](float v) { return v == 0; }));
    }
  }
}

TEST_CASE("huggingface: a checkpoint and an export keep every option of a block") {
  const auto check = [](const char* architecture, const auto& edit) {
    MemoryFolder folder;
    ModelShape shape = some_shape();
    edit(shape);
    CAPTURE(options_text(shape));
    const auto saved =
        must(save(folder / "checkpoints", random_state(shape, 1, true), info_of(shape, 100), 3));
    auto checkpoint = must(Checkpoint::open(*saved));
    CHECK(checkpoint->info().shape == shape);
    const Status exported = export_hf(*checkpoint, folder / "hf", DType::f32);
    if (!architecture) {
      CHECK(says(exported, Code::bad_config, options_text(shape)));
      CHECK_FALSE(fs::exists(folder / "hf"));
      return;
    }
    REQUIRE_MESSAGE(exported.ok(), exported.message());
    CHECK(json::parse(contents(folder / "hf/config.json"))["architectures"][0] == architecture);
    must(import_hf(folder / "hf", folder / "back"));
    CHECK(Checkpoint::open(folder / "back")->info().shape == shape);
    CHECK(weights_digest(*saved) == weights_digest(folder / "back"));
  };
  const RopeScaling llama3{.kind = RopeScaling::Kind::llama3,
                           .factor = 32,
                           .low_factor = 1,
                           .high_factor = 4,
                           .original_block_size = 8192};
  check("LlamaForCausalLM", [&](ModelShape& s) { s.rope_scaling = llama3, s.head_width = 6; });
  check("LlamaForCausalLM",
        [](ModelShape& s) { s.rope_scaling = {.kind = RopeScaling::Kind::linear, .factor = 2.5}; });
  check("LlamaForCausalLM", [](ModelShape& s) {
    s.rope_scaling = {RopeScaling::Kind::yarn, 4, 0.5, 20, 4096};
  });
  check("MistralForCausalLM", [](ModelShape& s) { s.sliding_window = 7; });
  check("MistralForCausalLM", [](ModelShape& s) { s.sliding_window = 7000, s.head_width = 2; });
  check("Qwen2ForCausalLM", [](ModelShape& s) { s.qkv_bias = true, s.tie_embeddings = true; });
  check("Qwen2ForCausalLM", [](ModelShape& s) { s.qkv_bias = true, s.sliding_window = 3; });
  check("Qwen3ForCausalLM", [](ModelShape& s) { s.qk_norm = QkNorm::head, s.head_width = 10; });
  check("Qwen3ForCausalLM", [](ModelShape& s) { s.qk_norm = QkNorm::head, s.sliding_window = 3; });
  check("Olmo2ForCausalLM", [&](ModelShape& s) {
    s.qk_norm = QkNorm::whole, s.norm = NormPlacement::post, s.rope_scaling = llama3;
  });
  check(nullptr, [](ModelShape& s) { s.norm = NormPlacement::post; });
  check(nullptr, [](ModelShape& s) { s.qk_norm = QkNorm::head, s.qkv_bias = true; });
  check(nullptr, [](ModelShape& s) { s.qk_norm = QkNorm::whole; });
}

TEST_CASE("checkpoint: a shape with an option that this program does not know is refused") {
  MemoryFolder folder;
  const ModelShape shape = tiny_shape();
  REQUIRE(save(folder.path, random_state(shape, 2, true), info_of(shape, 1), 1).ok());
  const std::string path = folder / "latest/manifest.json", right = contents(path);
  CHECK(right.find("qk_norm") == std::string::npos);  // a Llama 2's manifest is as it always was
  for (const std::string& option :
       {std::string("\"mixture\": 8,"), std::string("\"qk_norm\": \"rows\","),
        std::string("\"head_dim\": \"two\","), std::string("\"rope_scaling\": {},")}) {
    std::string text = right;
    text.insert(text.find("\"dim\""), option);
    spew_manifest(path, text);
    CHECK_MESSAGE(has(Checkpoint::open(folder / "latest").status(), "shape: "), option);
  }
  spew(path, right);
  CHECK(Checkpoint::open(folder / "latest").ok());
}

TEST_CASE("huggingface: bf16 is rounded by export and exact in import") {
  MemoryFolder folder;
  const ModelShape shape = some_shape();
  auto checkpoint = saved(folder, shape);
  REQUIRE(export_hf(*checkpoint, folder / "hf", DType::bf16).ok());
  REQUIRE(import_hf(folder / "hf", folder / "one").ok());
  auto one = Checkpoint::open(folder / "one");
  const auto before = read_parameter(*checkpoint, "lm_head.weight"),
             after = read_parameter(*one, "lm_head.weight");
  REQUIRE(after.ok());
  size_t wrong = 0;
  for (size_t i = 0; i < before->size(); ++i)
    wrong += (*after)[i] != bf16_to_f32(f32_to_bf16((*before)[i]));
  CHECK(wrong == 0);
  CHECK(json::parse(contents(folder / "hf/config.json"))["torch_dtype"] == "bfloat16");
  REQUIRE(export_hf(*one, folder / "again", DType::bf16).ok());
  CHECK(contents(folder / "again/model.safetensors") == contents(folder / "hf/model.safetensors"));
}

TEST_CASE("huggingface: existing folders are not overwritten") {
  MemoryFolder folder;
  const ModelShape shape = tiny_shape();
  auto checkpoint = saved(folder, shape);
  fs::create_directory(folder / "hf");
  REQUIRE(export_hf(*checkpoint, folder / "hf", DType::f32).ok());
  CHECK(has(export_hf(*checkpoint, folder / "hf", DType::f32), "exists and is not empty"));
  REQUIRE(import_hf(folder / "hf", folder / "new").ok());
  CHECK(has(import_hf(folder / "hf", folder / "new"), "exists already"));
}

TEST_CASE("huggingface: a damaged checkpoint is not exported") {
  MemoryFolder folder;
  const ModelShape shape = tiny_shape();
  REQUIRE(save(folder.path, random_state(shape, 2, true), info_of(shape, 1), 1).ok());
  const std::string shard = folder / "latest/shard-00000-of-00001.safetensors";
  std::string bytes = contents(shard);
  const size_t data = bytes.size() - 3 * parameter_count(shape) * 4;
  bytes[data + 5] = static_cast<char>(bytes[data + 5] ^ 4);
  spew(shard, bytes);
  auto checkpoint = must(Checkpoint::open(folder / "latest"));
  const Status status = export_hf(*checkpoint, folder / "hf", DType::f32);
  CHECK(status.message().find("checksum of params.embed is wrong") != std::string::npos);
  CHECK_FALSE(fs::exists(folder / "hf"));
  CHECK_FALSE(fs::exists(folder / "hf.partial"));
}

TEST_CASE("huggingface: a folder that cannot be imported is refused with file and key") {
  MemoryFolder folder;
  const ModelShape shape = tiny_shape();
  auto checkpoint = saved(folder, shape);
  REQUIRE(export_hf(*checkpoint, folder / "hf", DType::f32).ok());
  const std::string path = folder / "hf/config.json";
  const std::string right = contents(path);
  const auto refused = [&](const std::function<void(json&)>& edit, const std::string& part) {
    edit_json(path, edit);
    CHECK(says(import_hf(folder / "hf", folder / "new"), Code::bad_data, part));
    CHECK_FALSE(fs::exists(folder / "new"));
    spew(path, right);
  };
  refused([](json& c) { c["architectures"] = {"GemmaForCausalLM"}; },
          "config.json: \"architectures\"");
  refused([](json& c) { c["architectures"] = {"MistralForCausalLM"}; },
          "\"model_type\" is \"llama\"; a MistralForCausalLM is of type mistral");
  refused([](json& c) { c.erase("architectures"), c.erase("model_type"); }, "\"architectures\"");
  refused([](json& c) { c.erase("architectures"), c["model_type"] = "gpt2"; }, "\"architectures\"");
  refused([](json& c) { c["architectures"] = {"MistralModel"}; }, "\"architectures\"");
  refused([](json& c) { c["transformers_weights"] = "a.safetensors"; }, "\"transformers_weights\"");
  refused([](json& c) { c["model_type"] = "mistral"; }, "\"model_type\" is \"mistral\"");
  refused([](json& c) { c["hidden_act"] = "gelu"; }, "\"hidden_act\" is \"gelu\"");
  refused([](json& c) { c["attention_bias"] = true; }, "\"attention_bias\"");
  refused([](json& c) { c["mlp_bias"] = true; }, "\"mlp_bias\"");
  refused(
      [](json& c) {
        c["rope_scaling"] = {{"rope_type", "llama3"}, {"factor", 8}};
      },
      "\"rope_scaling\" has no number \"low_freq_factor\"");
  refused(
      [](json& c) {
        c["rope_scaling"] = {{"type", "dynamic"}, {"factor", 2}};
      },
      "depend on the length");
  refused(
      [](json& c) {
        c["rope_scaling"] = {{"type", "linear"}, {"factor", 0.5}};
      },
      "rope_factor must be at least 1");
  refused([](json& c) { c["partial_rotary_factor"] = 0.5; }, "\"partial_rotary_factor\"");
  refused([](json& c) { c["rope_parameters"] = {{"rope_type", "longrope"}}; }, "\"longrope\"");
  refused([](json& c) { c["rope_parameters"] = {{"rope_type", "yarn"}}; }, "\"rope_parameters\"");
  refused(
      [](json& c) {
        c["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4}, {"truncate", false}};
      },
      "sets \"truncate\"");
  refused(
      [](json& c) {
        c["rope_parameters"] = {{"full_attention", {{"rope_type", "default"}}}};
      },
      "\"rope_parameters\" has values for \"full_attention\" alone");
  refused([](json& c) { c["quantization_config"] = json::object(); }, "\"quantization_config\"");
  refused([](json& c) { c["head_dim"] = 64; }, "has shape [2, 4], config.json asks for [64, 4]");
  refused([](json& c) { c["head_dim"] = 3; }, "head_dim = 3 must be even");
  refused([](json& c) { c["head_dim"] = 1 << 24; }, "heads * head_dim is more than");
  refused([](json& c) { c.erase("hidden_size"); }, "\"hidden_size\" is missing");
  refused([](json& c) { c["vocab_size"] = "many"; }, "\"vocab_size\" is not a whole number");
  refused([](json& c) { c["num_attention_heads"] = 0; }, "heads = 0");
  refused([](json& c) { c["num_attention_heads"] = 3, c.erase("head_dim"); }, "does not divide");
  refused([](json& c) { c["hidden_size"] = int64_t{1} << 40; }, "more than");
  refused([](json& c) { c["vocab_size"] = 7; }, "has shape [6, 4], config.json asks for [7, 4]");
  refused([](json& c) { c["intermediate_size"] = 11; },
          "3 tensors do not fit config.json: model.layers.0.mlp.down_proj.weight has shape");
  refused([](json& c) { c["num_hidden_layers"] = 2; },
          "model.layers.1.input_layernorm.weight is missing");
  refused([](json& c) { c["tie_word_embeddings"] = true; }, "lm_head.weight differs");
  edit_json(path, [](json& c) {
    c["rope_scaling"] = {{"rope_type", "default"}}, c.erase("head_dim");
  });
  CHECK(import_hf(folder / "hf", folder / "fine").ok());
  spew(path, "{");
  CHECK(has(import_hf(folder / "hf", folder / "new"), "not a JSON object"));
  CHECK(import_hf(folder / "none", folder / "new").code() == Code::bad_data);
  ModelShape tied = shape;
  tied.tie_embeddings = true;
  REQUIRE(save(folder / "tied", random_state(tied, 2, true), info_of(tied, 1), 1).ok());
  auto other = Checkpoint::open(folder / "tied/latest");
  REQUIRE(export_hf(*other, folder / "hf2", DType::f32).ok());
  spew(folder / "hf2/config.json", right);
  CHECK(has(import_hf(folder / "hf2", folder / "new"), "lm_head.weight is missing"));
}

TEST_CASE("huggingface: weights that are NaN or infinite are refused with tensor and file") {
  const ModelShape shape = some_shape();
  const auto bits_of = [](const std::string& dtype, bool nan) {
    if (dtype == "F32") return std::string(nan ? "\1\0\x80\xff" : "\0\0\x80\x7f", 4);
    if (dtype == "BF16") return std::string(nan ? "\xc0\x7f" : "\x80\xff", 2);
    return std::string(nan ? "\1\x7c" : "\0\x7c", 2);
  };
  for (const std::string dtype : {"F32", "BF16", "F16"})
    for (const bool nan : {true, false}) {
      CAPTURE(dtype);
      MemoryFolder folder;
      auto checkpoint = saved(folder, shape);
      REQUIRE(export_hf(*checkpoint, folder / "hf", dtype == "F32" ? DType::f32 : DType::bf16,
                        StateKind::params, 20000)
                  .ok());
      const std::string tensor = "model.layers.1.mlp.up_proj.weight";
      const std::string path =
          folder / "hf/" +
          json::parse(contents(folder / "hf/model.safetensors.index.json"))["weight_map"][tensor]
              .get<std::string>();
      std::string bytes = contents(path);
      if (dtype == "F16")
        for (size_t at = 0; (at = bytes.find("\"BF16\"", at)) != std::string::npos;)
          bytes.replace(at, 6, "\"F16\" ");
      const auto file = SafetensorsFile::open(path);
      const std::string value = bits_of(dtype, nan);
      uint64_t header = 0;
      std::memcpy(&header, bytes.data(), 8);
      bytes.replace(8 + header + file->find(tensor)->begin + 7 * value.size(), value.size(), value);
      spew(path, bytes);
      const Status status = import_hf(folder / "hf", folder / "new");
      CHECK(status.code() == Code::bad_data);
      CHECK_MESSAGE(
          status.message().starts_with(path + ": tensor \"" + tensor + "\" holds " +
                                       (nan ? "NaN" : "an infinite value") + " (element 7)"),
          status.message());
      CHECK_FALSE(fs::exists(folder / "new"));
      CHECK_FALSE(fs::exists(folder / "new.partial"));
    }
}

TEST_CASE("huggingface: JSON that is nested deeply is refused, and ends no process") {
  MemoryFolder folder;
  const ModelShape shape = tiny_shape();
  auto checkpoint = saved(folder, shape);
  REQUIRE(export_hf(*checkpoint, folder / "hf", DType::f32).ok());
  const std::string right = contents(folder / "hf/config.json");
  const size_t depth = 4 << 20;
  const std::string deep = std::string(depth, '[') + std::string(depth, ']');
  // A value of the wrong type is printed in the message.
  std::string config = right;
  config.replace(config.find("\"silu\""), 6, deep);
  spew(folder / "hf/config.json", config);
  CHECK(has(import_hf(folder / "hf", folder / "new"), "nested deeper"));
  spew(folder / "hf/config.json", right);
  spew(folder / "hf/model.safetensors.index.json", "{\"weight_map\":" + deep + "}");
  CHECK(import_hf(folder / "hf", folder / "new").code() == Code::bad_data);
  CHECK_FALSE(parse_safetensors_header("{\"a\":" + deep + "}", 0).ok());
  CHECK_FALSE(parse_shard_record(deep).ok());
  // The facts of a manifest are printed again when it is read.
  std::string manifest = contents(folder / "latest/manifest.json");
  const std::string facts = "\"resume\": {";
  manifest.replace(manifest.find(facts), facts.size(), facts + "\"x\": " + deep + ", ");
  spew_manifest(folder / "latest/manifest.json", manifest);
  CHECK_FALSE(Checkpoint::open(folder / "latest").ok());
}

TEST_CASE("checkpoint: a manifest names no file outside of its folder") {
  MemoryFolder folder;
  const ModelShape shape = tiny_shape();
  CheckpointInfo info = info_of(shape, 1);
  spew(folder / "tok.json", "{}");
  info.tokenizer = folder / "tok.json";
  REQUIRE(save(folder.path, random_state(shape, 2, true), info, 1).ok());
  CHECK(Checkpoint::open(folder / "latest")->info().tokenizer == folder / "latest/tokenizer.json");
  const std::string path = folder / "latest/manifest.json", right = contents(path);
  for (const std::string& name :
       {std::string("tokenizer.json"), checkpoint_format::shard_file_name(0, 1)})
    for (const std::string& to :
         {"../../" + name, std::string("/etc/passwd"), std::string("../tok.json"), std::string()}) {
      std::string text = right;
      const std::string key = "\"file\": \"";
      text.replace(text.find(key + name) + key.size(), name.size(), to);
      spew_manifest(path, text);
      CHECK(says(Checkpoint::open(folder / "latest").status(), Code::bad_data, "\"" + to + "\""));
    }
  spew(path, right);
  CHECK(Checkpoint::open(folder / "latest").ok());
}

TEST_CASE(
    "huggingface: transformers loads the export with the same weights, text and logits, and we "
    "import its folder") {
  MemoryFolder folder;
  const ModelShape shape = some_shape();
  CheckpointInfo info = info_of(shape, 100);
  info.tokenizer = train_tokenizer(folder, 300);
  const State whole = random_state(shape, 3, true);
  const auto saved = must(save(folder / "checkpoints", whole, info, 2));
  auto checkpoint = must(Checkpoint::open(*saved));
  REQUIRE(export_hf(*checkpoint, folder / "hf", DType::f32).ok());
  REQUIRE(export_hf(*checkpoint, folder / "sharded", DType::bf16, StateKind::params, 20000).ok());

  json cases = json::array();
  sentencepiece::SentencePieceProcessor processor;
  REQUIRE(processor.Load(info.tokenizer).ok());
  for (const std::string text :
       {"The 42 quick foxes.", "abc def, hgf", " a leading space", "  two", "trailing ",
        "two  inside", "line\nbreak\n\n", "tab\tand caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\xa6\x8a",
        "1234567890", "a"}) {
    std::vector<int> ids;
    REQUIRE(processor.Encode(text, &ids).ok());
    cases.push_back({{"text", text}, {"ids", ids}});
  }
  spew(folder / "cases.json", cases.dump());
  for (const Unit& unit : units_of(shape))
    for (const Parameter& p : unit.parameters) {
      const auto values = must(read_parameter(*checkpoint, p.name));
      std::ofstream(folder / (p.name + ".bin"), std::ios::binary)
          .write(reinterpret_cast<const char*>(values->data()),
                 static_cast<std::streamsize>(values->size() * 4));
    }
  const auto python = run_python(R"(
import json, numpy as np, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained("hf", dtype=torch.float32)
assert type(model).__name__ == "LlamaForCausalLM"
state = model.state_dict()
for name, tensor in state.items():
    assert tensor.numpy().tobytes() == open(name + ".bin", "rb").read(), name
sharded = AutoModelForCausalLM.from_pretrained("sharded")
assert sharded.dtype == torch.bfloat16, sharded.dtype
for name, tensor in sharded.state_dict().items():
    assert torch.equal(tensor, state[name].to(torch.bfloat16)), name
logits = model(torch.arange(8)[None]).logits
assert logits.shape == (1, 8, 300) and torch.isfinite(logits).all()
tokenizer = AutoTokenizer.from_pretrained("hf")
print(type(tokenizer).__name__)
for case in json.load(open("cases.json")):
    ids = tokenizer.encode(case["text"], add_special_tokens=False)
    back = tokenizer.decode(ids)
    print(ids == case["ids"], back == case["text"], repr(case["text"]), ids, case["ids"], repr(back))
    assert ids == case["ids"] and back == case["text"], case
assert tokenizer.encode("a")[0] == tokenizer.bos_token_id == 1 and tokenizer.eos_token_id == 2
assert tokenizer.decode(tokenizer.encode("abc"), skip_special_tokens=True) == "abc"
model.save_pretrained("theirs")
model.half().save_pretrained("half", max_shard_size="20KB")
)",
                                 folder.path);
  if (!python) return skipped("no Python with torch and transformers under .deps");
  REQUIRE_MESSAGE(python->exit_code == 0, python->output);
  must(import_hf(folder / "theirs", folder / "back"));
  CHECK(weights_digest(folder / "back") == weights_digest(*saved));
  CHECK(Checkpoint::open(folder / "back")->info().shape == shape);
  CHECK(fs::exists(folder / "half/model.safetensors.index.json"));
  CHECK(works(import_hf(folder / "half", folder / "back16")));
}

TEST_SUITE_END();
