"""Models of every family: transformers' logits after `import` and loss in the first step, the same files after `export`."""

import json
import subprocess

from common import BIN, TINY, Case, Interpreter, lines, needs

# transformers' configurations: a small model of each family, and those of its options that are known.
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16, "rope_theta": 500000.0}
MODELS = {
    "llama": ("LlamaForCausalLM", {}),
    "llama31": ("LlamaForCausalLM", {"rope_parameters": LLAMA3, "tie_word_embeddings": True, "head_dim": 16}),
    "linear": ("LlamaForCausalLM", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}}),
    "yarn": ("Qwen2ForCausalLM", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1000.0,
                                                      "beta_fast": 2.0, "original_max_position_embeddings": 16}}),
    "yarn_own": ("LlamaForCausalLM", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1000.0, "attention_factor": 0.7,
                                                          "original_max_position_embeddings": 10}}),
    "yarn_length": ("LlamaForCausalLM", {"rope_parameters": {"rope_type": "yarn", "factor": None, "rope_theta": 1000.0, "mscale": 0.5,
                                                             "mscale_all_dim": 1.5, "original_max_position_embeddings": 10}}),
    "mistral": ("MistralForCausalLM", {"sliding_window": 7}),
    "odd_width": ("MistralForCausalLM", {"sliding_window": None, "hidden_size": 50, "head_dim": 12}),
    "qwen2": ("Qwen2ForCausalLM", {"tie_word_embeddings": True, "rms_norm_eps": 1e-6}),
    "qwen2_window": ("Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0}),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 20, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "olmo2": ("Olmo2ForCausalLM", {"rms_norm_eps": 1e-6}),
    "mixtral": ("MixtralForCausalLM", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "mixtral_window": ("MixtralForCausalLM", {"num_local_experts": 3, "num_experts_per_tok": 1, "sliding_window": 7, "head_dim": 20,
                                              "tie_word_embeddings": True}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 20, "mlp_only_layers": [0],
                                          "head_dim": 20, "norm_topk_prob": True}),
    "qwen3_moe_window": ("Qwen3MoeForCausalLM", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20,
                                                 "use_sliding_window": True, "sliding_window": 5}),
    "olmoe": ("OlmoeForCausalLM", {"num_experts": 6, "num_experts_per_tok": 3, "eos_token_id": 3}),
    "dots1": ("Dots1ForCausalLM", {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 20, "n_shared_experts": 2,
                                   "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2, "norm_topk_prob": True,
                                   "routed_scaling_factor": 2.5}),
    "dots1_window": ("Dots1ForCausalLM", {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20,
                                          "n_shared_experts": 1, "sliding_window": 5, "max_window_layers": 0}),
    "glm4_moe": ("Glm4MoeForCausalLM", {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "attention_bias": True,
                                        "partial_rotary_factor": 1.0, "routed_scaling_factor": 1.5}),
    "glm4_moe_norms": ("Glm4MoeForCausalLM", {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 20,
                                              "attention_bias": True, "use_qk_norm": True, "partial_rotary_factor": 1.0}),
}
SIZES = {"hidden_size": TINY["model.dim"], "intermediate_size": TINY["model.hidden"], "num_hidden_layers": 3,
         "num_attention_heads": TINY["model.heads"], "num_key_value_heads": TINY["model.kv_heads"],
         "vocab_size": TINY["model.vocab"], "max_position_embeddings": 40, "initializer_range": 0.1}
