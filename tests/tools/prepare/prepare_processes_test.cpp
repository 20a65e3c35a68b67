// Several processes that prepare one folder.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "runtime/data/manifest.hpp"
#include "tests/must.hpp"
#include "tests/temp_folder.hpp"
#include "tools/prepare/encode_files.hpp"
#include "tools/prepare/file_lock.hpp"
#include "tools/prepare/prepare.hpp"
#include "tools/prepare/token_piece.hpp"

using namespace simplescale;
using test::contents;
namespace fs = std::filesystem;

namespace {

constexpr size_t kFiles = 6;

/// A text of kFiles files, and its folder as one process prepares it.
struct Fixture {
  test::TempFolder folder;
  PrepareOptions options;
  Manifest whole;

  Fixture() {
    for (size_t file = 0; file < kFiles; ++file) {
      std::string text;
      for (size_t i = 0; i < 300 + 50 * file; ++i) {
        for (size_t word = (i * i + file) % 977; word > 0; word /= 7) text += "aeinrst"[word % 7];
        text += i % 9 == 8 ? "\n" : " ";
      }
      folder.write("text/" + std::to_string(file) + ".txt", text);
    }
    options = {.source = folder.path + "/text",
               .folder = folder.path + "/whole",
               .vocab = 330,
               .validation_fraction = 0.1,
               .jobs = 2};
    whole = must(prepare(options)).take();
    options.tokenizer_path = options.folder + "/" + whole.tokenizer.name;
    options.folder = folder.path + "/shared";
  }

  /// options.folder as a process leaves it that has begun to encode.
  void begin() const {
    PrepareOptions bad = options;
    const std::string file = folder.write("text/9.txt", "\xff\n");
    CHECK(prepare(bad).status().code() == Code::bad_data);
    fs::remove(file);
    // Now of the text without that file.
    Manifest manifest = read_manifest(options.folder).take();
    CHECK_FALSE(manifest.complete());
    manifest.source_signature = Corpus::open(options.source, options.corpus)->signature();
    REQUIRE(write_manifest(options.folder, manifest).ok());
    for (const auto& entry : fs::directory_iterator(options.folder + "/pieces"))
      fs::remove(entry.path());
  }

  size_t pieces(const std::string& extension = ".tokens") const {
    size_t count = 0;
    for (const auto& entry : fs::directory_iterator(options.folder + "/pieces"))
      count += entry.path().extension() == extension;
    return count;
  }

  /// Completes options.folder; how many files were encoded before or by others.
  uint64_t complete() const {
    uint64_t kept = 0;
    const auto made = prepare(options, [&](const PrepareProgress& now) { kept = now.kept_files; });
    REQUIRE_MESSAGE(made.ok(), made.status().message());
    CHECK(made->train.hash == whole.train.hash);
    CHECK(made->validation.hash == whole.validation.hash);
    CHECK(made->source_hash == whole.source_hash);
    CHECK_FALSE(fs::exists(options.folder + "/pieces"));
    return kept;
  }

  /// The names of the pieces of all files.
  std::vector<std::string> piece_files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(options.folder + "/pieces"))
      if (entry.path().extension() == ".tokens") names.push_back(entry.path().string());
    std::ranges::sort(names);
    return names;
  }
};

/// A process that holds a lock until it is killed.
pid_t hold(const std::string& path) {
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // also if the test fails
    FileLock lock;
    const auto taken = lock.try_take(path);
    const char byte = taken.ok() && *taken ? 'y' : 'n';
    if (write(ready[1], &byte, 1) != 1) _exit(1);
    while (true) pause();
  }
  char byte = 0;
  REQUIRE(read(ready[0], &byte, 1) == 1);
  CHECK(byte == 'y');
  close(ready[0]);
  close(ready[1]);
  return child;
}

/// What a process of another user gets: 't' it took the lock, 'f' it did not, 'e' an error.
char taken_by_another_user(const std::string& path) {
  const pid_t child = fork();
  if (child == 0) {
    if (setgid(65534) != 0 || setuid(65534) != 0) _exit('x');
    FileLock lock;
    const auto taken = lock.try_take(path);
    _exit(!taken.ok() ? 'e' : *taken ? 't' : 'f');
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return static_cast<char>(WEXITSTATUS(status));
}

void end(pid_t child) {
  kill(child, SIGKILL);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
}

}  // namespace

