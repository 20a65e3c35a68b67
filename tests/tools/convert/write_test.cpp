// Checkpoints are written and read in any layout; damage is detected and named.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <limits>

#include "tests/must.hpp"
#include "tests/runtime/checkpoint/fixture.hpp"
#include "tools/convert/derive.hpp"
#include "tools/convert/digest.hpp"

using namespace simplescale;
using namespace simplescale::test;
namespace fs = std::filesystem;

TEST_SUITE_BEGIN("checkpoint");

TEST_CASE(
    "checkpoint: CHECKPOINT-3, a state written in S shards is read in S' shards, bit for bit") {
  for (const bool tied : {false, true}) {
    const ModelShape shape = some_shape(tied);
    // CHECKPOINT-3: any number of shards is read as any other number.
    const State whole = random_state(shape, 1, false, !tied);  // with and without an average
    for (const size_t shards : {1, 2, 3, 4, 7}) {
      MemoryFolder folder;
      const auto saved = must(save(folder.path, whole, info_of(shape, 100), shards));
      CHECK(*saved == folder / "step-00000100");
      CHECK(fs::read_symlink(folder / "latest") == "step-00000100");
      auto checkpoint = must(Checkpoint::open(folder / "latest"));
      CHECK(checkpoint->verify().ok());
      for (const size_t others : {1, 2, 3, 5, 40}) {
        for (size_t s = 0; s < others; ++s) {
          State out = empty_state(shape, others, whole.ema());
          CHECK(read_shard(*checkpoint, others, s, out.side()).ok());
          CHECK(same_bits(out, cut(whole, shape, others, s)));
        }
      }
    }
  }
}

TEST_CASE("checkpoint: the facts given by the caller are read back") {
  MemoryFolder folder;
  spew(folder / "tok", "a tokenizer");
  CheckpointInfo info = info_of(some_shape(), 12);
  info.tokenizer = folder / "tok";
  info.shape.rope_theta = 500000.0, info.shape.norm_eps = 1e-6;
  REQUIRE(save(folder.path, random_state(info.shape, 2), info, 2).ok());
  auto found = must(find_newest_valid(folder.path));
  const CheckpointInfo& back = found->checkpoint.info();
  CHECK(found->warnings.empty());
  CHECK(back.step == 12);
  CHECK(back.next_sample == info.next_sample);
  CHECK(back.tokens_seen == info.tokens_seen);
  CHECK(back.seed == info.seed);
  CHECK(back.precision == "bf16");
  CHECK(back.shape == info.shape);
  CHECK(back.shards == 2);
  CHECK(back.resume == R"({"list":[1,2.5,null],"trainer":{"strategy":"full_shard"}})");
  CHECK(contents(back.tokenizer) == "a tokenizer");
}

TEST_CASE("checkpoint: a parameter is read by its name") {
  MemoryFolder folder;
  const ModelShape shape = some_shape();
  const State whole = random_state(shape, 3);
  REQUIRE(save(folder.path, whole, info_of(shape, 1), 3).ok());
  auto checkpoint = must(Checkpoint::open(folder / "step-00000001"));
  const auto units = units_of(shape);
  const ShardLayout layout = shard_layout(units, 1);
  for (size_t u = 0; u < units.size(); ++u)
    for (const Parameter& p : units[u].parameters) {
      const auto values = must(read_parameter(*checkpoint, p.name, StateKind::exp_avg));
      REQUIRE(values->size() == p.count);
      CHECK(std::memcmp(values->data(), &whole.values[1][layout.offset[u] + p.offset],
                        p.count * 4) == 0);
    }
}

TEST_CASE("checkpoint: an average that is not there begins with the weights, and can be left out") {
  MemoryFolder folder;
  const ModelShape shape = some_shape();
  for (const bool ema : {false, true}) {
    State whole = random_state(shape, 3, false, ema);
    const auto saved = must(save(folder.path, whole, info_of(shape, ema ? 2 : 1), 3));
    auto checkpoint = must(Checkpoint::open(*saved));
    CHECK(checkpoint->info().state.ema == ema);
    CHECK(weights_kind(*checkpoint, false).ok());
    CHECK(weights_kind(*checkpoint, true).ok() == ema);
    CHECK((contents(*saved + "/manifest.json").find("ema") != std::string::npos) == ema);
    if (!ema) CHECK(weights_kind(*checkpoint, true).status().code() == Code::bad_data);
    for (size_t s = 0; s < 2; ++s) {
      State out = empty_state(shape, 2, !ema);
      REQUIRE(read_shard(*checkpoint, 2, s, out.side()).ok());
      State wanted = cut(whole, shape, 2, s);
      wanted.values[3] = ema ? std::vector<float>() : wanted.values[0];
      CHECK(same_bits(out, wanted));
    }
  }
}

