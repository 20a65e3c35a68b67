#include "app/launch/prepare_data.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "app/launch/progress.hpp"
#include "app/launch/tokenizer_ends.hpp"
#include "app/terminal.hpp"
#include "runtime/base/input_file.hpp"
#include "runtime/base/json_members.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/base/words.hpp"
#include "runtime/feed/run_data.hpp"
#include "runtime/run/run_folder.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "tools/prepare/prepare.hpp"
#include "tools/prepare/token_notes.hpp"

namespace simplescale {

namespace {
/// tokenizer.path must exist, even if the tokens are prepared already.
Status check_tokenizer_exists(const Config& config) {
  namespace fs = std::filesystem;
  const fs::path path = tokenizer_file(config);
  std::error_code error;
  if (path.empty() || fs::is_regular_file(path, error)) return {};
  const bool folder = fs::is_directory(path, error);
  const fs::path around = folder ? path : path.parent_path();
  std::vector<std::string> known;
  for (const auto& entry : fs::directory_iterator(around.empty() ? fs::path(".") : around, error))
    if (entry.path().extension() == ".model" || entry.path().extension() == ".json" || !folder)
      known.push_back((around / entry.path().filename()).string());
  const std::string nearest = folder && known.size() == 1
                                  ? ": did you mean '" + known.front() + "'?"
                                  : did_you_mean(path.string(), known);
  return Status(Code::bad_config,
                "tokenizer.path = \"" + path.string() + "\": " +
                    (folder ? "there is no tokenizer.model or tokenizer.json in that folder"
                            : "there is no such file") +
                    nearest);
}

CorpusOptions corpus_options(const Config& config) {
  CorpusOptions options = {.text_key = config.data.text_key,
                           .mask_key = config.data.loss_mask_key,
                           .skip_bad = static_cast<uint64_t>(config.data.skip_bad)};
  if (auto files = DataFiles::of_texts(config); files.ok()) options.files = *files;
  return options;
}

PrepareOptions options_of(const Config& config, const ModelShape& shape) {
  PrepareOptions options;
  options.source = config.data.source;
  options.corpus = corpus_options(config);
  options.folder = data_folder(config);
  options.trust_folder = config.run.trust_folder;
  options.tokenizer_path = tokenizer_file(config);
  options.append_eos = config.tokenizer.append_eos;
  options.byte_level = config.tokenizer.kind != TokenizerKind::bpe;
  options.train_tokenizer_on = config.tokenizer.train_on;
  options.vocab = config.tokenizer.vocab > 0 ? config.tokenizer.vocab : shape.vocab;
  options.validation_fraction = config.data.validation_fraction;
  options.seed = static_cast<uint64_t>(config.run.seed);
  return options;
}

/// A text of a configuration, and the options that make its tokens.
struct ConfiguredText {
  ConfiguredSource source;
  PrepareOptions options;
};

/// The largest share of a source of the blend in the samples, at the beginning or in any stage.
double share_of(const Config& config, const std::string& name) {
  std::vector<BlendStage> stages = config.data.stage;
  stages.emplace_back();
  for (const BlendSource& source : config.data.blend)
    stages.back().weights.push_back({source.name, source.weight.value_or(0)});
  double share = 0;
  for (const BlendStage& stage : stages) {
    double all = 0, own = 0;
    for (const auto& [source, weight] : stage.weights) {
      all += weight;
      if (source == name) own = weight;
    }
    if (all > 0) share = std::max(share, own / all);
  }
  return share;
}

/// The texts that train the tokenizer of a blend: all its texts. Empty: no blend.
std::vector<TrainingText> blend_texts(const Config& config,
                                      const std::vector<ConfiguredSource>& texts) {
  std::vector<TrainingText> from;
  if (config.data.blend.empty()) return from;
  for (const ConfiguredSource& text : texts)
    if (const double share = share_of(config, text.name); share > 0)
      from.push_back({text.config.data.source, corpus_options(text.config), share});
  return from;
}

/// The folder with the tokens of a source, if the run has begun; else "".
std::string folder_in_run(const Config& config, const std::string& name) {
  const auto run = load_config(RunFolder{run_folder(config)}.config());
  if (run.ok())
    for (const BlendSource& source : run->config.data.blend)
      if (source.name == name) return source.folder;
  return "";
}

std::vector<ConfiguredText> texts_of(const Config& config, const ModelShape& shape) {
  std::vector<ConfiguredSource> sources = sources_of(config);
  std::erase_if(sources, [](const ConfiguredSource& source) {
    return source.config.data.source.empty() || source_is_tokens(source.config);
  });
  const std::vector<TrainingText> blend = blend_texts(config, sources);
  std::vector<ConfiguredText> texts;
  for (ConfiguredSource& source : sources) {
    PrepareOptions options = options_of(source.config, shape);
    if (texts.empty() && !blend.empty()) {
      options.blend = blend;
      // The run may have begun with other weights or sources, or with an earlier version, which
      // trained the tokenizer on the first text only.
      const std::string folder = folder_in_run(config, source.name);
      options.keeps_tokenizer = !folder.empty();
      if (source.config.data.folder.empty() && read_manifest(folder).ok()) options.folder = folder;
    }
    // The first text of a blend trains the tokenizer of the others, unless the tokenizer exists.
    if (const PrepareOptions* first = texts.empty() ? nullptr : &texts.front().options;
        first && first->tokenizer_path.empty()) {
      options.tokenizer_path = first->folder + "/" + trained_tokenizer_file(options.byte_level);
      options.trained_on =
          texts.size() > 1 ? texts.back().options.trained_on : tokenizer_signature(*first);
    }
    if (source.config.data.folder.empty()) options.folder = free_folder(options, "data");
    texts.push_back({std::move(source), std::move(options)});
  }
  return texts;
}

/// Sets what tokenizer.kind = "auto" stands for, as set_token_folders() says. Returns the prepared
/// folder that makes it "bpe"; "": none does.
std::string choose_tokenizer_kind(Config& config, const ModelShape& shape) {
  TokenizerKind& kind = config.tokenizer.kind;
  if (!config.tokenizer.path.empty()) kind = TokenizerKind::automatic;
  if (!config.tokenizer.path.empty() || kind != TokenizerKind::automatic) return "";
  const auto run = load_config(RunFolder{run_folder(config)}.config());
  if (run.ok() && run->config.tokenizer.path.empty()) {
    kind = run->config.tokenizer.kind;
    if (kind == TokenizerKind::automatic) kind = TokenizerKind::bpe;  // of before the key
    return "";
  }
  for (const TokenizerKind one : {TokenizerKind::byte_bpe, TokenizerKind::bpe}) {
    kind = one;
    const auto texts = texts_of(config, shape);
    const std::string folder = texts.empty() ? "" : texts.front().options.folder;
    const auto made = read_manifest(folder);
    if (made.ok() && made->tokenizer.name == trained_tokenizer_file(one == TokenizerKind::byte_bpe))
      return one == TokenizerKind::bpe ? folder : "";
  }
  kind = TokenizerKind::byte_bpe;
  return "";
}
}  // namespace

std::string set_token_folders(Config& config) {
  const auto shape = model_shape(config);
  const std::string like = shape.ok() ? choose_tokenizer_kind(config, *shape) : "";
  const auto texts = shape.ok() ? texts_of(config, *shape) : std::vector<ConfiguredText>();
  if (config.data.blend.empty())
    config.data.folder = texts.empty() ? data_folder(config) : texts.front().options.folder;
  for (const ConfiguredText& text : texts)
    for (BlendSource& source : config.data.blend)
      if (source.name == text.source.name) source.folder = text.options.folder;
  return like.empty() ? "" : "tokenizer.kind is \"bpe\", as in " + like + ", which is prepared";
}

namespace {

/// "web (70 %), code (30 %)": the texts that train a tokenizer.
std::string training_text(const PrepareOptions& options) {
  const std::vector<TrainingText> from = trained_from(options);
  double all = 0;
  for (const TrainingText& text : from) all += text.weight;
  std::string names;
  for (const TrainingText& text : from) {
    char share[32] = "";
    if (from.size() > 1) std::snprintf(share, sizeof share, " (%.3g %%)", 100 * text.weight / all);
    names += (names.empty() ? "" : ", ") + text.source + share;
  }
  return names;
}

/// Prepares data.source, which is text, in options.folder. name: the source in a blend; "": no
/// blend.
Status prepare_text(const std::string& name, const PrepareOptions& options) {
  const std::string label = name.empty() ? "prepare: " : "prepare " + name + ": ";
  ProgressLine line;
  std::string stage;
  PrepareProgress last;
  auto made = prepare(options, [&](const PrepareProgress& progress) {
    if (progress.stage == "tokenizer" && stage != "tokenizer")
      line.print_line(label + "training a tokenizer (" + (options.byte_level ? "byte_bpe" : "bpe") +
                      ", " + std::to_string(options.vocab) + " tokens) on " +
                      training_text(options));
    stage = progress.stage;
    last = progress;
    char text[32];
    const int length = std::snprintf(text, sizeof text, "%3.0f %%", progress.fraction * 100);
    if (progress.mb_per_second > 0)
      std::snprintf(text + length, sizeof text - static_cast<size_t>(length), "  %.1f MB/s",
                    progress.mb_per_second);
    line.report(label + stage, progress.fraction, text);
  });
  line.clear();
  if (!made.ok()) return made.status();
  if (last.kept_files > 0)
    line.print_line(label + std::to_string(last.kept_files) +
                    " files were encoded before, or by other processes");
  if (last.kept_bytes > 0)
    line.print_line(label + std::to_string(last.kept_bytes / 1'000'000) +
                    " MB of text were encoded before the interruption");
  if (last.mb_per_second > 0) {
    char rate[64];
    std::snprintf(rate, sizeof rate, "encoded %.1f MB/s of text", last.mb_per_second);
    line.print_line(label + rate);
  }
  if (stage == "tokens")
    line.print_line(
        "prepared " + std::to_string(made->train_tokens) + " training and " +
        std::to_string(made->validation_tokens) + " validation tokens in " + options.folder +
        (made->masked_tokens > 0
             ? "; " + std::to_string(made->masked_tokens) + " of them do not count in the loss"
             : "") +
        (made->bad_lines > 0
             ? "; left out " + counted(static_cast<int64_t>(made->bad_lines), "bad line") +
                   " (data.skip_bad)"
             : ""));
  return {};
}

void tell(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) terminal::error("simplescale: warning: %s\n", note.c_str());
}

/// Prints which files of a text that has to be prepared are left out. bad_data: the text is missing
/// or empty, and its tokens do not exist either.
Status check_text(const Config& config, const PrepareOptions& options) {
  SS_RETURN_IF_ERROR(DataFiles::of_texts(config).status());
  const auto corpus = Corpus::open(options.source, options.corpus);
  if (const auto made = read_manifest(options.folder); made.ok() && made->complete()) return {};
  if (!corpus.ok()) return corpus.status();
  tell(corpus->notes());
  if (const std::string& other = options.train_tokenizer_on;
      options.tokenizer_path.empty() && !other.empty() && other != options.source)
    if (const auto text = Corpus::open(other, options.corpus); text.ok()) tell(text->notes());
  if (corpus->bytes() > 0) return {};
  return Status(Code::bad_data, options.source + ": no text was found, its files are empty");
}

/// data.token_bytes as the configuration sets it for this source only.
int64_t said_token_bytes(const Config& config, const std::string& name) {
  if (config.data.blend.empty()) return config.data.token_bytes;
  const auto source = std::ranges::find(config.data.blend, name, &BlendSource::name);
  return source == config.data.blend.end() ? 0 : source->token_bytes.value_or(0);
}

/// The model's shape, if the texts, tokenizers and options can be prepared.
Result<ModelShape> check_texts(const Config& config) {
  SS_RETURN_IF_ERROR(check_tokenizer_exists(config));
  SS_ASSIGN(const ModelShape shape, model_shape(config));
  if (config.data.source.empty() && config.data.blend.empty())
    return Status(
        Code::bad_config,
        "data.source is empty: set it to text (.txt or .jsonl, or a folder of such files), tokens "
        "(.bin), or debian:bible-kjv");
  std::error_code error;
  const bool run_exists = std::filesystem::exists(RunFolder{run_folder(config)}.config(), error);
  if (!run_exists)  // a run keeps its data.format and the kind of its source
    for (const ConfiguredSource& source : sources_of(config))
      SS_RETURN_IF_ERROR(check_source(source.config));
  for (const auto& [source, options] : texts_of(config, shape)) {
    if (said_token_bytes(config, source.name) != 0)
      return Status(Code::bad_config, "data.token_bytes is for tokens, but " + options.source +
                                          " is read as text: leave the key out, or set "
                                          "data.format");
    SS_RETURN_IF_ERROR(check_text(source.config, options));
    SS_RETURN_IF_ERROR(check_tokenizer_kept(options));
    SS_RETURN_IF_ERROR(check_ends(options));
  }
  SS_RETURN_IF_ERROR(check_tokenizer(config, shape));
  return shape;
}

}  // namespace

