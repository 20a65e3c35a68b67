// Token files in every format, and what lies beside them: the index of a Megatron file, loss masks.
#include <cstring>

#include "runtime/data/token_file.hpp"
#include "tests/fuzz/driver.hpp"
#include "tests/runtime/data/token_bytes.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;

namespace {

constexpr size_t kTokens = 100;

void read_all(const std::string& path, const char* format) {
  auto source = TokenSource::open(path, format, 300);
  if (!source.ok()) return;
  if (source->has_document_index()) (void)source->use_documents({.mask = true, .by_index = true});
  (void)source->validate();
  int32_t sample[9];
  for (uint64_t i = 0; i < source->samples(8) && i < 4; ++i)
    (void)source->read_sample(i, 8, sample);
}

}  // namespace

static void run(const uint8_t* data, size_t bytes) {
  static const test::TempFolder scratch("/dev/shm");
  static const std::string indexed = scratch.write("indexed.bin", std::string(2 * kTokens, '\1')),
                           masked = scratch.write("masked.bin", std::string(2 * kTokens, '\1'));
  const std::string text(reinterpret_cast<const char*>(data), bytes);
  const std::string path = scratch.write("tokens", text);
  for (const char* format : {"auto", "nanogpt", "llmc", "litgpt", "odd"}) read_all(path, format);
  scratch.write("indexed.idx", text);
  read_all(indexed, "megatron");
  scratch.write("masked.mask", text);
  read_all(masked, "nanogpt");
}

static std::vector<std::string> seeds() {
  std::string plain(200, '\1');
  std::string llmc(1024, '\0');
  const int32_t words[3] = {20240520, 1, 100};
  std::memcpy(llmc.data(), words, sizeof words);
  std::string litgpt = std::string("LITPKDS\1\0\0\0\0\0\0\0\x08\x64\0\0\0\0\0\0\0", 24);
  const std::string mask =
      "SSLMASK1" + test::bytes_of(std::vector<uint64_t>{kTokens, 2, 3, 7, 20, 30});
  return {plain,
          llmc + plain,
          litgpt + plain,
          std::string("\xff\xff", 2) + plain,
          test::megatron_index({40, 30, 30}, {0, 2, 3}),
          mask};
}

static const FuzzTarget target("tokens", run, seeds);
