// Which tokenizer files an export has: the ids that transformers reads from them, and the settings
// of an imported folder.
#include <doctest/doctest.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <map>
#include <nlohmann/json.hpp>

#include "runtime/checkpoint/imported_facts.hpp"
#include "tests/must.hpp"
#include "tests/runtime/checkpoint/fixture.hpp"
#include "tests/runtime/tokenizer/hostile_model.hpp"
#include "tests/tools/convert/generated_lines.hpp"
#include "tools/convert/huggingface.hpp"

using namespace simplescale;
using namespace simplescale::test;
using nlohmann::json;
namespace fs = std::filesystem;

TEST_SUITE_BEGIN("huggingface");

namespace {

/// Exports a checkpoint with this tokenizer and these facts to folder/NAME.
void export_with(const MemoryFolder& folder, const std::string& name, const std::string& tokenizer,
                 const std::string& facts = "{}") {
  const ModelShape shape = tiny_shape();
  CheckpointInfo info = info_of(shape, 1);
  info.tokenizer = tokenizer;
  info.resume = facts;
  const std::string checkpoints = folder / ("checkpoints-" + name);
  const auto saved = must(save(checkpoints, random_state(shape, 2, true), info, 1));
  auto checkpoint = must(Checkpoint::open(*saved));
  must(export_hf(*checkpoint, folder / name, DType::f32));
}

std::string small_tokenizer_json() {
  return R"({"version":"1.0","added_tokens":[{"id":1,"content":"<|endoftext|>","special":true,)"
         R"("single_word":false,"lstrip":false,"rstrip":false,"normalized":false}],)"
         R"("pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,)"
         R"("use_regex":true},"decoder":{"type":"ByteLevel","add_prefix_space":true,)"
         R"("trim_offsets":true,"use_regex":true},)"
         R"("model":{"type":"BPE","vocab":{"a":0},"merges":[]}})";
}

using Settings = std::map<std::string, std::string>;

/// Trains a SentencePiece model with Llama's settings, except for these. Returns its path.
std::string trained(const MemoryFolder& folder, const std::string& name, const Settings& changes) {
  spew(folder / "text.txt", generated_lines(300));
  Settings all = {{"input", folder / "text.txt"},
                  {"model_prefix", folder / name},
                  {"vocab_size", "300"},
                  {"hard_vocab_limit", "false"},
                  {"model_type", "bpe"},
                  {"byte_fallback", "true"},
                  {"unk_id", "0"},
                  {"bos_id", "1"},
                  {"eos_id", "2"},
                  {"normalization_rule_name", "identity"},
                  {"num_threads", "1"},
                  {"remove_extra_whitespaces", "false"},
                  {"minloglevel", "2"},
                  {"allow_whitespace_only_pieces", "true"}};
  for (const auto& [key, value] : changes) all[key] = value;
  if (all["model_type"] != "unigram") all.erase("hard_vocab_limit");
  std::unordered_map<std::string, std::string> arguments(all.begin(), all.end());
  const auto status = sentencepiece::SentencePieceTrainer::Train(arguments);
  REQUIRE_MESSAGE(status.ok(), name, status.ToString());
  return folder / (name + ".model");
}

struct Kind {
  const char* name;
  Settings changes;
  bool json;  // tokenizer.json can express it
};

}  // namespace

TEST_CASE("huggingface: a tokenizer.json is exported as it is, and imported again") {
  MemoryFolder folder;
  const ModelShape shape = tiny_shape();
  CheckpointInfo info = info_of(shape, 1);
  const std::string tokenizer = small_tokenizer_json();
  spew(folder / "my.json", tokenizer);
  info.tokenizer = folder / "my.json";
  REQUIRE(save(folder.path, random_state(shape, 2, true), info, 1).ok());
  auto checkpoint = must(Checkpoint::open(folder / "latest"));
  must(export_hf(*checkpoint, folder / "hf", DType::f32));
  CHECK(contents(folder / "hf/tokenizer.json") == tokenizer);
  CHECK_FALSE(fs::exists(folder / "hf/tokenizer.model"));
  CHECK(json::parse(contents(folder / "hf/tokenizer_config.json"))["eos_token"] == "<|endoftext|>");
  CHECK(json::parse(contents(folder / "hf/config.json"))["eos_token_id"] == 1);
  REQUIRE(import_hf(folder / "hf", folder / "back").ok());
  CHECK(contents(Checkpoint::open(folder / "back")->info().tokenizer) == tokenizer);
  spew(folder / "latest/tokenizer.json", "{}");  // no longer a tokenizer
  CHECK(export_hf(*checkpoint, folder / "bad", DType::f32).code() == Code::bad_data);
}

