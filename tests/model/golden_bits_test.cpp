// The bits of steps, of MKL's products and of libm, with each instruction set that this CPU has, compared
// with golden_bits.txt. They are those of one compiler, libtorch and glibc. After a change that is meant
// to give other bits, raise arithmetic::kVersion, then SIMPLESCALE_WRITE_GOLDEN_BITS=1 writes that file.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "model/cpu/gemm.hpp"
#include "model/cpu/instructions.hpp"
#include "runtime/training/arithmetic.hpp"
#include "tests/model/engine_world.hpp"
#include "tests/model/instruction_processes.hpp"
#include "tests/must.hpp"
#include "tests/paths.hpp"

namespace simplescale {
namespace {

using cpu::Bf16, cpu::Transpose, cpu::Weight;

template <class T>
std::string hash_of(const std::vector<T>& values) {
  return hash128(values.data(), values.size() * sizeof(T)).hex();
}

// --- The rows of this process ---

std::vector<float> numbers(int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(static_cast<int32_t>(hash128(&i, sizeof i).low)) * 0x1p-30f;
  return values;
}

std::vector<Bf16> rounded(const std::vector<float>& values) {
  std::vector<Bf16> result(values.size());
  for (size_t i = 0; i < values.size(); ++i) result[i].bits = f32_to_bf16(values[i]);
  return result;
}

/// Calls product(transpose, m, n, k, a, b, c) for some shapes; returns the hash of all c.
template <class Product>
std::string products(const Product& product) {
  std::vector<float> all;
  for (const auto& [m, n, k] :
       {std::array<int64_t, 3>{256, 512, 256}, {100, 96, 64}, {37, 1000, 300}, {16, 64, 2048}})
    for (const Transpose transpose : {Transpose::no, Transpose::yes}) {
      std::vector<float> c(static_cast<size_t>(m * n));
      product(transpose, m, n, k, numbers(m * k), numbers(k * n + 1), c);
      all.insert(all.end(), c.begin(), c.end());
    }
  return hash_of(all);
}

std::string step(DType precision, bool fp8, bool tied, Optimizer optimizer = Optimizer::adamw,
                 const Experts& experts = {}) {
  EngineOptions options;
  options.shape = {.dim = 128,
                   .hidden = 352,
                   .layers = 2,
                   .heads = 4,
                   .kv_heads = 2,
                   .vocab = 509,
                   .block_size = 64};
  options.shape.tie_embeddings = tied;
  options.shape.experts = experts;
  options.precision = precision;
  options.fp8 = fp8;
  options.optimizer = optimizer;
  options.micro_batch_size = 2;
  options.leaves = 4;
  World world(options, 1, 1,
              [](const BackendOptions& o) { return must(make_cpu_backend(o)).take(); });
  world.initialize();
  world.train(1, 3);
  return world.digest();
}

/// The functions of libm that a step uses (RoPE, rates, AdamW, scores).
std::string libm() {
  std::vector<double> values;
  for (int i = 1; i <= 20'000; ++i) {
    const double x = i * 0.0137;
    const auto f = static_cast<float>(x);
    for (const float y : {std::pow(10'000.0f, -f / 300), std::cos(f), std::sin(f)})
      values.push_back(double{y});
    for (const double y : {std::pow(0.95, x), std::cos(x), std::log(x), std::exp(-x)})
      values.push_back(y);
  }
  return hash_of(values);
}

using Rows = std::map<std::string, std::string>;

Rows rows() {
  const Experts experts{.count = 6, .per_token = 2, .hidden = 96, .shared = 1, .dense_layers = 1};
  return {
      {"libm", libm()},
      {"products.fp32", products([](Transpose t, int64_t m, int64_t n, int64_t k, const auto& a,
                                    const auto& b, auto& c) {
         cpu::gemm(Transpose::no, t, m, n, k, a.data(), k, b.data(), t == Transpose::yes ? k : n, 0,
                   c.data(), n);
       })},
      {"products.fp32.packed", products([](Transpose t, int64_t m, int64_t n, int64_t k,
                                           const auto& a, const auto& b, auto& c) {
         Weight<float> w{};
         w.data = b.data(), w.n = n, w.k = k, w.transpose = t;
         w.ld = t == Transpose::yes ? k : n;
         std::vector<float> packed(cpu::packed_bytes(w) / sizeof(float) + 1);
         w.packed = packed.data();
         cpu::pack(w);
         cpu::gemm(m, a.data(), k, w, c.data(), n);
       })},
      {"products.bf16", products([](Transpose t, int64_t m, int64_t n, int64_t k, const auto& a,
                                    const auto& b, auto& c) {
         const std::vector<Bf16> a16 = rounded(a), b16 = rounded(b);
         cpu::gemm(Transpose::no, t, m, n, k, a16.data(), k, b16.data(),
                   t == Transpose::yes ? k : n, 0, c.data(), n);
       })},
      {"step.fp32", step(DType::f32, false, false)},
      {"step.fp32.tied", step(DType::f32, false, true)},
      {"step.fp32.muon", step(DType::f32, false, false, Optimizer::muon)},
      {"step.fp32.experts", step(DType::f32, false, false, Optimizer::adamw, experts)},
      {"step.bf16.experts", step(DType::bf16, false, false, Optimizer::adamw, experts)},
      {"step.bf16", step(DType::bf16, false, false)},
      {"step.bf16.tied", step(DType::bf16, false, true)},
      {"step.fp8", step(DType::bf16, true, false)},
  };
}

// --- The table ---

struct Table {
  int version = 0;
  Rows rows;  // by "SET NAME"
};

std::string path() {
  return source_dir() + "/tests/model/golden_bits.txt";
}

Table read_table() {
  Table table;
  std::ifstream file(path());
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string set, name, hash;
    words >> set >> name >> hash;
    if (set == "version")
      table.version = std::atoi(name.c_str());
    else if (!hash.empty())
      table.rows[set + " " + name] = hash;
  }
  return table;
}

/// Of a table of this version only what is missing is written.
void write_table(Table table, const Rows& now) {
  if (table.version != arithmetic::kVersion) table = {arithmetic::kVersion, {}};
  table.rows.insert(now.begin(), now.end());
  std::ofstream file(path());
  file << "version " << table.version << "\n";
  for (const auto& [name, hash] : table.rows) file << name << " " << hash << "\n";
}

/// By "SET NAME", from a process with that set alone.
Rows rows_of(InstructionSet set) {
  Rows found;
  for (const std::string& line : testing::lines_with(set, "golden bits of this process")) {
    std::istringstream words(line);
    std::string row, hash;
    words >> row >> hash;
    found[std::string(to_string(set)) + " " + row] = hash;
  }
  return found;
}

}  // namespace

TEST_CASE("golden bits of this process" * doctest::skip()) {
  for (const auto& [name, hash] : rows())
    std::printf("%s %s %s\n", to_string(cpu::used_instructions()), name.c_str(), hash.c_str());
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // other flags, other bits
TEST_CASE("golden bits: those of each instruction set change only with arithmetic::kVersion") {
  Rows now;
  for (const InstructionSet set : testing::sets_of_host()) {
    const Rows of_set = rows_of(set);
    CHECK(of_set.size() == 12);
    now.insert(of_set.begin(), of_set.end());
  }
  if (std::getenv("SIMPLESCALE_WRITE_GOLDEN_BITS")) write_table(read_table(), now);
  const Table table = read_table();
  CHECK_MESSAGE(table.version == arithmetic::kVersion,
                "SIMPLESCALE_WRITE_GOLDEN_BITS=1 writes the rows of the new version");
  for (const auto& [name, hash] : now) {
    const auto expected = table.rows.find(name);
    INFO(name, ": the bits have changed. On purpose: raise kVersion in ",
         "runtime/training/arithmetic.hpp, then SIMPLESCALE_WRITE_GOLDEN_BITS=1. Without a change ",
         "of ours: compiler, libtorch, glibc or CPU differ, and so do the bits of runs there");
    if (expected != table.rows.end())
      CHECK(expected->second == hash);
    else if (name.starts_with("amx "))  // no CPU at hand had it
      MESSAGE("skipped: golden_bits.txt has no row " << name);
    else
      FAIL_CHECK(name << ": golden_bits.txt has no such row");
  }
}

TEST_CASE("instructions: BACKEND-3: a process keeps those that it has begun with") {
  const InstructionSet used = cpu::used_instructions();
  CHECK(cpu::use_instructions(used).ok());
  for (const InstructionSet other : testing::kInstructionSets)
    if (other != used) CHECK(cpu::use_instructions(other).code() == Code::bad_config);
  CHECK(cpu::used_instructions() == used);
}
#endif

}  // namespace simplescale
