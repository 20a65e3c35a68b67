"""Scores of tasks during training and by `evaluate --tasks`: the same on every layout and after recoveries, and where they are
shown. By transformers, too."""

import hashlib
import json
import os
import subprocess

from common import PYTHON, TINY, Case, events, kill, last_step, lines, needs, status, trainer_pids

# Scores a task file with transformers, as lm-evaluation-harness does: its tokens of a prompt and a choice (_encode_pair), the
# windows of a long text (get_rolling_token_windows, make_disjoint_window), and its figures.
HARNESS = r"""
import collections, json, math, re, sys, torch, transformers
folder, tasks, length = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)  # the model is tiny
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()

def encode_pair(context, continuation):
    spaces = len(context) - len(context.rstrip())
    if spaces > 0:
        continuation = context[-spaces:] + continuation
        context = context[:-spaces]
    whole, seen = tokenizer.encode(context + continuation), tokenizer.encode(context)
    return seen, whole[len(seen):]

def log_likelihood(context, continuation):
    assert context and continuation
    tokens = torch.tensor([(context + continuation)[-(length + 1):]])
    with torch.no_grad():
        logits = model(tokens[:, :-1], use_cache=False).logits[0].double().log_softmax(-1)
    n = min(len(continuation), length)
    return sum(logits[-n + i, tokens[0, -n + i]].item() for i in range(n))

def windows(tokens, prefix):
    n = min(length, len(tokens))
    yield [prefix], tokens[:n]
    while n < len(tokens):
        count = min(len(tokens) - n, length)
        end = n + count
        seen = tokens[end - length - 1:end - 1]
        yield seen[:len(seen) - (count - 1)], tokens[end - count:end]
        n = end

questions, texts = collections.defaultdict(list), collections.defaultdict(list)
for row in map(json.loads, open(tasks)):
    if "text" in row:
        tokens = tokenizer.encode(row["text"], add_special_tokens=False)
        sum_of = sum(log_likelihood(*w) for w in windows(tokens, tokenizer.bos_token_id))
        texts[row["task"]].append((sum_of, len(re.split(r"\s+", row["text"])), len(row["text"].encode())))
    else:
        found = [log_likelihood(*encode_pair(row["prompt"], row.get("delimiter", " ") + c)) for c in row["choices"]]
        by_character = [f / len(c) for f, c in zip(found, row["choices"])]
        questions[row["task"]].append((found.index(max(found)) == row["answer"],
                                       by_character.index(max(by_character)) == row["answer"]))
scores = {task: {"questions": len(rows), "acc": sum(r[0] for r in rows) / len(rows), "acc_norm": sum(r[1] for r in rows) / len(rows)}
          for task, rows in questions.items()}
for task, rows in texts.items():
    total = sum(r[0] for r in rows)
    scores[task] = {"words": sum(r[1] for r in rows), "word_perplexity": math.exp(-total / sum(r[1] for r in rows)),
                    "byte_perplexity": math.exp(-total / sum(r[2] for r in rows))}
print(json.dumps(scores))
"""

WORDS = "the king of a small land sent his son over seven hills to find one clear river and bring back water for all".split()


def sentence(i):
    return " ".join(WORDS[(i * 7 + k * (i % 5 + 1)) % len(WORDS)] for k in range(9))


def questions(count):
    """Of one to four choices' lengths; every eighth prompt is longer than a block of 40 tokens."""
    for i in range(count):
        words = sentence(i).split()
        prompt = " ".join(sentence(i + k) for k in range(9 if i % 8 == 7 else 1))
        choices = [" ".join(words[c:c + 1 + (i + c) % 3]) for c in range(2 + i % 3)]
        yield {"task": "words" if i % 4 else "others", "prompt": prompt, "choices": choices, "answer": i % len(choices)}


