// The configuration as plain data: every key is a member with its default. Meaning, type and limits
// of a key are in schema.cpp. Immutable after loading, so any thread may read it.
//
//   SS_ASSIGN(auto loaded, load_config("configs/quickstart.toml", {"--train.max_steps=20"}));
//   SS_ASSIGN(auto plan, make_plan(loaded.config));  // runtime/config/topology.hpp
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/dtype.hpp"
#include "runtime/base/instruction_set.hpp"
#include "runtime/base/status.hpp"
#include "runtime/training/learning_rate.hpp"
#include "runtime/training/model_shape.hpp"
#include "runtime/training/muon_plan.hpp"
#include "runtime/training/parameter_groups.hpp"
#include "runtime/training/recompute.hpp"

namespace simplescale {

enum class Resume : unsigned char { automatic, never };
// automatic: as set_token_folders() of app/launch/prepare_data.hpp says.
enum class TokenizerKind : unsigned char { automatic, bpe, byte_bpe };
enum class DataFormat : unsigned char {
  automatic,
  text,
  prepared,
  nanogpt,
  llmc,
  megatron,
  litgpt
};
/// How documents become samples: cut wherever a sample ends, or whole (runtime/data/packing.hpp).
enum class Pack : unsigned char { concat, best_fit };
enum class Strategy : unsigned char {
  automatic,
  full_shard,
  shard_grad_op,
  hybrid_shard,
  no_shard
};
/// What a GPU keeps in host memory: the state of the optimizer, the inputs of blocks.
enum class Offload : unsigned char { automatic, none, optimizer, activations, all };
/// Whether experts are gathered as other parameters are, or stay and tokens are sent to them.
enum class ExpertPlacement : unsigned char { automatic, gathered, resident };
enum class DeviceKind : unsigned char { automatic, cpu, cuda };
enum class Balance : unsigned char { automatic, even };
enum class Prefer : unsigned char { replicas, rate, group_nodes };
enum class SweepMode : unsigned char { grid, zip };
// automatic: from the preset, else the first of the others.
enum class Choice : unsigned char { automatic, no, yes };
enum class QkNormChoice : unsigned char { automatic, none, head, whole };
enum class NormChoice : unsigned char { automatic, pre, post };
enum class RouterScoreChoice : unsigned char { automatic, softmax, sigmoid };
enum class RopeScalingChoice : unsigned char { automatic, none, linear, llama3, yarn, dynamic };
/// The name in a config file: "auto", "full_shard", ...
const char* to_string(DataFormat format);
const char* to_string(Strategy strategy);
const char* to_string(DeviceKind device);
const char* to_string(Offload offload);
const char* to_string(ExpertPlacement experts);

struct RunConfig {
  std::string name;    // empty: the file's name without .toml
  std::string folder;  // empty: runs/<name>; see run_folder()
  int64_t seed = 1337;
  std::string from;  // a run, checkpoint or Hugging Face folder; empty: random weights
  bool with_optimizer = false;
  Resume resume = Resume::automatic;
  std::string change_numerics;  // fields of the signature that this start may change: "a.b,c.d"
  bool trust_folder = false;    // other users may own or write checkpoint.folder and data.folder
};

struct ModelConfig {  // 0 or automatic: from the preset; see model_shape()
  std::string preset;
  int64_t dim = 0, hidden = 0, layers = 0, heads = 0, kv_heads = 0, vocab = 0, block_size = 0;
  double rope_theta = 0, norm_eps = 0;
  Choice tie_embeddings = Choice::automatic;
  int64_t head_dim = 0;
  Choice qkv_bias = Choice::automatic;
  QkNormChoice qk_norm = QkNormChoice::automatic;
  NormChoice norm = NormChoice::automatic;
  int64_t sliding_window = -1;  // -1: from the preset
  RopeScalingChoice rope_scaling = RopeScalingChoice::automatic;
  double rope_factor = 0, rope_low_factor = 0, rope_high_factor = 0;
  int64_t rope_original_block_size = 0;
  double rope_attention_factor = 0;
  // -1: from the preset.
  int64_t experts = -1, experts_per_token = 0, expert_hidden = 0;
  int64_t shared_experts = -1, dense_layers = -1;
  RouterScoreChoice router_score = RouterScoreChoice::automatic;
  Choice router_normalize = Choice::automatic, router_bias = Choice::automatic;
  double router_scale = 0;
  int64_t router_groups = 0, router_groups_per_token = 0;
};

struct TokenizerConfig {
  std::string path;  // an existing tokenizer; empty: train one
  TokenizerKind kind = TokenizerKind::automatic;
  int64_t vocab = 0;     // 0: the model's
  std::string train_on;  // empty: data.source
  Choice append_eos = Choice::automatic;
};

/// One source of a mixture (docs/data.md).
struct BlendSource {
  std::string name;
  std::string source;            // as data.source
  std::optional<double> weight;  // none: only stages that name the source use it
  std::string folder;            // prepared tokens; empty: <data folder>/<name>
  // As the keys of data; none: those.
  std::optional<std::string> text_key = {}, loss_mask_key = {};
  std::optional<DataFormat> format = {};
  std::optional<int64_t> token_bytes = {};
  bool operator==(const BlendSource&) const = default;
};

/// From a token of the run on, other weights.
struct BlendStage {
  int64_t from_tokens = 0;
  std::vector<std::pair<std::string, double>> weights;  // by the names of sources
  bool operator==(const BlendStage&) const = default;
};

/// A step has this batch as long as the run has trained fewer than until_tokens tokens before it.
struct BatchStage {
  int64_t until_tokens = 0;
  int64_t global_batch_size = 0;  // samples per step
  bool operator==(const BatchStage&) const = default;
};

struct DataConfig {
  std::string source;              // file, folder, or "debian:<package>"
  std::vector<BlendSource> blend;  // instead of source
  std::vector<BlendStage> stage;   // of the blend
  std::string folder;              // prepared tokens; empty: data/<run.name>; see data_folder()
  DataFormat format = DataFormat::automatic;
  int64_t token_bytes = 0;        // of an id in .bin files without a header: 2 or 4; 0: not said
  std::string text_key = "text";  // member of a JSON line that holds its text
  std::string loss_mask_key;      // member of a JSON line with the ranges that do not count
  int64_t skip_bad = 0;           // lines and files of text that cannot be read and are left out
  double validation_fraction = 0.01;
  Pack pack = Pack::concat;
  bool shuffle = true;
  int64_t seed = -1;                               // of the shuffle; -1: run.seed; see data_seed()
  bool document_mask = false;                      // tokens see tokens of their document only
  bool document_boundary_loss = true;              // predict the token behind a document's end
  int64_t document_begin = -1, document_end = -1;  // token ids; both -1: by tokenizer or index
  bool ledger = true;
  std::string skip_samples;  // left out of training (skipped_samples.hpp)
  int64_t ring_batches = 8;  // micro-batches queued for each trainer
  std::string cache_folder;  // of what is read from a bucket; empty: /var/tmp
  double cache_gb = 16;      // its bound, of each host
};

struct TrainConfig {
  int64_t max_tokens = 0, max_iters = 0, max_steps = 0;  // 0: no limit; the first one ends the run
  int64_t micro_batch_size = 8;                          // samples
  int64_t global_batch_size = 0;  // samples per step; 0: micro_batch_size x world
  std::vector<BatchStage> batch_warmup;
  DType precision = DType::bf16;
  bool fp8 = false;
  double learning_rate = 4e-4;
  double min_learning_rate = -1;  // -1: a tenth of learning_rate
  Schedule schedule = Schedule::cosine;
  int64_t decay_steps = -1;    // -1: wsd: a tenth of the run; else all steps after the warm-up
  double decay_power = 2;      // polynomial
  int64_t warmup_iters = -1;   // micro-batches per trainer; all three -1: 5 % of the run, at most
  int64_t warmup_steps = -1;   // 2000 steps
  int64_t warmup_tokens = -1;  // of a whole step
  double weight_decay = 0.1;
  std::array<double, 2> betas = {0.9, 0.95};
  double eps = 1e-8;
  Optimizer optimizer = Optimizer::adamw;
  double muon_momentum = 0.95;
  DType moments_precision = DType::f32;
  double ema_decay = 0;               // 0: no average of the weights
  std::vector<ParameterGroup> group;  // other learning rates and decays, by parameter
  double z_loss = 0;                  // coefficient; 0: none
  // Of models with experts: coefficients of the routers' losses, and how far a bias moves in a step.
  double router_z_loss = 0, router_balance_loss = 0, router_bias_rate = 0.001;
  double grad_clip = 1.0;  // global norm; 0: none
  Recompute activation_checkpointing = Recompute::nothing;
  bool deterministic = true;
  int64_t validation_samples = 64;          // of each validation; 0: none
  int64_t validation_every_steps = 0;       // 0: only at the start and at the end
  std::vector<int64_t> validation_lengths;  // shorter samples to validate with, too; tokens
  std::string tasks;              // file of questions that the model is scored by; or empty
  int64_t tasks_every_steps = 0;  // 0: only at the start and at the end
  std::string sample_prompt;      // of the text generated at the end of the run
  int64_t sample_tokens = 64;     // length of that text; 0: none
};

struct ParallelConfig {
  Strategy strategy = Strategy::automatic;
  int64_t group_nodes = 0;  // 0: by strategy
  int64_t wave = 0;         // 0: auto
  Offload offload = Offload::automatic;
  ExpertPlacement experts = ExpertPlacement::automatic;
  int64_t collective_timeout_ms = 60'000;
};

struct ClusterConfig {
  int64_t nodes = 1, trainers_per_node = 1;
  int64_t spares = 0;     // idle nodes beyond `nodes`
  int64_t max_nodes = 0;  // 0: nodes + spares; see most_nodes()
  int64_t min_groups = 1;
  Prefer prefer = Prefer::replicas;  // among the shapes of a generation
  DeviceKind device = DeviceKind::automatic;
  InstructionSet instructions = InstructionSet::automatic;  // of CPU trainers
  Balance balance = Balance::automatic;                     // how micro-batches are shared
  int64_t threads_per_trainer = 0;  // 0: by the host's cores; see threads_per_trainer()
  int64_t join_timeout_ms = 120'000;
  double memory_per_trainer_gib = 0;  // 0: unknown
  double peak_flops = 0;              // of one trainer's device, dense, FLOP/s; 0: unknown
};

struct CheckpointConfig {
  int64_t memory_every_steps = 1;     // GPUs: copies of the state in host memory; 0: on demand
  int64_t peer_every_steps = -1;      // 0: never; -1: by the layout; see peer_every_steps()
  int64_t disk_every_steps = 100;     // 0: only at the end
  int64_t keep = 3;                   // newest checkpoints kept on disk
  int64_t keep_best = 0;              // and those with the lowest validation loss
  int64_t permanent_every_steps = 0;  // multiples of it are never removed; 0: none
  std::string folder;                 // empty: <run folder>/checkpoints; see checkpoint_folder()
  std::string upload;                 // s3://BUCKET/PREFIX for copies of them; empty: none
  int64_t upload_mib_per_s = 0;       // 0: no limit
};

struct SupervisionConfig {
  int64_t heartbeat_ms = 100;
  int64_t silence_ms = 1'000;
  int64_t progress_timeout_ms = 120'000;
  int64_t max_restarts = 3, within_s = 60;
  int64_t backoff_ms = 100, backoff_max_ms = 10'000;  // first and longest delay of a restart
  int64_t shutdown_ms = 10'000;                       // from asking a process to stop to killing it
  int64_t give_up_after_cycles = 5;
  int64_t warm_processes = 1;  // idle trainer processes per node, ready to replace one that dies
  bool warm_context = false;   // and with a context on each GPU of the node
  std::string log_rules;       // file with rules that precede the built-in ones; or empty
  int64_t log_max_mib = 64;    // larger log files are rotated; 0: neither read nor rotated
  std::string notify;          // command or URL that is told of incidents; or empty
};

struct TransportConfig {
  std::string trusted_networks;  // "ib0, 10.1.0.0/16"; see parse_trusted_networks()
};

struct MetricsConfig {
  int64_t every_steps = 1;
  bool iterations = false;  // lines on the terminal count micro-batches, as the paper's log
  bool tensorboard = false, wandb = false;
  std::string wandb_project = "simplescale", wandb_entity, wandb_tags;  // tags: "a, b"
  int64_t http_port = 0;                                                // 0: off
  std::string http_host = "127.0.0.1";
  int64_t health_every_ms = 1'000;
  std::vector<int64_t> trace_steps;
  bool trace_recoveries = true;
  int64_t trace_events = 16'384;  // per process, kept in memory; 0: none
};

struct SlurmConfig {  // for `submit`; Slurm's task is a node of the run, Slurm's node a host
  std::string partition, account, qos;
  int64_t tasks_per_node = 1;       // nodes of the run per host; 0: as many as fit
  int64_t cpus_per_task = 0;        // 0: whole hosts
  int64_t gpus_per_node = -1;       // -1: one per trainer if cluster.device is cuda
  int64_t time_minutes = 0;         // 0: the partition's limit
  int64_t save_before_end_s = 120;  // before the time limit
  int64_t max_requeues = 100;
  std::string options;  // further options of sbatch: "--reservation=x --mem=0"
};

struct SweepAxis {
  std::string key;                  // "train.learning_rate"
  std::vector<std::string> values;  // in TOML syntax
  bool operator==(const SweepAxis&) const = default;
};

struct SweepConfig {  // for `sweep`; see runtime/config/sweep.hpp
  SweepMode mode = SweepMode::grid;
  std::vector<int64_t> seeds;   // for each combination; empty: run.seed
  std::vector<SweepAxis> keys;  // ordered by name
};

struct FaultSpec {
  int64_t step = 0;
  std::string kind;    // one of fault_kinds()
  std::string target;  // "n1", "n1.0", "g0", "supervisor"
  bool operator==(const FaultSpec&) const = default;
};

struct InjectConfig {
  std::vector<FaultSpec> faults;
};

struct Config {
  RunConfig run;
  ModelConfig model;
  TokenizerConfig tokenizer;
  DataConfig data;
  TrainConfig train;
  ParallelConfig parallel;
  ClusterConfig cluster;
  CheckpointConfig checkpoint;
  SupervisionConfig supervision;
  TransportConfig transport;
  MetricsConfig metrics;
  SlurmConfig slurm;
  SweepConfig sweep;
  InjectConfig inject;
};

/// All kinds of faults that can be injected.
const std::vector<std::string>& fault_kinds();

struct LoadedConfig {
  Config config;
  std::string file;
  /// Origin of every key: "train.max_steps" -> "default", "configs/quickstart.toml:12" or
  /// "command line".
  std::map<std::string, std::string> origin;
  /// What users should know of keys that they have set: which lost against others. Whole sentences.
  std::vector<std::string> notes;
};

/// Keys given on the command line: "--section.key=value".
using Overrides = std::vector<std::string>;

/// Reads the files that a TOML file inherits (`base`, relative to the file), then the file, then
/// the overrides ("--section.key=value"; the dashes are optional). The last value of a key counts.
/// Errors: bad_config, one line with file and line number; io: a file cannot be read now. Checks
/// every value, and those combinations that need no plan; make_plan() checks the rest.
Result<LoadedConfig> load_config(const std::string& path, const Overrides& overrides = {});
/// The same from text; `file` names it in messages and is what `base` is relative to.
Result<LoadedConfig> load_config_text(const std::string& text, const std::string& file,
                                      const Overrides& overrides = {});

/// A config without its wrong values, and all that is wrong.
struct CheckedConfig {
  LoadedConfig loaded;
  std::vector<Status> problems;  // each as load_config() would return it
  bool complete = true;          // false: a file cannot be read or is no TOML; keys are missing
};
/// For files that users write: relative paths in a file are relative to the file's folder. (Those
/// on the command line, and those in a run's config.toml, which load_config() reads, are relative
/// to the working directory.)
CheckedConfig check_user_config(const std::string& path, const Overrides& overrides = {});
/// The same; returns the first problem, if any.
Result<LoadedConfig> load_user_config(const std::string& path, const Overrides& overrides = {});
/// Makes the paths that are set absolute.
void make_paths_absolute(Config& config);

/// Every key of the config as a TOML file. load_config() reads it back to an equal Config. Paths may
/// hold any bytes (path_as_text()).
std::string to_toml(const Config& config);

/// The configuration with one value for all that mean the same: rules are replaced by what they give,
/// paths are absolute.
Config comparable(const Config& config);

struct KeyDifference {
  std::string key, was, now;  // values in TOML syntax
};
struct ConfigDifference {
  /// What makes `b` a different training run from `a`: model, tokenizer, data and its ledger,
  /// batch, precision, seeds. Values that stand for a rule are compared by what the rule gives. The
  /// layout (parallel, cluster) counts only without train.deterministic.
  std::vector<KeyDifference> defining;
  /// What a run may change when it is started again: its length, learning rate and optimizer,
  /// layout, checkpoints, supervision, reporting; and the places of its data, tokenizer and parent,
  /// if they hold the same (app/launch/manifest.hpp compares them).
  std::vector<KeyDifference> allowed;
};
ConfigDifference diff(const Config& a, const Config& b);
/// What became of the schedule of a run at `step`, as one sentence for users: "the learning rate's
/// cosine, planned to end at step 900, now ends at step 950: ...". "" if it is the same. changes:
/// the rates that users have set during the run; they hold until train.learning_rate changes.
std::string schedule_change(const Config& before, const Config& now, int64_t step,
                            const std::vector<RateChange>& changes = {});

/// The preset's shape, overridden by explicit keys, and validated. bad_config: unknown preset,
/// missing key, impossible shape.
Result<ModelShape> model_shape(const Config& config);
const std::vector<std::string>& model_presets();
/// The keys that give this shape, with the name of a preset: model_shape() backwards.
ModelConfig model_config(const ModelShape& shape, const std::string& preset);

/// The configuration of a source alone: data.source is the source, data.blend and data.stage are
/// empty, and the keys of data that the source has itself are set. Folders are left as they are.
Config config_of(const Config& config, const BlendSource& source);

/// Values of keys that default to a rule:
std::string run_folder(const Config& config);
std::string data_folder(const Config& config);
std::string checkpoint_folder(const Config& config);
uint64_t data_seed(const Config& config);
/// At least 1. cores: of this host; trainers: started on this host.
int threads_per_trainer(const Config& config, int cores, int trainers);

}  // namespace simplescale
