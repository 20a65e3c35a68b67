#include "runtime/config/schema.hpp"

#include <algorithm>

#include "runtime/base/words.hpp"

namespace simplescale {
namespace {

constexpr const char* resume_names[] = {"auto", "never"};
constexpr const char* tokenizer_names[] = {"auto", "bpe", "byte_bpe"};
constexpr const char* format_names[] = {"auto", "text",     "prepared", "nanogpt",
                                        "llmc", "megatron", "litgpt"};
constexpr const char* precision_names[] = {"fp32", "bf16"};
constexpr const char* strategy_names[] = {"auto", "full_shard", "shard_grad_op", "hybrid_shard",
                                          "no_shard"};
constexpr const char* schedule_names[] = {"cosine", "linear", "polynomial", "wsd", "constant"};
constexpr const char* optimizer_names[] = {"adamw", "muon"};
constexpr const char* recompute_names[] = {"false", "true", "mlp"};
constexpr const char* device_names[] = {"auto", "cpu", "cuda"};
constexpr const char* prefer_names[] = {"replicas", "rate", "group_nodes"};
constexpr const char* offload_names[] = {"auto", "none", "optimizer", "activations", "all"};
constexpr const char* experts_names[] = {"auto", "gathered", "resident"};
constexpr const char* balance_names[] = {"auto", "even"};
constexpr const char* pack_names[] = {"concat", "best_fit"};
constexpr const char* sweep_names[] = {"grid", "zip"};
constexpr const char* choice_names[] = {"auto", "false", "true"};
constexpr const char* qk_norm_names[] = {"auto", "none", "head", "whole"};
constexpr const char* norm_names[] = {"auto", "pre", "post"};
constexpr const char* router_names[] = {"auto", "softmax", "sigmoid"};
constexpr const char* rope_names[] = {"auto", "none", "linear", "llama3", "yarn", "dynamic"};

template <class Enum>
schema::EnumRef named(Enum& value, std::span<const char* const> names) {
  static_assert(sizeof(Enum) == 1);
  return {reinterpret_cast<unsigned char*>(&value), names};
}

}  // namespace

schema::EnumRef schema::format_of(DataFormat& format) {
  return named(format, format_names);
}

const char* to_string(DataFormat format) {
  return format_names[static_cast<int>(format)];
}
const char* to_string(Strategy strategy) {
  return strategy_names[static_cast<int>(strategy)];
}
const char* to_string(DeviceKind device) {
  return device_names[static_cast<int>(device)];
}

const char* to_string(Offload offload) {
  return offload_names[static_cast<int>(offload)];
}

const char* to_string(ExpertPlacement experts) {
  return experts_names[static_cast<int>(experts)];
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
constexpr Range rule_or_more{-1};
constexpr Range milliseconds{1, 86'400'000};
constexpr Range fraction{.min = 0, .max = 1, .below_max = true};

#define REF(member) [](Config& c) -> Ref { return &c.member; }
#define ENUM(member, names) [](Config& c) -> Ref { return named(c.member, names); }
constexpr Matters run = Matters::always, layout = Matters::layout, bits = Matters::numerics,
                  recipe = Matters::recipe, place = Matters::place, no = Matters::never;

// clang-format off
const Key table[] = {
  {"run", "name", REF(run.name), any, no, "Letters, digits, '-', '_' and '.'. Part of the names of processes, shared memory and folders. Empty: the file's name."},
  {"run", "folder", REF(run.folder), any, no, "Folder for logs, metrics and checkpoints. Empty: runs/<name>.", true},
  {"run", "seed", REF(run.seed), not_negative, run, "Seed of the initial parameters, of the tokenizer and, unless data.seed is set, of the shuffle."},
  {"run", "from", REF(run.from), any, place, "Begin with the weights of this run (its newest checkpoint), checkpoint, Hugging Face folder, or s3://BUCKET/PREFIX. Empty: begin with random weights.", true},
  {"run", "with_optimizer", REF(run.with_optimizer), any, run, "With run.from: also take the optimizer's moments and the step, so that the schedule goes on."},
  {"run", "resume", ENUM(run.resume, resume_names), any, no, "auto: continue from the newest valid checkpoint of the folder. never: refuse a folder that holds a run."},
  {"run", "change_numerics", REF(run.change_numerics), any, no, "Fields of the numerics signature, separated by commas, that may change when this run is started again, although the bits of its steps then do (docs/guarantees.md#signature-1). --change-numerics sets it, for one start."},
  {"run", "trust_folder", REF(run.trust_folder), any, no, "Write to checkpoint.folder and data.folder also if another user owns them or may write them. --trust-folder sets it."},

  {"model", "preset", REF(model.preset), any, no, "A known shape, such as micro, mini, small, tinyllama, llama-3.2-1b, qwen3-0.6b (all: docs/models.md). Keys below override it. Empty: all seven sizes must be set."},
  {"model", "dim", REF(model.dim), {0, 1e6}, run, "Width of the residual stream. 0: from the preset."},
  {"model", "hidden", REF(model.hidden), {0, 1e7}, run, "Width of the SwiGLU. 0: from the preset."},
  {"model", "layers", REF(model.layers), {0, 10'000}, run, "Number of transformer blocks. 0: from the preset."},
  {"model", "heads", REF(model.heads), {0, 1e6}, run, "Number of query heads; must divide dim unless head_dim is set. 0: from the preset."},
  {"model", "kv_heads", REF(model.kv_heads), {0, 1e6}, run, "Number of key/value heads; must divide heads. 0: from the preset."},
  {"model", "vocab", REF(model.vocab), {0, 536'870'911}, run, "Number of token ids; at least the tokenizer's. 0: from the preset."},
  {"model", "block_size", REF(model.block_size), {0, 1e6}, run, "Sequence length: tokens per sample. 0: from the preset."},
  {"model", "rope_theta", REF(model.rope_theta), not_negative, run, "Base of the rotary embedding. 0: from the preset, else 10000."},
  {"model", "norm_eps", REF(model.norm_eps), fraction, run, "Epsilon of RMSNorm, added to the mean square. 0: from the preset, else 1e-5."},
  {"model", "tie_embeddings", ENUM(model.tie_embeddings, choice_names), any, run, "Use one matrix for the input embedding and the output projection. auto: as the preset, else false."},
  {"model", "head_dim", REF(model.head_dim), {0, 1e6}, run, "Elements of a head; even. 0: from the preset, else dim / heads."},
  {"model", "qkv_bias", ENUM(model.qkv_bias, choice_names), any, run, "Add biases to queries, keys and values, as Qwen2 does. auto: as the preset, else false."},
  {"model", "qk_norm", ENUM(model.qk_norm, qk_norm_names), any, run, "RMSNorm of queries and keys before RoPE: head: of each head by itself (Qwen3); whole: of all heads of a token as one row (OLMo2). auto: as the preset, else none."},
  {"model", "norm", ENUM(model.norm, norm_names), any, run, "Where the norms of a block are: pre: before attention and MLP (Llama); post: after them (OLMo2). auto: as the preset, else pre."},
  {"model", "sliding_window", REF(model.sliding_window), {-1, 1e6}, run, "Tokens that a token attends to: itself and those just before it. 0: all tokens before it. -1: as the preset, else 0."},
  {"model", "rope_scaling", ENUM(model.rope_scaling, rope_names), any, run, "How RoPE is stretched for long contexts: linear: all frequencies are divided by rope_factor; llama3, yarn: only the low ones. dynamic is refused. auto: as the preset, else none."},
  {"model", "rope_factor", REF(model.rope_factor), {0, 1e6}, run, "With rope_scaling: at least 1. 0: from the preset, else 8."},
  {"model", "rope_low_factor", REF(model.rope_low_factor), {0, 1e6}, run, "With rope_scaling = llama3 or yarn: waves longer than rope_original_block_size / rope_low_factor are divided by rope_factor. 0: from the preset, else 1."},
  {"model", "rope_high_factor", REF(model.rope_high_factor), {0, 1e6}, run, "With rope_scaling = llama3 or yarn: waves shorter than rope_original_block_size / rope_high_factor stay as they are. 0: from the preset, else 4, or 32 with yarn."},
  {"model", "rope_original_block_size", REF(model.rope_original_block_size), {0, 1e9}, run, "With rope_scaling = llama3 or yarn: the sequence length before it was stretched. 0: from the preset, else 8192."},
  {"model", "rope_attention_factor", REF(model.rope_attention_factor), {0, 1e6}, run, "With rope_scaling = yarn: what cosines and sines are multiplied with, attention_factor of transformers. 0: 0.1 ln(rope_factor) + 1."},
  {"model", "experts", REF(model.experts), {-1, 65'536}, run, "Experts of a block, of which each token passes experts_per_token, instead of an MLP. 0: none. -1: as the preset, else 0. They need cluster.device = cpu, and no train.fp8 (docs/models.md#experts)."},
  {"model", "experts_per_token", REF(model.experts_per_token), {0, 65'536}, run, "Experts that each token passes. 0: from the preset, else 2."},
  {"model", "expert_hidden", REF(model.expert_hidden), {0, 1e7}, run, "Width of an expert's SwiGLU. 0: from the preset, else model.hidden."},
  {"model", "shared_experts", REF(model.shared_experts), {-1, 65'536}, run, "Experts that every token passes besides, as one SwiGLU of width shared_experts * expert_hidden. -1: as the preset, else 0."},
  {"model", "dense_layers", REF(model.dense_layers), {-1, 10'000}, run, "The first so many blocks have an MLP of width model.hidden instead of experts. -1: as the preset, else 0."},
  {"model", "router_score", ENUM(model.router_score, router_names), any, run, "What makes a token's weights of experts out of the router's logits: softmax: over all experts (Mixtral, Qwen3, OLMoE); sigmoid: of each logit (DeepSeek-V3). auto: as the preset, else softmax."},
  {"model", "router_normalize", ENUM(model.router_normalize, choice_names), any, run, "Divide the weights of a token's experts by their sum. auto: as the preset, else true."},
  {"model", "router_scale", REF(model.router_scale), {0, 1e6}, run, "What these weights are multiplied with. 0: from the preset, else 1."},
  {"model", "router_bias", ENUM(model.router_bias, choice_names), any, run, "Choose experts by score plus a bias, which is not a gradient's but moves against their load (train.router_bias_rate), and weight them by score alone, as DeepSeek-V3 does. auto: as the preset, else false."},
  {"model", "router_groups", REF(model.router_groups), {0, 65'536}, run, "Groups of experts that follow each other; must divide experts. 0: from the preset, else 1."},
  {"model", "router_groups_per_token", REF(model.router_groups_per_token), {0, 65'536}, run, "Groups that a token's experts may be in: those with the largest score (softmax), or with the largest sum of two scores (sigmoid). 0: from the preset, else 1."},

  {"tokenizer", "path", REF(tokenizer.path), any, place, "An existing tokenizer: a SentencePiece tokenizer.model, a tokenizer.json of Hugging Face, or a folder with one. Empty: train a tokenizer.", true},
  {"tokenizer", "kind", ENUM(tokenizer.kind, tokenizer_names), any, run, "What to train. bpe: a SentencePiece model with byte fallback, as in Llama 2. byte_bpe: a tokenizer.json with byte-level BPE, as in Llama 3, which encodes ten times as fast. auto: as the run or the text's prepared folder has it, if there is one; else byte_bpe (docs/tokenizers.md#which-one)."},
  {"tokenizer", "vocab", REF(tokenizer.vocab), {0, 536'870'911}, run, "Vocabulary size of the trained tokenizer. 0: model.vocab."},
  {"tokenizer", "train_on", REF(tokenizer.train_on), any, place, "Text to train the tokenizer on. Empty: data.source, or the texts of the blend.", true},
  {"tokenizer", "append_eos", ENUM(tokenizer.append_eos, choice_names), any, no, "Prepared documents end with the tokenizer's EOS. auto: if it has one that is not its BOS; tokens that were prepared before stay as they are. true: refuse a tokenizer without one, and prepare such tokens again."},

  {"data", "source", REF(data.source), any, place, "Text (.txt, .jsonl; also .gz, .zst, .xz) or tokens (.bin): a file, a folder, the prefix of Megatron files, s3://BUCKET/KEY of one of these, or \"debian:<package>\" (text from an installed Debian package).", true},
  {"data", "blend", REF(data.blend), any, recipe, "Sources to mix instead of source: [[data.blend]] with name, source, weight (its share of the samples) and, if wanted, folder (of its prepared tokens) and its own format, text_key and loss_mask_key. A source without weight is used by the stages that name it (docs/data.md).", true},
  {"data", "stage", REF(data.stage), any, recipe, "Other weights later in the run: [[data.stage]] with from_tokens (rounded up to whole samples) and weights = { NAME = WEIGHT }; sources that it does not name rest."},
  {"data", "folder", REF(data.folder), any, no, "Folder for the prepared tokens. Empty: data/<run.name>, or data/<run.name>-<hash> if that one holds other tokens.", true},
  {"data", "format", ENUM(data.format, format_names), any, run, "Format of source. auto: detect it from the files."},
  {"data", "token_bytes", REF(data.token_bytes), {0, 4}, run, "Bytes of an id in .bin files that have no header and no index: 2 or 4. 0: not said: they are read as u16 tokens if nothing in them or in the vocabulary contradicts."},
  {"data", "text_key", REF(data.text_key), any, run, "Member that holds the text in each line of a .jsonl file."},
  {"data", "loss_mask_key", REF(data.loss_mask_key), any, run, "Member of each line of a .jsonl file with the ranges of its text whose tokens do not count in the loss: [[begin, end], ...] in characters (docs/data.md#loss-masks). Empty: all count."},
  {"data", "skip_bad", REF(data.skip_bad), not_negative, no, "Bad lines of text to leave out: broken JSON, no text, not UTF-8, a bad loss mask, too long. One more ends the preparation."},
  {"data", "validation_fraction", REF(data.validation_fraction), {.min = 0, .max = 0.5}, run, "Fraction of the tokens kept for validation; training never sees them."},
  {"data", "pack", ENUM(data.pack, pack_names), any, run, "How documents become samples. concat: one after the other, cut wherever a sample ends. best_fit: whole, several in a sample, with padding that does not count in the loss; only a document longer than a sample is cut (docs/data.md#packing)."},
  {"data", "shuffle", REF(data.shuffle), any, run, "Read the samples in a seeded random order, a new order every epoch."},
  {"data", "seed", REF(data.seed), rule_or_more, run, "Seed of the shuffle. -1: run.seed."},
  {"data", "document_mask", REF(data.document_mask), any, bits, "Tokens attend to tokens of their own document only (docs/data.md#documents)."},
  {"data", "document_boundary_loss", REF(data.document_boundary_loss), any, bits, "Train to predict the token behind the end of a document from that document (docs/data.md#documents). false: the loss does not count these targets; it is the mean over the others of the global batch."},
  {"data", "document_begin", REF(data.document_begin), {-1, 536'870'911}, run, "Id of the token that begins every document (BOS). -1: none; with document_end = -1, too: the tokenizer's BOS, or what a Megatron index says."},
  {"data", "document_end", REF(data.document_end), {-1, 536'870'911}, run, "Id of the token that ends every document (EOD, <|endoftext|>). -1: none."},
  {"data", "ledger", REF(data.ledger), any, run, "Write ledger.jsonl: the samples that each committed step trained."},
  {"data", "skip_samples", REF(data.skip_samples), any, recipe, "Samples that are left out of training, as ledger.jsonl numbers them: \"84-87,92\". Later samples move up. --skip-samples adds to it; a run never takes a sample back."},
  {"data", "ring_batches", REF(data.ring_batches), {1, 1024}, no, "Micro-batches queued for each trainer in shared memory."},
  {"data", "cache_folder", REF(data.cache_folder), any, no, "Folder on a local disk for what is read from s3:// (docs/object-stores.md#data), and for the samples of data.pack. Empty: /var/tmp. All runs of a user on a host share its subfolder simplescale-UID.", true},
  {"data", "cache_gb", REF(data.cache_gb), {0.001, 1e6}, no, "Most that cache_folder may hold, in 10^9 bytes; what was not read for the longest time goes first."},

  {"train", "max_tokens", REF(train.max_tokens), {0, 1e18}, recipe, "Length of the run in tokens. 0: not set. Of max_tokens, max_iters and max_steps, the one that was said last counts; of several in one place, the first that is reached."},
  {"train", "max_iters", REF(train.max_iters), {0, 1e12}, recipe, "Length of the run in micro-batches per trainer. 0: not set."},
  {"train", "max_steps", REF(train.max_steps), {0, 1e12}, recipe, "Length of the run in optimizer steps. 0: not set."},
  {"train", "micro_batch_size", REF(train.micro_batch_size), {1, 4096}, bits, "Samples that a trainer computes at once."},
  {"train", "global_batch_size", REF(train.global_batch_size), {0, 1e9}, run, "Samples per step; a multiple of micro_batch_size, and at least micro_batch_size x trainers. 0: that product, without gradient accumulation."},
  {"train", "precision", ENUM(train.precision, precision_names), any, bits, "Precision of matrix products, activations and gathered parameters. Master parameters and gradient sums are always fp32; for the moments see moments_precision."},
  {"train", "fp8", REF(train.fp8), any, bits, "Round both factors of the blocks' matrix products to fp8, with a scale for each block of values: weights and activations to e4m3, gradients to e5m2 (docs/models.md#products-in-fp8). Needs Hopper GPUs (sm_90); CPU trainers emulate it, to show what it does to a loss."},
  {"train", "learning_rate", REF(train.learning_rate), {0, 1}, recipe, "Peak learning rate, reached after the warm-up; schedule then decays it to min_learning_rate."},
  {"train", "min_learning_rate", REF(train.min_learning_rate), {-1, 1}, recipe, "Learning rate at the end of the run: of its last step with wsd and with decay_steps, else what a step behind it would have. -1: a tenth of learning_rate."},
  {"train", "schedule", ENUM(train.schedule, schedule_names), any, recipe, "How the learning rate falls after the warm-up. wsd: constant, then linear in the last tenth of the run. polynomial: by decay_power. constant: not at all."},
  {"train", "decay_steps", REF(train.decay_steps), {-1, 1e12}, recipe, "Length of the decay, at the end of the run; before it the learning rate is constant. -1: all steps after the warm-up; for wsd a tenth of the run."},
  {"train", "decay_power", REF(train.decay_power), {.min = 0, .max = 100, .above_min = true}, recipe, "Exponent of the polynomial schedule: (1 - x) ^ decay_power, x from 0 to 1 during the decay."},
  {"train", "warmup_steps", REF(train.warmup_steps), {-1, 1e12}, recipe, "Length of the warm-up in steps. -1: by warmup_tokens or warmup_iters; if no one is set, 5 % of the run, at most 2000 steps."},
  {"train", "warmup_tokens", REF(train.warmup_tokens), {-1, 1e18}, recipe, "Length of the warm-up in tokens, rounded up to whole steps. -1: not set."},
  {"train", "warmup_iters", REF(train.warmup_iters), {-1, 1e12}, recipe, "Length of the warm-up in micro-batches per trainer, rounded up to whole steps. -1: not set."},
  {"train", "batch_warmup", REF(train.batch_warmup), any, run, "Smaller batches at the beginning: [[train.batch_warmup]] with until_tokens (rounded up to whole steps) and global_batch_size, a multiple of micro_batch_size, in ascending order. After the last one: train.global_batch_size."},
  {"train", "weight_decay", REF(train.weight_decay), {0, 10}, recipe, "Weight decay of matrices; norms and biases do not decay, unless train.group says so."},
  {"train", "betas", REF(train.betas), fraction, recipe, "AdamW's decay rates of the first and second moment."},
  {"train", "eps", REF(train.eps), {.min = 0, .max = 1, .above_min = true}, recipe, "AdamW's epsilon."},
  {"train", "optimizer", ENUM(train.optimizer, optimizer_names), any, run, "adamw: for all parameters. muon: for the matrices of the blocks, whose update becomes orthogonal; AdamW for embeddings, head, norms and biases (docs/models.md)."},
  {"train", "muon_momentum", REF(train.muon_momentum), fraction, recipe, "Muon's decay rate of the momentum."},
  {"train", "moments_precision", ENUM(train.moments_precision, precision_names), any, recipe, "How the optimizer's moments are stored, in memory and in checkpoints. bf16: 8 instead of 12 bytes of state for each parameter; rounded stochastically after each step, computed in fp32."},
  {"train", "ema_decay", REF(train.ema_decay), fraction, recipe, "Keep an exponential moving average of the weights, in fp32: after each step it moves by 1 - ema_decay towards them. `export --ema` writes it. It begins with the initial weights, or, when the run is resumed with this key, with those of its newest checkpoint. Usual: 0.999. 0: none."},
  {"train", "group", REF(train.group), any, recipe, "Other rates for some parameters: [[train.group]] with pattern (of whole parameter names; * is any text, ? one character), learning_rate_factor and weight_decay. The first group that matches a parameter counts; a group that decides for none is refused."},
  {"train", "z_loss", REF(train.z_loss), {0, 1}, recipe, "Coefficient of a loss that keeps the logits small: the mean of logsumexp(logits)^2, added to the cross-entropy. The reported loss is the cross-entropy. Usual: 1e-4. 0: none."},
  {"train", "router_balance_loss", REF(train.router_balance_loss), {0, 10}, recipe, "With model.experts: coefficient of a loss of each micro-batch that spreads its tokens over the experts: experts / experts_per_token times the sum over experts of their share of the tokens and their mean score. The reported loss is without it. Usual: 0.01. 0: none."},
  {"train", "router_z_loss", REF(train.router_z_loss), {0, 10}, recipe, "With model.experts: coefficient of a loss that keeps the routers' logits small: the mean of logsumexp(logits)^2. Usual: 0.001. 0: none."},
  {"train", "router_bias_rate", REF(train.router_bias_rate), {0, 1}, recipe, "With model.router_bias: after each step the bias of an expert that had more tokens of the global batch than the mean falls by this, and that of one with fewer rises. 0: the biases stay."},
  {"train", "grad_clip", REF(train.grad_clip), not_negative, recipe, "Clip the gradient to this global norm. 0: no clipping."},
  {"train", "activation_checkpointing", ENUM(train.activation_checkpointing, recompute_names), any, no, "What the backward pass computes again, to need less memory. true: each block from its input, about a third more compute. mlp: the first product of each block's MLP, about a sixth more compute. The bits are the same."},
  {"train", "deterministic", REF(train.deterministic), any, bits, "Give the same bits on every layout and after every recovery; on GPUs, another run has them if it begins with control/products of the first. false: on GPUs, NCCL's own sums, whose bits depend on the layout, and attention whose bits may differ when a step is made again. CPU trainers give the same bits anyway."},
  {"train", "validation_samples", REF(train.validation_samples), not_negative, no, "Samples of a validation, spread evenly over the validation tokens; with data.blend, of each source. The run is validated at its start and at its end. 0: no validation."},
  {"train", "validation_every_steps", REF(train.validation_every_steps), not_negative, no, "Steps between two validations. 0: only at the start and at the end."},
  {"train", "validation_lengths", REF(train.validation_lengths), positive, no, "Lengths of samples, in tokens, that each validation measures the loss of, too: the same tokens, but none is seen from farther away. Each divides model.block_size. Empty: none."},
  {"train", "tasks", REF(train.tasks), any, no, "File of questions and texts that the model is scored by, at the start and at the end of the run (docs/operations.md#questions-for-a-model). Empty: none.", true},
  {"train", "tasks_every_steps", REF(train.tasks_every_steps), not_negative, no, "Steps between two such scores. 0: only at the start and at the end."},
  {"train", "sample_prompt", REF(train.sample_prompt), any, no, "Prompt of the text that is generated at the end of the run."},
  {"train", "sample_tokens", REF(train.sample_tokens), {0, 1e6}, no, "Tokens generated at the end of the run. 0: none."},

  {"parallel", "strategy", ENUM(parallel.strategy, strategy_names), any, layout, "How the model is sharded. auto: the smallest group that fits memory, so that there are as many replicas as possible; see docs/configuration.md."},
  {"parallel", "group_nodes", REF(parallel.group_nodes), {0, 10'000}, layout, "Nodes per group; a group holds one copy of the model. 0: by strategy (hybrid_shard: 4; full_shard, shard_grad_op: all nodes). no_shard ignores it."},
  {"parallel", "wave", REF(parallel.wave), {0, 1024}, layout, "Micro-batches that pass a unit together, a power of two: a unit is gathered and its gradients are summed between trainers once a wave. More memory for activations, less traffic. 0: 1, but for groups over several nodes as many as accumulate and fit a trainer's memory, and with offload = optimizer or all as many as accumulate if that takes less of a GPU's memory."},
  {"parallel", "offload", ENUM(parallel.offload, offload_names), any, no, "What a GPU keeps in host memory: optimizer: the state, which the host's threads then update; activations: the inputs of blocks, with activation_checkpointing = true; all: both; none. auto: the first of none, activations, optimizer and all with which a trainer fits its memory, each with its wave."},
  {"parallel", "experts", ENUM(parallel.experts, experts_names), any, layout, "Of a model with experts: gathered: each trainer gathers all experts of a layer, as other parameters; resident: they stay on the trainers of a group, each of which has as many, and tokens are sent to them. auto: whichever sends fewer bytes, if groups span nodes; else gathered."},
  {"parallel", "collective_timeout_ms", REF(parallel.collective_timeout_ms), milliseconds, no, "A collective operation fails if a rank has not joined it by then."},

  {"cluster", "nodes", REF(cluster.nodes), {1, 10'000}, layout, "Nodes that train."},
  {"cluster", "trainers_per_node", REF(cluster.trainers_per_node), {1, 64}, layout, "Trainer processes per node, one per device."},
  {"cluster", "spares", REF(cluster.spares), {0, 10'000}, no, "Additional idle nodes; they replace lost ones."},
  {"cluster", "max_nodes", REF(cluster.max_nodes), {0, 10'000}, no, "Nodes that the run may have at most, spares included: while it trains, hosts join it with `train --join RUN`. Memory and connections are sized for so many. 0: cluster.nodes + cluster.spares, none joins."},
  {"cluster", "min_groups", REF(cluster.min_groups), {1, 1e6}, no, "Training pauses while fewer groups than this are left."},
  {"cluster", "prefer", ENUM(cluster.prefer, prefer_names), any, no, "Which groups the nodes form that are left after a loss, if not all of them fit into groups of the configured size. replicas: two groups or more, of the sizes that fit memory the one with which most nodes train; rate: most nodes train; group_nodes: groups keep their size, and the nodes that are left over wait. The results have the same bits."},
  {"cluster", "device", ENUM(cluster.device, device_names), any, layout, "Device of the trainers. auto: each start takes cuda if its host has GPUs that can be used, else cpu."},
  {"cluster", "instructions", ENUM(cluster.instructions, instruction_set_names), any, no, "Vector instructions with which CPU trainers compute; the bits of results depend on them. auto: the best that all hosts of the first start have. A run keeps its own, and a host without them does not train (docs/guarantees.md#instruction-sets)."},
  {"cluster", "balance", ENUM(cluster.balance, balance_names), any, no, "How the micro-batches of a step are shared. auto: CPU nodes that are measured to be slower for long get fewer, if a step then takes at least 10 % less time. even: all trainers have equally many, but for one. The results have the same bits."},
  {"cluster", "threads_per_trainer", REF(cluster.threads_per_trainer), {0, 4096}, no, "CPU threads per trainer. 0: cores / trainers on the host."},
  {"cluster", "join_timeout_ms", REF(cluster.join_timeout_ms), milliseconds, no, "Time to wait at the start until all nodes have joined."},
  {"cluster", "memory_per_trainer_gib", REF(cluster.memory_per_trainer_gib), not_negative, no, "Memory of a trainer's device. The model must fit in it, and strategy = auto sizes groups by it. 0: unknown; with strategy = auto a start on a host with GPUs then sets 90 % of what its GPU has, and CPUs count as 4 GiB."},
  {"cluster", "peak_flops", REF(cluster.peak_flops), not_negative, no, "Dense peak of one trainer's device in FLOP/s, used for the MFU. 0: unknown, no MFU is reported."},

  {"checkpoint", "memory_every_steps", REF(checkpoint.memory_every_steps), not_negative, no, "With GPUs: steps between copies of the state to host memory, where it outlives its trainer. 0: only when it is saved, copied to another node or the trainers stop. CPU trainers have it there always."},
  {"checkpoint", "peer_every_steps", REF(checkpoint.peer_every_steps), rule_or_more, no, "Steps between copies of every shard to the memory of another node, outside its group if there is one. 0: no copies. -1: 10 if one lost node would take every copy of the model with it and there is another node; else 0."},
  {"checkpoint", "disk_every_steps", REF(checkpoint.disk_every_steps), not_negative, no, "Steps between checkpoints on disk. 0: one checkpoint, when the run stops."},
  {"checkpoint", "keep", REF(checkpoint.keep), {1, 1'000'000}, no, "Number of newest checkpoints to keep on disk."},
  {"checkpoint", "keep_best", REF(checkpoint.keep_best), {0, 1'000'000}, no, "Checkpoints with the lowest validation loss to keep besides; the link `best` names the first. Needs train.validation_every_steps. 0: none."},
  {"checkpoint", "permanent_every_steps", REF(checkpoint.permanent_every_steps), not_negative, no, "Checkpoints of multiples of this step are never removed. 0: none."},
  {"checkpoint", "folder", REF(checkpoint.folder), any, no, "Folder for the checkpoints. Empty: <run folder>/checkpoints.", true},
  {"checkpoint", "upload", REF(checkpoint.upload), any, no, "s3://BUCKET/PREFIX: keep the checkpoints there, too. They are uploaded while the run trains; a run whose folder was lost continues from there (docs/object-stores.md). Empty: no upload."},
  {"checkpoint", "upload_mib_per_s", REF(checkpoint.upload_mib_per_s), {0, 1'000'000}, no, "Most MiB a second that an upload takes. 0: no limit."},

  {"supervision", "heartbeat_ms", REF(supervision.heartbeat_ms), milliseconds, no, "Interval between the heartbeats of every node and trainer."},
  {"supervision", "silence_ms", REF(supervision.silence_ms), milliseconds, no, "A node or trainer without a heartbeat for this long is lost. If its process is alive but gets no CPU time: for three times this long."},
  {"supervision", "progress_timeout_ms", REF(supervision.progress_timeout_ms), milliseconds, no, "A trainer that makes no progress for this long, and for 20 times its slowest recent step, is stuck."},
  {"supervision", "max_restarts", REF(supervision.max_restarts), not_negative, no, "A node with more failures than this within within_s is drained."},
  {"supervision", "within_s", REF(supervision.within_s), {1, 86'400}, no, "Length of the sliding window of max_restarts."},
  {"supervision", "backoff_ms", REF(supervision.backoff_ms), {0, 86'400'000}, no, "Delay before the first restart; it doubles with every further restart."},
  {"supervision", "backoff_max_ms", REF(supervision.backoff_max_ms), {0, 86'400'000}, no, "Longest delay before a restart."},
  {"supervision", "shutdown_ms", REF(supervision.shutdown_ms), milliseconds, no, "Time from asking a process to stop until it is killed."},
  {"supervision", "give_up_after_cycles", REF(supervision.give_up_after_cycles), positive, no, "The run gives up after this many recoveries in a row without a new committed step."},
  {"supervision", "warm_processes", REF(supervision.warm_processes), {0, 64}, no, "Idle trainer processes per node, with all libraries loaded; one of them replaces a trainer that dies."},
  {"supervision", "warm_context", REF(supervision.warm_context), any, no, "With GPUs: idle trainer processes have a CUDA context, have loaded cuBLASLt and cuDNN, and have made NCCL ready on every GPU of their node, so that replacing a trainer does not wait for them. Costs some device memory for each process and GPU."},
  {"supervision", "log_rules", REF(supervision.log_rules), any, no, "File with further rules, in the format of configs/log_rules.toml. They are tried before the built-in ones.", true},
  {"supervision", "log_max_mib", REF(supervision.log_max_mib), {0, 1'000'000}, no, "A log file larger than this is renamed to FILE.1, which replaces the previous FILE.1. 0: log files are neither read nor rotated."},
  {"supervision", "notify", REF(supervision.notify), any, no, "A shell command, or an http(s) URL. At the end of every incident, and if the run fails, the command gets the event as JSON on its stdin, the URL by POST; at most ten times in ten minutes. Empty: nobody is told.", false, true},

  {"transport", "trusted_networks", REF(transport.trusted_networks), any, no, "Interfaces and subnets, separated by commas (\"ib0, 10.1.0.0/16\"), on which no other machine can harm the run. Collectives between two hosts on one of them go over UCX (InfiniBand, RoCE, TCP), which is neither encrypted nor authenticated; all others over encrypted TCP."},

  {"metrics", "every_steps", REF(metrics.every_steps), positive, no, "Steps between two lines on the terminal; metrics.jsonl has every step."},
  {"metrics", "iterations", REF(metrics.iterations), any, no, "Lines on the terminal also count iter, the micro-batches of a trainer, as the SimpleScale paper's log does."},
  {"metrics", "tensorboard", REF(metrics.tensorboard), any, no, "Write TensorBoard files to <run folder>/tb."},
  {"metrics", "wandb", REF(metrics.wandb), any, no, "Write a Weights & Biases offline run to <run folder>/wandb."},
  {"metrics", "wandb_project", REF(metrics.wandb_project), any, no, "Project of the Weights & Biases run."},
  {"metrics", "wandb_entity", REF(metrics.wandb_entity), any, no, "Team or user that owns the project. Empty: the user's default."},
  {"metrics", "wandb_tags", REF(metrics.wandb_tags), any, no, "Tags of the Weights & Biases run, separated by commas."},
  {"metrics", "http_port", REF(metrics.http_port), {0, 65'535}, no, "Port of the web page, the status and the Prometheus metrics. The supervisor's host serves them; control/http.json has the address. 0: off."},
  {"metrics", "http_host", REF(metrics.http_host), any, no, "Address to listen on. 0.0.0.0: all addresses, open to everyone who can reach the host."},
  {"metrics", "health_every_ms", REF(metrics.health_every_ms), {0, 86'400'000}, no, "Interval between each node's reports of load, memory, disk, network and GPUs; health.jsonl gets one report a minute. 0: no reports."},
  {"metrics", "trace_steps", REF(metrics.trace_steps), positive, no, "Steps to trace, written to <run folder>/traces. `trace RUN` converts them for ui.perfetto.dev; the console's `trace` command traces further steps."},
  {"metrics", "trace_recoveries", REF(metrics.trace_recoveries), any, no, "Trace every recovery, with one step before and one after it. The newest 32 traces are kept."},
  {"metrics", "trace_events", REF(metrics.trace_events), {0, 10'000'000}, no, "Number of newest events (128 bytes each) that every process keeps in memory for traces. 0: no traces."},

  {"slurm", "partition", REF(slurm.partition), any, no, "Partition for `submit`. Empty: Slurm's default."},
  {"slurm", "account", REF(slurm.account), any, no, "Account to charge. Empty: the user's default."},
  {"slurm", "qos", REF(slurm.qos), any, no, "Quality of service. Empty: the default."},
  {"slurm", "tasks_per_node", REF(slurm.tasks_per_node), {0, 64}, no, "Nodes of the run per host; more than 1 where a host has several times trainers_per_node devices. 0: as many as the host's CPUs (cpus_per_task) and GPUs allow."},
  {"slurm", "cpus_per_task", REF(slurm.cpus_per_task), {0, 4096}, no, "CPUs per node of the run, bound by Slurm. 0: whole hosts, unbound."},
  {"slurm", "gpus_per_node", REF(slurm.gpus_per_node), {-1, 64}, no, "GPUs per host. -1: one per trainer if cluster.device is cuda, else none."},
  {"slurm", "time_minutes", REF(slurm.time_minutes), {0, 1e6}, no, "Time limit; the job saves before it and is requeued. 0: the partition's limit."},
  {"slurm", "save_before_end_s", REF(slurm.save_before_end_s), {1, 65'535}, no, "Seconds before the time limit at which the job saves."},
  {"slurm", "max_requeues", REF(slurm.max_requeues), not_negative, no, "Most requeues of one job. supervision.give_up_after_cycles requeues in a row without a newer checkpoint also end it."},
  {"slurm", "options", REF(slurm.options), any, no, "Further options for sbatch in their long form, separated by spaces: --reservation=x --mem=0."},

  {"sweep", "mode", ENUM(sweep.mode, sweep_names), any, no, "grid: every combination of the values. zip: the first values of all lists, then the second values, and so on; all lists have the same length."},
  {"sweep", "seeds", REF(sweep.seeds), not_negative, no, "Values of run.seed; every combination is trained with every seed. Empty: run.seed only."},
  {"sweep", "keys", REF(sweep.keys), any, no, "Lists of values by key: { \"train.learning_rate\" = [1e-3, 3e-3] }, or [sweep.keys] with one line per key."},

  {"inject", "faults", REF(inject.faults), any, no, "Faults to inject: [{ step = 40, kind = \"kill_trainer\", target = \"n1.0\" }]."},
};
// clang-format on
#undef REF
#undef ENUM

}  // namespace

std::span<const Key> keys() {
  return table;
}

const Key* find(const std::string& section, const std::string& name) {
  for (const Key& key : table)
    if (section == key.section && name == key.name) return &key;
  return nullptr;
}

std::vector<std::string*> paths_of(const Key& key, Config& config) {
  if (!key.is_path) return {};
  const Ref value = key.at(config);
  if (const auto* path = std::get_if<std::string*>(&value)) return {*path};
  std::vector<std::string*> paths;
  if (const auto* blend = std::get_if<Blend*>(&value))
    for (BlendSource& source : **blend) {
      paths.push_back(&source.source);
      paths.push_back(&source.folder);
    }
  return paths;
}

const Key* find(const std::string& full_name) {
  const size_t dot = full_name.find('.');
  if (dot == std::string::npos) return nullptr;
  return find(full_name.substr(0, dot), full_name.substr(dot + 1));
}

bool is_relative(const std::string& path) {
  return !path.empty() && !path.starts_with('/') && !path.starts_with("debian:") &&
         !path.starts_with("s3://");
}

const char* section_comment(const std::string& section) {
  if (section == "run") return "The run as a whole.";
  if (section == "model")
    return "The model's shape. Without a preset: a Llama 2's; docs/models.md has other families.";
  if (section == "tokenizer") return "How text becomes tokens.";
  if (section == "data") return "Training data.";
  if (section == "train") return "Batch, schedule and optimizer.";
  if (section == "parallel") return "How the model is sharded over the trainers.";
  if (section == "cluster") return "Machines and processes.";
  if (section == "checkpoint") return "Copies of the training state on peers and on disk.";
  if (section == "supervision")
    return "When a process counts as failed, and how often it is restarted.";
  if (section == "transport") return "What carries collectives between hosts.";
  if (section == "metrics") return "Metrics, web page and traces.";
  if (section == "slurm") return "Options of the Slurm job that `submit` creates.";
  if (section == "sweep")
    return "Keys that `sweep` varies; every combination is a run. `train` refuses this section.";
  return "Fault injection, to test how a run recovers.";
}

namespace {

/// True for the initials of a name's words (lr), and for some of its words (batch_size, warmup).
bool abbreviates(const std::string& word, const std::string& name) {
  std::string initials;
  for (size_t i = 0; i < name.size(); ++i)
    if (i == 0 || name[i - 1] == '_') initials += name[i];
  if (word.size() > 1 && word == initials) return true;
  return word.size() > 3 && ("_" + name).find("_" + word) != std::string::npos;
}

}  // namespace

std::string nearest_key(const std::string& section, const std::string& name) {
  std::string nearest;
  size_t distance = std::string::npos;
  for (const Key& key : table) {
    size_t of_name = edit_distance(name, key.name);
    if (abbreviates(name, key.name)) of_name = std::min<size_t>(of_name, 1);
    const size_t d = 2 * of_name + edit_distance(section, key.section);
    if (d >= distance) continue;
    distance = d;
    nearest = key.full_name();
  }
  return nearest;
}

}  // namespace schema
}  // namespace simplescale
