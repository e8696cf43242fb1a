"use strict";
// The state of the page and its controls. Each control changes the state, then redraws what depends on it. A *target* is a token that
// follows a full window; number t of them is token first_target + t.

const DATA = JSON.parse(byId("data").textContent);
const FIRST = DATA.first_target;
const NUM_TARGETS = DATA.texts.length - FIRST;
const MAX_K = DATA.ks.at(-1);
const BESIDE_VIEW = 8; // lines above and below the view that exist, too
const seen = (text) => tokenWords(DATA.unseen, text);
const NUM_LARGEST = 10;
const FULL_SHADE = 1; // nats
const SHADED = { worth: [0.01, 0.05, 0.25, 1], uses: [1, 2, 4, 8] }; // of the legend
const state = {
  shade: "kl",
  selector: DATA.selectors[0].name,
  beside: DATA.selectors[1]?.name ?? "",
  tolerance: DATA.tolerances_nats[1],
  k: MAX_K,
  own: true, // of each target its smallest sufficient k in place of k
  context: "real",
  direction: "needs",
  token: null, // the one that was clicked
  hovered: null,
};
let layout = null;
let uses = []; // by how many later targets each token is used

// --- numbers

const contextOf = () => DATA.contexts[state.context];
const sides = () => (state.beside ? [state.selector, state.beside] : [state.selector]);
const nats = (value, count = 3) => (value === null || value === undefined ? NONE : digits(value, count));
const minusOf = (from, value) => (from === null || value === null ? null : from - value);
const counted = (number) => `${number} ${DATA.unit[number === 1 ? 0 : 1]}`;
const usedBy = (number) => `used by ${number} later ${number === 1 ? "target" : "targets"}`;
const kWords = (k) => (k === Infinity ? `more than ${MAX_K}` : String(k));

/** Returns the smallest measured k at which the divergence is within the tolerance; Infinity: at none. */
function sufficientK(target, selector) {
  const context = contextOf();
  const short = context.kl_short_nats[target];
  if (short !== null && short <= state.tolerance) return 0;
  const found = context.choices[selector].kl_sparse_nats[target].findIndex((kl) => kl !== null && kl <= state.tolerance);
  return found < 0 ? Infinity : DATA.ks[found];
}

/** Returns the k at which the choice before a target is shown. */
const shownK = (target, selector) => (state.own ? Math.min(sufficientK(target, selector), MAX_K) : state.k);

/** Returns the chosen tokens before a target at the k that is shown: {rank, distance, token}, the most influential first. */
function chosenOf(target, selector) {
  const { distances, ranks } = contextOf().choices[selector];
  const k = shownK(target, selector);
  return distances[target]
    .map((distance, i) => ({ rank: ranks === null ? i + 1 : ranks[target][i], distance, token: FIRST + target - distance }))
    .filter(({ rank }) => rank <= k);
}

/** Returns the targets that use a token: {rank, distance, token}, in the order of the text. */
function usersOf(token, selector) {
  const users = [];
  const from = Math.max(token + DATA.local_len + 1, FIRST);
  for (let user = from; user <= Math.min(token + DATA.full_len, DATA.texts.length - 1); user++) {
    const found = chosenOf(user - FIRST, selector).find((one) => one.token === token);
    if (found) users.push({ rank: found.rank, distance: found.distance, token: user });
  }
  return users;
}

/** Returns the tokens to frame for a token, by the direction: those chosen for it, or those that use it. */
function framedOf(token, selector) {
  if (token === null) return [];
  if (state.direction === "used") return usersOf(token, selector);
  return token < FIRST ? [] : chosenOf(token - FIRST, selector);
}

function countUses() {
  uses = new Array(DATA.texts.length).fill(0);
  for (let target = 0; target < NUM_TARGETS; target++)
    for (const { token } of chosenOf(target, state.selector)) uses[token]++;
}

