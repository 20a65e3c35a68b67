#include "runtime/observe/notifier.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "runtime/base/process.hpp"
#include "runtime/base/run_command.hpp"

using namespace simplescale;
namespace fs = std::filesystem;
using nlohmann::json;

TEST_CASE("notifier: at most so many notices in any period") {
  NoticeLimit limit(2, 1000);
  CHECK(limit.take(0));
  CHECK(limit.take(500));
  CHECK_FALSE(limit.take(999));
  CHECK(limit.take(1000));  // the first one is over
  CHECK_FALSE(limit.take(1499));
  CHECK(limit.take(1500));
}

TEST_CASE("notifier: a URL is called by curl, anything else by a shell") {
  CHECK(notice_command("mail -s x me", 1) ==
        std::vector<std::string>{"/bin/sh", "-c", "mail -s x me"});
  const std::string call = shell_text(notice_command("https://h/x?a=b", 1500));
  CHECK(call.starts_with("curl "));
  CHECK(call.find("--max-time 2 ") != std::string::npos);
  CHECK(call.ends_with("--data-binary @- 'https://h/x?a=b'"));
}

TEST_CASE("notifier: the command gets each notice as a line of JSON; too many are counted") {
  const fs::path file = fs::temp_directory_path() / ("simplescale-notice-" + unique_id());
  {
    Notifier notifier("cat >>" + file.string());
    for (int i = 0; i < 12; ++i) notifier.send({{"kind", "recovered"}, {"number", i}});
  }
  std::ifstream in(file);
  std::vector<json> notices;
  for (std::string line; std::getline(in, line);) notices.push_back(json::parse(line));
  REQUIRE(notices.size() == 10);
  for (size_t i = 0; i < notices.size(); ++i)
    CHECK(notices[i] == json{{"kind", "recovered"}, {"number", i}, {"skipped", 0}});
  fs::remove(file);
}

TEST_CASE("notifier: a command that fails or hangs holds nobody up for longer than its deadline") {
  Notifier failing("exit 3");
  failing.send({{"kind", "failed"}});
  failing.finish();
  Notifier hanging("sleep 1000", 50);
  hanging.send({{"kind", "failed"}});
  hanging.finish();  // returns
}
