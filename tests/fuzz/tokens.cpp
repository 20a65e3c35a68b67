// Token files in every format.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "runtime/data/token_file.hpp"
#include "tests/fuzz/driver.hpp"

using namespace simplescale;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const int fd = memfd_create("tokens", 0);
  if (fd < 0) return 0;
  if (write(fd, data, bytes) == static_cast<ssize_t>(bytes)) {
    const std::string path = "/proc/self/fd/" + std::to_string(fd);
    for (const char* format : {"auto", "nanogpt", "llmc", "litgpt", "odd"}) {
      const auto source = TokenSource::open(path, format, 300);
      if (!source.ok()) continue;
      (void)source->validate();
      int32_t sample[9];
      for (uint64_t i = 0; i < source->samples(8) && i < 4; ++i)
        (void)source->read_sample(i, 8, sample);
    }
  }
  close(fd);
  return 0;
}

std::vector<std::string> fuzz_seeds() {
  std::string plain(200, '\1');
  std::string llmc(1024, '\0');
  const int32_t words[3] = {20240520, 1, 100};
  std::memcpy(llmc.data(), words, sizeof words);
  std::string litgpt = std::string("LITPKDS\1\0\0\0\0\0\0\0\x08\x64\0\0\0\0\0\0\0", 24);
  return {plain, llmc + plain, litgpt + plain, std::string("\xff\xff", 2) + plain};
}
