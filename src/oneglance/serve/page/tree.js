// A round's candidate tree as SVG: depth to the right, the accepted path in colour, the bonus token at its end.

import { shown } from "./answer.js";

const NS = "http://www.w3.org/2000/svg";
const GAP = 22, LINE = 26, HEIGHT = 20, PAD = 12, INSET = 6, CHARACTER = 7.3, MAX_LABEL = 11;

function element(name, attributes, parent) {
  const node = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  parent?.append(node);
  return node;
}

function label(words) {
  const characters = [...words];
  return characters.length > MAX_LABEL ? `${characters.slice(0, MAX_LABEL - 1).join("")}…` : words;
}

function labelWidth(text) {
  const isWide = (character) => character.codePointAt(0) > 0x2e7f;  // CJK, emoji: two places
  return [...text].reduce((sum, character) => sum + (isWide(character) ? 2 : 1), 0) * CHARACTER;
}

// All nodes with their place: `line` down, `x` and `width` by the widest label of each depth.
function laidOut(tree, bonus) {
  const onPath = new Set(tree.path);
  const nodes = [];
  const add = (text, parent, kind, score = null) => {
    const words = shown(text).replaceAll(" ", "␣");  // SVG drops spaces at the ends
    const node = { words, label: label(words), parent, kind, score, children: [], depth: 0 };
    if (parent) {
      node.depth = parent.depth + 1;
      if (kind === "off") parent.children.push(node);
      else parent.children.unshift(node);
    }
    nodes.push(node);
  };
  add(tree.root, null, "on");
  tree.texts.forEach((text, i) => add(text, nodes[tree.parents[i]], onPath.has(i + 1) ? "on" : "off", tree.scores[i]));
  if (bonus !== undefined) add(bonus, nodes[tree.path.at(-1)], "bonus");
  setLines(nodes[0], 0, new Map());
  const widths = [];
  for (const { depth, label: own } of nodes) {
    widths[depth] = Math.max(widths[depth] ?? 0, labelWidth(own) + 2 * INSET);
  }
  const starts = widths.map((_, depth) => PAD + widths.slice(0, depth).reduce((sum, width) => sum + width + GAP, 0));
  for (const node of nodes) Object.assign(node, { x: starts[node.depth], width: widths[node.depth] });
  return nodes;
}

// A node, its first child, that one's, and so on share a line. Every other child begins the first line below that has
// room, the deepest ones first, so that short branches stay near the path. `cells` has, by line and depth, what is
// there: a box, or the links of a parent on their way down.
function setLines(head, from, cells) {
  const chain = [head];
  while (chain.at(-1).children.length) chain.push(chain.at(-1).children[0]);
  const isFree = (line, node) => [undefined, node.parent].includes(cells.get(`${line},${node.depth}`));
  let line = from;
  while (!chain.every((node) => isFree(line, node))) line += 1;
  for (let at = from; at < line; at += 1) {
    if (!cells.has(`${at},${head.depth}`)) cells.set(`${at},${head.depth}`, head.parent);
  }
  for (const node of chain) {
    node.line = line;
    cells.set(`${line},${node.depth}`, "box");
  }
  for (const node of chain.toReversed()) {
    for (const child of node.children.slice(1)) setLines(child, line + 1, cells);
  }
}

export function drawTree(place, round) {
  const own = round.tokens.filter((token) => token.kind === "bonus").at(-1);
  const nodes = laidOut(round.tree, own?.token);
  const width = Math.max(...nodes.map((node) => node.x + node.width)) + PAD;
  const height = 2 * PAD + Math.max(...nodes.map((node) => node.line)) * LINE + HEIGHT;
  const svg = element("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img" });
  const title = element("title", {}, svg);
  title.textContent = `${round.tree.texts.length} candidates, ${round.tree.path.length - 1} accepted`;
  const y = (node) => PAD + node.line * LINE + HEIGHT / 2;
  for (const node of nodes.slice(1)) {
    const from = node.parent.x + node.parent.width, middle = (from + node.x) / 2;
    const d = `M${from} ${y(node.parent)}C${middle} ${y(node.parent)} ${middle} ${y(node)} ${node.x} ${y(node)}`;
    element("path", { d, class: node.kind }, svg);
  }
  const meaning = { on: "accepted", off: "rejected", bonus: "bonus" };
  for (const node of nodes) {
    const group = element("g", { class: node.kind, transform: `translate(${node.x} ${y(node) - HEIGHT / 2})` }, svg);
    element("rect", { width: node.width, height: HEIGHT, rx: 4 }, group);
    element("text", { x: INSET, y: 14 }, group).textContent = node.label;
    element("title", {}, group).textContent = `“${node.words}” ${node.parent ? meaning[node.kind] : "root"}`
      + (node.score === null ? "" : ` · path log q ${node.score.toFixed(2)}`);
  }
  place.replaceChildren(svg);
  const branches = nodes.filter((node) => node.kind === "off").map((node) => node.parent.x);
  const first = branches.length ? Math.min(...branches) : 0;
  place.scrollTo(first + 2 * GAP > place.clientWidth / 2 && width > place.clientWidth ? first - PAD : 0, 0);
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