TEST_CASE(
    "checkpoint: moments in bf16 take half the room, and are read exactly as bf16 and as fp32") {
  MemoryFolder folder;
  const ModelShape shape = some_shape();
  for (const bool ema : {false, true}) {
    const State whole = random_state(shape, 3, true, ema);
    State rounded = whole;
    for (const int k : {1, 2})
      for (float& value : rounded.values[k]) value = bf16_to_f32(f32_to_bf16(value));
    CheckpointInfo info = info_of(shape, ema ? 2 : 1);
    const auto in_fp32 = save(folder / "fp32", whole, info, 3);
    info.state.moments = DType::bf16;
    const auto in_bf16 = save(folder / "bf16", whole, info, 3);
    REQUIRE(in_fp32.ok());
    REQUIRE(in_bf16.ok());
    auto fp32 = Checkpoint::open(*in_fp32), bf16 = Checkpoint::open(*in_bf16);
    REQUIRE(fp32.ok());
    REQUIRE(bf16.ok());
    CHECK(bf16->info().state == StateFormat{ema, DType::bf16});
    CHECK(fp32->info().state == StateFormat{ema, DType::f32});
    CHECK(bf16->verify().ok());
    size_t parameters = 0;
    for (const Unit& unit : units_of(shape)) parameters += unit.count;
    const auto saved = static_cast<double>(fp32->bytes() - bf16->bytes());
    CHECK(saved == doctest::Approx(4.0 * static_cast<double>(parameters)).epsilon(0.02));
    for (const size_t shards : {1, 2, 4})
      for (size_t s = 0; s < shards; ++s) {
        State stored = with_bf16_moments(empty_state(shape, shards, ema)),
              converted = with_bf16_moments(empty_state(shape, shards, ema)),
              widened = empty_state(shape, shards, ema);
        REQUIRE(read_shard(*bf16, shards, s, stored.side()).ok());
        REQUIRE(read_shard(*fp32, shards, s, converted.side()).ok());
        REQUIRE(read_shard(*bf16, shards, s, widened.side()).ok());
        CHECK(same_bits(stored, with_bf16_moments(cut(whole, shape, shards, s))));
        CHECK(same_bits(converted, stored));
        CHECK(same_bits(widened, cut(rounded, shape, shards, s)));
      }
    const auto lines = must(digest(*bf16));
    CHECK(lines->find("\nlm_head.weight [300, 16] float32 ") != std::string::npos);
    for (const char* moment : {"exp_avg", "exp_avg_sq"})
      CHECK(lines->find("\nlm_head.weight." + std::string(moment) + " [300, 16] bfloat16 ") !=
            std::string::npos);
    std::vector<uint16_t> embed;  // the digest hashes the bytes of bf16
    for (size_t i = 0; i < static_cast<size_t>(shape.vocab * shape.dim); ++i)
      embed.push_back(f32_to_bf16(whole.values[1][i]));
    CHECK(lines->find("model.embed_tokens.weight.exp_avg [300, 16] bfloat16 " +
                      hash128(embed.data(), embed.size() * 2).hex()) != std::string::npos);
    info.state = {ema, DType::f32};
    REQUIRE(derive_checkpoint(*bf16, true, info, folder / "derived").ok());
    auto derived = must(open_step(folder / "derived", info.step));
    State out = empty_state(shape, 1, ema);
    REQUIRE(read_shard(*derived, 1, 0, out.side()).ok());
    CHECK(same_bits(out, rounded));
  }
}

TEST_CASE("checkpoint: a file whose moments are not of the manifest's dtype is damaged") {
  MemoryFolder folder;
  const ModelShape shape = tiny_shape();
  CheckpointInfo info = info_of(shape, 1);
  const State whole = random_state(shape, 3, true);
  const auto records = write_shards(folder.path, whole, info, 1);  // in fp32
  REQUIRE(records.ok());
  info.state.moments = DType::bf16;
  const auto saved = must(publish_checkpoint(
      folder.path, checkpoint_tmp_folder(folder.path, info.step, 1), "1", info, *records));
  auto checkpoint = must(Checkpoint::open(*saved));
  CHECK(checkpoint->verify().message().ends_with(
      "tensor exp_avg.embed is missing or has another type or shape"));
}

