// The page: form, answer, race, round, recent runs.

import { AnswerView } from "./answer.js";
import { ApiError, ask, isReady, models } from "./client.js";
import { replay } from "./race.js";
import { drawTree, roundText } from "./tree.js";

const $ = (id) => document.getElementById(id);
const MAX_RECENT = 10;
const state = { image: null, budgets: [63], controller: null, runs: [], round: null };

// The round in view ---------------------------------------------------------------------------------------------------

function showRound(round) {
  state.round = round;
  $("round-box").hidden = false;
  $("round-title").textContent = round.index === null ? "Prefill" : `Round ${round.index + 1}`;
  $("round-text").textContent = roundText(round);
  if (round.tree?.texts.length) drawTree($("tree"), round);
  else $("tree").replaceChildren();
  const at = view.rounds.indexOf(round);
  $("previous").disabled = at <= 0;
  $("next").disabled = at < 0 || at === view.rounds.length - 1;
}

function move(by) {
  const next = view.rounds[view.rounds.indexOf(state.round) + by];
  if (next) view.open(next, null);
}

const view = new AnswerView($("answer"), $("token"), showRound);
$("previous").addEventListener("click", () => move(-1));
$("next").addEventListener("click", () => move(1));

// Image ---------------------------------------------------------------------------------------------------------------

function setImage(url, name) {
  state.image = url;
  $("preview").hidden = $("remove").hidden = !url;
  if (url) $("preview").src = url;
  else $("preview").removeAttribute("src");
  $("preview").alt = url ? `The image to ask about: ${name}` : "";
}

function readFile(file) {
  if (!file) return;
  const reader = new FileReader();
  reader.onload = () => setImage(reader.result, file.name);
  reader.onerror = () => fail(`cannot read ${file.name}`);
  reader.readAsDataURL(file);
}

$("file").addEventListener("change", () => readFile($("file").files[0]));
$("remove").addEventListener("click", () => { setImage(null); $("file").value = ""; $("file").focus(); });
for (const kind of ["dragover", "dragleave", "drop"]) {
  $("drop").addEventListener(kind, (event) => {
    event.preventDefault();
    $("drop").classList.toggle("over", kind === "dragover");
    if (kind === "drop") readFile(event.dataTransfer.files[0]);
  });
}
document.addEventListener("paste", (event) => {
  const file = [...event.clipboardData.files].find((one) => one.type.startsWith("image/"));
  if (file) readFile(file);
});
for (const button of document.querySelectorAll("[data-example]")) {
  button.addEventListener("click", async () => {
    readFile(new File([await (await fetch(`examples/${button.dataset.example}`)).blob()], button.dataset.example));
    $("prompt").value = button.dataset.prompt;
  });
}

// Asking --------------------------------------------------------------------------------------------------------------

function settings() {
  return {
    prompt: $("prompt").value,
    image: state.image,
    budget: state.budgets[$("budget").valueAsNumber],
    temperature: $("temperature").valueAsNumber,
    maxTokens: $("tokens").valueAsNumber,
    seed: crypto.getRandomValues(new Uint32Array(1))[0],
    speculation: true,
    key: $("key").value,
  };
}

function fail(message) {
  $("error").textContent = message;
  $("error").hidden = false;
  $("status").textContent = "";
}

async function busy(work) {
  state.controller = new AbortController();
  $("error").hidden = true;
  $("ask").disabled = $("race").disabled = true;
  $("stop").disabled = false;
  try {
    await work(state.controller.signal);
  } catch (error) {
    if (error.name === "AbortError") $("status").textContent = "Stopped.";
    else if (error instanceof ApiError) fail(error.message);
    else fail(`no answer from the server: ${error.message}`);
    if (/API key/.test(error.message)) $("key-box").open = true;
  } finally {
    $("ask").disabled = $("race").disabled = false;
    $("stop").disabled = true;
  }
}

function figures(run) {
  const drafted = run.metrics.speculative_decoding;
  const decoded = run.usage.completion_tokens - 1;
  const rows = {
    tokens: run.usage.completion_tokens,
    rounds: drafted.num_rounds,
    "τ (tokens a round)": drafted.tau?.toFixed(2) ?? "–",
    "draft passes": drafted.num_draft_passes,
    "ms a token": decoded > 0 ? (run.metrics.decode_ms / decoded).toFixed(1) : "–",
    "prefill ms": run.metrics.prefill_ms.toFixed(0),
    budget: run.speculation ? run.budget : "none",
    temperature: run.temperature,
    ...(run.metrics.seed === null ? {} : { seed: run.metrics.seed }),
  };
  $("figures").replaceChildren(...Object.entries(rows).map(([name, value]) => {
    const row = document.createElement("div");
    const term = document.createElement("dt"), figure = document.createElement("dd");
    term.textContent = name;
    figure.textContent = value;
    row.append(term, figure);
    return row;
  }));
  $("status").textContent = { stop: "Complete.", length: "Cut at the length limit." }[run.finish] ?? run.finish;
  if (drafted.fell_back) $("status").textContent += ` Drafting ended early: ${drafted.fell_back}.`;
}

