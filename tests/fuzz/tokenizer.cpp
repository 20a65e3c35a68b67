// Tokenizers: SentencePiece models and tokenizer.json, loaded and then used.
#include "runtime/tokenizer/tokenizer.hpp"

#include <nlohmann/json.hpp>

#include "runtime/base/utf8.hpp"
#include "tests/fuzz/driver.hpp"
#include "tests/runtime/tokenizer/hostile_model.hpp"

using namespace simplescale;

static void run(const uint8_t* data, size_t bytes) {
  const std::string input(reinterpret_cast<const char*>(data), bytes);
  for (const char* name : {kSentencePieceFile, kTokenizerJsonFile}) {
    const auto tokenizer = Tokenizer::from_bytes(input, name);
    if (!tokenizer.ok()) continue;
    // Hangul, a ligature, an emoji and broken UTF-8 reach normalizers and byte fallback.
    const std::string text =
        "abab  cd\n12 \xED\x95\x9C\xEF\xAC\x81\xF0\x9F\xA6\x8A \xff e\xCC\x81" +
        input.substr(0, 200);
    (void)tokenizer->decode(tokenizer->encode(text));
    (void)tokenizer->encode_rest(text);
    (void)tokenizer->decode(std::vector<int32_t>{-1, 0, 1, 2, 300, INT32_MAX});
  }
}

namespace {

std::string tokenizer_json(const std::string& pre_tokenizer, const std::string& normalizer) {
  nlohmann::ordered_json vocab = nlohmann::ordered_json::object();
  for (int byte = 0; byte < 256; ++byte) {
    std::string text;
    append_utf8(text, byte_alphabet()[static_cast<size_t>(byte)]);
    vocab[text] = byte;
  }
  vocab["ab"] = 256;
  return R"({"version":"1.0","added_tokens":[{"id":257,"content":"<|endoftext|>","special":true,)"
         R"("single_word":false,"lstrip":true,"rstrip":false,"normalized":false}],"normalizer":)" +
         normalizer + R"(,"pre_tokenizer":)" + pre_tokenizer +
         R"(,"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","ignore_merges":true,"merges":)"
         R"(["a b"],"vocab":)" +
         vocab.dump() + "}}";
}

}  // namespace

static std::vector<std::string> seeds() {
  using namespace simplescale::test;
  const std::string split =
      R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":)"
      R"("(?i:'s|'t)|\\p{N}{1,3}|[^\\s\\p{L}]?\\p{L}+|\\s+(?!\\S)|\\s+"},"behavior":"Isolated",)"
      R"("invert":false},{"type":"ByteLevel","add_prefix_space":true,"use_regex":false}]})";
  const std::string spaces =
      R"({"type":"Metaspace","replacement":"_","prepend_scheme":"first","split":true})";
  std::string doubled;  // 2^6 times as long; one more step is refused
  for (int i = 0; i < 6; ++i)
    doubled +=
        std::string(i ? "," : "") + R"({"type":"Replace","pattern":{"String":"a"},"content":"aa"})";
  return {small_model(bpe_model),
          small_model(unigram_model),
          small_model(bpe_model, charsmap(256, 0, "x")),
          tokenizer_json(split, R"({"type":"NFC"})"),
          tokenizer_json(spaces, R"({"type":"Sequence","normalizers":[{"type":"NFKC"},{"type":)"
                                 R"("Replace","pattern":{"String":"a"},"content":"b"}]})"),
          tokenizer_json(spaces, R"({"type":"Sequence","normalizers":[)" + doubled + "]}")};
}

static const FuzzTarget target("tokenizer", run, seeds);
