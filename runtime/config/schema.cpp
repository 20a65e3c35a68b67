#include "runtime/config/schema.hpp"

#include <algorithm>

#include "runtime/base/words.hpp"

namespace simplescale {
namespace {

constexpr const char* resume_names[] = {"auto", "never"};
constexpr const char* tokenizer_names[] = {"bpe"};
constexpr const char* format_names[] = {"auto", "text", "prepared", "nanogpt", "llmc"};
constexpr const char* precision_names[] = {"fp32", "bf16"};
constexpr const char* strategy_names[] = {"auto", "full_shard", "shard_grad_op", "hybrid_shard",
                                          "no_shard"};
constexpr const char* device_names[] = {"auto", "cpu", "cuda"};
constexpr const char* sweep_names[] = {"grid", "zip"};

template <class Enum>
schema::EnumRef named(Enum& value, std::span<const char* const> names) {
  static_assert(sizeof(Enum) == 1);
  return {reinterpret_cast<unsigned char*>(&value), names};
}

}  // namespace

const char* to_string(DataFormat format) {
  return format_names[static_cast<int>(format)];
}
const char* to_string(Strategy strategy) {
  return strategy_names[static_cast<int>(strategy)];
}
const char* to_string(DeviceKind device) {
  return device_names[static_cast<int>(device)];
}

const std::vector<std::string>& fault_kinds() {
  static const std::vector<std::string> kinds = {
      "kill_trainer", "stop_trainer",     "hang_trainer",     "segfault_trainer",   "oom_trainer",
      "kill_agent",   "stop_agent",       "kill_supervisor",  "partition_node",     "slow_node",
      "slow_link",    "lose_messages",    "corrupt_snapshot", "corrupt_checkpoint", "disk_full",
      "slow_disk",    "bitflip_gradient", "nan_loss"};
  return kinds;
}

namespace schema {
namespace {

constexpr Range any{};
constexpr Range not_negative{0};
constexpr Range positive{1};
constexpr Range above_zero{.min = 0, .above_min = true};
constexpr Range rule_or_more{-1};
constexpr Range milliseconds{1, 86'400'000};
constexpr Range fraction{.min = 0, .max = 1, .below_max = true};

#define REF(member) [](Config& c) -> Ref { return &c.member; }
#define ENUM(member, names) [](Config& c) -> Ref { return named(c.member, names); }
constexpr Matters run = Matters::always, layout = Matters::layout, no = Matters::never;

// clang-format off
const Key table[] = {
  {"run", "name", REF(run.name), any, no, "Letters, digits, '-', '_' and '.'; names processes, shared memory and folders. Empty: the file's name."},
  {"run", "folder", REF(run.folder), any, no, "Where logs, metrics and checkpoints go. Empty: runs/<name>."},
  {"run", "seed", REF(run.seed), not_negative, run, "Of the initial values and, unless data.seed is set, of the shuffle."},
  {"run", "resume", ENUM(run.resume, resume_names), any, no, "auto: go on from the newest valid checkpoint of the folder. never: refuse a folder that holds a run."},

  {"model", "preset", REF(model.preset), any, no, "A known shape: micro, mini, small, tinyllama, llama3-8b, llama2-7b. Keys below that are set win over it. Empty: all seven sizes must be set."},
  {"model", "dim", REF(model.dim), {0, 1e6}, run, "Width of the residual stream. 0: the preset's."},
  {"model", "hidden", REF(model.hidden), {0, 1e7}, run, "Width of the SwiGLU. 0: the preset's."},
  {"model", "layers", REF(model.layers), {0, 10'000}, run, "Transformer blocks. 0: the preset's."},
  {"model", "heads", REF(model.heads), {0, 1e6}, run, "Query heads; they divide dim. 0: the preset's."},
  {"model", "kv_heads", REF(model.kv_heads), {0, 1e6}, run, "Key/value heads; they divide heads. 0: the preset's."},
  {"model", "vocab", REF(model.vocab), {0, 2147483647}, run, "Token ids, as many as the tokenizer has. 0: the preset's."},
  {"model", "block_size", REF(model.block_size), {0, 1e6}, run, "Tokens of a sample. 0: the preset's."},
  {"model", "rope_theta", REF(model.rope_theta), not_negative, run, "Base of the rotary embedding. 0: the preset's, else 10000."},
  {"model", "norm_eps", REF(model.norm_eps), fraction, run, "Added to the mean square in RMSNorm. 0: the preset's, else 1e-5."},
  {"model", "tie_embeddings", REF(model.tie_embeddings), any, run, "One matrix for the embedding and the output."},

  {"tokenizer", "path", REF(tokenizer.path), any, run, "An existing SentencePiece tokenizer.model. Empty: one is trained."},
  {"tokenizer", "kind", ENUM(tokenizer.kind, tokenizer_names), any, run, "Byte-pair encoding with byte fallback, as Llama's."},
  {"tokenizer", "vocab", REF(tokenizer.vocab), {0, 2147483647}, run, "Pieces of the trained tokenizer. 0: model.vocab."},
  {"tokenizer", "train_on", REF(tokenizer.train_on), any, run, "Text to train it on. Empty: data.source."},

  {"data", "source", REF(data.source), any, run, "Text or tokens: a file, a folder, or \"debian:<package>\" (text that a Debian package brings)."},
  {"data", "folder", REF(data.folder), any, no, "Where prepared tokens lie. Empty: data/<run.name>."},
  {"data", "format", ENUM(data.format, format_names), any, run, "What source is. auto: found out from the file."},
  {"data", "validation_fraction", REF(data.validation_fraction), {.min = 0, .max = 0.5}, run, "Part of the tokens that is held back from training."},
  {"data", "shuffle", REF(data.shuffle), any, run, "Samples in a seeded random order, a new one each epoch."},
  {"data", "seed", REF(data.seed), rule_or_more, run, "Of the shuffle. -1: run.seed."},
  {"data", "ledger", REF(data.ledger), any, run, "Writes ledger.jsonl: which samples each committed step trained."},
  {"data", "ring_batches", REF(data.ring_batches), {1, 1024}, no, "Micro-batches held ready for each trainer in shared memory."},

  {"train", "max_tokens", REF(train.max_tokens), {0, 1e18}, run, "The run ends at the first of max_tokens, max_iters and max_steps that is set. 0: not set."},
  {"train", "max_iters", REF(train.max_iters), {0, 1e12}, run, "Micro-batches of one trainer. 0: not set."},
  {"train", "max_steps", REF(train.max_steps), {0, 1e12}, run, "Optimizer steps. 0: not set."},
  {"train", "micro_batch_size", REF(train.micro_batch_size), {1, 4096}, run, "Samples a trainer computes at once."},
  {"train", "global_batch_size", REF(train.global_batch_size), {0, 1e9}, run, "Samples of a step; a multiple of micro_batch_size x trainers. 0: exactly that, no accumulation."},
  {"train", "precision", ENUM(train.precision, precision_names), any, run, "Of products, activations and gathered parameters. Parameters, moments and sums are kept in fp32."},
  {"train", "learning_rate", REF(train.learning_rate), not_negative, run, "The peak, after warm-up; then a cosine down to min_learning_rate."},
  {"train", "min_learning_rate", REF(train.min_learning_rate), rule_or_more, run, "At the end of the run. -1: a tenth of learning_rate."},
  {"train", "warmup_iters", REF(train.warmup_iters), {-1, 1e12}, run, "Micro-batches of one trainer until the peak, rounded up to steps. -1: 5 % of the run, at most 2000 steps."},
  {"train", "weight_decay", REF(train.weight_decay), not_negative, run, "AdamW's, on matrices only."},
  {"train", "betas", REF(train.betas), fraction, run, "AdamW's: decay of the first and of the second moment."},
  {"train", "eps", REF(train.eps), above_zero, run, "AdamW's."},
  {"train", "grad_clip", REF(train.grad_clip), not_negative, run, "Largest global norm of the gradient. 0: no clipping."},
  {"train", "activation_checkpointing", REF(train.activation_checkpointing), any, no, "Keeps only the input of each block and computes the block again in backward: less memory, a third more work."},
  {"train", "deterministic", REF(train.deterministic), any, run, "The same bits on every layout."},
  {"train", "validation_samples", REF(train.validation_samples), not_negative, no, "Samples evaluated at the start and at the end of the run. 0: none."},
  {"train", "sample_prompt", REF(train.sample_prompt), any, no, "How the text begins that is generated at the end of the run."},
  {"train", "sample_tokens", REF(train.sample_tokens), {0, 1e6}, no, "Length of that text. 0: none is generated."},

  {"parallel", "strategy", ENUM(parallel.strategy, strategy_names), any, layout, "How a group shares the model. auto: the smallest group that fits memory, one group on up to eight nodes."},
  {"parallel", "group_nodes", REF(parallel.group_nodes), {0, 10'000}, layout, "Nodes that hold one copy together. 0: by strategy (hybrid_shard: 4; full_shard, shard_grad_op: all). no_shard ignores it."},
  {"parallel", "collective_timeout_ms", REF(parallel.collective_timeout_ms), milliseconds, no, "A collective whose ranks have not all come by then ends with an error."},

  {"cluster", "nodes", REF(cluster.nodes), {1, 10'000}, layout, "Nodes that train."},
  {"cluster", "trainers_per_node", REF(cluster.trainers_per_node), {1, 64}, layout, "Trainer processes of a node, one a device."},
  {"cluster", "spares", REF(cluster.spares), {0, 10'000}, no, "Idle nodes beyond those, to replace lost ones."},
  {"cluster", "min_groups", REF(cluster.min_groups), {1, 1e6}, no, "With fewer groups than this training waits instead of going on."},
  {"cluster", "device", ENUM(cluster.device, device_names), any, layout, "auto: cuda where there is a GPU."},
  {"cluster", "threads_per_trainer", REF(cluster.threads_per_trainer), {0, 4096}, no, "CPU threads of a trainer. 0: cores / trainers on the host."},
  {"cluster", "join_timeout_ms", REF(cluster.join_timeout_ms), milliseconds, no, "How long to wait for all nodes at the start."},
  {"cluster", "memory_per_trainer_gib", REF(cluster.memory_per_trainer_gib), not_negative, no, "Memory of a trainer's device. The model must fit it, and strategy auto sizes groups by it. 0: unknown."},
  {"cluster", "peak_flops", REF(cluster.peak_flops), not_negative, no, "Dense peak of one trainer's device in FLOP/s, for the MFU. 0: unknown, the MFU is left out."},

  {"checkpoint", "peer_every_steps", REF(checkpoint.peer_every_steps), not_negative, no, "So often every shard is copied to the memory of a node of another cell. 0: never."},
  {"checkpoint", "disk_every_steps", REF(checkpoint.disk_every_steps), not_negative, no, "Checkpoints on disk. 0: only when the run stops."},
  {"checkpoint", "keep", REF(checkpoint.keep), {1, 1'000'000}, no, "Newest checkpoints kept on disk."},
  {"checkpoint", "permanent_every_steps", REF(checkpoint.permanent_every_steps), not_negative, no, "Checkpoints of these steps are never removed. 0: none."},
  {"checkpoint", "folder", REF(checkpoint.folder), any, no, "Empty: <run folder>/checkpoints."},

  {"supervision", "heartbeat_ms", REF(supervision.heartbeat_ms), milliseconds, no, "Every node and trainer says this often that it lives."},
  {"supervision", "silence_ms", REF(supervision.silence_ms), milliseconds, no, "A node or trainer silent for so long is lost; one whose process runs, but gets no time, after three times as long."},
  {"supervision", "progress_timeout_ms", REF(supervision.progress_timeout_ms), milliseconds, no, "A trainer that lives but makes no progress for so long, and for 20 times its slowest recent step, is stuck."},
  {"supervision", "max_restarts", REF(supervision.max_restarts), not_negative, no, "More restarts than this within within_s escalate."},
  {"supervision", "within_s", REF(supervision.within_s), {1, 86'400}, no, "The sliding window of max_restarts."},
  {"supervision", "backoff_ms", REF(supervision.backoff_ms), {0, 86'400'000}, no, "Pause before the first restart; it doubles with each further one."},
  {"supervision", "backoff_max_ms", REF(supervision.backoff_max_ms), {0, 86'400'000}, no, "Longest such pause."},
  {"supervision", "shutdown_ms", REF(supervision.shutdown_ms), milliseconds, no, "Time for a process that was asked to stop, before it is killed."},
  {"supervision", "give_up_after_cycles", REF(supervision.give_up_after_cycles), positive, no, "Recoveries in a row without a new committed step, after which the run gives up."},
  {"supervision", "warm_processes", REF(supervision.warm_processes), {0, 64}, no, "Trainer processes of a node that are loaded and idle, to take at once the place of one that dies."},
  {"supervision", "log_rules", REF(supervision.log_rules), any, no, "A file like configs/log_rules.toml whose rules come before those."},
  {"supervision", "log_max_mib", REF(supervision.log_max_mib), {0, 1'000'000}, no, "A log file that has grown beyond this becomes FILE.1, in place of the one before. 0: nobody looks at the log files."},

  {"metrics", "every_steps", REF(metrics.every_steps), positive, no, "Steps between two lines on the terminal; metrics.jsonl has every step."},
  {"metrics", "tensorboard", REF(metrics.tensorboard), any, no, "Writes TensorBoard files to <run folder>/tb."},
  {"metrics", "wandb", REF(metrics.wandb), any, no, "Writes a Weights & Biases offline run to <run folder>/wandb."},
  {"metrics", "http_port", REF(metrics.http_port), {0, 65'535}, no, "Serves a page, status and Prometheus metrics there, from whoever is supervisor (control/http.json). 0: off."},
  {"metrics", "http_host", REF(metrics.http_host), any, no, "The address it listens on; 0.0.0.0: all, for everybody who can reach this host."},
  {"metrics", "health_every_ms", REF(metrics.health_every_ms), {0, 86'400'000}, no, "Every node tells its load, memory, disk, network and GPUs this often; health.jsonl gets one of them a minute. 0: never."},
  {"metrics", "trace_steps", REF(metrics.trace_steps), positive, no, "Steps whose traces are written to <run folder>/traces; `trace RUN` makes a file for ui.perfetto.dev of them. `trace` of the console chooses more."},
  {"metrics", "trace_recoveries", REF(metrics.trace_recoveries), any, no, "The same for every recovery, with a step before and after it; the newest 32 are kept."},
  {"metrics", "trace_events", REF(metrics.trace_events), {0, 10'000'000}, no, "So many of its newest events (128 bytes each) every process keeps in memory all the time, to write traces from. 0: none, and no traces."},

  {"slurm", "partition", REF(slurm.partition), any, no, "Where `submit` sends the job. Empty: Slurm's default."},
  {"slurm", "account", REF(slurm.account), any, no, "Who pays. Empty: the user's default."},
  {"slurm", "qos", REF(slurm.qos), any, no, "Quality of service. Empty: the default."},
  {"slurm", "tasks_per_node", REF(slurm.tasks_per_node), {0, 64}, no, "Nodes of ours on one host; more than one where hosts have several times trainers_per_node devices. 0: as many as each host has CPUs (cpus_per_task) and GPUs for."},
  {"slurm", "cpus_per_task", REF(slurm.cpus_per_task), {0, 4096}, no, "CPUs of a node of ours, bound as Slurm does. 0: whole hosts, unbound."},
  {"slurm", "gpus_per_node", REF(slurm.gpus_per_node), {-1, 64}, no, "GPUs of a host. -1: one a trainer if cluster.device is cuda, else none."},
  {"slurm", "time_minutes", REF(slurm.time_minutes), {0, 1e6}, no, "Time limit; the job saves before it and is requeued. 0: the partition's."},
  {"slurm", "save_before_end_s", REF(slurm.save_before_end_s), {1, 65'535}, no, "How long before the time limit it saves."},
  {"slurm", "max_requeues", REF(slurm.max_requeues), not_negative, no, "Of one job; also supervision.give_up_after_cycles in a row without a newer checkpoint end it."},
  {"slurm", "options", REF(slurm.options), any, no, "Further options of sbatch in their long form, separated by spaces: --reservation=x --mem=0."},

  {"sweep", "mode", ENUM(sweep.mode, sweep_names), any, no, "grid: every combination of the values. zip: the first values of all lists, then the second ones, and so on; lists are equally long."},
  {"sweep", "seeds", REF(sweep.seeds), not_negative, no, "Values of run.seed; each combination is trained with each. Empty: run.seed alone."},
  {"sweep", "keys", REF(sweep.keys), any, no, "Lists of values by key: { \"train.learning_rate\" = [1e-3, 3e-3] }, or [sweep.keys] with a line for each."},

  {"inject", "faults", REF(inject.faults), any, no, "Faults to cause: [{ step = 40, kind = \"kill_trainer\", target = \"n1.0\" }]."},
};
// clang-format on
#undef REF
#undef ENUM

/// Keys of earlier versions that have no effect any more.
constexpr std::string_view retired[] = {"checkpoint.memory_every_steps"};

}  // namespace

std::span<const Key> keys() {
  return table;
}

const Key* find(const std::string& section, const std::string& name) {
  for (const Key& key : table)
    if (section == key.section && name == key.name) return &key;
  return nullptr;
}

bool is_retired(const std::string& full_name) {
  return std::ranges::find(retired, full_name) != std::end(retired);
}

const Key* find(const std::string& full_name) {
  const size_t dot = full_name.find('.');
  if (dot == std::string::npos) return nullptr;
  return find(full_name.substr(0, dot), full_name.substr(dot + 1));
}

const char* section_comment(const std::string& section) {
  if (section == "run") return "The run as a whole.";
  if (section == "model") return "The Llama model's shape.";
  if (section == "tokenizer") return "Text to tokens.";
  if (section == "data") return "What is trained on.";
  if (section == "train") return "Batch, schedule and optimizer.";
  if (section == "parallel") return "How the model is shared among trainers.";
  if (section == "cluster") return "The machines.";
  if (section == "checkpoint") return "Snapshots and checkpoints.";
  if (section == "supervision") return "When something counts as failed, and what is tried.";
  if (section == "metrics") return "What is reported.";
  if (section == "slurm") return "What `submit` asks of Slurm.";
  if (section == "sweep")
    return "What `sweep` varies; each combination is a run. `train` ignores it.";
  return "Faults on purpose, to see how the run survives them.";
}

std::string nearest_key(const std::string& section, const std::string& name) {
  std::string nearest;
  size_t distance = std::string::npos;
  for (const Key& key : table) {
    const size_t d = 2 * edit_distance(name, key.name) + edit_distance(section, key.section);
    if (d >= distance) continue;
    distance = d;
    nearest = key.full_name();
  }
  return nearest;
}

}  // namespace schema
}  // namespace simplescale