async function decode(options, signal, onRound) {
  const rounds = [];
  const result = await ask({ ...options, signal }, (round) => { rounds.push(round); onRound(round); });
  return { ...options, ...result, rounds };
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  busy(async (signal) => {
    view.clear();
    $("figures").replaceChildren();
    $("round-box").hidden = $("race-box").hidden = true;
    $("status").textContent = "Reading…";
    const run = await decode(settings(), signal, (round) => {
      view.add(round);
      $("status").textContent = "Writing…";
    });
    figures(run);
    remember(run);
  });
});

$("race").addEventListener("click", () => {
  if (!$("form").reportValidity()) return;
  busy(async (signal) => {
    const options = settings();
    $("race-box").hidden = false;
    for (const id of ["lane-plain", "lane-drafted", "foot-plain", "foot-drafted"]) $(id).replaceChildren();
    $("status").textContent = "Race: decoding plainly…";
    const plain = await decode({ ...options, speculation: false }, signal, () => {});
    $("status").textContent = "Race: decoding with the draft head…";
    view.clear();
    const drafted = await decode(options, signal, (round) => view.add(round));
    figures(drafted);
    remember(drafted);
    const lane = (name, run) => ({ place: $(`lane-${name}`), foot: $(`foot-${name}`), rounds: run.rounds });
    await replay([lane("plain", plain), lane("drafted", drafted)], $("race-note"), signal);
    const ratio = plain.metrics.decode_ms / drafted.metrics.decode_ms;
    const same = plain.text === drafted.text ? "The two texts are identical" : "The two texts differ";
    $("race-note").textContent += ` ${same}; this once, plain decoding took ${ratio.toFixed(2)} times as long.`;
  });
});

$("stop").addEventListener("click", () => state.controller?.abort());

// Recent runs ---------------------------------------------------------------------------------------------------------

function remember(run) {
  state.runs.unshift(run);
  state.runs.length = Math.min(state.runs.length, MAX_RECENT);
  $("recent-none").hidden = true;
  $("recent").replaceChildren(...state.runs.map((own) => {
    const item = document.createElement("li"), button = document.createElement("button");
    const drafted = own.metrics.speculative_decoding;
    button.type = "button";
    button.textContent = `${own.prompt.slice(0, 60)} — ${own.usage.completion_tokens} tokens, `
      + `${drafted.num_rounds} rounds, τ ${drafted.tau?.toFixed(2) ?? "–"}, budget ${own.budget}, T ${own.temperature}`;
    button.addEventListener("click", () => {
      view.show(own.rounds);
      figures(own);
      $("round-box").hidden = true;
      $("answer").focus();
    });
    item.append(button);
    return item;
  }));
}

// Start ---------------------------------------------------------------------------------------------------------------

function sliders() {
  const show = () => {
    const budget = state.budgets[$("budget").valueAsNumber];
    $("budget-out").textContent = `${budget} nodes`;
    $("budget").setAttribute("aria-valuetext", `${budget} nodes`);
    const heat = $("temperature").valueAsNumber;
    $("temperature-out").textContent = heat ? heat.toFixed(1) : "0 (greedy)";
    $("tokens-out").textContent = $("tokens").value;
  };
  for (const id of ["budget", "temperature", "tokens"]) $(id).addEventListener("input", show);
  show();
}

$("theme").addEventListener("click", () => {
  const isDark = getComputedStyle(document.documentElement).colorScheme === "dark";
  document.documentElement.dataset.theme = isDark ? "light" : "dark";
});

async function connect() {
  try {
    while (!(await isReady())) {
      $("model").textContent = "the model is loading…";
      await new Promise((done) => { setTimeout(done, 500); });
    }
    const model = await models($("key").value);
    $("model").textContent = `${model.id} · ${model.takes_images ? "text and images" : "text only"}`;
    state.budgets = [1, 2, 4, 8, 15, 31, 63, 127, 255].filter((budget) => budget <= model.max_budget);
    $("budget").max = state.budgets.length - 1;
    const own = state.budgets.indexOf(model.budget);
    $("budget").value = own < 0 ? state.budgets.length - 1 : own;
  } catch (error) {
    $("model").textContent = "";
    fail(error.message);
    if (/API key/.test(error.message)) $("key-box").open = true;
  }
  sliders();
}

$("key").addEventListener("change", () => { $("error").hidden = true; connect(); });
connect();