/** Returns {share, against, words} of a token's shade; words: what a screen reader says of it. */
function shadeOf(token) {
  if (state.shade === "uses") {
    const number = uses[token];
    return { share: number ? Math.min(1, (Math.log2(number) + 1) / 4) : 0, words: usedBy(number) };
  }
  if (token < FIRST) return { share: 0, words: "not a target" };
  const target = token - FIRST;
  if (state.shade === "k") {
    const k = sufficientK(target, state.selector);
    const place = k === Infinity ? DATA.ks.length + 1 : DATA.ks.indexOf(k) + 1;
    return { share: place / (DATA.ks.length + 1), words: `smallest sufficient k ${kWords(k)}` };
  }
  const value =
    state.shade === "kl"
      ? contextOf().kl_short_nats[target]
      : minusOf(DATA.loss_short_nats[target], contextOf().loss_long_nats[target]);
  if (value === null) return { share: 0, words: "not a number" };
  const words = `${state.shade === "kl" ? "reaction" : "gain"} ${nats(value)} nats`;
  return { share: Math.min(1, Math.sqrt(Math.abs(value) / FULL_SHADE)), against: value < 0, words };
}

// --- the document

const box = byId("document");
const holder = byId("lines");
const drawn = new Map(); // lines that exist, by their number

const active = () => state.hovered ?? state.token;

function dress(node, token, framed) {
  const { share, against, words } = shadeOf(token);
  const now = active();
  const target = state.direction === "needs" ? now : null;
  node.style.setProperty("--heat-share", share.toFixed(3));
  const back = target === null || target < FIRST ? 0 : target - token;
  const classes = {
    against,
    unmeasured: token < FIRST,
    near: back > 0 && back <= DATA.local_len,
    remote: back > DATA.local_len && back <= DATA.full_len,
    is: token === now,
    "in-a": framed[0].has(token),
    "in-b": framed[1]?.has(token),
  };
  for (const [name, wanted] of Object.entries(classes)) node.classList.toggle(name, Boolean(wanted));
  const rank = framed[0].get(token) ?? framed[1]?.get(token);
  if (rank === undefined) node.removeAttribute("data-rank");
  else node.dataset.rank = rank;
  node.setAttribute("aria-selected", String(token === state.token));
  node.setAttribute("aria-label", `${layout.places[token].text.trim() || SPACE}, ${words}`);
}

function line(number, framed) {
  const [first, behind] = layout.lines[number];
  const node = html("div", { class: "line", role: "presentation" });
  node.style.top = `${number * LINE}px`;
  for (let token = first; token < behind; token++) {
    const child = html(
      "span",
      { class: "token", role: "option", id: `t${token}`, "aria-posinset": token + 1, "aria-setsize": DATA.texts.length },
      layout.places[token].text,
    );
    child.dataset.token = token;
    dress(child, token, framed);
    node.append(child);
  }
  return node;
}

const framedSides = () => sides().map((name) => new Map(framedOf(active(), name).map(({ token, rank }) => [token, rank])));

/** Returns the numbers of the first line in view, and of the one behind the last. */
function inView() {
  const first = Math.floor(box.scrollTop / LINE);
  return [Math.max(0, first), Math.min(layout.lines.length, first + Math.ceil(box.clientHeight / LINE) + 1)];
}

/** Makes the lines in view, and removes those that are far from it. */
function showLines() {
  const framed = framedSides();
  const [first, behind] = inView();
  const [from, to] = [Math.max(0, first - BESIDE_VIEW), Math.min(layout.lines.length, behind + BESIDE_VIEW)];
  for (const [number, node] of drawn) {
    if (number >= from && number < to) continue;
    node.remove();
    drawn.delete(number);
  }
  for (let number = from; number < to; number++) {
    if (drawn.has(number)) continue;
    drawn.set(number, line(number, framed));
    holder.append(drawn.get(number));
  }
  if (state.token !== null && byId(`t${state.token}`)) box.setAttribute("aria-activedescendant", `t${state.token}`);
  else box.removeAttribute("aria-activedescendant");
}

function dressAll() {
  const framed = framedSides();
  for (const node of drawn.values()) for (const child of node.children) dress(child, Number(child.dataset.token), framed);
}

const middleOf = (token) => {
  const place = layout.places[token];
  return [place.x + place.width / 2, place.line * LINE];
};

