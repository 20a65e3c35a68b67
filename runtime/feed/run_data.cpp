#include "runtime/feed/run_data.hpp"

#include <algorithm>
#include <filesystem>

#include "runtime/base/hash.hpp"
#include "runtime/base/input_file.hpp"
#include "runtime/base/splitmix64.hpp"
#include "runtime/data/manifest.hpp"
#include "runtime/object_store/chunk_files.hpp"
#include "runtime/object_store/s3_url.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace simplescale {

Status check_tokenizer(const Config& config, const ModelShape& shape) {
  std::vector<ConfiguredSource> tokens = sources_of(config);
  std::erase_if(tokens, [](const ConfiguredSource& s) { return !source_is_tokens(s.config); });
  const std::string file = tokenizer_file(config);
  if (file.empty() || tokens.empty()) return {};
  SS_ASSIGN(const Tokenizer tokenizer, Tokenizer::load(file));
  if (tokenizer.vocab() > shape.vocab)
    return Status(Code::bad_data, file + " has " + std::to_string(tokenizer.vocab()) +
                                      " tokens, more than the vocabulary of " +
                                      std::to_string(shape.vocab) +
                                      ": set model.vocab, or another tokenizer.path");
  SS_ASSIGN(const std::string hash, hash_file(file));
  SS_ASSIGN(const DataFiles files, DataFiles::of(config, DataFiles::Listing::anew));
  for (const ConfiguredSource& source : tokens) {
    SS_ASSIGN(const std::string path, files.find(source.config.data.source));
    const auto made = read_manifest(path, files);
    if (made.ok() && made->complete() && made->tokenizer.hash != hash)
      return Status(Code::bad_config, "tokenizer.path = \"" + file + "\", but " + path +
                                          " was prepared with another tokenizer, " + path + "/" +
                                          made->tokenizer.name +
                                          ": leave out tokenizer.path, or prepare the text again");
  }
  return {};
}

BatchLayout batch_layout(const Plan& plan, uint64_t groups, uint64_t shards,
                         std::span<const uint32_t> weights) {
  return {groups,
          shards,
          static_cast<uint64_t>(plan.micro_batch_size),
          plan.batch,
          static_cast<uint64_t>(plan.wave_of(static_cast<int>(shards))),
          weights};
}

std::vector<uint64_t> samples_of(const Plan& plan, const BatchLayout& layout, uint64_t group,
                                 uint64_t shard, uint64_t step) {
  std::vector<uint64_t> samples;
  for (uint64_t k = 0; k < layout.shares(step).count(group, shard); ++k) {
    const auto runs = plan.skipped.samples_at(first_sample(layout, step, group, shard, k),
                                              layout.micro_batch_size());
    samples.insert(samples.end(), runs.begin(), runs.end());
  }
  return samples;
}

namespace {

/// The permutation of a source of a mixture does not depend on the other sources.
uint64_t seed_of(uint64_t seed, const std::string& name) {
  return splitmix64_mix(seed + splitmix64_increment) ^ hash128(name.data(), name.size()).low;
}

/// bad_data: two sources were made with different tokenizers, so that an id means different text.
Status check_one_tokenizer(RunData& data) {
  data.tokenizer = data.sources.front().data.tokenizer;
  if (data.sources.size() == 1) return {};
  std::string hash, of;
  for (const RunData::Source& source : data.sources) {
    const std::string& path = source.data.tokenizer;
    if (path.empty()) continue;
    SS_ASSIGN(const std::string own, hash_file(path));
    if (hash.empty()) data.tokenizer = path;
    if (!hash.empty() && own != hash)
      return Status(Code::bad_data, "data.blend: \"" + of + "\" and \"" + source.name +
                                        "\" were made with different tokenizers, " +
                                        data.tokenizer + " and " + path +
                                        "; prepare them with the same one");
    if (hash.empty()) of = source.name;
    hash = own;
  }
  return {};
}

/// How documents are found in a source. indexed: an index marks them. tokenizer: the source's; "": it
/// has none. documents_end: as of Dataset. bad_config: no way is known, or an id is no token.
Result<DocumentRule> document_rule(const Config& of, int64_t vocab, bool indexed,
                                   const std::string& tokenizer, bool documents_end) {
  const DataConfig& o = of.data;
  DocumentRule rule{.mask = o.document_mask,
                    .pack = o.pack == Pack::best_fit,
                    .boundary_loss = o.document_boundary_loss,
                    .first = static_cast<int32_t>(o.document_begin),
                    .last = static_cast<int32_t>(o.document_end)};
  if (!rule.finds()) return rule;
  const std::string key = rule.mask             ? "data.document_mask"
                          : !rule.boundary_loss ? "data.document_boundary_loss"
                                                : "data.pack";
  for (const auto& [name, id] :
       {std::pair{"data.document_begin", rule.first}, std::pair{"data.document_end", rule.last}})
    if (id >= vocab)
      return Status(Code::bad_config, std::string(name) + " = " + std::to_string(id) +
                                          " is beyond the vocabulary of " + std::to_string(vocab));
  const bool by_ids = rule.first >= 0 || rule.last >= 0;
  rule.by_index = indexed && !by_ids;
  std::string why = token_path(of) + " has no tokenizer";
  if (!tokenizer.empty() && rule.last < 0 && (!rule.boundary_loss || !(by_ids || indexed))) {
    SS_ASSIGN(const Tokenizer loaded, Tokenizer::load(tokenizer));
    if (!by_ids) rule.first = loaded.bos();
    if (rule.first < 0 && documents_end) rule.last = loaded.eos();
    rule.end = loaded.eos();
    why = tokenizer + " has no BOS";
  }
  if (rule.end == rule.first) rule.end = -1;
  rule.first_ends = rule.last >= 0 ? rule.first == rule.last : rule.end < 0 || !documents_end;
  if (rule.by_index || rule.first >= 0 || rule.last >= 0) return rule;
  return Status(Code::bad_config, key + ": nothing says where documents begin, because " + why +
                                      ": set data.document_begin or data.document_end to the id "
                                      "of the token between documents");
}

}  // namespace

