"use strict";
// The state of the page and its controls. Each control changes the state, then redraws what depends on it.

const DATA = JSON.parse(byId("data").textContent);
const PAGE_SIZE = 20;
const state = {
  selector: DATA.shown_first,
  k: DATA.first_k,
  context: "real",
  range: "shown", // of the axes of Figure 4
  page: 0,
  window: null, // the window that was gone to
  /** The largest measured k that is not above k: Figure 4 shows only measured ones. */
  get measuredK() {
    return DATA.ks.filter((k) => k <= this.k).at(-1) ?? DATA.ks[0];
  },
};
// A call takes only so many arguments, so the maximum is that of each window's maximum.
const longestOf = (windows) =>
  windows.reduce((most, w) => {
    const losses = Object.values(w.selections).flatMap((s) => [...s.real.loss, ...s.null.loss]);
    return Math.max(most, w.loss_short_nats, w.loss_long_nats, w.null_loss_long_nats, ...losses);
  }, 0);
const longest = longestOf(DATA.windows);
for (const window of DATA.windows) window.text = [...window.tokens, window.target].join("").toLowerCase();
const windowById = new Map(DATA.windows.map((w) => [w.id, w]));
let cards = [];

// --- filters

const number = (id) => (byId(id).value === "" ? null : Number(byId(id).value));
const between = (value, low, high) => (low === null || value >= low) && (high === null || value <= high);
const excess = (window) =>
  sparseGain(DATA, window, state.selector, "real", state.measuredK) -
  sparseGain(DATA, window, state.selector, "null", state.measuredK);
const chosenClasses = () =>
  new Set([...document.querySelectorAll("#class-filters input:checked")].map((box) => box.value));

function readFilters() {
  const words = byId("search").value.toLowerCase();
  const classes = chosenClasses();
  const limitsOf = [number("gain-from"), number("gain-to"), number("excess-from"), number("excess-to")];
  return (window) =>
    (!words || window.text.includes(words)) &&
    classes.has(window.class) &&
    between(window.gain_long_nats, limitsOf[0], limitsOf[1]) &&
    between(excess(window), limitsOf[2], limitsOf[3]);
}

const ORDERS = {
  id: () => 0,
  long: (a, b) => b.gain_long_nats - a.gain_long_nats,
  sparse: (a, b) =>
    sparseGain(DATA, b, state.selector, "real", state.measuredK) -
    sparseGain(DATA, a, state.selector, "real", state.measuredK),
  excess: (a, b) => excess(b) - excess(a),
};

function listed() {
  const group = byId("group")?.value ?? "sample";
  return DATA.windows
    .filter((w) => w.group === group)
    .filter(readFilters())
    .sort(ORDERS[byId("order").value]);
}

// --- drawing

function drawCards() {
  const windows = listed();
  const pages = Math.max(1, Math.ceil(windows.length / PAGE_SIZE));
  state.page = Math.min(state.page, pages - 1);
  const start = state.page * PAGE_SIZE;
  cards = windows
    .slice(start, start + PAGE_SIZE)
    .map((window) => card(DATA, window, state, longest, (one) => findPoints(byId("figure4"), one)));
  byId("cards").replaceChildren(
    ...(cards.length
      ? cards.map((one) => one.article)
      : [html("p", { class: "empty" }, "No window passes these filters. Clear some of them.")]),
  );
  const group = byId("group")?.value ?? "sample";
  const all = DATA.windows.filter((w) => w.group === group).length;
  byId("count").textContent =
    `${windows.length} of ${all} windows` +
    (windows.length > PAGE_SIZE ? `, ${start + 1} to ${start + cards.length} shown` : "") +
    (byId("order").value === "id" ? "" : ". In this order the first ones are not a fair sample.");
  const turn = (by) => () => {
    state.page += by;
    drawCards();
    remember();
    byId("windows").focus();
    byId("count").scrollIntoView();
  };
  byId("pages").replaceChildren(
    ...(pages === 1
      ? []
      : [
          html("button", { type: "button", disabled: state.page === 0, onclick: turn(-1) }, "Previous windows"),
          html("span", {}, `Page ${state.page + 1} of ${pages}`),
          html("button", { type: "button", disabled: state.page === pages - 1, onclick: turn(1) }, "Next windows"),
        ]),
  );
}

const drawScatter = () => drawFigure4(DATA, state, byId("figure4"), byId("figure4-words"), readFilters(), goTo);

function drawNote() {
  const of = DATA.selectors.find((s) => s.name === state.selector);
  const verdict = of.control
    ? html("span", {}, "Selects nothing: a control. ")
    : of.sees_target
      ? html("span", { class: "warn" }, "Sees the target: part of its gain is optimism; read the corrected gain. ")
      : html("span", { class: "fine" }, "Does not see the target: its gain over random has no optimism. ");
  byId("selector-note").replaceChildren(verdict, html("span", { class: "score" }, `Score: ${of.words}.`));
  const among = DATA.summary.unit === "token" ? ` of ${DATA.summary.num_long_range}` : "";
  byId("k-shown").textContent = `${state.k}${among}`;
  const note = document.querySelector(".unmeasured");
  note.hidden = state.k === state.measuredK;
  note.textContent = `k = ${state.k} was not measured: what follows is of k = ${state.measuredK}.`;
}

