// A Backend with trivial mathematics, for tests of the engine. Every gradient depends on every
// parameter that the forward pass saw, on the tokens and on the order of calls. Wrong calls are
// counted in `mistakes`.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#include "model/backend.hpp"
#include "model/cpu/shard.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/training/token_marks.hpp"

namespace simplescale {

class FakeBackend : public Backend {
 public:
  FakeBackend(const BackendOptions& options, bool host)
      : options_(options), host_(host), units_(units_of(options.shape)) {
    for (int i = 0; i < options.frames; ++i)
      frames_.push_back({.seen = std::vector<Hash128>(units_.size())});
  }

  int mistakes = 0;
  int orthogonalized = 0;               // matrices
  size_t pinned_bytes = 0;              // by pin_host()
  std::function<void()> during_copies;  // called by finish_copies() before it copies
  float poison = 0;                     // added to the loss's gradient; NaN makes the step fail

  Result<void*> allocate(size_t bytes) override {
    memory_.push_back(std::vector<double>(bytes / 8 + 1));
    return static_cast<void*>(memory_.back().data());
  }
  bool host_memory() const override { return host_; }
  void copy_to_device(void* device, const void* host, size_t bytes) override {
    std::memcpy(device, host, bytes);
  }
  void copy_to_host(void* host, const void* device, size_t bytes) override {
    std::memcpy(host, device, bytes);
  }
  void synchronize() override {}
  void copy(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void zero(void* data, size_t bytes) override { std::memset(data, 0, bytes); }
  void pin_host(void* host, size_t bytes) override {
    const auto [pinned, added] = pinned_.try_emplace(host, bytes);
    expect(pinned->second == bytes);
    pinned_bytes += added ? bytes : 0;
  }
  // Copies only happen in finish_copies(), so that a missing wait gives wrong values.
  void start_copy(void* host, const void* device, size_t bytes) override {
    expect(!host_);
    copies_.push_back({host, device, bytes});
  }
  void finish_copies() override {
    if (!copies_.empty() && during_copies) during_copies();
    for (const Copy& copy : copies_) std::memcpy(copy.host, copy.device, copy.bytes);
    copies_.clear();
  }

  // So that a missing wait gives wrong values, too.
  PendingCopy start_upload(void* device, const void* host, size_t bytes) override {
    expect(!host_);
    return [=] { std::memcpy(device, host, bytes); };
  }
  PendingCopy start_download(void* host, const void* device, size_t bytes) override {
    start_copy(host, device, bytes);
    return [=, this] {
      const size_t waiting = copies_.size();
      std::erase_if(copies_, [&](const Copy& copy) {
        if (copy.host != host) return false;
        std::memcpy(host, device, bytes);
        return true;
      });
      expect(copies_.size() < waiting);
    };
  }

  void embed(int frame, const void* params, const int32_t* tokens) override {
    use(frame);
    expect(f_->next == 0);
    f_->next = 1;
    see(0, params);
    const size_t count =
        static_cast<size_t>(options_.micro_batch_size * (options_.shape.block_size + 1));
    const float hash =
        static_cast<float>(hash128(tokens, count * sizeof(int32_t)).low % 1000) / 1000;
    for (size_t i = 0; i < kWidth; ++i)
      f_->stream[i] = value(params, static_cast<size_t>(token_id(tokens[i % count]))) + hash;
    f_->inputs.clear();
  }
  void forward_block(int frame, int layer, const void* params) override {
    use(frame);
    expect(f_->next == static_cast<size_t>(layer) + 1);
    ++f_->next;
    const size_t unit = static_cast<size_t>(layer) + 1;
    see(unit, params);
    f_->inputs.push_back(f_->stream);
    mix(f_->stream, unit, params);
  }
  void head(int frame, const void* params, const void* tied, float scale, void* grad,
            void* tied_grad) override {
    use(frame);
    expect(f_->next == units_.size() - 1 && (tied != nullptr) == options_.shape.tie_embeddings);
    see(units_.size() - 1, params);
    if (tied) expect(digest(0, tied) == f_->seen[0]);
    mix(f_->stream, units_.size() - 1, params);
    f_->loss = 0;
    for (float x : f_->stream) f_->loss += x * x;
    f_->next = grad ? units_.size() - 2 : 0;
    if (!grad) return;
    f_->inputs.push_back(f_->stream);
    for (size_t i = 0; i < kWidth; ++i) f_->upstream[i] = scale * (f_->stream[i] + poison);
    gradient(units_.size() - 1, params, grad);
    if (tied) gradient(0, tied, tied_grad);
    f_->inputs.pop_back();
  }
  double loss(int frame) override { return use(frame).loss; }
  std::span<const float> losses(int frame) override { return use(frame).stream; }
  void backward_block(int frame, int layer, const void* params, void* grad) override {
    use(frame);
    const size_t unit = static_cast<size_t>(layer) + 1;
    expect(f_->next == unit && digest(unit, params) == f_->seen[unit]);
    --f_->next;
    gradient(unit, params, grad);
    mix(f_->upstream, unit, params);
    f_->inputs.pop_back();
  }
  void backward_embed(int frame, void* grad) override {
    use(frame);
    expect(f_->next == 0);
    f_->inputs.push_back(f_->stream);
    gradient(0, nullptr, grad);
  }
  void logits(int, const void*, const void*, float*) override { ++mistakes; }

  void cast(const float* from, void* to, size_t count) override {
    for (size_t i = 0; i < count; ++i) store(to, i, from[i]);
  }
  void accumulate(const float* from, float* to, size_t count) override {
    for (size_t i = 0; i < count; ++i) to[i] += from[i];
  }
  void start_squares(const float* values, size_t first, size_t count, size_t total) override {
    expect(first % kShardAlign == 0 && count % kShardAlign == 0 && first + count <= total);
    squares_.resize(total / kShardAlign);
    for (size_t block = first / kShardAlign; block < (first + count) / kShardAlign; ++block) {
      squares_[block] = 0;
      for (size_t i = 0; i < kShardAlign; ++i, ++values)
        squares_[block] += static_cast<double>(*values) * *values;
    }
  }
  void square_sums(std::span<const BlockTree> trees, double* sums) override {
    for (const BlockTree& tree : trees)
      *sums++ = sum_in_tree_order(squares_.data() + tree.first, tree.blocks());
    std::ranges::fill(squares_, std::numeric_limits<double>::quiet_NaN());
  }
  void adamw(const AdamW& o, std::span<const ParameterRun> runs, const float* gradient,
             const float* p, const void* m, const void* v, float* to_p, void* to_m, void* to_v,
             void* rounded) override {
    expect(copies_.empty());  // adamw overwrites what they read
    cpu::adamw(nullptr, options_.precision, o, runs, gradient, p, m, v, to_p, to_m, to_v, rounded);
  }

  void average(float weight, size_t count, const float* params, const float* from,
               float* to) override {
    expect(copies_.empty());
    cpu::average(nullptr, weight, count, params, from, to);
  }
  void muon_momentum(const Muon& o, std::span<const ParameterRun> runs, float* gradient,
                     const void* from_avg, void* to_avg) override {
    expect(copies_.empty());
    for (const ParameterRun& run : runs)
      for (size_t i = run.first; i < run.first + run.count; ++i) {
        const float g = gradient[i] * o.gradient_scale;
        const float avg = o.momentum * moment(o.moments, from_avg, i) + (1 - o.momentum) * g;
        const uint32_t random = rounding_bits(o.moments.key, run.element + i - run.first);
        store_moment(o.moments, to_avg, i, avg, random & 0xffff);
        gradient[i] = o.momentum * avg + (1 - o.momentum) * g;
      }
  }
  // Every element depends on all elements of the matrix.
  void orthogonalize(int64_t rows, int64_t columns, void* matrix) override {
    ++orthogonalized;
    const auto count = static_cast<size_t>(rows * columns);
    double sum = 0;
    for (size_t i = 0; i < count; ++i) sum = 0.5 * sum + std::abs(value(matrix, i));
    for (size_t i = 0; i < count; ++i)
      store(matrix, i, static_cast<float>(value(matrix, i) / (sum + 1e-9)));
  }
  void muon_update(const Muon& o, std::span<const ParameterRun> runs, const void* update,
                   const float* p, const void* v, float* to_p, void* to_v) override {
    expect(copies_.empty());
    for (const ParameterRun& run : runs)
      for (size_t i = run.first; i < run.first + run.count; ++i) {
        const float rate = o.learning_rate * run.rate_factor;
        to_p[i] = p[i] * (1 - rate * run.weight_decay) -
                  rate * run.muon_scale * (value(update, i) + 0.0f);
        store_moment(o.moments, to_v, i, moment(o.moments, v, i), 0);
      }
  }

 private:
  static float moment(const Moments& moments, const void* data, size_t i) {
    return moments.dtype == DType::f32 ? static_cast<const float*>(data)[i]
                                       : bf16_to_f32(static_cast<const uint16_t*>(data)[i]);
  }
  static void store_moment(const Moments& moments, void* data, size_t i, float value,
                           uint32_t random) {
    if (moments.dtype == DType::f32)
      static_cast<float*>(data)[i] = value;
    else
      static_cast<uint16_t*>(data)[i] = stochastic_bf16(std::bit_cast<uint32_t>(value), random);
  }

  static constexpr size_t kWidth = 32;
  using Stream = std::vector<float>;
  struct Frame {
    std::vector<Hash128> seen;  // per unit: hash of the parameters that forward got
    size_t next = 0;            // the unit that the next call must be for
    Stream stream = Stream(kWidth), upstream = Stream(kWidth);
    double loss = 0;  // of the last head()
    std::vector<Stream> inputs;
  };
  Frame& use(int frame) { return *(f_ = &frames_[static_cast<size_t>(frame)]); }
  std::vector<double> squares_;  // of blocks; once read not a number
  struct Copy {
    void* host;
    const void* device;
    size_t bytes;
  };

  void expect(bool right) { mistakes += right ? 0 : 1; }
  float value(const void* params, size_t i) const {
    return options_.precision == DType::f32 ? static_cast<const float*>(params)[i]
                                            : bf16_to_f32(static_cast<const uint16_t*>(params)[i]);
  }
  void store(void* to, size_t i, float x) const {
    if (options_.precision == DType::f32)
      static_cast<float*>(to)[i] = x;
    else
      static_cast<uint16_t*>(to)[i] = f32_to_bf16(x);
  }
  Hash128 digest(size_t unit, const void* params) const {
    return hash128(params, units_[unit].count * bytes_of(options_.precision));
  }
  void see(size_t unit, const void* params) { f_->seen[unit] = digest(unit, params); }
  void mix(Stream& stream, size_t unit, const void* params) const {
    for (size_t i = 0; i < kWidth; ++i)
      stream[i] += 0.1f * stream[(i + 1) % kWidth] * value(params, i * 37 % units_[unit].count);
  }
  void gradient(size_t unit, const void* params, void* grad) {
    const Stream& input = f_->inputs.back();
    for (size_t i = 0; i < units_[unit].count; ++i) {
      const float decay = params ? 0.01f * value(params, i) * f_->upstream[0] : 0;
      store(grad, i, f_->upstream[i % kWidth] * input[i * 3 % kWidth] + decay);
    }
  }

  BackendOptions options_;
  bool host_;
  std::vector<Unit> units_;
  std::vector<std::vector<double>> memory_;
  std::vector<Copy> copies_;  // in progress
  std::map<void*, size_t> pinned_;
  std::vector<Frame> frames_;
  Frame* f_ = nullptr;  // that of the present call
};

}  // namespace simplescale