MAKE = """
import json, sys, torch, transformers
for name, (architecture, keys) in json.load(open("models.json")).items():
    torch.manual_seed(7)
    model_class = getattr(transformers, architecture)
    config = model_class.config_class(**keys)
    model = model_class(config)
    for parameter in model.named_parameters():
        if parameter[0].endswith(("norm.weight", "bias")):  # not all the same, or a missing one would not show
            torch.nn.init.normal_(parameter[1], mean=float("norm" in parameter[0]), std=0.2)
    for buffer in model.named_buffers():
        if buffer[0].endswith("e_score_correction_bias"):
            torch.nn.init.normal_(buffer[1], std=0.1)
    model.generation_config.update(temperature=0.6, top_p=0.9, do_sample=True, eos_token_id=[2, 3])
    model.save_pretrained(name)
"""
COMPARE = """
import json, numpy as np, torch, transformers
tokens = np.fromfile("tokens.bin", "<u2")
worst = {}
for name, (architecture, keys) in json.load(open("models.json")).items():
    T = keys["max_position_embeddings"]
    rows = torch.from_numpy(tokens[: 2 * T].reshape(2, T).astype(np.int64))
    for folder in (name, name + "-exported"):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        assert type(model).__name__ == architecture, (folder, type(model))
        with torch.no_grad():
            logits = model(rows, use_cache=False).logits.float().numpy()
        ours = np.load(name + ".npy")
        assert ours.shape == logits.shape and np.abs(logits).max() > 0.5, np.abs(logits).max()
        worst[folder] = float(np.abs(ours - logits).max())
    a, b = (transformers.AutoModelForCausalLM.from_pretrained(f).state_dict() for f in (name, name + "-exported"))
    assert a.keys() == b.keys() and all(a[k].numpy().tobytes() == b[k].numpy().tobytes() for k in a), name
    generation = [json.load(open(f + "/generation_config.json")) for f in (name, name + "-exported")]
    assert generation[0] == generation[1] and generation[0]["temperature"] == 0.6, generation
print(json.dumps(worst))
"""
# The same models as other programs store them.
CHANGE = """
import json, os, torch
from safetensors.torch import load_file, save_file
def make(name, of, tensors=lambda t: t, config={}):
    os.makedirs(name)
    keys = json.load(open(of + "/config.json")) | config
    json.dump({k: v for k, v in keys.items() if v != "none"}, open(name + "/config.json", "w"))
    changed = tensors(load_file(of + "/model.safetensors"))
    save_file({k: v.contiguous().clone() for k, v in changed.items()}, name + "/model.safetensors", {"format": "pt"})
table = torch.ones(4)
make("f64", "llama", lambda t: {k: v.double() * (1 + 1e-9) for k, v in t.items()})
make("f16", "llama", lambda t: {k: v.half() for k, v in t.items()})
make("mixed", "llama", lambda t: {k: v.bfloat16() if "mlp" in k else v.half() for k, v in t.items()})
make("without_prefix", "llama", lambda t: {k.removeprefix("model."): v for k, v in t.items()}, {"architectures": ["LlamaModel"]})
make("head_only", "qwen2", lambda t: {k.replace("model.embed_tokens", "lm_head"): v for k, v in t.items()})
make("both", "qwen2", lambda t: t | {"lm_head.weight": t["model.embed_tokens.weight"].clone()})
make("tables", "llama", lambda t: t | {f"model.layers.{i}.self_attn.rotary_emb.{n}": table for i in range(3) for n in
                                       ("inv_freq", "cos_cached", "sin_cached")})
make("unnamed", "llama", config={"architectures": "none"})
make("old_rope", "llama", config={"rope_parameters": "none", "rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 2.0}})
make("two_ropes", "llama", config={"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 2.0},
                                   "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}})
make("uniform", "qwen2_window", config={"max_window_layers": 1, "layer_types": ["sliding_attention"] * 3})
make("uniform_full", "qwen2_window", config={"max_window_layers": 1, "layer_types": ["full_attention"] * 3})
"""
LOGITS = """
import numpy as np, sys, torch, transformers
T, names = int(sys.argv[1]), sys.argv[2:]
rows = torch.from_numpy(np.fromfile("tokens.bin", "<u2")[: 2 * T].reshape(2, T).astype(np.int64))
for name in names:
    model = transformers.AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        logits = model(rows, use_cache=False).logits.float().numpy()
    assert np.abs(np.load(name + ".npy") - logits).max() < 1e-5, (name, np.abs(np.load(name + ".npy") - logits).max())
"""
# The loss of the batch that a run's ledger names for step 1, with the weights that the run began with.
FIRST_LOSS = """
import json, sys, numpy as np, torch, transformers
T, folder, run = int(sys.argv[1]), sys.argv[2], sys.argv[3]
steps = [json.loads(line) for line in open(run + "/ledger.jsonl")]
samples = sorted(first + i for s in steps if s["step"] == 1 for first, count in s["samples"] for i in range(count))
assert samples == list(range(4)), samples
tokens = np.fromfile("tokens.bin", "<u2").astype(np.int64)
rows = torch.from_numpy(np.stack([tokens[s * T:(s + 1) * T + 1] for s in samples]))
model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
with torch.no_grad():
    logits = model(rows[:, :-1], use_cache=False).logits
print(torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).item())
"""
DISTANCE = """
import sys, numpy as np
a, b = map(np.load, sys.argv[1:])
assert a.shape == b.shape and np.abs(a).max() > 0.5 and np.abs(a - b).max() < 1e-5, np.abs(a - b).max()
"""
# What a configuration says of those models which are trained.
QWEN3 = ["--model.qk_norm=head", "--model.head_dim=20", "--model.rope_theta=1e6", "--model.norm_eps=1e-6"]
OLMO2 = ["--model.qk_norm=whole", "--model.norm=post", "--model.norm_eps=1e-6"]
MISTRAL = ["--model.sliding_window=7", "--model.norm_eps=1e-6"]
LLAMA31 = ["--model.head_dim=16", "--model.tie_embeddings=true", "--model.rope_theta=5e5", "--model.rope_scaling=llama3",
           "--model.rope_factor=8", "--model.rope_low_factor=1", "--model.rope_high_factor=4", "--model.rope_original_block_size=16",
           "--model.norm_eps=1e-6"]
