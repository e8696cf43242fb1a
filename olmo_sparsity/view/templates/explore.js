"use strict";
// A *target* is a token that follows a full window; target t is token DATA.first + t. Data is only ever set as text.

const byId = (id) => document.getElementById(id);
const DATA = JSON.parse(byId("data").textContent);
const [FIRST, LAST, MAX_K] = [DATA.first, DATA.texts.length - 1, DATA.ks.at(-1)];
const NUM_LARGEST = 8;
const FULL_SHADE = 1; // nats
const NONE = "\u2013";
const state = { shade: "kl", first: DATA.selectors[0].name, second: "", tolerance: DATA.tolerance, k: MAX_K, own: true, token: null };
const box = byId("document");

/** Returns an element; children that are strings become text. */
function make(name, attributes, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null) node.setAttribute(key, value);
  node.append(...children.flat().filter((child) => child !== null));
  return node;
}

const nats = (value) => {
  if (value === null) return NONE;
  const text = value.toFixed(3);
  return /[1-9]/.test(text) ? text.replace("-", "\u2212") : text.replace("-", "");
};
const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)}%`;
const counted = (number) => `${number} ${DATA.units[number === 1 ? 0 : 1]}`;
const textAt = (token) => DATA.texts[token].trim() || "\u2423";
const named = (name) => DATA.selectors.find((one) => one.name === name);
const sides = () => [state.first, state.second].filter(Boolean).map(named);

/** Returns the index of the smallest sufficient k among 0 and the measured k; Infinity: more than the largest. */
function needed(target, side) {
  if (DATA.kl_short_nats[target] <= state.tolerance) return 0;
  const found = side.kl[target].findIndex((kl) => kl !== null && kl <= state.tolerance);
  return found < 0 ? Infinity : found + 1;
}
const kOf = (index) => [0, ...DATA.ks][index] ?? Infinity;
const kWords = (index) => (index === Infinity ? `more than ${MAX_K}` : String(kOf(index)));
const shownK = (target, side) => (state.own ? Math.min(kOf(needed(target, side)), MAX_K) : state.k);

/** Returns what is visible for a target at the k that is shown: {rank, token, distance}. */
function picked(target, side) {
  if (target < 0) return [];
  const k = shownK(target, side);
  return side.positions[target]
    .map((position, i) => ({
      rank: side.ranks ? side.ranks[target][i] : i + 1,
      token: target + position,
      distance: DATA.full_len - position,
    }))
    .filter(({ rank }) => rank <= k);
}

// --- the document

// A space in front of a token stands outside of it, so that no frame begins at the end of a line.
const nodes = DATA.texts.map((text, token) => {
  const space = text.startsWith(" ") && text.trim() ? " " : "";
  const node = make("span", { class: "token", role: "option", id: `t${token}` }, text.slice(space.length));
  node.dataset.token = token;
  box.append(space, node, text.includes("\u21b5") ? "\n" : "");
  return node;
});

/** Returns {share, against, words} of a token's shade. */
function shadeOf(token) {
  const target = token - FIRST;
  if (target < 0) return { share: 0, words: "not measured" };
  if (state.shade === "k") {
    const index = needed(target, named(state.first));
    return { share: Math.min(index, DATA.ks.length + 1) / (DATA.ks.length + 1), words: `smallest sufficient k ${kWords(index)}` };
  }
  const kl = DATA.kl_short_nats[target];
  const value = state.shade === "kl" ? kl : DATA.loss_short_nats[target] - DATA.loss_long_nats[target];
  const words = `${state.shade === "kl" ? "reaction" : "gain"} ${nats(value)} nats`;
  return { share: Math.min(1, Math.sqrt(Math.abs(value) / FULL_SHADE)), against: value < 0, words };
}

function shadeAll() {
  nodes.forEach((node, token) => {
    const { share, against, words } = shadeOf(token);
    node.style.setProperty("--share", share.toFixed(3));
    node.classList.toggle("against", Boolean(against));
    node.classList.toggle("unmeasured", token < FIRST);
    node.setAttribute("aria-label", `${textAt(token)}, ${words}`);
  });
}

let marked = [];
function mark(token) {
  for (const node of marked) {
    node.classList.remove("is", "near", "far", "in-a", "in-b");
    delete node.dataset.rank;
  }
  marked = [];
  if (token === null) return;
  const put = (at, name) => (nodes[at].classList.add(name), marked.push(nodes[at]));
  put(token, "is");
  if (token < FIRST) return;
  for (let back = 1; back <= DATA.full_len; back++) put(token - back, back <= DATA.local_len ? "near" : "far");
  sides().forEach((side, number) => {
    for (const one of picked(token - FIRST, side)) {
      put(one.token, number ? "in-b" : "in-a");
      nodes[one.token].dataset.rank ??= one.rank;
    }
  });
}

// --- the panel

const row = (attributes, head, cells) =>
  make("tr", attributes, make("th", { scope: "row" }, head), cells.map((cell) => (cell instanceof Node ? cell : make("td", {}, cell))));
const table = (caption, heads, rows) =>
  make(
    "table",
    {},
    make("caption", {}, caption),
    make("thead", {}, make("tr", {}, heads.map((head) => make("th", { scope: "col" }, head)))),
    make("tbody", {}, rows),
  );

/** Returns the table of predictions: with local tokens only, with k of each selector, with all tokens. */
function predictions(target) {
  const { texts, tokens, shares, targets } = DATA.likely;
  const views = [{ head: "local tokens only", view: 0, loss: DATA.loss_short_nats[target], kl: DATA.kl_short_nats[target] }];
  for (const side of sides()) {
    const k = shownK(target, side);
    const i = DATA.ks.indexOf(k);
    const view = 2 + DATA.selectors.indexOf(side) * DATA.ks.length + i;
    const at = i < 0 ? views[0] : { view, loss: side.loss[target][i], kl: side.kl[target][i] };
    views.push({ ...at, head: `+ ${k} by ${side.name}` });
  }
  views.push({ head: "all tokens", view: 1, loss: DATA.loss_long_nats[target], kl: 0 });
  const likely = tokens[target][0].map((_, rank) =>
    row({}, String(rank + 1), views.map(({ view }) => {
      const token = tokens[target][view][rank];
      const hit = token === targets[target] ? "hit" : null;
      return make("td", { class: hit }, `${texts[token].trim() || "\u2423"} ${percent(shares[target][view][rank])}`);
    })),
  );
  const own = views.map(({ loss }) => (loss === null ? NONE : percent(Math.exp(-loss))));
  return table("The most likely tokens here", ["rank", ...views.map(({ head }) => head)], [
    ...likely,
    row({ class: "now" }, `\u201c${textAt(FIRST + target)}\u201d`, own),
    row({}, "loss, nats", views.map(({ loss }) => nats(loss))),
    row({}, "KL from all", views.map(({ kl }) => nats(kl))),
  ]);
}

function byK(target, side) {
  const short = DATA.loss_short_nats[target];
  const rows = DATA.ks.map((k, i) => {
    const [kl, loss, random] = [side.kl[target][i], side.loss[target][i], DATA.random_loss[target][i]];
    return row({ class: k === shownK(target, side) ? "now" : null }, String(k), [kl, short - loss, random - loss].map(nats));
  });
  return table("Nats by k", ["k", "KL from all", "gain", "over random"], rows);
}

function panelOf(token) {
  const target = token - FIRST;
  const head = [
    make("h2", {}, make("q", {}, textAt(token))),
    make("p", { class: "note" }, `token ${token}, character ${DATA.offsets[token]} (explore --at ${DATA.offsets[token]})`),
  ];
  if (target < 0) return [...head, make("p", {}, "No full window precedes it, so it is not measured. Later tokens may need it.")];
  const reaction = `Reaction ${nats(DATA.kl_short_nats[target])} nats; in the null context ${nats(DATA.null_kl_short_nats[target])}.`;
  const parts = sides().map((side, number) => [
    make("h3", { class: number ? "of-b" : "of-a" }, side.name),
    make("p", { class: "needs" }, `Smallest sufficient k: ${kWords(needed(target, side))}.`),
    make("ol", { class: "picked" }, picked(target, side).map(({ rank, token: at, distance }) =>
      make("li", { value: rank }, make("q", {}, textAt(at)), ` ${distance} tokens back`))),
    byK(target, side),
  ]);
  return [...head, make("div", { class: "scroll" }, predictions(target)), make("p", {}, reaction), ...parts.flat()];
}

function show(token) {
  mark(token);
  byId("panel").replaceChildren(...(token === null ? [] : panelOf(token)));
}

// --- controls

function redraw() {
  byId("k-shown").textContent = state.own ? "as needed" : counted(state.k);
  byId("k").setAttribute("aria-valuetext", byId("k-shown").textContent);
  shadeAll();
  const swatch = (share, words, against) => {
    const node = make("span", { class: `token${against ? " against" : ""}` }, words);
    node.style.setProperty("--share", share.toFixed(3));
    return node;
  };
  const worth = (sign) => [0.01, 0.05, 0.25, 1].map((value) => swatch(Math.sqrt(value / FULL_SHADE), sign + value, sign));
  const steps = [0, ...DATA.ks, `> ${MAX_K}`].map((k, i, all) => swatch(i / (all.length - 1), String(k)));
  const of = {
    kl: ["Reaction, nats:", ...worth("")],
    gain: ["Gain, nats:", ...worth(""), ...worth("\u2212")],
    k: ["Smallest sufficient k:", ...steps],
  };
  byId("legend").replaceChildren(...of[state.shade].map((one) => (one instanceof Node ? one : make("span", {}, one))));
  show(state.token);
}

function choose(token) {
  if (state.token !== null) nodes[state.token].setAttribute("aria-selected", "false");
  state.token = token;
  nodes[token].setAttribute("aria-selected", "true");
  box.setAttribute("aria-activedescendant", `t${token}`);
  show(token);
  const [at, frame] = [nodes[token].getBoundingClientRect(), box.getBoundingClientRect()];
  if (at.top < frame.top || at.bottom > frame.bottom) box.scrollTop += at.top - frame.top - box.clientHeight / 2;
  const list = token < FIRST ? [] : picked(token - FIRST, named(state.first));
  const needs = list.map((one) => `${textAt(one.token)}, ${one.distance} tokens back`).join("; ");
  byId("said").textContent = `${textAt(token)}: ${shadeOf(token).words}${list.length ? `; ${state.first} picks ${needs}` : ""}`;
}

/** Returns the token nearest to a place some lines above or below another. */
function across(token, lines) {
  const line = parseFloat(getComputedStyle(box).lineHeight);
  const middle = (at) => nodes[at].getClientRects()[0];
  const from = middle(token);
  let [best, least] = [token, Infinity];
  for (let at = token; at >= 0 && at <= LAST; at += Math.sign(lines)) {
    const to = middle(at);
    const down = Math.abs(to.top - from.top - lines * line);
    const gap = down * 1000 + Math.abs(to.left + to.width / 2 - from.left - from.width / 2);
    if (gap < least) [best, least] = [at, gap];
    if (down > line && Math.abs(to.top - from.top) > Math.abs(lines * line)) break;
  }
  return best;
}

function nextNeeding(token) {
  for (let next = Math.max(token + 1, FIRST); next <= LAST; next++)
    if (needed(next - FIRST, named(state.first)) > 0) return next;
  return token;
}

box.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const now = state.token;
  const page = Math.max(1, Math.floor(box.clientHeight / parseFloat(getComputedStyle(box).lineHeight)) - 1);
  const moves = {
    ArrowLeft: () => now - 1,
    ArrowRight: () => now + 1,
    ArrowUp: () => across(now, -1),
    ArrowDown: () => across(now, 1),
    PageUp: () => across(now, -page),
    PageDown: () => across(now, page),
    Home: () => 0,
    End: () => LAST,
    n: () => nextNeeding(now),
    N: () => nextNeeding(now),
  };
  if (!Object.hasOwn(moves, event.key)) return;
  choose(Math.min(LAST, Math.max(0, moves[event.key]())));
  event.preventDefault();
});
const tokenAt = (event) => event.target.closest?.(".document .token")?.dataset.token ?? null;
box.addEventListener("click", (event) => tokenAt(event) !== null && choose(Number(tokenAt(event))));
box.addEventListener("pointerover", (event) => event.pointerType === "mouse" && tokenAt(event) !== null && show(Number(tokenAt(event))));
box.addEventListener("pointerleave", () => show(state.token));

for (const id of ["shade", "first", "second", "tolerance"])
  byId(id).addEventListener("change", ({ target }) => {
    state[id] = id === "tolerance" ? Number(target.value) : target.value;
    redraw();
  });
byId("k").addEventListener("input", ({ target }) => {
  state.k = kOf(Number(target.value));
  state.own = byId("own").checked = false;
  redraw();
});
byId("own").addEventListener("change", ({ target }) => {
  state.own = target.checked;
  redraw();
});
byId("find").addEventListener("keydown", ({ key, target }) => {
  if (key !== "Enter" || !target.value) return;
  const begins = [];
  let all = "";
  for (const text of DATA.texts) {
    begins.push(all.length);
    all += text.toLowerCase();
  }
  const wanted = target.value.toLowerCase();
  const from = begins[state.token + 1] ?? 0;
  const at = all.indexOf(wanted, from) < 0 ? all.indexOf(wanted) : all.indexOf(wanted, from);
  if (at >= 0) choose(begins.findLastIndex((begin) => begin <= at));
  else byId("said").textContent = `${target.value}: not in the document`;
});
byId("theme").addEventListener("change", ({ target }) => (document.documentElement.dataset.theme = target.value));

const gains = DATA.loss_short_nats.map((short, target) => short - DATA.loss_long_nats[target]);
const order = [...gains.keys()].sort((a, b) => gains[b] - gains[a]).slice(0, NUM_LARGEST);
const links = order.map((target) => {
  const button = make("button", { type: "button" }, textAt(FIRST + target));
  button.addEventListener("click", () => (choose(FIRST + target), box.focus()));
  return make("li", {}, button, ` token ${FIRST + target}, ${nats(gains[target])} nats`);
});
byId("largest").append(...links);
byId("controls").open = !matchMedia("(max-width: 48rem)").matches;
state.token = FIRST + order[0];
redraw();
choose(state.token);
document.documentElement.dataset.ready = "";
