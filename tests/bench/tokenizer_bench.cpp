// MB/s of one thread of our encoder, for tests/bench/tokenizer.py.
//
//   tokenizer_bench FOLDER       every NAME.json of the folder on its texts.bin (reference.py)
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/tokenizer/tokenizer.hpp"
#include "tests/runtime/tokenizer/reference.hpp"

using namespace simplescale;

namespace {

double cpu_s() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) / 1e9;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 64;
  const std::string folder = argv[1];
  const std::vector<std::string> texts = test::reference_texts(folder);
  double megabytes = 0;
  for (const std::string& text : texts) megabytes += static_cast<double>(text.size()) / 1e6;
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".json") files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  for (const std::string& file : files) {
    const auto tokenizer = Tokenizer::load(file);
    if (!tokenizer.ok()) {
      std::fprintf(stderr, "%s\n", tokenizer.status().message().c_str());
      return 65;
    }
    size_t tokens = 0;
    const double begin = cpu_s();
    for (const std::string& text : texts) tokens += tokenizer->encode(text).size();
    const double mb_s = megabytes / (cpu_s() - begin);
    std::printf("{\"tokenizer\": \"%s\", \"mb_s\": %.2f, \"tokens\": %zu}\n",
                std::filesystem::path(file).stem().c_str(), mb_s, tokens);
    std::fflush(stdout);
  }
  return 0;
}