TEST_CASE("digest: equal for equal states in any number of shards, different for any other bit") {
  MemoryFolder folder;
  const ModelShape shape = some_shape();
  State whole = random_state(shape, 4);
  CheckpointInfo info = info_of(shape, 0);
  auto text = [&](const char* name, uint64_t step, size_t shards) {
    const std::string at = folder / name;
    info.step = step;
    const auto saved = must(save(at, whole, info, shards));
    auto checkpoint = must(Checkpoint::open(*saved));
    const auto digested = must(digest(*checkpoint));
    return *digested;
  };
  const std::string one = text("a", 5, 1);
  CHECK(one == text("b", 5, 4));
  CHECK(one.starts_with("model.embed_tokens.weight [300, 16] float32 "));
  CHECK(one.find("\nlm_head.weight.exp_avg_sq [300, 16] float32 ") != std::string::npos);
  const size_t lines = static_cast<size_t>(std::count(one.begin(), one.end(), '\n'));
  CHECK(lines == 3 * (1 + 2 * 9 + 2) + 2);
  const std::string next_step = text("c", 6, 1);
  CHECK(one.substr(0, one.rfind("total")) == next_step.substr(0, next_step.rfind("total")));
  CHECK(one != next_step);
  // The signature stands beside the total, which is that of the state alone.
  const auto total = [](const std::string& of) { return of.substr(of.rfind("total ")); };
  CHECK(has(one, "\nsignature none\ntotal "));
  info.resume = with_signature(info.resume, {{"hash", "0123"}});
  const std::string with_one = text("s", 5, 1);
  CHECK(has(with_one, "\nsignature 0123\ntotal "));
  CHECK(total(with_one) == total(one));
  whole.values[2][3] = std::bit_cast<float>(std::bit_cast<uint32_t>(whole.values[2][3]) ^ 1u);
  CHECK(one != text("d", 5, 1));
  whole.values[3] = whole.values[0];
  const std::string with_average = text("e", 5, 4);
  CHECK(std::count(with_average.begin(), with_average.end(), '\n') == 4 * (1 + 2 * 9 + 2) + 2);
  CHECK(with_average.find("\nlm_head.weight.ema [300, 16] float32 ") != std::string::npos);
  whole.values[3][3] = std::bit_cast<float>(std::bit_cast<uint32_t>(whole.values[3][3]) ^ 1u);
  CHECK(with_average != text("f", 5, 4));
}

TEST_CASE(
    "checkpoint: CHECKPOINT-2, a flipped bit in any byte is found, and the older one is used") {
  MemoryFolder folder;
  const ModelShape shape = tiny_shape();
  // CHECKPOINT-2: every byte is under a checksum.
  const State older = random_state(shape, 5), newer = random_state(shape, 6);
  spew(folder / "tok", "tokenizer bytes");
  CheckpointInfo info = info_of(shape, 20);
  info.tokenizer = folder / "tok";
  const std::string checkpoints = folder / "checkpoints";
  REQUIRE(save(checkpoints, older, info_of(shape, 10), 1).ok());
  REQUIRE(save(checkpoints, newer, info, 2).ok());
  size_t flips = 0;
  for (const std::string& name : list_folder(checkpoints + "/step-00000020")) {
    const std::string path = checkpoints + "/step-00000020/" + name;
    const std::string right = contents(path);
    for (size_t at = 0; at < right.size(); at += 1) {
      std::string wrong = right;
      wrong[at] = static_cast<char>(wrong[at] ^ (1 << (at % 8)));
      spew(path, wrong);
      const auto found = find_newest_valid(checkpoints);
      ++flips;
      if (!found.ok() || found->checkpoint.info().step != 10 || found->warnings.size() != 1 ||
          found->warnings[0].find(name) == std::string::npos)
        FAIL(name << " byte " << at << ": "
                  << (found.ok() ? "not named" : found.status().message()));
    }
    spew(path, right);
  }
  CHECK(flips > 3000);
  CHECK(find_newest_valid(checkpoints)->checkpoint.info().step == 20);
}