/** Draws a curve from each framed token to the one that is active. */
function drawLinks() {
  const links = byId("links");
  const now = active();
  const paths = sides().flatMap((name, side) =>
    framedOf(now, name).map(({ token }) => {
      const [[x1, y1], [x2, y2]] = [middleOf(token), middleOf(now)];
      const [top1, top2] = [y1 + 5, y2 + 5];
      const bow = Math.min(top1, top2) - 16 - 6 * side;
      const path = svg("path", { class: side ? "of-b" : "of-a", d: `M${x1} ${top1}C${x1} ${bow} ${x2} ${bow} ${x2} ${top2}` });
      path.dataset.token = token;
      return path;
    }),
  );
  links.replaceChildren(...paths);
}

function arrange() {
  layout = layOut(DATA.texts.map(seen), box.clientWidth - 28, measureIn(box));
  holder.style.height = `${layout.lines.length * LINE}px`;
  for (const node of drawn.values()) node.remove();
  drawn.clear();
  showLines();
  drawLinks();
}

/** Scrolls until a token is in view. */
function reveal(token) {
  const top = layout.places[token].line * LINE;
  if (top < box.scrollTop + LINE || top > box.scrollTop + box.clientHeight - 3 * LINE)
    box.scrollTop = Math.max(0, top - box.clientHeight / 2);
  showLines();
}

// --- the panel

function choiceTable(target, selector) {
  const context = contextOf();
  const choice = context.choices[selector];
  const short = DATA.loss_short_nats[target];
  const random = context.choices.random;
  const optimism = state.context === "real" ? DATA.selectors.find((one) => one.name === selector).optimism_nats : null;
  const now = shownK(target, selector);
  const row = (k, kl, loss, over, luck) =>
    html(
      "tr",
      { class: k === now ? "now" : null },
      html("th", { scope: "row" }, String(k)),
      [nats(kl), nats(loss), nats(minusOf(short, loss)), over, ...(optimism ? [luck] : [])].map((text) => html("td", {}, text)),
    );
  const rows = DATA.ks.map((k, i) => {
    const loss = choice.loss_sparse_nats[target][i];
    const over = random && selector !== "random" ? nats(minusOf(random.loss_sparse_nats[target][i], loss)) : NONE;
    return row(k, choice.kl_sparse_nats[target][i], loss, over, optimism ? nats(optimism[target]?.[i] ?? null) : null);
  });
  const heads = ["k", "KL", "loss", "gain", "over random", ...(optimism ? ["optimism"] : [])];
  return html(
    "table",
    {},
    html("caption", { class: "hidden" }, `${selector}: nats by k`),
    html("thead", {}, html("tr", {}, heads.map((head) => html("th", { scope: "col" }, head)))),
    html("tbody", {}, row(0, context.kl_short_nats[target], short, NONE, NONE), rows),
  );
}

function tokenTable(name, found) {
  if (!found.length) return "";
  return html(
    "table",
    { class: "tokens" },
    html("caption", { class: "hidden" }, name),
    html("thead", {}, html("tr", {}, ["rank", "distance", "token"].map((head) => html("th", { scope: "col" }, head)))),
    html(
      "tbody",
      {},
      found.map(({ rank, distance, token }) =>
        html("tr", {}, [String(rank), String(distance), textAt(token)].map((text) => html("td", {}, text))),
      ),
    ),
  );
}

const textAt = (token) => seen(DATA.texts[token]).trim() || SPACE;

/** Returns the tokens of a target's null context, with the chosen ones marked. */
function nullText(target) {
  const begin = DATA.null_begins[target];
  const order = DATA.null_orders[target];
  const chosen = new Set(chosenOf(target, state.selector).map(({ distance }) => DATA.full_len - distance));
  const texts = Array.from({ length: DATA.full_len - DATA.local_len }, (_, i) => DATA.texts[begin + (order ? order[i] : i)]);
  return html(
    "p",
    { class: "foreign" },
    texts.map((text, position) => (chosen.has(position) ? html("mark", {}, seen(text)) : seen(text))),
  );
}