def odd_rows():
    """Prompts that end in every kind of white space, delimiters, texts with white space between words; long and short."""
    for i, space in enumerate(["", " ", "  ", "\t", "\n", "\u00a0", "\u3000", "\v", "\f", "\x1c", " \u2003 ", "\u200b"] * 4):
        words = sentence(i).split()
        prompt = " ".join(sentence(i + k) for k in range(6 if i % 6 == 5 else 1)) + space
        choices = sorted({words[2], words[3] + " " + words[1], "caf\u00e9 " + words[0], words[0] + words[1]}, key=lambda c: (len(c) * i) % 7)
        yield {"task": "odd", "prompt": prompt, "choices": choices, "answer": i % len(choices), "delimiter": ["", " ", "\n"][i // 12 % 3]}
        if i % 3 == 0:
            yield {"task": "texts", "text": space.join(sentence(i + k) for k in range(1 + i % 5)) + space}


def scored(run):
    """By step, of the events."""
    return {e["step"]: e["tasks"] for e in lines(run / "events.jsonl") if e["kind"] == "validated" and "tasks" in e}


def in_metrics(run):
    """By step; the last line of a step counts."""
    return {m["step"]: m["tasks"] for m in lines(run / "metrics.jsonl") if "tasks" in m}


class Tasks(Case):
    def setUp(self):
        super().setUp()
        (self.folder / "text.txt").write_text("\n".join(sentence(i) for i in range(900)))
        self.tasks = self.folder / "questions.jsonl"
        self.write_tasks(list(questions(60)) + [{"task": "prose", "text": " ".join(sentence(i) for i in range(n))} for n in (1, 20)])
        self.keys = {**TINY, "data.source": f'"{self.folder}/text.txt"', "data.folder": f'"{self.folder}/tokens"', "model.vocab": 320,
                     "model.block_size": 40, "train.max_steps": 8, "train.global_batch_size": 8}
        self.write_config(self.keys)
        self.command("prepare", self.config)
        self.on = ["--train.tasks=questions.jsonl", "--train.tasks_every_steps=4"]

    def write_tasks(self, rows):
        self.tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def refused(self, code, *overrides, says=()):
        self.command("train", self.config, f"--run={self.folder}/refused", *overrides, code=code)
        for word in says:
            self.assertIn(word, self.stderr)
        self.assertFalse((self.folder / "refused/metrics.jsonl").exists())

    def test_a_needle_in_the_users_text_is_asked_by_depth_and_length(self):
        (self.folder / "book.txt").write_text("\n".join(sentence(i) for i in range(300)))
        self.write_config({**self.keys, "model.block_size": 96})
        row = {"task": "needle", "haystack": "book.txt", "lengths": [72, 96], "depths": [0, 50, 100], "questions": 4, "seed": 5}
        self.write_tasks([row])
        run = self.train("run", "--train.tasks=questions.jsonl", "--train.max_steps=2")
        scores = scored(run)[2]
        self.assertEqual(set(scores), {f"needle/{length}/{depth}" for length in (72, 96) for depth in (0, 50, 100)})
        self.assertTrue(all(s["questions"] == 4 for s in scores.values()))
        self.assertEqual(json.loads(self.command("evaluate", run, "--tasks", self.tasks, "--json")), scores)
        table = self.command("evaluate", run, "--tasks", self.tasks)
        self.assertRegex(table, r"needle: accuracy by depth and tokens\n +depth +72 +96\n +0 % +[01]\.\d{4} +[01]\.\d{4}\n")
        self.write_tasks([{**row, "lengths": [97]}])
        self.refused(65, "--train.tasks=questions.jsonl", says=["a length of 97 tokens is above the model's block_size = 96"])
        self.write_tasks([{**row, "haystack": "none.txt"}])
        self.refused(65, "--train.tasks=questions.jsonl", says=["line 1", "none.txt"])

    def test_the_same_scores_on_every_layout_and_by_evaluate_and_training_undisturbed(self):
        without = self.train("without")
        flags = [*self.on, "--checkpoint.disk_every_steps=4", "--train.validation_every_steps=2"]
        one = self.folder / "one"
        told = self.command("train", self.config, f"--run={one}", *flags)
        scores = scored(one)
        self.assertEqual(list(scores), [0, 4, 8])
        self.assertEqual(in_metrics(one), {step: scores[step] for step in (4, 8)})
        self.assertEqual(scores[8]["words"]["questions"], 45)
        self.assertEqual(scores[8]["others"]["questions"], 15)
        self.assertNotEqual(scores[0]["prose"], scores[8]["prose"])
        self.assertIn(f"accuracy {scores[8]['words']['acc']:.4f}", told)
        # A step may have a loss, scores, or both.
        self.assertEqual([("val_loss" in m, "tasks" in m) for m in lines(one / "metrics.jsonl")],
                         [(False, False), (True, False), (False, False), (True, True)] * 2)
        for groups, trainers, strategy in ((2, 1, "no_shard"), (1, 2, "full_shard"), (2, 2, "hybrid_shard"), (1, 3, "full_shard")):
            batch = ["--train.global_batch_size=12"] if trainers == 3 else []  # other steps, but the same first state
            run = self.train(f"{groups}x{trainers}", *flags, *batch, *self.layout(groups, trainers, strategy))
            if batch:
                self.assertEqual(scored(run)[0], scores[0])
                continue
            self.assertEqual(self.digest(run), self.digest(without), (groups, trainers))
            self.assertEqual(scored(run), scores, (groups, trainers))
            self.assertEqual(in_metrics(run), in_metrics(one))
        every = os.sched_getaffinity(0)
        for step, cores in ((4, every), (8, every), (8, {min(every)})):
            checkpoint = one / f"checkpoints/step-{step:08}"
            os.sched_setaffinity(0, cores)
            self.addCleanup(os.sched_setaffinity, 0, every)
            self.assertEqual(json.loads(self.command("evaluate", checkpoint, "--tasks", self.tasks, "--json")), scores[step], cores)
        os.sched_setaffinity(0, every)
        # Where they are shown.
        self.assertEqual(status(one)["tasks"], scores[8])
        self.assertIn(f"{(scores[8]['words']['acc'] + scores[8]['others']['acc']) / 2:.4f}", self.command("runs", self.folder))
        of_run = {r["name"]: r for r in json.loads(self.command("runs", self.folder, "--json"))}
        self.assertEqual(of_run["one"]["tasks"], scores[8])
        self.assertIsNone(of_run["without"]["tasks"])

    @needs("torch", "transformers")
    def test_the_scores_are_those_of_another_implementation(self):
        distinct = [row for row in questions(60) if len(set(row["choices"])) == len(row["choices"])]
        self.write_tasks(distinct + list(odd_rows()) + [{"task": "prose", "text": " ".join(sentence(i) for i in range(n))} for n in (1, 20)])
        run = self.train("run", "--train.max_steps=40")
        ours = json.loads(self.command("evaluate", run, "--tasks", self.tasks, "--json"))
        self.command("export", run, "exported", "--dtype=float32")
        done = subprocess.run([PYTHON, "-c", HARNESS, "exported", self.tasks, str(self.keys["model.block_size"])], capture_output=True,
                              text=True, timeout=300, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])
        theirs = json.loads(done.stdout)
        self.assertEqual(set(ours), set(theirs))
        self.assertGreaterEqual(theirs["odd"]["questions"] + theirs["words"]["questions"] + theirs["others"]["questions"], 90)
        for task, figures in theirs.items():
            for name, value in figures.items():
                self.assertLess(abs(ours[task][name] / value - 1) if value else ours[task][name], 1e-4, (task, name, ours, theirs))

    def test_several_samples_at_once_and_bf16_give_the_scores_of_evaluate(self):
        for name, more in (("several", ["--train.micro_batch_size=2"]), ("bf16", ["--train.precision=bf16", "--train.micro_batch_size=2"])):
            run = self.train(name, *self.on, *more, *self.layout(2, 1))
            self.assertEqual(json.loads(self.command("evaluate", run, "--tasks", self.tasks, "--json")), scored(run)[8], name)

    def test_processes_that_die_while_tasks_are_scored_cost_no_step_and_no_score(self):
        self.write_tasks(list(questions(2000)))
        flags = ["--train.max_steps=12", "--train.tasks=questions.jsonl", "--train.tasks_every_steps=5", "--checkpoint.disk_every_steps=5",
                 "--train.validation_samples=0", *self.layout(2, 2)]
        reference = self.train("reference", *flags)
        run, process = self.start("run", *flags)

        def scores(step):  # its state is being written, which trainers do not wait for
            return last_step(run) == step - 1 and any((run / "checkpoints").glob(f"tmp-{step:08}-*"))

        self.wait_for(lambda: scores(5), "the scores of step 5")
        kill(trainer_pids(run)["n1.0"])
        self.wait_for(lambda: scores(10) and status(run)["standby"], "the scores of step 10")
        kill(status(run)["supervisor"]["pid"])
        self.assertEqual(process.wait(120), 0, process.stdout.read())
        self.assertEqual(self.digest(run), self.digest(reference))
        self.assertEqual(scored(run), scored(reference))
        self.assertEqual(in_metrics(run), in_metrics(reference))
        steps = [e["step"] for e in events(run, "validated")]
        self.assertEqual(steps, [0, 5, 10, 12], "each step is reported once")
        steps = [m["step"] for m in lines(run / "metrics.jsonl")]
        self.assertEqual(sorted(steps), sorted([*range(1, 13), 5]), "step 5 has another line, with its scores")
        self.assertFalse(any("val_loss" in e for e in lines(run / "events.jsonl")))
        self.assertIn("each sample exactly once", self.verify(run))

    def test_a_resumed_run_notices_another_file(self):
        run = self.train("run", *self.on)
        start = json.loads((run / "control/manifest.json").read_text())["starts"][-1]
        self.assertEqual(start["tasks"]["name"], str(self.tasks))
        self.assertEqual(start["tasks"]["bytes"], self.tasks.stat().st_size)
        self.write_tasks(list(questions(30)))
        kept = hashlib.sha256((run / "control/tasks.jsonl").read_bytes()).digest()
        self.train("run", *self.on, "--train.max_steps=10", code=65)
        self.assertEqual(hashlib.sha256((run / "control/tasks.jsonl").read_bytes()).digest(), kept)
        self.tasks.rename(self.folder / "others.jsonl")
        self.train("run", "--train.tasks=others.jsonl", "--train.max_steps=10")
        self.assertEqual(scored(run)[10]["words"]["questions"] + scored(run)[10]["others"]["questions"], 30)
        self.train("run", "--train.max_steps=12")
        self.assertNotIn(12, scored(run))
        self.assertFalse((run / "control/tasks.jsonl").exists())

    def test_wrong_files_are_refused_before_anything_starts(self):
        self.tasks.write_text('{"text": "fine"}\n{"prompt": "p", "choices": ["x"], "answer": 0}\n')
        self.refused(65, *self.on, says=[f"{self.tasks}: line 2: ", "at least two"])
        self.refused(65, "--train.tasks=none.jsonl", says=["none.jsonl"])
        self.refused(78, "--train.tasks_every_steps=5", says=["train.tasks_every_steps", "needs train.tasks"])
        self.write_tasks([{"text": "fine"}])
        self.write_config({**TINY, "train.max_steps": 8})
        self.refused(78, *self.on, says=["train.tasks", "bare tokens"])

    def test_tensorboard_and_wandb_have_the_scores(self):
        run = self.train("run", *self.on, "--metrics.tensorboard=true", "--metrics.wandb=true")
        for pattern in ("tb/events.out.tfevents.*", "wandb/offline-run-*/run-*.wandb"):
            found = b"".join(path.read_bytes() for path in run.glob(pattern))
            for tag in ("tasks/words/acc", "tasks/words/acc_norm", "tasks/prose/byte_perplexity"):
                self.assertIn(tag.encode(), found)