TEST_CASE("checkpoint: a truncated or missing file is named, and the older checkpoint is used") {
  MemoryFolder folder;
  const ModelShape shape = tiny_shape();
  REQUIRE(save(folder.path, random_state(shape, 7), info_of(shape, 10), 1).ok());
  REQUIRE(save(folder.path, random_state(shape, 8), info_of(shape, 20), 2).ok());
  for (const std::string& name : list_folder(folder / "step-00000020")) {
    const std::string path = folder / "step-00000020/" + name;
    const std::string right = contents(path);
    for (const size_t bytes : {size_t{0}, size_t{5}, right.size() / 2, right.size() - 1}) {
      spew(path, right.substr(0, bytes));
      for (const Verify verify : {Verify::sizes, Verify::full}) {
        const auto found = must(find_newest_valid(folder.path, verify));
        CHECK(found->checkpoint.info().step == 10);
        REQUIRE(found->warnings.size() == 1);
        CHECK(found->warnings[0].find(name) != std::string::npos);
      }
    }
    fs::remove(path);
    const auto found = must(find_newest_valid(folder.path, Verify::sizes));
    CHECK(found->checkpoint.info().step == 10);
    CHECK(found->warnings[0].find(name) != std::string::npos);
    spew(path, right);
  }
  fs::remove(folder / "step-00000010/manifest.json");
  spew(folder / "step-00000020/manifest.json", "{}");
  const auto none = find_newest_valid(folder.path);
  CHECK(says(none.status(), Code::bad_data, "step-00000010/manifest.json"));
  CHECK(none.status().message().find("step-00000020/manifest.json") != std::string::npos);
}