function panelOf(token) {
  const target = token - FIRST;
  const parts = [
    html("h2", {}, html("q", {}, textAt(token))),
    html("p", { class: "note" }, `token ${token}, character ${DATA.offsets[token]}`),
  ];
  if (target >= 0) {
    const context = contextOf();
    const [short, long] = [DATA.loss_short_nats[target], context.loss_long_nats[target]];
    const facts = [
      ["reaction, KL(p_all, p_{})", `${nats(context.kl_short_nats[target])} nats`],
      ["L_short, local tokens alone", `${nats(short)} nats`],
      [state.context === "real" ? "L_long, all tokens" : "L_long, null context", `${nats(long)} nats`],
      ["long gain", `${nats(minusOf(short, long))} nats`],
      [`later targets that use it (${state.selector})`, String(uses[token])],
    ];
    parts.push(html("dl", { class: "numbers" }, facts.flatMap(([name, value]) => [html("dt", {}, name), html("dd", {}, value)])));
  } else parts.push(html("p", {}, "No full window stands before it, so it is no target."));
  sides().forEach((name, side) => {
    parts.push(html("h3", { class: side ? "of-b" : "of-a" }, name));
    const found = framedOf(token, name);
    if (state.direction === "used") {
      parts.push(html("p", { class: "users" }, `It is ${usedBy(found.length)}.`), tokenTable(`${name}: targets that use it`, found));
    } else if (target >= 0) {
      parts.push(
        html("p", { class: "smallest" }, `Smallest sufficient k: ${kWords(sufficientK(target, name))}.`),
        tokenTable(`${name}: the chosen tokens`, found),
        choiceTable(target, name),
      );
    }
  });
  if (target >= 0 && state.context === "null" && state.direction === "needs")
    parts.push(html("h3", {}, "The null context"), nullText(target));
  // A further part of a character has the place of the first, which is what the command would print.
  if (target >= 0 && DATA.texts[token])
    parts.push(html("p", { class: "note" }, html("code", {}, `olmo-sparsity explore --text FILE --at ${DATA.offsets[token]}`)));
  return parts;
}

function showPanel() {
  const now = active();
  byId("panel").replaceChildren(
    ...(now === null ? [html("p", {}, "Point at a token, or move to one with the keys: its losses and what is chosen for it stand here.")] : panelOf(now)),
  );
}

/** Returns how much a token needs, or where all targets have the same k, how much is chosen. */
function chosenWords(token, found) {
  const number = counted(new Set(found.map(({ rank }) => rank)).size);
  if (!state.own) return `${number} chosen`;
  return `needs ${token >= FIRST && sufficientK(token - FIRST, state.selector) === Infinity ? "more than " : ""}${number}`;
}

/** Tells a screen reader about the token that was chosen. */
function say() {
  const token = state.token;
  const found = token === null ? [] : framedOf(token, state.selector);
  const what = state.direction === "used" ? usedBy(found.length) : chosenWords(token, found);
  const list = found.map((one) => `${textAt(one.token)}, ${one.distance} tokens apart`).join("; ");
  byId("said").textContent =
    token === null ? "" : `${textAt(token)}: ${shadeOf(token).words}; ${what} by ${state.selector}${list && `: ${list}`}`;
}

// --- map, legend, list

/** Returns for each side the distances of the tokens chosen for each target, and how many targets have which. */
function mapped() {
  return sides().map((name, side) => {
    const chosen = Array.from({ length: NUM_TARGETS }, (_, target) => chosenOf(target, name).map(({ distance }) => distance));
    const count = new Map();
    for (let distance = DATA.local_len + 1; distance <= DATA.full_len; distance++) count.set(distance, 0);
    for (const distance of chosen.flat()) count.set(distance, count.get(distance) + 1);
    return { chosen, count, colour: side ? "--b" : "--a" };
  });
}

let ofMap = [];
let layer = null; // of the map; null: to be drawn
function showMap() {
  const map = byId("map");
  layer ??= mapLayer(map, DATA, ofMap);
  const [first, behind] = inView();
  const shown = [layout.lines[first]?.[0] ?? 0, (layout.lines[behind - 1]?.[1] ?? 1) - 1];
  drawMap(map, DATA, layer, { shown, token: active() });
}

