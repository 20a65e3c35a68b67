#include "runtime/base/child_environment.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <sstream>
#include <string_view>

namespace simplescale {
namespace {

// docs/security.md links to this list. "A_*": all that begin with A_; "*_a": that end so.
constexpr auto kNeeded = std::to_array<std::string_view>({
    // the user, the terminal, the place
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TERM",
    "COLUMNS",
    "NO_COLOR",
    "HOSTNAME",
    "PWD",
    "TMPDIR",
    "XDG_*",
    // language, time
    "LANG",
    "LANGUAGE",
    "LC_*",
    "LOCPATH",
    "TZ",
    "TZDIR",
    "FAKETIME*",
    // the loader, the C library, allocators, sanitizers
    "LD_*",
    "GLIBC_TUNABLES",
    "MALLOC_*",
    "TCMALLOC_*",
    "ASAN_OPTIONS",
    "LSAN_OPTIONS",
    "TSAN_OPTIONS",
    "UBSAN_OPTIONS",
    // this program, the launchers of jobs
    "SIMPLESCALE_*",
    "SLURM*",
    "SRUN_*",
    "PMI_*",
    "PMIX_*",
    "PET_*",
    // threads and kernels
    "OMP_*",
    "GOMP_*",
    "KMP_*",
    "MKL_*",
    "OPENBLAS_*",
    "DNNL_*",
    "ONEDNN_*",
    "ATEN_*",
    "TORCH_*",
    "PYTORCH_*",
    "ARROW_*",
    // GPUs, also how containers give them
    "CUDA_*",
    "CUBLAS_*",
    "CUDNN_*",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_TF32_OVERRIDE",
    "NSYS_*",
    "GPU_DEVICE_ORDINAL",
    // networks of clusters
    "NCCL_*",
    "UCX_*",
    "UCC_*",
    "FI_*",
    "IBV_*",
    "RDMAV_*",
    "MLX4_*",
    "MLX5_*",
    "GDRCOPY_*",
    // the internet
    "*_proxy",
    "*_PROXY",
    "RES_OPTIONS",
    "LOCALDOMAIN",
    "HOSTALIASES",
    "CURL_CA_BUNDLE",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "OPENSSL_CONF",
    // gnuplot
    "GNUTERM",
    "GDFONTPATH",
    "FONTCONFIG_*",
});

bool matches(std::string_view name, std::string_view pattern) {
  if (pattern.ends_with('*')) return name.starts_with(pattern.substr(0, pattern.size() - 1));
  return pattern.starts_with('*') ? name.ends_with(pattern.substr(1)) : name == pattern;
}

}  // namespace

bool inherits_variable(Inherits inherits, const std::string& name) {
  const auto is = [&](std::string_view pattern) { return matches(name, pattern); };
  if (inherits == Inherits::all) return true;
  const char* named = std::getenv(kPassVariable);
  std::string more = named ? named : "";
  std::ranges::replace(more, ',', ' ');
  std::istringstream words(more);
  for (std::string word; words >> word;)
    if (is(word)) return true;
  if (name == "SLURM_JWT") return false;  // it speaks for the user to Slurm
  return std::ranges::any_of(kNeeded, is) || (inherits == Inherits::with_bucket && is("AWS_*"));
}

std::vector<std::string> child_environment(const Variables& added, Inherits inherits) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry, name = text.substr(0, text.find('='));
    if (inherits_variable(inherits, name) &&
        std::ranges::find(added, name, &Variables::value_type::first) == added.end())
      result.push_back(text);
  }
  for (const auto& [name, value] : added) result.push_back(name + "=" + value);
  return result;
}

std::vector<char*> argument_list(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

}  // namespace simplescale
