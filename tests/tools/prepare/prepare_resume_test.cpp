// An interruption in the middle of a file of the text.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "runtime/data/manifest.hpp"
#include "tests/must.hpp"
#include "tests/temp_folder.hpp"
#include "tools/prepare/encode_files.hpp"
#include "tools/prepare/file_lock.hpp"
#include "tools/prepare/prepare.hpp"

using namespace simplescale;
using test::contents;
namespace fs = std::filesystem;

namespace {

constexpr uint64_t kKeepBytes = 4096;

/// Rows of all lengths, the longest of several chunks; some tokens do not count in the loss.
std::string rows(size_t count) {
  std::string text;
  for (size_t row = 0; row < count; ++row) {
    text += R"({"text": ")";
    const size_t words = row % 40 == 39 ? 9000 : 5 + row * row % 83;
    for (size_t i = 0; i < words; ++i) {
      text += i % 11 == 10 ? "\\n" : i > 0 ? " " : "";
      for (size_t word = (i * i + row) % 977; word > 0; word /= 7) text += "aeinrst"[word % 7];
    }
    text += R"(", "mask": )" + std::string(row % 3 == 0 ? "[[0, 4]]" : "[]") + "}\n";
  }
  return text;
}

/// A text of one file, and its folder as it is prepared without an interruption.
struct Fixture {
  test::TempFolder folder;
  PrepareOptions options;
  std::string whole;

  Fixture() {
    options = {.source = folder.write("rows.jsonl", rows(400)),
               .corpus = {.mask_key = "mask"},
               .folder = folder.path + "/whole",
               .vocab = 400,
               .jobs = 2,
               .keep_bytes = kKeepBytes};
    const auto made = must(prepare(options));
    whole = options.folder;
    options.tokenizer_path = whole + "/" + made->tokenizer.name;
    options.folder = folder.path + "/interrupted";
  }

  /// A process prepares, and is killed when it writes beyond byte `bytes` of a file.
  void killed_at(uint64_t bytes) const {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      signal(SIGXFSZ, [](int) { kill(getpid(), SIGKILL); });
      const rlimit limit{bytes, bytes};
      if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(2);
      _exit(prepare(options).ok() ? 0 : 1);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == SIGKILL);
  }

  /// Completes options.folder; how much of the text was encoded before.
  uint64_t complete() const {
    uint64_t kept = 0;
    const auto made = prepare(options, [&](const PrepareProgress& now) { kept = now.kept_bytes; });
    REQUIRE_MESSAGE(made.ok(), made.status().message());
    for (const auto& entry : fs::directory_iterator(whole)) {
      const std::string name = entry.path().filename();
      if (name != "manifest.json")
        CHECK_MESSAGE(contents(options.folder + "/" + name) == contents(whole + "/" + name), name);
    }
    const Manifest expected = read_manifest(whole).take();
    CHECK(made->source_hash == expected.source_hash);
    CHECK(made->documents == expected.documents);
    CHECK(made->text_bytes == expected.text_bytes);
    CHECK(made->masked_tokens == expected.masked_tokens);
    CHECK_FALSE(fs::exists(options.folder + "/pieces"));
    return kept;
  }

  std::vector<std::string> parts() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(options.folder + "/pieces"))
      if (entry.path().extension() == ".part") found.push_back(entry.path());
    return found;
  }
};

}  // namespace