Status use_documents(const Config& config, Dataset& data) {
  SS_ASSIGN(const DocumentRule rule,
            document_rule(config, data.train.vocab(), data.train.has_document_index(),
                          data.tokenizer, data.documents_end));
  SS_RETURN_IF_ERROR(data.train.use_documents(rule));
  return data.validation.use_documents(rule);
}

MixedOrder sample_order(const Config& config, const Plan& plan, const RunData& data) {
  const uint64_t seed = data_seed(config);
  const bool shuffle = config.data.shuffle;
  const auto samples = [&](const RunData::Source& source) {
    return source.data.train.samples(plan.shape.block_size);
  };
  if (plan.mixture.empty())
    return SampleOrder(samples(data.sources.front()), seed, shuffle, plan.skipped);
  std::vector<SampleOrder> orders;
  for (const RunData::Source& source : data.sources)
    orders.emplace_back(samples(source), seed_of(seed, source.name), shuffle);
  return {plan.mixture, std::move(orders), plan.skipped};
}

std::string places_text(const TokenSources& tokens, const MixedOrder& order, int64_t block_size,
                        const std::vector<uint64_t>& runs, uint64_t most) {
  std::string text;
  uint64_t count = 0;
  for (size_t i = 0; i + 1 < runs.size(); i += 2) {
    for (uint64_t k = 0; k < runs[i + 1] && count + k < most; ++k)
      text += (text.empty() ? "sample " : "; sample ") + std::to_string(runs[i] + k) + ": " +
              tokens.place_of(order.sample(runs[i] + k), block_size);
    count += runs[i + 1];
  }
  return count <= most ? text : text + "; and " + std::to_string(count - most) + " more";
}

TokenSources RunData::train() const {
  std::vector<TokenSource> all;
  for (const Source& source : sources) all.push_back(source.data.train);
  return TokenSources(std::move(all));
}

namespace {
/// Makes the samples of data.pack, or takes those that this host has made before.
Status pack(const Config& of, int64_t block_size, Dataset& data) {
  if (const std::string path = token_path(of); is_s3_url(path))
    return Status(Code::bad_config, "data.pack: the documents of " + path +
                                        " cannot be found without reading all of it; copy it to a "
                                        "disk, or set data.pack = \"concat\"");
  SS_ASSIGN(const std::string cache, ChunkFiles::make_folder(cache_folder(of)));
  const std::string folder = cache + "/packs";
  std::error_code error;
  std::filesystem::create_directory(folder, error);
  SS_RETURN_IF_ERROR(data.train.pack(block_size, folder));
  return data.validation.pack(block_size, folder);
}

/// tokenizer: the configured one, of sources without one.
Status add_source(const ConfiguredSource& source, const std::string& tokenizer,
                  const ModelShape& shape, RunData& data) {
  const Config& of = source.config;
  const bool tokens = source_is_tokens(of);
  SS_ASSIGN(Dataset dataset,
            open_dataset(token_path(of),
                         tokens ? TokenKind(to_string(of.data.format), of.data.token_bytes)
                                : TokenKind("prepared"),
                         shape.vocab, of.data.validation_fraction, data.files));
  SS_RETURN_IF_ERROR(dataset.train.require_block(shape.block_size));
  if (dataset.tokenizer.empty()) dataset.tokenizer = tokenizer;
  SS_RETURN_IF_ERROR(use_documents(of, dataset));
  if (of.data.pack == Pack::best_fit) SS_RETURN_IF_ERROR(pack(of, shape.block_size, dataset));
  data.sources.push_back({source.name, std::move(dataset)});
  return {};
}

/// use_documents() of a text that need not be prepared yet.
Status check_documents_of_text(const Config& of, const ModelShape& shape) {
  const std::string tokenizer = tokenizer_file(of);
  std::error_code error;
  const bool is_there = std::filesystem::is_regular_file(tokenizer, error);
  // A tokenizer that prepare() trains has BOS: as good as an index.
  return document_rule(of, shape.vocab, !is_there, is_there ? tokenizer : "",
                       of.tokenizer.append_eos != Choice::no)
      .status();
}
}  // namespace

