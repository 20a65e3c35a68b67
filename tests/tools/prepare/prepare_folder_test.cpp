// What prepare() does with a folder that holds something already.
#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>

#include "runtime/tokenizer/tokenizer.hpp"
#include "tests/must.hpp"
#include "tests/temp_folder.hpp"
#include "tests/tools/prepare/prose.hpp"
#include "tools/prepare/prepare.hpp"

using namespace simplescale;
using test::contents;
using test::prose;
namespace fs = std::filesystem;
using Folder = test::TempFolder;

TEST_SUITE("prepare") {
  TEST_CASE("prepare: a folder with the tokens of another text or tokenizer is not taken") {
    const Folder folder;
    PrepareOptions options{.source = folder.write("a.txt", prose(600)),
                           .folder = folder.path + "/prepared",
                           .vocab = 380};
    CHECK(free_folder(options) == options.folder);
    REQUIRE(prepare(options).ok());
    CHECK(free_folder(options) == options.folder);
    const std::string tokenizer = options.folder + "/tokenizer.model";
    auto changed = [&](auto change) {
      PrepareOptions other = options;
      change(other);
      const std::string taken = free_folder(other);
      CHECK(taken.starts_with(options.folder + "-"));
      CHECK(taken == free_folder(other));
      return taken;
    };
    const std::string text = folder.write("b.txt", prose(600, 2));
    CHECK(changed([&](auto& o) { o.source = text; }) != changed([](auto& o) { o.vocab = 390; }));
    changed([&](auto& o) { o.train_tokenizer_on = text; });
    changed([](auto& o) { o.validation_fraction = 0.2; });
    changed([](auto& o) { o.seed = 1; });
    changed([](auto& o) { o.byte_level = true; });
    // The same tokenizer gives the same tokens, wherever it is from.
    options.tokenizer_path = folder.write("copy.model", contents(tokenizer));
    CHECK(free_folder(options) == options.folder);
    folder.write("a.txt", prose(601));  // edited: runs that train keep the tokens they have
    changed([](auto&) {});
  }

  TEST_CASE("prepare: a text is known by its contents, in folders of other names, too") {
    const Folder folder;
    fs::create_directory(folder.path + "/text");
    folder.write("text/a.txt", prose(300));
    folder.write("text/b.txt", prose(400, 2));
    PrepareOptions options{.source = folder.path + "/text",
                           .folder = folder.path + "/data/run",
                           .byte_level = true,
                           .vocab = 320};
    REQUIRE(prepare(options).ok());
    PrepareOptions other = options;
    other.folder = folder.path + "/data/other";
    const auto place = [&] { return free_folder(other, folder.path + "/data"); };
    CHECK(free_folder(other) == other.folder);
    CHECK(place() == options.folder);
    const auto touch = [&](const std::string& name, int seconds) {
      fs::last_write_time(folder.path + "/text/" + name,
                          fs::file_time_type() + std::chrono::seconds(seconds));
    };
    touch("a.txt", 5);
    CHECK(free_folder(options) == options.folder);
    CHECK(place() == options.folder);
    const std::string tokens = contents(options.folder + "/train.bin");
    const auto made = fs::last_write_time(options.folder + "/train.bin");
    REQUIRE(prepare(options).ok());
    CHECK(fs::last_write_time(options.folder + "/train.bin") == made);
    CHECK(read_manifest(options.folder)->tokenizer_signature ==
          read_manifest(options.folder)->source_signature);
    fs::rename(folder.path + "/text/b.txt", folder.path + "/text/c.txt");  // still the second one
    fs::rename(folder.path + "/text", folder.path + "/texts");
    options.source = other.source = folder.path + "/texts";
    CHECK(place() == options.folder);
    // One whose manifest cannot be written: here it is a folder.
    fs::create_directory(options.folder + "/manifest.json.part");
    CHECK(prepare(options).ok());
    fs::rename(folder.path + "/texts/c.txt", folder.path + "/texts/0.txt");  // other order
    CHECK(place() == other.folder);
    fs::rename(folder.path + "/texts/0.txt", folder.path + "/texts/b.txt");
    std::string changed = contents(folder.path + "/texts/b.txt");
    changed[50] = changed[50] == 'x' ? 'y' : 'x';  // of the same size
    folder.write("texts/b.txt", changed);
    CHECK(place() == other.folder);
    CHECK(free_folder(options) != options.folder);
  }

  TEST_CASE("prepare: the folder of a text is the same before and after its tokenizer is trained") {
    const Folder folder;
    PrepareOptions a{.source = folder.write("a.txt", prose(300)),
                     .folder = folder.path + "/a",
                     .byte_level = true,
                     .vocab = 320};
    PrepareOptions b = a;
    b.source = folder.write("b.txt", prose(600, 2));
    b.folder = folder.path + "/b";
    for (const char* more : {"", "the text has changed"}) {
      a.source = folder.write("a.txt", more + prose(300));
      b.tokenizer_path = a.folder + "/tokenizer.json";
      b.trained_on = tokenizer_signature(a);
      const std::string before = free_folder(b);
      CHECK((before == b.folder) == !*more);
      REQUIRE(prepare(a).ok());
      CHECK(free_folder(b) == before);
      PrepareOptions there = b;
      there.folder = before;
      REQUIRE(prepare(there).ok());
      CHECK(free_folder(b) == before);
      fs::remove(a.source);  // its tokens are there
      CHECK(tokenizer_signature(a) == b.trained_on);
      fs::remove_all(a.folder);  // the tokenizer will be trained again
      CHECK(free_folder(b) == before);
    }
  }

  TEST_CASE("prepare: a trained tokenizer stays one, also where its file is given later") {
    const Folder folder;
    PrepareOptions trained{.source = folder.write("a.txt", prose(600)),
                           .folder = folder.path + "/prepared",
                           .vocab = 380};
    REQUIRE(prepare(trained).ok());
    PrepareOptions given = trained;
    given.tokenizer_path =
        folder.write("copy.model", contents(trained.folder + "/tokenizer.model"));
    given.seed = 5;
    REQUIRE(prepare(given).ok());
    CHECK(check_tokenizer_kept(trained).ok());
    CHECK(free_folder(trained) == trained.folder);
    fs::remove(given.source);
    CHECK(prepare(given).ok());
    CHECK(prepare(trained).ok());
  }

  TEST_CASE("prepare: complete tokens are not replaced by those of another text or tokenizer") {
    const Folder folder;
    const std::string rows =
        R"({"text": "old men repair the nets", "other": "men sing about nets"})";
    std::string text;
    for (int i = 0; i < 200; ++i) text += rows + "\n";
    const std::string words = folder.write("words.txt", prose(600));
    PrepareOptions options{.source = folder.write("a.jsonl", text),
                           .folder = folder.path + "/prepared",
                           .train_tokenizer_on = words,
                           .vocab = 340};
    const auto made = must(prepare(options));
    const auto refused = [&](const std::string& why, auto change) {
      PrepareOptions other = options;
      change(other);
      const Status status = prepare(other).status();
      CHECK(status.code() == Code::bad_config);
      CHECK_MESSAGE(status.message() == options.folder + " was prepared " + why +
                                            ": name another data.folder, or remove this one",
                    status.message());
      CHECK(*read_manifest(options.folder) == *made);
      CHECK(check_files(options.folder, *made, {}).ok());
    };
    const std::string changed = "from another text, " + options.source;
    refused(changed + ", which has changed or is read with other keys",
            [](auto& o) { o.corpus.text_key = "other"; });
    refused(changed, [&](auto& o) { o.source = folder.write("b.txt", prose(50)); });
    refused("with data.validation_fraction = 0.01, not 0.2",
            [](auto& o) { o.validation_fraction = 0.2; });
    const std::string trained =
        "with another tokenizer, a trained tokenizer.model of 340 tokens, not with ";
    refused(trained + "a trained tokenizer.model of 350 tokens", [](auto& o) { o.vocab = 350; });
    refused(trained + "a trained tokenizer.json of 340 tokens",
            [](auto& o) { o.byte_level = true; });
    PrepareOptions other = options;
    other.folder = folder.path + "/other", other.vocab = 350;
    REQUIRE(prepare(other).ok());
    const std::string model = other.folder + "/tokenizer.model";
    refused(trained + model, [&](auto& o) { o.tokenizer_path = model, o.vocab = 0; });
    folder.write("a.jsonl", text + rows + "\n");
    refused(changed + ", which has changed or is read with other keys", [](auto&) {});
    options.of_run = true;
    const auto kept = must(prepare(options));
    CHECK(*kept == *made);
    CHECK(*read_manifest(options.folder) == *made);
    refused(changed + ", which has changed or is read with other keys",
            [](auto& o) { o.vocab = 350; });
  }

  TEST_CASE("prepare: files that it has not written are not replaced") {
    const Folder folder;
    PrepareOptions options{.source = folder.write("text.txt", prose(600)),
                           .folder = folder.path + "/mine",
                           .vocab = 380};
    for (const char* name : {"train.bin", "tokenizer.json", "manifest.json", "pieces/notes"}) {
      CAPTURE(name);
      const std::string file = folder.write(std::string("mine/") + name, "my work");
      CHECK(says(prepare(options).status(), Code::bad_config, " is in the way: "));
      CHECK(contents(file) == "my work");
      CHECK_FALSE(fs::exists(options.folder + "/.lock"));
      PrepareOptions other = options;
      other.folder = free_folder(options);
      CHECK(other.folder.starts_with(options.folder + "-"));
      CHECK(prepare(other).ok());
      fs::remove_all(options.folder);
    }
    folder.write("mine/train.bin", "my work");
    CHECK(help_prepare(options) == 0);  // another task of the job; it takes no lock
    CHECK(prepare(options).status().code() == Code::bad_config);
    fs::remove_all(options.folder);
    fs::create_directories(options.folder);
    PrepareOptions given = options;
    given.tokenizer_path = options.folder + "/tokenizer.model", given.vocab = 0;
    REQUIRE(prepare(options).ok());
    for (const auto& entry : fs::directory_iterator(options.folder))
      if (entry.path().filename() != "tokenizer.model") fs::remove_all(entry.path());
    const auto beside = prepare(given);
    CHECK_MESSAGE(beside.ok(), beside.status().message());
    fs::remove_all(options.folder);
    folder.write("mine/notes.txt", "beside the tokens");
    CHECK(free_folder(options) == options.folder);
    CHECK(prepare(options).ok());
  }

  TEST_CASE("prepare: the other kind of tokenizer is trained anew, and the tokens are its own") {
    const Folder folder;
    PrepareOptions options{.source = folder.write("text.txt", prose(800)),
                           .folder = folder.path + "/prepared",
                           .vocab = 340};
    const auto sentencepiece = must(prepare(options));
    CHECK(sentencepiece->tokenizer.name == "tokenizer.model");
    options.byte_level = true;
    fs::remove(options.folder + "/manifest.json");
    const auto made = must(prepare(options));
    CHECK(made->tokenizer.name == "tokenizer.json");
    CHECK_FALSE(std::filesystem::exists(options.folder + "/tokenizer.model"));
    CHECK(made->train.hash != sentencepiece->train.hash);
    const std::string trained = contents(options.folder + "/tokenizer.json");
    const auto again = prepare(options);
    CHECK(again->tokenizer_hash == made->tokenizer_hash);
    CHECK(contents(options.folder + "/tokenizer.json") == trained);
    const auto tokenizer = Tokenizer::load(options.folder + "/tokenizer.json").take();
    CHECK(tokenizer.vocab() == 340);
    CHECK(made->documents == sentencepiece->documents);
  }

  TEST_CASE("prepare: a complete folder that is read-only can be used") {
    const Folder folder;
    PrepareOptions options{.source = folder.write("text.txt", prose(800)),
                           .folder = folder.path + "/prepared",
                           .vocab = 400};
    const auto made = must(prepare(options));
    fs::remove(options.folder + "/.lock");
    fs::permissions(options.folder, fs::perms(0555));
    fs::permissions(folder.path, fs::perms(0555));
    const uid_t user = geteuid();
    if (user == 0) REQUIRE(seteuid(65534) == 0);  // root can write everywhere
    const auto again = prepare(options);
    options.folder += "-new";
    const auto other = prepare(options);
    REQUIRE(seteuid(user) == 0);
    fs::permissions(folder.path, fs::perms(0755));
    fs::permissions(folder.path + "/prepared", fs::perms(0755));
    REQUIRE_MESSAGE(again.ok(), again.status().message());
    CHECK(*again == *made);
    CHECK(other.status().code() == Code::io);
  }
}
