// An answer as tokens, coloured by round: pointing, clicking and the arrow keys lead from a token to its round.

export function shown(text) {
  return JSON.stringify(text).slice(1, -1);
}

export function paint(place, round) {
  const spans = [];
  for (const token of round.tokens) {
    if (!token.text) continue;
    const span = document.createElement("span");
    span.className = `tok ${token.kind}`;
    if (round.index !== null) span.classList.add(round.index % 2 ? "odd" : "even");
    if (token.text.startsWith("\n")) span.classList.add("newline");  // else nothing of it is seen
    span.textContent = token.text;
    place.append(span);
    spans.push([span, token]);
  }
  return spans;
}

export function tokenText(token, round) {
  const where = round.index === null ? "prefill" : `round ${round.index + 1}`;
  const kinds = { first: "first token", accepted: "accepted", bonus: "bonus: the target's own", plain: "plain step" };
  const figure = (value, digits) => (value === null ? "–" : value.toFixed(digits));
  return `“${shown(token.token)}” · ${where}, ${kinds[token.kind]} · p ${figure(token.p, 3)}`
    + ` · entropy ${figure(token.entropy_nats, 3)} nats · gap to the second ${figure(token.gap_nats, 2)} nats`;
}

export class AnswerView {
  constructor(place, tokenBox, onRound) {
    this.place = place;
    this.tokenBox = tokenBox;
    this.onRound = onRound;
    this.clear();
    place.addEventListener("keydown", (event) => this.key(event));
  }

  clear() {
    this.place.replaceChildren();
    this.spans = [];
    this.rounds = [];
  }

  add(round) {
    this.rounds.push(round);
    for (const [span, token] of paint(this.place, round)) {
      const label = tokenText(token, round);
      span.setAttribute("role", "button");
      span.setAttribute("aria-label", label);
      span.tabIndex = this.spans.length ? -1 : 0;
      span.addEventListener("pointerenter", () => { this.tokenBox.textContent = label; });
      span.addEventListener("focus", () => { this.tokenBox.textContent = label; });
      span.addEventListener("click", () => this.open(round, span));
      this.spans.push({ span, round });
    }
  }

  show(rounds) {
    this.clear();
    rounds.forEach((round) => this.add(round));
  }

  open(round, span) {
    if (span) this.enter(span);
    for (const own of this.spans) own.span.classList.toggle("here", own.round === round);
    this.onRound(round);
  }

  enter(span) {
    for (const own of this.spans) own.span.tabIndex = own.span === span ? 0 : -1;
    span.focus();
  }

  key(event) {
    const at = this.spans.findIndex(({ span }) => span === document.activeElement);
    if (at < 0) return;
    const last = this.spans.length - 1;
    const places = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: last };
    if (event.key in places) {
      this.enter(this.spans[Math.min(last, Math.max(0, places[event.key]))].span);
    } else if (event.key === "Enter" || event.key === " ") {
      this.open(this.spans[at].round, null);
    } else {
      return;
    }
    event.preventDefault();
  }
}