Result<RunData> open_tokens(const Config& config, const ModelShape& shape,
                            DataFiles::Listing listing) {
  RunData data;
  SS_ASSIGN(data.files, DataFiles::of(config, listing));
  const std::string tokenizer = tokenizer_file(config);
  for (const ConfiguredSource& source : sources_of(config))
    SS_RETURN_IF_ERROR(add_source(source, tokenizer, shape, data));
  SS_RETURN_IF_ERROR(check_one_tokenizer(data));
  return data;
}

/// Each checkpoint takes a copy of the tokenizer: without it, none could be published.
static Status check_tokenizer_of(const RunData& data) {
  return data.tokenizer.empty() ? Status() : read_tokenizer(data.tokenizer).status();
}

Result<RunData> check_token_sources(const Config& config, const ModelShape& shape,
                                    bool prepared_texts) {
  constexpr uint64_t kTokensMax = uint64_t{64} << 20;  // more take long to read
  const auto check = [](const TokenSource& tokens) {
    return tokens.tokens() > kTokensMax ? tokens.validate_tables() : tokens.validate();
  };
  RunData data;
  SS_ASSIGN(data.files, DataFiles::of(config, DataFiles::Listing::anew));
  const std::string tokenizer = tokenizer_file(config);
  for (const ConfiguredSource& source : sources_of(config)) {
    if (needs_preparation(source.config) || (!prepared_texts && !source_is_tokens(source.config))) {
      SS_RETURN_IF_ERROR(check_documents_of_text(source.config, shape));
      continue;
    }
    SS_RETURN_IF_ERROR(add_source(source, tokenizer, shape, data));
    const Dataset& dataset = data.sources.back().data;
    SS_RETURN_IF_ERROR(check(dataset.train));
    if (dataset.validation.tokens() > 0) SS_RETURN_IF_ERROR(check(dataset.validation));
  }
  if (data.sources.empty()) return data;
  SS_RETURN_IF_ERROR(check_one_tokenizer(data));
  SS_RETURN_IF_ERROR(check_tokenizer_of(data));
  return data;
}

namespace {
/// The files of a prepared folder in a bucket are those that its manifest records. As of a disk at
/// each start of a process, larger files are not read.
Status check_objects(const std::string& folder, const Manifest& manifest, const DataFiles& files) {
  constexpr uint64_t kHashBytesMax = uint64_t{256} << 20;
  std::vector<char> piece(1 << 20);
  for (const FileRecord* record : manifest.files()) {
    if (record->hash.empty() || record->bytes > kHashBytesMax) continue;
    SS_ASSIGN(const auto object, files.open(folder + "/" + record->name));
    Hasher hasher;
    for (uint64_t at = 0; at < object->bytes(); at += piece.size()) {
      const size_t count = std::min<uint64_t>(piece.size(), object->bytes() - at);
      SS_RETURN_IF_ERROR(object->read(at, piece.data(), count));
      hasher.update(piece.data(), count);
    }
    if (hasher.digest().hex() != record->hash)
      return Status(Code::bad_data, object->path() +
                                        " is not the file that the folder's manifest.json records "
                                        "(another xxh3-128); upload the folder again");
  }
  return {};
}
}  // namespace

Status check_tokens(const Config& config, const RunData& data) {
  const std::vector<ConfiguredSource> configured = sources_of(config);
  for (size_t i = 0; i < data.sources.size(); ++i) {
    const Dataset& dataset = data.sources[i].data;
    SS_ASSIGN(const std::string path, data.files.find(token_path(configured[i].config)));
    if (const auto manifest = read_manifest(path, data.files); manifest.ok())
      SS_RETURN_IF_ERROR(is_s3_url(path) ? check_objects(path, *manifest, data.files)
                                         : check_files(path, *manifest, data.files));
    SS_RETURN_IF_ERROR(dataset.train.validate());
    if (dataset.validation.tokens() > 0) SS_RETURN_IF_ERROR(dataset.validation.validate());
  }
  return check_tokenizer_of(data);
}

}  // namespace simplescale