namespace {
/// While it lives no file can be opened, as in a process with too many open files.
class NoFiles {
 public:
  NoFiles() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit none{0, before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoFiles() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};
}  // namespace

TEST_CASE("checkpoint: an I/O error is not taken for damage, and no older checkpoint is used") {
  MemoryFolder folder;
  const ModelShape shape = tiny_shape();
  const std::string newest = folder / "step-00000020";
  REQUIRE(save(folder.path, random_state(shape, 7), info_of(shape, 10), 1).ok());
  REQUIRE(save(folder.path, random_state(shape, 8), info_of(shape, 20), 2).ok());
  for (const std::string& name : list_folder(newest)) {
    const std::string path = newest + "/" + name;
    auto opened = Checkpoint::open(newest);
    fs::rename(path, folder / "aside");
    fs::create_symlink(path, path);  // too many levels of symbolic links
    for (const Verify verify : {Verify::sizes, Verify::full}) {
      CHECK(says(find_newest_valid(folder.path, verify).status(), Code::io, path));
    }
    if (name != "manifest.json") CHECK(opened->verify().code() == Code::io);
    fs::rename(folder / "aside", path);
  }
  Status none, one;
  {
    const NoFiles no_files;
    none = find_newest_valid(folder.path).status();
    one = Checkpoint::open(newest).status();
  }
  CHECK(says(none, Code::io, folder.path));
  CHECK(one.code() == Code::io);
  CHECK(find_newest_valid(folder.path)->checkpoint.info().step == 20);
}

TEST_CASE("checkpoint: without a checkpoint the error is not_found; other files are ignored") {
  MemoryFolder folder;
  CHECK(find_newest_valid(folder / "nowhere").status().code() == Code::not_found);
  fs::create_directory(folder / "step-abc");
  fs::create_directory(folder / "step-7");
  spew(folder / "notes.txt", "hello");
  CHECK(find_newest_valid(folder.path).status().code() == Code::not_found);
  const ModelShape shape = tiny_shape();
  REQUIRE(save(folder.path, random_state(shape, 9), info_of(shape, 10), 1).ok());
  spew(folder / "step-00000010/notes.txt", "mine");
  const auto found = must(find_newest_valid(folder.path));
  CHECK(found->warnings.empty());
  CHECK(prune_checkpoints(folder.path, {1}).ok());
  CHECK(fs::exists(folder / "notes.txt"));
  CHECK(fs::exists(folder / "step-abc"));
}

TEST_CASE("checkpoint: the older steps of a found checkpoint are those before it") {
  MemoryFolder folder;
  const ModelShape shape = tiny_shape();
  for (const uint64_t step : {10, 20, 30, 40})
    REQUIRE(save(folder.path, random_state(shape, 1), info_of(shape, step), 1).ok());
  fs::remove(folder / "step-00000040/manifest.json");
  fs::copy(folder / "step-00000020", folder / "step-00000020.replaced");
  const auto found = must(find_newest_valid(folder.path));
  CHECK(found->checkpoint.info().step == 30);
  CHECK(found->older == std::vector<uint64_t>{10, 20});
}

TEST_CASE("checkpoint: a folder renamed to another step is refused") {
  MemoryFolder folder;
  const ModelShape shape = tiny_shape();
  REQUIRE(save(folder.path, random_state(shape, 9), info_of(shape, 10), 1).ok());
  fs::rename(folder / "step-00000010", folder / "step-00000030");
  const auto found = find_newest_valid(folder.path);
  CHECK(found.status().message().find("says step 10") != std::string::npos);
}

TEST_CASE("derive: a new run gets the weights of another one, with or without its moments") {
  MemoryFolder folder;
  const ModelShape shape = some_shape();
  const State parent = random_state(shape, 1, true, true);
  const auto from_folder = must(save(folder / "parent", parent, info_of(shape, 20), 3));
  auto from = must(Checkpoint::open(*from_folder));
  for (const bool with_optimizer : {false, true}) {
    const std::string target = folder / (with_optimizer ? "whole" : "weights");
    CheckpointInfo info = info_of(shape, with_optimizer ? 20 : 0);
    info.shape.block_size *= 2;  // no weight depends on it
    info.state.ema = with_optimizer;
    REQUIRE(derive_checkpoint(*from, with_optimizer, info, target).ok());
    auto found = must(find_newest_valid(target));
    CHECK(found->checkpoint.info().step == info.step);
    CHECK(found->checkpoint.info().shape == info.shape);
    State read = empty_state(shape, 1, true), want = parent;
    REQUIRE(read_shard(found->checkpoint, 1, 0, read.side()).ok());
    if (!with_optimizer) {
      for (const int k : {1, 2}) std::ranges::fill(want.values[k], 0.0f);
      want.values[3] = want.values[0];
    }
    CHECK(same_bits(read, want));
  }
  CheckpointInfo other = info_of(shape, 0);
  other.shape.hidden += 8;
  other.shape.qk_norm = QkNorm::head;
  const Status refused = derive_checkpoint(*from, false, other, folder / "other");
  CHECK(refused.code() == Code::bad_config);
  CHECK_MESSAGE(refused.message().ends_with("set in [model]: hidden = 40, qk_norm = \"none\""),
                refused.message());
  other = info_of(shape, 0);
  other.shape.norm_eps = 9.999999747378752e-06;  // as a float's 1e-5 is in many a config.json
  other.shape.rope_theta = 1234567;
  CHECK(check_derivable("parent", other.shape, shape)
            .message()
            .ends_with("set in [model]: rope_theta = 1234567.0, norm_eps = 9.999999747378752e-06"));
  // RoPE may be stretched for longer samples, and only for these.
  other = info_of(shape, 0);
  other.shape.rope_scaling = {.kind = RopeScaling::Kind::yarn, .factor = 4};
  CHECK(has(check_derivable("parent", shape, other.shape), "rope_scaling = \"none\""));
  other.shape.block_size *= 4;
  CHECK(works(check_derivable("parent", shape, other.shape)));
  ModelShape shorter = other.shape;
  shorter.rope_scaling = {};
  CHECK(has(check_derivable("parent", other.shape, shorter), "rope_scaling = \"yarn\""));
  ModelShape longer = other.shape;
  longer.block_size *= 2;
  longer.rope_scaling.factor = 8;
  CHECK(works(check_derivable("parent", other.shape, longer)));
  longer.rope_theta *= 2;
  CHECK(has(check_derivable("parent", other.shape, longer), "rope_theta"));
  other = info_of(shape, 0);
  other.shape.vocab -= 1;
  CHECK(derive_checkpoint(*from, false, other, folder / "other")
            .message()
            .ends_with("set in [model]: vocab = 300"));
  CHECK(!std::filesystem::exists(folder / "other"));
}

TEST_CASE("derive: new tokens get the mean of the old ones, and no moments") {
  for (const bool tied : {false, true}) {
    MemoryFolder folder;
    const ModelShape shape = some_shape(tied);
    const auto from_folder =
        must(save(folder / "parent", random_state(shape, 1, true, true), info_of(shape, 20), 3));
    auto from = must(Checkpoint::open(*from_folder));
    CheckpointInfo info = info_of(shape, 20);
    info.shape.vocab += 37;
    info.state.ema = true;
    REQUIRE(derive_checkpoint(*from, true, info, folder / "grown").ok());
    auto found = must(find_newest_valid(folder / "grown"));
    CHECK(found->checkpoint.verify().ok());
    const auto width = static_cast<size_t>(shape.dim);
    for (const StateKind kind : {StateKind::params, StateKind::ema})
      for (const Unit& unit : units_of(info.shape))
        for (const Parameter& p : unit.parameters) {
          CAPTURE(p.name);
          const auto before = read_parameter(*from, p.name, kind),
                     after = read_parameter(found->checkpoint, p.name, kind);
          REQUIRE(after.ok());
          REQUIRE(after->size() == p.count);
          CHECK(std::equal(before->begin(), before->end(), after->begin()));
          for (size_t i = before->size(); i < after->size(); ++i) {
            double mean = 0;
            for (size_t at = i % width; at < before->size(); at += width)
              mean += double{(*before)[at]};
            mean /= static_cast<double>(shape.vocab);
            REQUIRE((*after)[i] == doctest::Approx(mean).epsilon(1e-6));
          }
        }
    // The moments of old tokens stay, those of new ones are zero.
    State grown = empty_state(info.shape, 1);
    REQUIRE(read_shard(found->checkpoint, 1, 0, grown.side()).ok());
    State old = empty_state(shape, 1);
    REQUIRE(read_shard(*from, 1, 0, old.side()).ok());
    const auto rows = static_cast<size_t>(shape.vocab) * width;
    for (const int k : {1, 2})
      for (size_t i = 0; i < rows + 37 * width; ++i)
        REQUIRE(grown.values[k][i] == (i < rows ? old.values[k][i] : 0));
  }
}

TEST_CASE(
    "derive: a value that is not finite is named with its tensor, and no checkpoint appears") {
  const ModelShape shape = some_shape();
  const std::vector<Unit> units = units_of(shape);
  const Parameter& parameter = units[1].parameters[1];
  const size_t element = shard_layout(units, 1).offset[1] + parameter.offset + 7;
  for (const StateKind kind : {StateKind::params, StateKind::exp_avg}) {
    MemoryFolder folder;
    State parent = random_state(shape, 1, true);
    parent.values[static_cast<size_t>(kind)][element] =
        kind == StateKind::params ? std::numeric_limits<float>::quiet_NaN()
                                  : std::numeric_limits<float>::infinity();
    const auto from_folder = must(save(folder / "parent", parent, info_of(shape, 20), 1));
    auto from = must(Checkpoint::open(*from_folder));
    const bool weights = kind == StateKind::params;
    const Status derived = derive_checkpoint(*from, true, info_of(shape, 0), folder / "new");
    CHECK(derived.code() == Code::bad_data);
    CHECK_MESSAGE(
        has(derived, *from_folder + ": tensor \"" + (weights ? "" : "exp_avg.") + parameter.name +
                         "\" holds " + (weights ? "NaN" : "an infinite value") + " (element 7)"),
        derived.message());
    CHECK(find_newest_valid(folder / "new").status().code() == Code::not_found);
    // Moments that are not taken may be anything.
    CHECK(derive_checkpoint(*from, false, info_of(shape, 0), folder / "new").ok() == !weights);
  }
}

TEST_CASE("derive: damaged weights are named, and no checkpoint appears") {
  MemoryFolder folder;
  const ModelShape shape = some_shape();
  const auto from_folder =
      must(save(folder / "parent", random_state(shape, 1, true), info_of(shape, 20), 1));
  auto from = must(Checkpoint::open(*from_folder));
  const std::string shard = *from_folder + "/" + from->records()[0].file;
  std::string bytes = contents(shard);
  bytes[bytes.size() / 4] = static_cast<char>(bytes[bytes.size() / 4] ^ 1);
  spew(shard, bytes);
  const Status derived = derive_checkpoint(*from, true, info_of(shape, 0), folder / "new");
  CHECK(says(derived, Code::bad_data, from->records()[0].file));
  CHECK(find_newest_valid(folder / "new").status().code() == Code::not_found);
}

TEST_SUITE_END();
