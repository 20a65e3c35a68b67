// The page that HttpServer serves: one document without any outside resource. It asks /status,
// /metrics.jsonl and /events.jsonl, and only ever writes text, never markup, that comes from them.
#pragma once

namespace simplescale {

inline constexpr char kPage[] = R"html(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>simplescale</title>
<style>
:root { color-scheme: light dark; --fg: #1c2430; --bg: #fbfbfa; --dim: #6b7480; --line: #d9dce0; --card: #fff; }
@media (prefers-color-scheme: dark) { :root { --fg: #e3e6ea; --bg: #15181c; --dim: #8d96a1; --line: #30363d; --card: #1c2026; } }
body { font: 14px/1.45 system-ui, sans-serif; margin: 0 auto; max-width: 1200px; padding: 1rem; color: var(--fg); background: var(--bg); }
h1 { font-size: 1.2rem; margin: 0; } h2 { font-size: .95rem; margin: 0 0 .4rem; color: var(--dim); font-weight: 600; }
.figures { display: flex; flex-wrap: wrap; gap: .3rem 1.6rem; margin: .5rem 0 .8rem; }
.figures b { display: block; font-size: 1.15rem; font-variant-numeric: tabular-nums; } .figures span { color: var(--dim); font-size: .8rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); gap: .8rem; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: .7rem; min-width: 0; }
.wide { grid-column: 1 / -1; }
canvas { width: 100%; height: 190px; display: block; }
progress { width: 100%; height: .5rem; }
.groups { display: flex; flex-wrap: wrap; gap: .35rem; }
.group { border: 1px solid var(--line); border-radius: 4px; padding: .15rem .25rem; display: flex; flex-wrap: wrap; gap: 2px; align-items: center; }
.group > small { color: var(--dim); margin-right: .2rem; }
.node { display: flex; gap: 1px; border-radius: 2px; padding: 2px; }
.node > small { padding: 0 .2rem; }
.t { width: 11px; height: 11px; border-radius: 2px; }
.many .t { width: 5px; height: 5px; border-radius: 1px; } .many .node { padding: 1px; } .many .node > small { display: none; }
.key { color: var(--dim); font-size: .8rem; margin-top: .4rem; } .key i { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin: 0 .25rem 0 .8rem; }
table { border-collapse: collapse; width: 100%; font-size: .85rem; } td, th { text-align: left; padding: .2rem .5rem .2rem 0; vertical-align: top; border-top: 1px solid var(--line); }
th { color: var(--dim); font-weight: 500; border: 0; } td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.bar { display: flex; height: 10px; width: 160px; border-radius: 2px; overflow: hidden; background: var(--line); }
#lost { color: #b3261e; font-weight: 600; }
</style></head><body>
<h1><span id="run">simplescale</span> <small id="state"></small> <small id="lost"></small></h1>
<div class="figures" id="figures"></div><progress id="progress" max="1" value="0"></progress>
<div class="cards" style="margin-top:.8rem">
<div class="card"><h2>Loss</h2><canvas id="loss"></canvas></div>
<div class="card"><h2>Tokens a second</h2><canvas id="rate"></canvas></div>
<div class="card wide"><h2>Groups, nodes, trainers</h2><div id="tree"></div>
<div class="key">supervisor <b id="boss"></b>, standby <b id="standby"></b>
<i style="background:#2e9e5b"></i>as fast as the others<i style="background:#d9a400"></i>slower<i style="background:#c8452f"></i>1.5 times slower, or down<i style="background:#8d96a1"></i>idle or spare</div></div>
<div class="card wide"><h2>Incidents</h2><table id="incidents"><thead><tr><th>when</th><th>step</th><th>ms</th><th>phases</th><th>what was decided</th></tr></thead><tbody></tbody></table></div>
<div class="card wide"><h2>Events</h2><table id="events"><thead><tr><th>when</th><th>step</th><th>kind</th><th>subject</th><th>reason</th></tr></thead><tbody></tbody></table></div>
</div>
<script>
"use strict";
const $ = id => document.getElementById(id);
const make = (tag, text, cls) => { const e = document.createElement(tag); if (text !== undefined) e.textContent = text; if (cls) e.className = cls; return e; };
const short = x => x == null ? "–" : Math.abs(x) >= 1e9 ? (x / 1e9).toFixed(2) + " G" : Math.abs(x) >= 1e6 ? (x / 1e6).toFixed(2) + " M"
  : Math.abs(x) >= 1e4 ? (x / 1e3).toFixed(1) + " k" : Number.isInteger(x) ? String(x) : x.toFixed(Math.abs(x) < 10 ? 3 : 1);
const clock = s => new Date(s * 1000).toLocaleTimeString();
const phaseColours = { detect: "#7b61c4", fence: "#3f7fd1", abort: "#2aa3a3", decide: "#2e9e5b", heal: "#d9a400", resume: "#c8452f" };
const files = { metrics: { url: "/metrics.jsonl", after: 0, lines: [] }, events: { url: "/events.jsonl", after: 0, lines: [] } };
const most = 20000;

async function more(file) {
  for (let part = 0; part < 20; ++part) {
    const answer = await fetch(file.url + "?after=" + file.after);
    const next = Number(answer.headers.get("X-Next")), text = await answer.text();
    if (next < file.after) file.lines = [];
    file.after = next;
    for (const line of text.split("\n")) if (line) try { file.lines.push(JSON.parse(line)); } catch { }
    if (file.lines.length > most) file.lines.splice(0, file.lines.length - most);
    if (text.length < 1000000) return;
  }
}

function chart(canvas, points, marks) {
  const ratio = devicePixelRatio || 1, w = canvas.clientWidth, h = canvas.clientHeight, c = canvas.getContext("2d");
  canvas.width = w * ratio; canvas.height = h * ratio; c.scale(ratio, ratio);
  const style = getComputedStyle(document.body), dim = style.getPropertyValue("--dim"), line = style.getPropertyValue("--line");
  points = points.filter(p => Number.isFinite(p[1]));
  if (points.length < 2) { c.fillStyle = dim; c.fillText("no steps yet", 10, 20); return; }
  const sorted = points.map(p => p[1]).sort((a, b) => a - b), low = sorted[Math.floor(sorted.length * .002)], high = sorted[Math.ceil(sorted.length * .998) - 1];
  const x0 = points[0][0], x1 = points[points.length - 1][0], y0 = low - (high - low) * .05 - 1e-9, y1 = high + (high - low) * .05 + 1e-9;
  const left = 52, bottom = 18, X = x => left + (x - x0) / Math.max(1, x1 - x0) * (w - left - 8), Y = y => 6 + (y1 - y) / (y1 - y0) * (h - bottom - 10);
  c.font = "11px system-ui"; c.fillStyle = dim; c.strokeStyle = line;
  for (let i = 0; i <= 4; ++i) {
    const y = y0 + (y1 - y0) * i / 4, x = x0 + (x1 - x0) * i / 4;
    c.beginPath(); c.moveTo(left, Y(y)); c.lineTo(w - 8, Y(y)); c.stroke();
    c.textAlign = "right"; c.fillText(short(y), left - 5, Y(y) + 4);
    c.textAlign = i == 4 ? "right" : "center"; c.fillText(String(Math.round(x)), X(x), h - 3);
  }
  c.strokeStyle = "#c8452f88";
  for (const x of marks) if (x >= x0 && x <= x1) { c.beginPath(); c.moveTo(X(x), 6); c.lineTo(X(x), h - bottom); c.stroke(); }
  const stride = Math.max(1, points.length / (2 * w));
  c.strokeStyle = "#3f7fd1"; c.lineWidth = 1.4; c.beginPath();
  for (let i = 0; i < points.length; i += stride) { const p = points[Math.floor(i)]; c.lineTo(X(p[0]), Math.min(h - bottom, Math.max(6, Y(p[1])))); }
  c.stroke();
}

function colour(trainer, node) {
  if (trainer.state == "down" || node.state == "lost" || node.state == "drained") return "#c8452f";
  if (!trainer.group || trainer.state == "idle") return "#8d96a1";
  const s = trainer.slowness ?? 1;
  return s < 1.1 ? "#2e9e5b" : s < 1.5 ? "#d9a400" : "#c8452f";
}

function tree(status) {
  const groups = new Map();
  for (const node of status.nodes) {
    const name = node.group ?? node.state;
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(node);
  }
  const box = make("div", undefined, "groups" + (status.nodes.length > 64 ? " many" : ""));
  for (const [name, nodes] of [...groups].sort((a, b) => a[0].localeCompare(b[0], undefined, { numeric: true }))) {
    const group = make("div", undefined, "group");
    group.append(make("small", name));
    for (const node of nodes) {
      const square = make("div", undefined, "node");
      square.append(make("small", node.name));
      const h = node.health;
      square.title = [node.name + (node.host ? " on " + node.host : "") + ": " + node.state, node.reason,
        h ? "cpu " + Math.round(100 * h.cpu) + " %, memory " + Math.round(100 * h.memory) + " %, disk " + Math.round(100 * h.disk) + " %" : "",
        ...node.trainers.map(t => t.name + " " + t.state + (t.slowness ? ", " + t.slowness.toFixed(2) + " of the median's time" : ""))].filter(x => x).join("\n");
      for (const t of node.trainers) { const s = make("div", undefined, "t"); s.style.background = colour(t, node); square.append(s); }
      group.append(square);
    }
    box.append(group);
  }
  $("tree").replaceChildren(box);
  $("boss").textContent = status.supervisor.node; $("standby").textContent = status.standby ? status.standby.node : "none";
}

function show(status) {
  document.title = status.run + " · step " + status.step;
  $("run").textContent = status.run; $("state").textContent = status.state + (status.paused ? ", paused" : "");
  const last = files.metrics.lines[files.metrics.lines.length - 1] ?? {};
  $("figures").replaceChildren(...[["step", status.step + " / " + status.max_steps], ["loss", short(status.loss)], ["tokens/s", short(status.tokens_per_second)],
    ["step time", last.step_ms == null ? "–" : short(last.step_ms) + " ms"], ["grad norm", short(last.grad_norm)], ["learning rate", last.lr == null ? "–" : last.lr.toExponential(2)],
    ["groups", status.groups], ["generation", status.generation], ["incidents", status.incidents]].map(([name, value]) => {
    const box = make("div"); box.append(make("b", String(value)), make("span", name)); return box; }));
  $("progress").value = status.max_steps ? status.step / status.max_steps : 0;
  tree(status);
}

function records() {
  const byStep = new Map(files.metrics.lines.map(m => [m.step, m])), steps = [...byStep.values()].sort((a, b) => a.step - b.step);
  const recovered = files.events.lines.filter(e => e.kind == "recovered"), marks = recovered.map(e => e.step);
  chart($("loss"), steps.map(m => [m.step, m.loss]), marks);
  chart($("rate"), steps.map(m => [m.step, m.tokens_per_second]), marks);
  $("incidents").tBodies[0].replaceChildren(...recovered.slice(-20).reverse().map(e => {
    const row = make("tr"), bar = make("div", undefined, "bar"), all = Object.values(e.phases ?? {}).reduce((a, b) => a + b, 0) || 1, cell = make("td");
    for (const [phase, ms] of Object.entries(e.phases ?? {})) {
      const part = make("div"); part.style.width = 100 * ms / all + "%"; part.style.background = phaseColours[phase] ?? "#888"; part.title = phase + " " + ms + " ms"; bar.append(part); }
    cell.append(bar);
    row.append(make("td", clock(e.time)), make("td", e.step, "n"), make("td", e.ms, "n"), cell, make("td", e.reason));
    return row; }));
  $("events").tBodies[0].replaceChildren(...files.events.lines.slice(-40).reverse().map(e => {
    const row = make("tr");
    row.append(make("td", clock(e.time)), make("td", e.step, "n"), make("td", e.kind), make("td", e.subject), make("td", e.reason));
    return row; }));
}

async function turn() {
  try {
    const [answer] = await Promise.all([fetch("/status"), more(files.metrics), more(files.events)]);
    if (answer.ok) show(await answer.json());
    records();
    $("lost").textContent = "";
  } catch { $("lost").textContent = "no answer: control/http.json in the run's folder says where the supervisor is now"; }
  setTimeout(turn, 1000);
}
turn();
</script></body></html>
)html";

}  // namespace simplescale