// --- going to a window

function goTo(window) {
  const group = byId("group");
  if (group) group.value = window.group;
  let at = listed().indexOf(window);
  if (at < 0) {
    byId("filters").reset();
    if (group) group.value = window.group;
    at = listed().indexOf(window);
    fadePoints(byId("figure4"), windowById, readFilters());
  }
  state.page = Math.floor(at / PAGE_SIZE);
  drawCards();
  for (const one of cards) one.article.classList.toggle("here", one.window === window);
  const article = byId(`w${window.id}`);
  state.window = window.id;
  remember();
  article.scrollIntoView({ block: "start" });
  article.focus({ preventScroll: true });
}

// --- the address

let remembering;

/** Writes the view into the address, a moment later: browsers limit how often a page may. */
function remember() {
  clearTimeout(remembering);
  remembering = setTimeout(() => history.replaceState(null, "", `#${addressOf(DATA, state)}`), 120);
}

/** Shows the view that a hash names, if it names one. */
function restore(hash) {
  const view = viewOf(hash);
  if (!view) return false;
  setView(DATA, state, view);
  return true;
}

function goToNamed() {
  const window = windowById.get(state.window);
  if (window) goTo(window);
}

// --- the controls

function fillControls() {
  const kinds = [
    ["Does not see the target", (s) => !s.sees_target && !s.control],
    ["Sees the target: part of its gain is optimism", (s) => s.sees_target],
    ["Controls: select nothing", (s) => s.control],
  ];
  byId("selector").replaceChildren(
    ...kinds
      .map(([label, fits]) => [label, DATA.selectors.filter(fits)])
      .filter(([, of]) => of.length)
      .map(([label, of]) =>
        html(
          "optgroup",
          { label },
          of.map((s) => html("option", { value: s.name }, s.name)),
        ),
      ),
  );
  byId("selector").value = state.selector;
  const slider = byId("k");
  slider.max = DATA.ks.at(-1);
  slider.value = state.k;
  byId("class-filters").replaceChildren(
    ...Object.entries(DATA.class_words).map(([name, words]) =>
      html("label", { title: words }, html("input", { type: "checkbox", value: name, checked: true }), ` ${name}`),
    ),
  );
}

function listen() {
  byId("selector").addEventListener("change", (event) => {
    state.selector = event.target.value;
      drawAll();
    remember();
  });
  byId("range").addEventListener("change", (event) => {
    state.range = event.target.value;
    drawScatter();
    remember();
  });
  byId("copy-citation").addEventListener("click", () => copyText(byId("citation"), byId("copied")));
  byId("save-numbers").addEventListener("click", async () =>
    offer(new Blob([await numbersCsv(DATA)], { type: "text/csv" }), "numbers.csv"),
  );
  byId("save-windows").addEventListener("click", () =>
    offer(new Blob([windowsCsv(DATA, listed())], { type: "text/csv" }), "windows.csv"),
  );
  byId("k").addEventListener("input", (event) => {
    const before = state.measuredK;
    state.k = Number(event.target.value);
    drawNote();
    if (state.measuredK === before) for (const one of cards) one.update(state);
    else {
      drawScatter();
      drawCards();
    }
    remember();
  });
  for (const radio of document.querySelectorAll('input[name="context"]')) {
    radio.addEventListener("change", () => {
      state.context = radio.value;
      for (const one of cards) one.update(state);
      remember();
    });
  }
  const filtered = () => {
    state.page = 0;
    state.window = null;
    drawCards();
    remember();
    fadePoints(byId("figure4"), windowById, readFilters());
  };
  byId("filters").addEventListener("input", filtered);
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("clear").addEventListener("click", () => {
    byId("filters").reset();
    filtered();
  });
  byId("theme").addEventListener("change", (event) => {
    if (event.target.value) document.documentElement.dataset.theme = event.target.value;
    else delete document.documentElement.dataset.theme;
  });
  addEventListener("hashchange", (event) => {
    clearTimeout(remembering);
    if (!restore(new URL(event.newURL).hash)) return; // the address itself may hold an earlier view by now
    remember();
    drawAll();
    goToNamed();
  });
  const bar = document.querySelector(".bar"); // it covers the top of the page, so scrolling must stop below it
  new ResizeObserver(() => {
    document.documentElement.style.scrollPaddingTop = `${bar.offsetHeight + 12}px`;
  }).observe(bar);
  let width = innerWidth;
  let waiting;
  addEventListener("resize", () => {
    if (innerWidth === width) return; // only the height changed: the address bar of a phone appeared or disappeared
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(drawScatter, 150);
  });
}

function drawAll() {
  drawNote();
  drawScatter();
  drawCards();
}

if (innerWidth < 768) byId("filter-box").open = false;
fillControls();
listen();
restore(location.hash);
drawAll();
goToNamed();
document.documentElement.dataset.ready = "yes";