// Each piece has as many splits as bytes: 60 letters would fill tens of GB.
TEST_CASE("huggingface: a SentencePiece model with too many merges gets no tokenizer.json") {
  const MemoryFolder folder;
  std::string model = piece("<unk>", unknown_piece);
  for (size_t bytes = 1; bytes <= 1024; ++bytes) model += piece(std::string(bytes, 'a'));
  model += field(2, field(3, bpe_model)) + field(3, field(4, 0));  // keeps extra spaces
  spew(folder / "many.model", model);
  export_with(folder, "hf", folder / "many.model");
  CHECK(contents(folder / "hf/tokenizer.model") == model);
  CHECK_FALSE(fs::exists(folder / "hf/tokenizer.json"));
}

TEST_CASE("huggingface: of every kind of SentencePiece model, transformers gets its ids or none") {
  MemoryFolder folder;
  const std::vector<Kind> kinds = {
      {"llama", {}, true},
      {"no_prefix", {{"add_dummy_prefix", "false"}}, true},
      {"no_bytes", {{"byte_fallback", "false"}}, true},
      {"neither", {{"byte_fallback", "false"}, {"add_dummy_prefix", "false"}}, true},
      {"unigram", {{"model_type", "unigram"}}, false},
      {"nfkc", {{"normalization_rule_name", "nmt_nfkc"}}, false},
      {"extra", {{"remove_extra_whitespaces", "true"}}, false},
      {"suffix", {{"treat_whitespace_as_suffix", "true"}}, false},
      {"user", {{"user_defined_symbols", "fox,ab"}}, false},
  };
  json cases = json::object();
  for (const Kind& kind : kinds) {
    CAPTURE(kind.name);
    const std::string path = trained(folder, kind.name, kind.changes);
    export_with(folder, std::string(kind.name) + "-hf", path);
    const std::string exported = folder / (std::string(kind.name) + "-hf");
    CHECK(contents(exported + "/tokenizer.model") == contents(path));
    CHECK(fs::exists(exported + "/tokenizer.json") == kind.json);
    sentencepiece::SentencePieceProcessor processor;
    REQUIRE(processor.Load(path).ok());
    for (const std::string text :
         {"The 42 quick foxes.", "abc def, hgf", " a leading space", "  two", "trailing ",
          "two  inside", "caf\xc3\xa9 \xe2\x82\xac\xe2\x82\xac \xef\xac\x81x \xe2\x91\xa0",
          "fox ab", "a"})
      cases[kind.name].push_back({{"text", text}, {"ids", processor.EncodeAsIds(text)}});
  }
  spew(folder / "cases.json", cases.dump());
  const auto python = run_python(R"(
import json, os
from transformers import AutoTokenizer
for name, cases in json.load(open("cases.json")).items():
    if not os.path.exists(name + "-hf/tokenizer.json"):
        continue
    tokenizer = AutoTokenizer.from_pretrained(name + "-hf")
    for case in cases:
        ids = tokenizer.encode(case["text"], add_special_tokens=False)
        assert ids == case["ids"], (name, case, ids)
        if 0 not in ids:
            assert tokenizer.decode(ids) == case["text"], (name, case, tokenizer.decode(ids))
)",
                                 folder.path);
  if (!python) return skipped("no Python with transformers under .deps");
  CHECK_MESSAGE(python->exit_code == 0, python->output);
}