function showDistances() {
  const table = byId("distances");
  table.querySelector(".of-a").textContent = state.selector;
  table.querySelector(".of-b").textContent = state.beside;
  const rows = [...ofMap[0].count.keys()].map((distance) =>
    html("tr", {}, html("th", { scope: "row" }, String(distance)), ofMap.map(({ count }) => html("td", {}, String(count.get(distance))))),
  );
  table.querySelector("tbody").replaceChildren(...rows);
  const found = ofMap.map(({ count }, side) => {
    const all = [...count.values()].reduce((sum, number) => sum + number, 0);
    let within = 0;
    const half = [...count].find(([, number]) => (within += number) >= all / 2)?.[0];
    const name = side ? state.beside : state.selector;
    return all === 0 ? `no token is chosen by ${name}` : `half of those chosen by ${name} lie at most ${half} tokens back`;
  });
  byId("map").setAttribute("aria-label", `Map of the chosen tokens: ${found.join("; ")}. The table below has the numbers.`);
}

function swatch(share, words, against = false) {
  const node = html("span", { class: `token${against ? " against" : ""}` }, words);
  node.style.setProperty("--heat-share", share.toFixed(3));
  return node;
}

function showLegend() {
  const worth = (sign) => SHADED.worth.map((value) => swatch(Math.sqrt(value / FULL_SHADE), `${sign}${value}`, sign !== ""));
  const of = {
    kl: ["Nats, KL(p_all, p_{}):", ...worth("")],
    gain: ["Nats, L_short \u2212 L_long:", ...worth(""), ...worth("\u2212")],
    k: [
      "Smallest sufficient k:",
      ...[0, ...DATA.ks, Infinity].map((k, i) => swatch(i / (DATA.ks.length + 1), k === Infinity ? `> ${MAX_K}` : String(k))),
    ],
    uses: ["Later targets that use it:", ...SHADED.uses.map((number, i) => swatch((i + 1) / 4, i === 3 ? `${number} or more` : String(number)))],
  };
  byId("legend").replaceChildren(...of[state.shade].map((one) => (typeof one === "string" ? html("span", {}, one) : one)));
}

function showLargest() {
  const worth = contextOf().kl_short_nats;
  const order = [...worth.keys()].sort((a, b) => (worth[b] ?? -1) - (worth[a] ?? -1)).slice(0, NUM_LARGEST);
  byId("largest").replaceChildren(
    ...order.map((target) =>
      html(
        "li",
        {},
        html(
          "button",
          { type: "button", class: "quiet-button", onclick: () => (choose(FIRST + target), box.focus()) },
          textAt(FIRST + target),
        ),
        ` token ${FIRST + target}, ${nats(worth[target])} nats, smallest sufficient k ${kWords(sufficientK(target, state.selector))}`,
      ),
    ),
  );
}

// --- changes

function refresh() {
  dressAll();
  drawLinks();
  showPanel();
  showMap();
}

/** Redraws everything that depends on the controls. */
function redraw() {
  const root = document.documentElement.style;
  root.setProperty("--a", colour(state.selector));
  root.setProperty("--b", state.beside ? colour(state.beside) : "transparent");
  const shown = state.own ? "each its own" : state.k;
  byId("k-shown").textContent = shown;
  byId("k").setAttribute("aria-valuetext", String(shown));
  countUses();
  ofMap = mapped();
  layer = null;
  showDistances();
  showLegend();
  showLargest();
  refresh();
  say();
}

function choose(token) {
  state.token = token;
  state.hovered = null;
  if (token !== null) reveal(token);
  showLines();
  refresh();
  say();
}

function hover(token) {
  if (state.hovered === token) return;
  state.hovered = token;
  refresh();
}

const tokenAt = (event) => {
  const node = event.target.closest?.(".token[data-token]");
  return node ? Number(node.dataset.token) : null;
};

/** Returns the token on another line that is nearest to one across. */
function across(token, lines) {
  const { line: from, x, width } = layout.places[token];
  const number = Math.min(layout.lines.length - 1, Math.max(0, from + lines));
  const [first, behind] = layout.lines[number];
  let best = first;
  for (let other = first; other < behind; other++) {
    const gap = (one) => Math.abs(layout.places[one].x + layout.places[one].width / 2 - x - width / 2);
    if (gap(other) < gap(best)) best = other;
  }
  return best;
}

/** Returns the next target behind a token that needs long-range tokens, or the token itself. */
function nextNeeding(token) {
  for (let next = Math.max(token + 1, FIRST); next < DATA.texts.length; next++)
    if (sufficientK(next - FIRST, state.selector) > 0) return next;
  return token;
}

