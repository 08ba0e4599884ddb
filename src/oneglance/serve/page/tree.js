// A round's candidate tree as SVG: depth to the right, the accepted path in colour, the bonus token at its end.

import { shown } from "./answer.js";

const NS = "http://www.w3.org/2000/svg";
const WIDTH = 96, STEP = 124, LINE = 26, HEIGHT = 20, PAD = 12;

function element(name, attributes, parent) {
  const node = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  parent?.append(node);
  return node;
}

function laidOut(tree, bonus) {
  const nodes = [{ text: tree.root, parent: -1, depth: 0, score: null, on: true }];
  const onPath = new Set(tree.path);
  tree.texts.forEach((text, i) => {
    const parent = tree.parents[i];
    nodes.push({ text, parent, depth: nodes[parent].depth + 1, score: tree.scores[i] ?? null, on: onPath.has(i + 1) });
  });
  if (bonus) {
    const parent = tree.path.at(-1);
    nodes.push({ text: bonus, parent, depth: nodes[parent].depth + 1, score: null, bonus: true });
  }
  const children = nodes.map(() => []);
  nodes.forEach((node, i) => { if (node.parent >= 0) children[node.parent].push(i); });
  let line = 0;
  const place = (i) => {  // children first: a parent stands beside its first child
    children[i].sort((a, b) => Number(nodes[b].on || nodes[b].bonus || 0) - Number(nodes[a].on || nodes[a].bonus || 0));
    if (!children[i].length) { nodes[i].line = line++; return; }
    children[i].forEach(place);
    nodes[i].line = nodes[children[i][0]].line;
  };
  place(0);
  return { nodes, lines: line, depth: Math.max(...nodes.map((node) => node.depth)) };
}

export function drawTree(place, round) {
  const own = round.tokens.filter((token) => token.kind === "bonus").at(-1);
  const { nodes, lines, depth } = laidOut(round.tree, own?.token);
  const width = 2 * PAD + depth * STEP + WIDTH, height = 2 * PAD + lines * LINE;
  const svg = element("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img" });
  const title = element("title", {}, svg);
  title.textContent = `${round.tree.texts.length} candidates, ${round.tree.path.length - 1} accepted`;
  const x = (node) => PAD + node.depth * STEP, y = (node) => PAD + node.line * LINE + HEIGHT / 2;
  const kind = (node) => (node.bonus ? "bonus" : node.on ? "on" : "off");
  for (const node of nodes.slice(1)) {
    const parent = nodes[node.parent], from = x(parent) + WIDTH, to = x(node), middle = (from + to) / 2;
    const d = `M${from} ${y(parent)}C${middle} ${y(parent)} ${middle} ${y(node)} ${to} ${y(node)}`;
    element("path", { d, class: kind(node) }, svg);
  }
  for (const node of nodes) {
    const group = element("g", { class: kind(node), transform: `translate(${x(node)} ${y(node) - HEIGHT / 2})` }, svg);
    const words = shown(node.text).replaceAll(" ", "␣");  // SVG drops spaces at the ends
    element("rect", { width: WIDTH, height: HEIGHT, rx: 4 }, group);
    const label = element("text", { x: 6, y: 14 }, group);
    label.textContent = words.length > 11 ? words.slice(0, 10) + "…" : words;
    element("title", {}, group).textContent =
      `“${words}” ${node.bonus ? "bonus" : node.on ? "accepted" : "rejected"}`
      + (node.score === null ? "" : ` · path log q ${node.score.toFixed(2)}`);
  }
  place.replaceChildren(svg);
  place.scrollTo(0, 0);
}

export function roundText(round) {
  if (round.index === null) return "The first token comes from the pass over the prompt; it belongs to no round.";
  const ms = (value) => `${value.toFixed(1)} ms`;
  const times = `draft ${ms(round.t_draft_ms)}, verify ${ms(round.t_verify_ms)}, rest ${ms(round.t_host_ms)}`;
  if (!round.tree.texts.length) return `No tree: one plain step. ${times}.`;
  const words = (kind) => round.tokens.filter((t) => t.kind === kind).map((t) => `“${shown(t.token)}”`).join(" ");
  const bonus = words("bonus");
  return `${round.tree.texts.length} candidates in one pass. Accepted ${words("accepted") || "none"}; `
    + `${bonus ? `then the target's own ${bonus}` : "the rest was cut"}. ${times}.`;
}