TEST_CASE("huggingface: the chat template and special tokens of an imported folder come back") {
  MemoryFolder folder;
  const std::string tokenizer = small_tokenizer_json();
  spew(folder / "my.json", tokenizer);
  export_with(folder, "hf", folder / "my.json");
  const json theirs = {{"tokenizer_class", "SomeTokenizer"},
                       {"chat_template", "{{ messages }}"},
                       {"pad_token", "<pad>"},
                       {"eos_token", {{"__type", "AddedToken"}, {"content", "<|im_end|>"}}},
                       {"auto_map", {{"AutoTokenizer", "code.py"}}},
                       {"model_max_length", 77777},
                       {"clean_up_tokenization_spaces", true},
                       {"added_tokens_decoder", {{"1", {{"content", "<|endoftext|>"}}}}}};
  spew(folder / "hf/tokenizer_config.json", theirs.dump());
  REQUIRE(import_hf(folder / "hf", folder / "imported").ok());
  auto imported = must(Checkpoint::open(folder / "imported"));
  const std::string facts = imported_facts(imported->info());  // what a run keeps of them

  SUBCASE("with the same tokenizer") {
    export_with(folder, "back", folder / "my.json", facts);
    const json config = json::parse(contents(folder / "back/tokenizer_config.json"));
    for (const char* key : {"chat_template", "pad_token", "eos_token",
                            "clean_up_tokenization_spaces", "added_tokens_decoder"})
      CHECK_MESSAGE(config[key] == theirs[key], key);
    // Those are ours: a class of transformers may read tokenizer.json in its own way.
    CHECK(config["tokenizer_class"] == "PreTrainedTokenizerFast");
    CHECK(config["model_max_length"] == tiny_shape().block_size);
    CHECK_FALSE(config.contains("auto_map"));
    const json special = json::parse(contents(folder / "back/special_tokens_map.json"));
    CHECK(special["eos_token"] == theirs["eos_token"]);
    CHECK(special["pad_token"] == "<pad>");
    const auto python = run_python(R"(
from transformers import AutoTokenizer
t = AutoTokenizer.from_pretrained("back")
assert t.chat_template == "{{ messages }}" and t.pad_token == "<pad>" and t.eos_token == "<|im_end|>", t
assert t.encode("a") == [0] and t.convert_ids_to_tokens(1) == "<|endoftext|>", t
)",
                                   folder.path);
    if (python) CHECK_MESSAGE(python->exit_code == 0, python->output);
  }
  SUBCASE("a special token that it does not have is not added") {
    for (const char* name : {"TokenizersBackend", "PreTrainedTokenizerFast", "Qwen2Tokenizer"}) {
      spew(folder / "hf/tokenizer_config.json",
           json({{"tokenizer_class", name}, {"eos_token", "<|im_end|>"}}).dump());
      const std::string copy = folder / name, back = std::string("back-") + name;
      REQUIRE(import_hf(folder / "hf", copy).ok());
      export_with(folder, back, folder / "my.json", imported_facts(Checkpoint::open(copy)->info()));
      const json config = json::parse(contents(folder / (back + "/tokenizer_config.json")));
      CHECK(config["eos_token"] == "<|im_end|>");
      // A class of its own may have a first token without a word.
      CHECK(config.contains("bos_token") == (name == std::string("Qwen2Tokenizer")));
    }
  }
  SUBCASE("with another tokenizer they are left out") {
    spew(folder / "other.json", tokenizer + "\n");
    export_with(folder, "back", folder / "other.json", facts);
    const json config = json::parse(contents(folder / "back/tokenizer_config.json"));
    CHECK_FALSE(config.contains("chat_template"));
    CHECK(config["eos_token"] == "<|endoftext|>");
  }
  SUBCASE("a template in a file of its own counts") {
    spew(folder / "hf/chat_template.jinja", "{{ own }}");
    REQUIRE(import_hf(folder / "hf", folder / "again").ok());
    export_with(folder, "back", folder / "my.json",
                imported_facts(Checkpoint::open(folder / "again")->info()));
    CHECK(json::parse(contents(folder / "back/tokenizer_config.json"))["chat_template"] ==
          "{{ own }}");
    fs::remove(folder / "hf/chat_template.jinja");
    fs::create_symlink("/etc/passwd", folder / "hf/chat_template.jinja");
    CHECK(import_hf(folder / "hf", folder / "third").code() == Code::bad_data);
  }
  SUBCASE("a damaged one is refused") {
    spew(folder / "hf/tokenizer_config.json", "[]");
    const Status refused = import_hf(folder / "hf", folder / "third");
    CHECK(says(refused, Code::bad_data, "tokenizer_config.json"));
  }
}

TEST_SUITE_END();