TEST_SUITE("prepare") {
  TEST_CASE("prepare: a process that may only read another user's lock waits for it") {
    if (geteuid() != 0) return skipped("only root can act as another user");
    test::TempFolder folder;
    REQUIRE(chmod(folder.path.c_str(), 01777) == 0);
    const std::string path = folder.path + "/.lock", planted = folder.path + "/.planted";
    const pid_t holder = hold(path);
    REQUIRE(chmod(path.c_str(), 0644) == 0);
    CHECK(taken_by_another_user(path) == 'f');
    end(holder);
    CHECK(taken_by_another_user(path) == 't');
    REQUIRE(symlink((folder.path + "/elsewhere").c_str(), planted.c_str()) == 0);
    CHECK_FALSE(FileLock().try_take(planted).ok());
    CHECK_FALSE(fs::exists(folder.path + "/elsewhere"));
  }

  TEST_CASE("prepare: a small piece that a crash of the machine has damaged is encoded again") {
    const Fixture f;
    const std::string bad = f.folder.write("text/9.txt", "\xff\n");
    CHECK(prepare(f.options).status().code() == Code::bad_data);
    fs::remove(bad);
    const auto pieces = f.piece_files();
    REQUIRE(pieces.size() == kFiles);
    std::string piece = contents(pieces[0]);
    std::fill(piece.begin() + sizeof(PieceFacts), piece.end(), '\0');  // was not on the disk yet
    std::ofstream(pieces[0], std::ios::binary) << piece;
    CHECK(f.complete() == kFiles - 1);
  }

  TEST_CASE("prepare: PREPARE-5, a process helps the one that prepares, and leaves no trace") {
    const Fixture f;
    CHECK(help_prepare(f.options) == 0);  // there is no folder
    f.begin();
    CHECK(help_prepare(f.options) == 0);  // no process makes it
    {
      FileLock lock;
      REQUIRE(*lock.try_take(f.options.folder + "/.lock"));
      const auto corpus = Corpus::open(f.options.source);
      const auto tokenizer = Tokenizer::load(f.options.tokenizer_path);
      const std::string unwanted = f.folder.path + "/unwanted";  // nobody waits for these
      fs::create_directory(unwanted);
      uint64_t files = kFiles;
      CHECK(encode_files(*corpus, *tokenizer, {.folder = unwanted, .wanted = [] { return false; }},
                         [&](const EncodeProgress& now) { files = now.files; })
                .ok());
      CHECK(files == 0);
      CHECK(help_prepare(f.options) == kFiles);
      CHECK(help_prepare(f.options) == 0);
      CHECK(f.pieces() == kFiles);
      CHECK(f.pieces(".part") + f.pieces(".lock") == 0);
    }
    CHECK(f.complete() == kFiles);
    FileLock lock;
    REQUIRE(*lock.try_take(f.options.folder + "/.lock"));
    CHECK(help_prepare(f.options) == 0);  // it is complete
    CHECK_FALSE(fs::exists(f.options.folder + "/pieces"));
  }

  TEST_CASE("prepare: PREPARE-5, a file is encoded by one process; if that dies, by another one") {
    const Fixture f;
    f.begin();
    std::string taken;
    {
      FileLock lock;
      REQUIRE(*lock.try_take(f.options.folder + "/.lock"));
      CHECK(help_prepare(f.options) == kFiles);
      // One piece is missing again, and another process makes it.
      taken = f.piece_files()[2];
      fs::remove(taken);
      const pid_t other = hold(taken + ".lock");
      CHECK(help_prepare(f.options) == 0);
      CHECK_FALSE(fs::exists(taken));
      end(other);
    }
    // What a process that died has left, and what one is writing.
    std::ofstream(taken + ".00000001.part") << "half";
    const pid_t other = hold(taken + ".lock");
    std::ofstream(taken + ".00000002.part") << "half";
    int calls = 0;
    uint64_t kept = 0;
    const auto made = prepare(f.options, [&](const PrepareProgress& now) {
      kept = now.kept_files;
      if (now.stage != "tokens" || ++calls != 4) return;
      CHECK(kept == kFiles - 1);  // it waits for the other process
      CHECK(f.pieces(".part") == 2);
      end(other);
    });
    REQUIRE_MESSAGE(made.ok(), made.status().message());
    CHECK(made->train.hash == f.whole.train.hash);
    CHECK(kept == kFiles - 1);
  }

  TEST_CASE("prepare: a process whose progress stands still shows no sign of life") {
    const Fixture f;
    f.begin();
    const std::string lock = f.options.folder + "/.lock";
    {
      FileLock holder;
      REQUIRE(*holder.try_take(lock));
      CHECK(help_prepare(f.options) == kFiles);
    }
    const std::string missing = f.piece_files()[2];
    fs::remove(missing);
    const pid_t other = hold(missing + ".lock");
    const auto hour_ago = fs::file_time_type::clock::now() - std::chrono::hours(1);
    int still = 0;  // calls without progress, a tenth of a second each
    double fraction = -1;
    const auto made = prepare(f.options, [&](const PrepareProgress& now) {
      if (now.stage != "tokens" || still > 40) return;
      still = now.fraction == std::exchange(fraction, now.fraction) ? still + 1 : 0;
      if (still == 20) fs::last_write_time(lock, hour_ago);
      if (still <= 40) return;
      CHECK(fs::last_write_time(lock) == hour_ago);
      end(other);
    });
    REQUIRE_MESSAGE(made.ok(), made.status().message());
    CHECK(still > 40);
  }

  TEST_CASE(
      "prepare: PREPARE-5, a process that has waited for long makes a piece without its lock") {
    // It also removed the file of the lock, whose holder might live: a third process got a lock of
    // its own, and went on with what the holder was writing.
    const Fixture f;
    f.begin();
    const auto corpus = Corpus::open(f.options.source);
    const auto tokenizer = Tokenizer::load(f.options.tokenizer_path);
    EncodeOptions options{.folder = f.options.folder + "/pieces",
                          .tokenizer_hash = f.whole.tokenizer_hash,
                          .eos = f.whole.appended_eos,
                          .patience = std::chrono::milliseconds(0)};
    EncodeProgress last;
    pid_t holder = 0;
    const auto encode = [&] {
      int calls = 0;
      const auto made = encode_files(*corpus, *tokenizer, options, [&](const EncodeProgress& now) {
        last = now;
        if (holder > 0 && ++calls == 100) kill(holder, SIGKILL);  // the test has failed: no hang
      });
      CHECK_MESSAGE(made.ok(), made.status().message());
    };
    encode();
    CHECK(last.files == kFiles);
    const std::string taken = f.piece_files()[2], expected = contents(taken);
    fs::remove(taken);
    holder = hold(taken + ".lock");
    std::ofstream(taken + ".00000001.part") << "half";
    std::ofstream(taken + ".00000002.alone") << "of a process that was killed";
    options.wanted = [] { return true; };
    encode();  // a helper waits for nothing, and makes nothing twice
    CHECK(last.files == 0);
    CHECK(f.pieces(".alone") == 1);
    options.wanted = nullptr;
    encode();
    CHECK(last.files == 1);
    CHECK(last.kept == kFiles - 1);
    CHECK(contents(taken) == expected);
    CHECK(contents(taken + ".00000001.part") == "half");
    CHECK(f.pieces(".alone") == 0);
    FileLock lock;
    CHECK(fs::exists(taken + ".lock"));
    CHECK_FALSE(*lock.try_take(taken + ".lock"));
    end(holder);
  }

  TEST_CASE("prepare: PREPARE-5, the lock of a piece is the same one after an error") {
    // Of two processes, one had the removed file open, and the other one created it anew.
    const Fixture f;
    f.folder.write("text/9.txt", "\xff\n");
    CHECK(prepare(f.options).status().code() == Code::bad_data);
    CHECK(f.pieces(".lock") == 1);
  }

  TEST_CASE("prepare: what dead processes have left of pieces is removed") {
    const Fixture f;
    f.begin();
    const std::string part = f.options.folder + "/pieces/" + std::string(32, '0') + ".tokens";
    std::ofstream(part + ".00000001.part") << "half";
    std::ofstream(part + ".00000002.part") << "half";
    const std::string made = f.options.folder + "/pieces/" + std::string(32, '1') + ".tokens";
    const pid_t maker = hold(made + ".lock");
    std::ofstream(made + ".00000003.part") << "half";
    f.folder.write("text/0.txt", "\xff\n");  // it ends before the pieces are removed
    CHECK(prepare(f.options).status().code() == Code::bad_data);
    CHECK(f.pieces(".part") == 1);  // its process lives
    CHECK(fs::exists(made + ".00000003.part"));
    end(maker);
  }

  TEST_CASE("prepare: PREPARE-5, processes that start together make one folder") {
    const Fixture f;
    std::vector<pid_t> children;
    for (int i = 0; i < 4; ++i) {
      const pid_t child = fork();
      if (child == 0) {
        const auto made = prepare(f.options);
        _exit(made.ok() && made->train.hash == f.whole.train.hash ? 0 : 1);
      }
      children.push_back(child);
    }
    kill(children[0], SIGKILL);
    for (const pid_t child : children) {
      int status = 0;
      REQUIRE(waitpid(child, &status, 0) == child);
      if (child != children[0]) CHECK(WEXITSTATUS(status) == 0);
    }
    CHECK(f.complete() == 0);
  }
}