function turn(direction) {
  state.direction = direction;
  for (const radio of document.querySelectorAll('input[name="direction"]')) radio.checked = radio.value === direction;
  redraw();
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const last = DATA.texts.length - 1;
  const now = state.token ?? layout.lines[inView()[0]][0];
  const page = Math.max(1, Math.floor(box.clientHeight / LINE) - 1);
  const begun = state.token !== null;
  const moves = {
    ArrowLeft: () => (begun ? now - 1 : now),
    ArrowRight: () => (begun ? now + 1 : now),
    ArrowUp: () => (begun ? across(now, -1) : now),
    ArrowDown: () => (begun ? across(now, 1) : now),
    PageUp: () => across(now, -page),
    PageDown: () => across(now, page),
    Home: () => 0,
    End: () => last,
    n: () => nextNeeding(begun ? now : now - 1),
  };
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (key in moves) choose(Math.min(last, Math.max(0, moves[key]())));
  else if (key === "Escape") choose(null);
  else if (key === "r") turn(state.direction === "needs" ? "used" : "needs");
  else return;
  event.preventDefault();
}

/** Goes to the next place behind the chosen token where a text begins; from the end on to the beginning. */
function find(text) {
  const wanted = text.toLowerCase();
  if (!wanted) return;
  const texts = DATA.texts.map((one) => one.toLowerCase()); // each by itself: some letters become longer
  const begins = [];
  let length = 0;
  for (const one of texts) {
    begins.push(length);
    length += one.length;
  }
  const all = texts.join("");
  const from = state.token === null ? 0 : begins[state.token] + texts[state.token].length;
  const at = all.indexOf(wanted, from) < 0 ? all.indexOf(wanted) : all.indexOf(wanted, from);
  if (at >= 0) choose(begins.findLastIndex((begin, token) => begin <= at && texts[token]));
  else byId("said").textContent = `${text}: not in the document`;
}

// --- begin

for (const id of ["shade", "selector", "beside"])
  byId(id).addEventListener("change", (event) => {
    state[id] = event.target.value;
    redraw();
  });
byId("tolerance").addEventListener("change", (event) => {
  state.tolerance = Number(event.target.value);
  redraw();
});
byId("k").addEventListener("input", (event) => {
  state.k = [0, ...DATA.ks][Number(event.target.value)];
  state.own = byId("own").checked = false;
  redraw();
});
byId("own").addEventListener("change", (event) => {
  state.own = event.target.checked;
  redraw();
});
for (const radio of document.querySelectorAll('input[name="context"]'))
  radio.addEventListener("change", () => {
    state.context = radio.value;
    redraw();
  });
for (const radio of document.querySelectorAll('input[name="direction"]'))
  radio.addEventListener("change", () => turn(radio.value));
byId("find").addEventListener("keydown", (event) => {
  if (event.key === "Enter") find(event.target.value);
});
byId("theme").addEventListener("change", (event) => {
  if (event.target.value) document.documentElement.dataset.theme = event.target.value;
  else delete document.documentElement.dataset.theme;
  redraw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
box.addEventListener("pointerover", (event) => {
  if (event.pointerType === "mouse" && state.token === null) hover(tokenAt(event));
});
box.addEventListener("pointerleave", () => hover(null));
box.addEventListener("click", (event) => {
  const token = tokenAt(event);
  if (token !== null) choose(token === state.token ? null : token);
});
box.addEventListener("keydown", onKey);
byId("map").addEventListener("click", (event) => {
  const token = mapScales(DATA, event.target).token(event.offsetX);
  choose(Math.min(DATA.texts.length - 1, Math.max(0, token)));
});
let asked = false; // a frame has been asked for
box.addEventListener("scroll", () => {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    showLines();
    showMap();
  });
});
const narrow = matchMedia("(max-width: 48rem)"); // a phone, whose first screen the controls would fill
const fold = () => {
  byId("controls-box").open = !narrow.matches;
};
narrow.addEventListener("change", fold);
fold();
arrange();
redraw();
let width = box.clientWidth;
new ResizeObserver(() => {
  if (box.clientWidth === width) return showLines();
  width = box.clientWidth;
  layer = null;
  arrange();
  showMap();
}).observe(box);
document.documentElement.dataset.ready = "";