Status check_token_files(const Config& config, const RunData& data) {
  for (const ConfiguredSource& of : sources_of(config)) {
    if (!source_is_tokens(of.config)) continue;
    const DataConfig& said = of.config.data;
    const TokenKind kind(to_string(said.format), said.token_bytes);
    for (const RunData::Source& source : data.sources) {
      if (source.name != of.name) continue;
      SS_ASSIGN(const auto notes, token_notes(said.source, kind, source.data, data.files));
      tell(notes);
    }
  }
  return {};
}

Result<RunData> check_data(const Config& config) {
  SS_ASSIGN(const ModelShape shape, check_texts(config));
  SS_ASSIGN(RunData data, check_token_sources(config, shape));
  SS_RETURN_IF_ERROR(check_token_files(config, data));
  return data;
}

void help_prepare_data(const Config& config) {
  const auto shape = model_shape(config);
  if (!shape.ok()) return;
  for (const ConfiguredText& text : texts_of(config, *shape)) help_prepare(text.options);
}

Status prepare_data(const Config& config, int jobs, bool of_run) {
  Config c = config;
  if (const std::string note = set_token_folders(c); !note.empty())
    terminal::error("%s\n", note.c_str());
  SS_ASSIGN(const ModelShape shape, check_texts(c));
  if (needs_preparation(c)) SS_RETURN_IF_ERROR(check_token_sources(c, shape, false).status());
  for (auto& [source, options] : texts_of(c, shape)) {
    SS_RETURN_IF_ERROR(DataFiles::of_texts(source.config).status());
    options.jobs = jobs;
    options.of_run = of_run;
    if (options.trust_folder) {  // the real folder, even if another user's link leads to it
      std::error_code error;
      options.folder = std::filesystem::weakly_canonical(options.folder, error);
    }
    SS_RETURN_IF_ERROR(check_tokenizer_kept(options));
    if (config.data.folder.empty() && config.data.blend.empty() &&
        !options.folder.starts_with(data_folder(config)))
      terminal::error("the tokens of %s are in %s already\n", options.source.c_str(),
                      options.folder.c_str());
    SS_RETURN_IF_ERROR(prepare_text(source.name, options));
  }
  return {};
}

}  // namespace simplescale