MIXTRAL = ["--model.experts=5", "--model.rope_theta=1e6"]
DOTS1 = ["--model.experts=8", "--model.experts_per_token=3", "--model.expert_hidden=20", "--model.shared_experts=2",
         "--model.dense_layers=1", "--model.router_score=sigmoid", "--model.router_bias=true", "--model.router_groups=4",
         "--model.router_groups_per_token=2", "--model.router_scale=2.5", "--model.qk_norm=head", "--model.norm_eps=1e-6"]


@needs("torch", "transformers")
class Families(Case):
    @classmethod
    def setUpClass(cls):
        cls.interpreter = Interpreter("torch", "transformers")
        cls.addClassCleanup(cls.interpreter.close)

    def python(self, script, *arguments):
        return self.interpreter.run(script, *arguments, folder=self.folder)

    def import_and_compute(self, name):
        self.command("import", name, f"{name}-checkpoint")
        self.compute(name)

    def compute(self, name):
        subprocess.run([BIN / "simplescale-compute", "logits", f"{name}-checkpoint", "--data", self.data, "--samples", "2",
                        "--out", f"{name}.npy"], cwd=self.folder, check=True, timeout=60)

    def make(self, *names):
        models = {name: (MODELS[name][0], {**SIZES, **MODELS[name][1]}) for name in names}
        (self.folder / "models.json").write_text(json.dumps(models))
        self.python(MAKE)

    def test_logits_equal_those_of_transformers_and_weights_come_back_bit_for_bit(self):
        self.make(*MODELS)
        for name in MODELS:
            self.import_and_compute(name)
            self.command("export", f"{name}-checkpoint", f"{name}-exported", "--dtype=float32")
        for folder, distance in json.loads(self.python(COMPARE)).items():
            self.assertLess(distance, 1e-5, folder)

    def test_folders_of_other_programs_are_read_as_transformers_reads_them(self):
        self.make("llama", "qwen2", "qwen2_window")
        before = {path.name for path in self.folder.iterdir()}
        self.python(CHANGE)
        names = sorted({path.name for path in self.folder.iterdir()} - before)
        self.assertGreaterEqual(len(names), 12)
        for name in names:
            self.import_and_compute(name)
        self.python(LOGITS, SIZES["max_position_embeddings"], *names)

    def test_a_run_continues_an_imported_model_and_its_export_is_of_the_same_family(self):
        families = {"qwen3": QWEN3, "olmo2": OLMO2, "mixtral": MIXTRAL, "dots1": DOTS1}
        self.make(*families)
        for name, options in families.items():
            steps = ["--train.global_batch_size=4", "--train.max_steps=3", "--model.layers=3", "--train.sample_tokens=8",
                     "--train.validation_samples=2", "--from", self.folder / name]
            runs = [self.train(f"{name}-{nodes}{trainers}", *steps, *options, *self.layout(nodes, trainers, strategy))
                    for nodes, trainers, strategy in ((1, 1, "no_shard"), (2, 2, "full_shard"))]
            self.assertEqual(self.digest(runs[0]), self.digest(runs[1]), name)
            self.command("export", runs[0], f"{name}-trained")
            exported = json.loads((self.folder / f"{name}-trained/config.json").read_text())
            self.assertEqual(exported["architectures"], [MODELS[name][0]])
            self.assertEqual(json.loads((self.folder / f"{name}-trained/generation_config.json").read_text())["top_p"], 0.9)
            self.train(f"{name}-plain", *steps, *self.layout(1, 1), code=78)
            self.assertRegex(self.stderr, "another shape than the configuration's; set in \\[model\\]: .*(qk_norm|experts) = ")
            grown = self.train(f"{name}-grown", *steps, *options, "--model.vocab=230", *self.layout(1, 1))
            self.assertIn("model.embed_tokens.weight [230, 48]", self.command("digest", grown))

    def test_the_loss_of_the_first_step_is_that_of_transformers(self):
        """The digests of qwen3 and olmo2 on several layouts are compared above."""
        one, sharded, groups_of_one = (1, 1, "no_shard"), (1, 2, "full_shard"), (2, 1, "no_shard")
        families = {"qwen3": (QWEN3, [one]), "olmo2": (OLMO2, [groups_of_one]), "mistral": (MISTRAL, [sharded, groups_of_one]),
                    "llama31": (LLAMA31, [one, sharded]), "mixtral": (MIXTRAL, [one, sharded]),
                    "dots1": (DOTS1, [one, groups_of_one])}
        self.make(*families)
        for name, (options, layouts) in families.items():
            for groups, trainers, strategy in layouts:
                run = self.train(f"{name}-{groups}{trainers}", "--train.global_batch_size=4", "--train.max_steps=1", "--model.layers=3",
                                 "--data.shuffle=false", "--from", self.folder / name, *options,
                                 *self.layout(groups, trainers, strategy))
                theirs = float(self.python(FIRST_LOSS, TINY["model.block_size"], name, run))
                ours = lines(run / "metrics.jsonl")[0]["loss"]
                self.assertLess(abs(ours - theirs), 1e-5, (name, groups, trainers, ours, theirs))

    def test_an_upcycled_model_begins_with_the_logits_of_the_dense_one(self):
        """Of a Hugging Face folder and of a run. Its export is transformers' class with experts, which computes the same."""
        self.make("qwen3")
        self.import_and_compute("qwen3")
        kinds = {"plain": "experts=6,top_k=3,seed=5", "shared": "experts=4,top_k=1,shared=1,score=sigmoid"}
        classes = {"plain": "Qwen3MoeForCausalLM", "shared": "Dots1ForCausalLM"}
        for name, parts in kinds.items():
            self.command("import", "qwen3", f"{name}-checkpoint", "--upcycle", parts)
            self.command("export", f"{name}-checkpoint", name, "--dtype=float32")
            self.assertEqual(json.loads((self.folder / name / "config.json").read_text())["architectures"], [classes[name]])
            self.compute(name)
            self.python(DISTANCE, "qwen3.npy", f"{name}.npy")
            evaluated = [json.loads(self.command("evaluate", f"{of}-checkpoint", "--json", "--data", self.data, "--samples=8"))["val_loss"]
                         for of in ("qwen3", name)]
            self.assertLess(abs(evaluated[0] - evaluated[1]), 1e-5)
        self.python(LOGITS, SIZES["max_position_embeddings"], *kinds)
        dense = self.train("dense", "--train.global_batch_size=4", "--train.max_steps=2", *self.layout(1, 1))
        step = ["--train.global_batch_size=4", "--train.max_steps=1", "--data.shuffle=false", *self.layout(1, 2)]
        self.command("import", dense, "upcycled", "--upcycle", "experts=4")
        losses = [lines(self.train(name, *step, "--from", of, *keys) / "metrics.jsonl")[0]["loss"]
                  for name, of, keys in (("more", dense, []), ("sparse", self.folder / "upcycled", ["--model.experts=4"]))]
        self.assertLess(abs(losses[0] - losses[1]), 1e-5)
        self.train("refused", *step, "--from", dense, "--model.experts=4", code=78)
        self.assertIn("NEW_CHECKPOINT --upcycle experts=4,top_k=2", self.stderr)

    def test_what_no_family_has_is_refused_with_the_reason(self):
        self.make("qwen2")
        path = self.folder / "qwen2/config.json"
        right = json.loads(path.read_text())

        def refused(text, **changes):
            path.write_text(json.dumps({**right, **changes}))
            self.command("import", "qwen2", "new", code=65)
            self.assertIn(text, self.stderr)
            self.assertFalse((self.folder / "new").exists())

        refused("layers with and without a sliding window", use_sliding_window=True, sliding_window=5, max_window_layers=1,
                layer_types=None)
        refused("layers that differ are not supported", layer_types=["sliding_attention", "full_attention", "full_attention"])
        refused("the angles of dynamic depend", rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})
        refused("asks for \"longrope\"", rope_parameters={"rope_type": "longrope", "factor": 2.0, "rope_theta": 1e4})
        refused("\"architectures\" names none of", architectures=["GemmaForCausalLM"])
        refused("multi-head latent attention (MLA)", architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", kv_lora_rank=512)


class Options(Case):
    def test_an_unusual_model_trains_but_is_not_exported(self):
        run = self.train("odd", "--train.global_batch_size=2", "--train.max_steps=2", "--model.qkv_bias=true",
                         "--model.norm=post", "--model.sliding_window=5", *self.layout(1, 2))
        self.command("export", run, "exported", code=78)
        self.assertFalse((self.folder / "exported").exists())
        self.assertIn("sliding_window 5", self.command("config", "show", run / "config.toml"))
        self.train("dynamic", "--model.rope_scaling=dynamic", code=78)
        self.assertIn("depend on the length of each sequence", self.stderr)
        self.train("unused", "--model.rope_factor=4", code=78)
        self.assertIn("has no effect with rope_scaling = \"none\"", self.stderr)
