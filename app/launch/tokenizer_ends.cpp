#include "app/launch/tokenizer_ends.hpp"

#include <filesystem>
#include <string>
#include <vector>

#include "app/terminal.hpp"
#include "runtime/base/input_file.hpp"
#include "runtime/base/json_members.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace simplescale {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// What a file of the tokenizer's folder says is BOS or EOS.
struct Named {
  std::string file, token;
  int32_t id = -1;
};

/// kind: "bos" or "eos". As transformers: the first of these files that names it counts. Nothing: no
/// file does.
Named named_beside(const std::string& path, const Tokenizer& tokenizer, const std::string& kind) {
  if (tokenizer_file_name(path) != std::string(kTokenizerJsonFile)) return {};
  for (const char* file : {"tokenizer_config.json", "special_tokens_map.json", "config.json",
                           "generation_config.json"}) {
    const json facts =
        json_of(read_text_inside(fs::path(path).replace_filename(file), 16 << 20, LinksOut::own));
    const json& token = member_of(facts, (kind + "_token").c_str());
    // A text, or an object with its properties.
    const std::string content =
        token.is_string() ? token.get<std::string>() : text_of(token, "content");
    if (!content.empty()) {
      const std::vector<int32_t> ids = tokenizer.encode(content);
      return {file, content, ids.size() == 1 ? ids[0] : -1};
    }
    json id = member_of(facts, (kind + "_token_id").c_str());
    if (id.is_array() && !id.empty()) id = json(id[0]);  // generate() may end at several
    if (id.is_number_unsigned() && id < tokenizer.vocab())
      return {file, "the token " + id.dump(), id.get<int32_t>()};
  }
  return {};
}

/// Warns if the folder names another one than the tokenizer has.
void compare(const std::string& path, const Tokenizer& tokenizer, const std::string& kind) {
  const bool begins = kind == "bos";
  const int32_t ours = begins ? tokenizer.bos() : tokenizer.eos();
  const Named named = named_beside(path, tokenizer, kind);
  if (named.file.empty() || named.id == ours) return;
  const std::string what = begins ? "BOS" : "EOS";
  terminal::error(
      "simplescale: warning: %s names %s as %s, but %s does not: %s; put %s %s the text in the "
      "template of its post_processor, or ignore this\n",
      named.file.c_str(), named.token.c_str(), what.c_str(), path.c_str(),
      (ours < 0 ? "it has no " + what : "its " + what + " is another token").c_str(),
      named.token.c_str(), begins ? "before" : "behind");
}

}  // namespace

Status check_ends(const PrepareOptions& options) {
  std::error_code error;
  const std::string& path = options.tokenizer_path;
  if (path.empty() && options.byte_level && options.append_eos == Choice::yes)
    return Status(Code::bad_config,
                  "tokenizer.append_eos = true: a tokenizer of the kind byte_bpe has one token for "
                  "EOS and BOS, which is between all documents; leave the key out, or set "
                  "tokenizer.kind = \"bpe\"");
  if (!fs::is_regular_file(path, error)) return {};
  SS_ASSIGN(const Tokenizer tokenizer, Tokenizer::load(path));
  SS_ASSIGN(const int32_t eos, eos_of(options, tokenizer));
  compare(path, tokenizer, "bos");
  if (options.append_eos != Choice::no) compare(path, tokenizer, "eos");
  if (const std::string guess = tokenizer.guessed_ends();
      !guess.empty() && named_beside(path, tokenizer, "eos").file.empty())
    terminal::error(
        "simplescale: warning: %s: %s; to say another one, put it behind the text in the template "
        "of its post_processor\n",
        path.c_str(), guess.c_str());
  if (tokenizer.bos() >= 0 || eos >= 0) return {};
  terminal::error(
      "simplescale: warning: %s: nothing stands between the documents of %s, so the model cannot "
      "learn where a text ends: the tokenizer has no BOS%s\n",
      path.c_str(), options.source.c_str(),
      tokenizer.eos() >= 0
          ? ", and tokenizer.append_eos = false leaves its EOS out"
          : " and no EOS; a special token <|endoftext|> in tokenizer.json is both");
  return {};
}

}  // namespace simplescale
