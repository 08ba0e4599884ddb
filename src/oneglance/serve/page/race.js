// Plain decoding against oneglance. One request decodes at a time, so the two are measured one after the other and then
// replayed side by side on their own clocks.

import { paint } from "./answer.js";

const SHOW_MS = 5000;

export function spent(round) {
  return round.index === null ? 0 : round.t_draft_ms + round.t_verify_ms + round.t_host_ms;
}

export function replay(lanes, note, signal) {
  const totals = lanes.map(({ rounds }) => rounds.reduce((sum, round) => sum + spent(round), 0));
  const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const scale = isStill ? 0 : Math.max(1, SHOW_MS / Math.max(...totals, 1));
  const how = scale > 1.05 ? `replayed ${scale.toFixed(1)} times slower than it ran` : "replayed as it ran";
  note.textContent = `Decoding only, measured one after the other${isStill ? "" : `, ${how}`}.`;
  return Promise.all(lanes.map((lane, i) => run(lane, totals[i], scale, signal)));
}

async function run({ place, foot, rounds }, total, scale, signal) {
  place.replaceChildren();
  const started = performance.now();
  let clock = 0, tokens = 0;
  for (const round of rounds) {
    clock += spent(round);
    tokens += round.tokens.length;
    const wait = started + clock * scale - performance.now();
    if (wait > 0 && !signal.aborted) await new Promise((done) => { setTimeout(done, wait); });
    paint(place, round);
    foot.textContent = `${tokens} tokens · ${rounds.indexOf(round)} rounds · ${clock.toFixed(0)} ms`;
  }
  foot.textContent = `${tokens} tokens · ${rounds.length - 1} rounds · ${total.toFixed(0)} ms`;
}