TEST_SUITE("prepare") {
  TEST_CASE("prepare: PREPARE-4, processes killed in the middle of a file lose its end only") {
    const Fixture f;
    const char* chosen = std::getenv("SIMPLESCALE_TEST_SEED");
    const auto seed = chosen ? static_cast<uint32_t>(std::strtoul(chosen, nullptr, 10)) : 1;
    INFO("SIMPLESCALE_TEST_SEED=", seed);
    std::mt19937 random(seed);
    const uint64_t tokens = fs::file_size(f.whole + "/train.bin");  // a piece is larger
    uint64_t at = fs::file_size(f.options.tokenizer_path);          // is written first
    REQUIRE(at < tokens / 2);
    for (; at < tokens; at += 1 + random() % (tokens / 8)) {
      f.killed_at(at);
      REQUIRE(f.parts().size() == 1);
    }
    const uint64_t text = read_manifest(f.whole)->text_bytes, kept = f.complete();
    CHECK(kept > text / 2);
    CHECK(kept < text);
  }

  TEST_CASE("prepare: the most that was kept of a piece is continued, never what is damaged") {
    Fixture f;
    const uint64_t tokens = fs::file_size(f.whole + "/train.bin");
    f.killed_at(tokens / 2);
    const std::string part = f.parts().at(0), kept = contents(part);
    std::ofstream(part, std::ios::binary) << kept.substr(0, 200);
    CHECK(f.complete() == 0);
    f.options.folder += "-again";
    f.killed_at(tokens / 2);
    const std::string most = f.parts().at(0);
    const std::string piece = most.substr(0, most.find(".tokens")) + ".tokens";
    std::ofstream(most, std::ios::binary | std::ios::app) << "what was not synced";
    std::ofstream(piece + ".00000001.part", std::ios::binary) << kept.substr(0, 200);
    std::ofstream(piece + ".00000002.part", std::ios::binary);
    CHECK(f.complete() > read_manifest(f.whole)->text_bytes / 3);
  }

  TEST_CASE("prepare: an error in the middle of a file costs only its end") {
    const Fixture f;
    PrepareOptions options = f.options;
    options.source = f.folder.write("bad.jsonl", rows(400) + "{\n" + rows(10));
    CHECK(prepare(options).status().code() == Code::bad_data);
    options.corpus.skip_bad = 1;
    uint64_t kept = 0;
    const auto made = prepare(options, [&](const PrepareProgress& now) { kept = now.kept_bytes; });
    REQUIRE_MESSAGE(made.ok(), made.status().message());
    CHECK(made->bad_lines == 1);
    CHECK(kept > read_manifest(f.whole)->text_bytes / 2);
    options.folder += "-at-once";
    REQUIRE(prepare(options).ok());
    CHECK(contents(options.folder + "/train.bin") == contents(f.options.folder + "/train.bin"));
  }

  TEST_CASE("prepare: a process without the lock of a piece continues nothing, and keeps nothing") {
    const Fixture f;
    PrepareOptions options = f.options;
    options.source = f.folder.write("bad.jsonl", rows(400) + "{\n");
    CHECK(prepare(options).status().code() == Code::bad_data);
    REQUIRE(f.parts().size() == 1);
    const std::string part = f.parts()[0], kept = contents(part);
    FileLock holder;
    REQUIRE(*holder.try_take(part.substr(0, part.find(".tokens")) + ".tokens.lock"));
    const auto manifest = read_manifest(options.folder);
    const auto corpus = Corpus::open(options.source, options.corpus);
    const auto tokenizer = Tokenizer::load(options.tokenizer_path);
    uint64_t continued = 0;
    const auto made = encode_files(*corpus, *tokenizer,
                                   {.folder = options.folder + "/pieces",
                                    .tokenizer_hash = manifest->tokenizer_hash,
                                    .eos = manifest->appended_eos,
                                    .keep_bytes = kKeepBytes,
                                    .patience = std::chrono::milliseconds(0)},
                                   [&](const EncodeProgress& now) { continued = now.kept_bytes; });
    CHECK(made.status().code() == Code::bad_data);
    CHECK(continued == 0);
    CHECK(f.parts() == std::vector{part});
    CHECK(contents(part) == kept);
  }

  TEST_CASE("prepare: a text that is not the one of its piece is prepared anew") {
    const Fixture f;
    f.killed_at(fs::file_size(f.whole + "/train.bin") / 2);
    // Same size and time, as no program leaves it, so that the piece seems to be of this text.
    const auto time = fs::last_write_time(f.options.source);
    const auto bytes = fs::file_size(f.options.source);
    std::ofstream(f.options.source) << R"({"text": "short"})" << std::string(bytes - 17, '\n');
    fs::last_write_time(f.options.source, time);
    const Status changed = prepare(f.options).status();
    CHECK(changed.message().find("it has changed") != std::string::npos);
    CHECK(f.parts().empty());
    const auto made = must(prepare(f.options));
    CHECK(made->documents == 1);
  }
}
