"use strict";
// Figure 4, window by window: points react to hovering, arrow keys and clicks. The numbers are those of `summarize`.

const CONTEXTS = { real: "real context", null: "null context" };
const countedIn = (units, number) => (number === 1 ? `1 ${units.one}` : `${number} ${units.many}`);
const counted = (data, k) => countedIn(data.units, k);

/** Returns the entry of `selections` for a selector, context and k. */
const entryOf = (selections, selector, context, k) =>
  selections.find((e) => e.selector === selector && e.context === context && e.k === k);

/** Returns R(k) of an entry in words: with a mark where the summary says that it is fragile, and why where there is none. */
const fractionWords = (summary, entry) =>
  entry.recovered_fraction
    ? interval(entry.recovered_fraction) + (summary.is_fragile ? " fragile" : "")
    : summary.no_fraction;

const longGain = (window, context) => (context === "real" ? window.gain_long_nats : window.null_gain_long_nats);
const sparseGain = (data, window, selector, context, k) =>
  window.selections[selector][context].gain[data.ks.indexOf(k)];

/** Returns the inner width of a panel, as the style sheet lays them out. */
const panelWidth = (place) => {
  const total = place.clientWidth || 800;
  const columns = Math.max(1, Math.floor((total + 16) / 416));
  return Math.max(260, (total - 16 * (columns - 1)) / columns - 28);
};

/** Returns limits of Figure 4 that contain 98% of the points of each of these selectors, contexts and k. The others are drawn at
 *  the border, open. */
function figure4Frame(data, names, contexts, ks) {
  const windows = data.windows.filter((w) => w.group === "sample");
  const among = (values) => {
    values.sort((a, b) => a - b);
    return [0.01, 0.99].map((share) => values[Math.round(share * (values.length - 1))]);
  };
  const xs = names.flatMap((name) =>
    contexts.flatMap((context) =>
      ks.flatMap((k) => among(windows.map((w) => sparseGain(data, w, name, context, k)))),
    ),
  );
  const ys = contexts.flatMap((context) => among(windows.map((w) => longGain(w, context))));
  return { x: extent(xs, [0], 0.06), y: extent(ys, [0], 0.06) };
}

/** Returns the limits of both panels, so that they can be compared: of what is shown, or of all selectors and k. */
const figure4Limits = (data, state) =>
  state.range === "shown"
    ? figure4Frame(data, [state.selector], Object.keys(CONTEXTS), [state.measuredK])
    : figure4Frame(data, data.selectors.map((s) => s.name), Object.keys(CONTEXTS), data.ks);

/** Returns the number to read of one panel: the corrected gain of a selector that sees the target, else R(k). */
function numberOf(data, entry) {
  const fraction = fractionWords(data.summary, entry);
  if (!entry.sees_target) return entry.recovered_fraction ? `R(${entry.k}) = ${fraction}` : `${fraction}, no R(k)`;
  return entry.corrected_gain_nats
    ? `corrected gain ${interval(entry.corrected_gain_nats, 3)} nats`
    : "its corrected gain is not known";
}

/** Returns the other numbers of one panel. */
const othersOf = (entry) =>
  `mean sparse gain ${interval(entry.gain_sparse_nats, 3)} nats; correlation ${interval(entry.figure4.correlation)}; ` +
  `slope ${interval(entry.figure4.ols_slope)} (ordinary), ${interval(entry.figure4.tls_slope)} (total least squares)`;

/** Returns one panel of Figure 4. `passes(window)` is true if the filters accept it; `open(window)` goes to it. */
function scatter(data, context, state, width, passes, open) {
  const k = state.measuredK;
  const limits = figure4Limits(data, state);
  const entry = entryOf(data.summary.selections, state.selector, context, k);
  const height = Math.round(Math.min(430, width * 0.86));
  const frame = { left: 50, right: width - 8, top: 8, bottom: height - 44 };
  const x = linear(...limits.x, frame.left, frame.right);
  const y = linear(...limits.y, frame.bottom, frame.top);
  const inside = (scale, value) => Math.min(scale.high, Math.max(scale.low, value));
  const from = Math.max(x.low, y.low);
  const to = Math.min(x.high, y.high);
  const windows = data.windows
    .filter((w) => w.group === "sample")
    .map((window) => ({
      window,
      gain: sparseGain(data, window, state.selector, context, k),
      long: longGain(window, context),
    }))
    .sort((a, b) => a.gain - b.gain);
  const figure = html("figure");
  const tip = html("div", { class: "tip", hidden: true, "aria-hidden": "true" });
  let outside = 0;
  const points = windows.map(({ window, gain, long }, index) => {
    const [px, py] = [inside(x, gain), inside(y, long)];
    const edge = px !== gain || py !== long;
    outside += edge;
    const gains = `sparse gain ${digits(gain, 3)} nats, long gain ${digits(long, 3)} nats`;
    const words = `Window ${window.id}, ${window.class}: ${gains}, target ${window.target.trim()}`;
    const show = () => showTip(figure, tip, x(px) / width, y(py) / height, window, gain, long, context);
    return svg("circle", {
      class: `point${edge ? " edge" : ""}${passes(window) ? "" : " faded"}`,
      cx: x(px).toFixed(1),
      cy: y(py).toFixed(1),
      r: (5 * Math.sqrt(window.weight)).toFixed(1), // the area is the weight
      fill: colour(state.selector),
      stroke: colour(state.selector),
      role: "button",
      tabindex: index === 0 ? 0 : -1,
      "aria-label": words,
      "data-window": window.id,
      onmouseenter: show,
      onfocus: show,
      onmouseleave: () => {
        tip.hidden = true;
      },
      onblur: () => {
        tip.hidden = true;
      },
      onclick: () => open(window),
    });
  });
  const walk = (event) => {
    const at = points.indexOf(event.target);
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -at, End: points.length - 1 - at }[
      event.key
    ];
    if (at >= 0 && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      open(windows[at].window);
    } else if (at >= 0 && step !== undefined) {
      event.preventDefault();
      const next = points[Math.min(points.length - 1, Math.max(0, at + step))];
      points[at].setAttribute("tabindex", -1);
      next.setAttribute("tabindex", 0);
      next.focus();
    }
  };
  figure.append(
    html("figcaption", {}, `${context === "real" ? "Real context" : "Null context"}: ${numberOf(data, entry)}`),
    svg(
      "svg",
      {
        viewBox: `0 0 ${width} ${height}`,
        role: "group",
        "aria-label":
          `Figure 4, ${CONTEXTS[context]}, selector ${state.selector}, k = ${k}: ${windows.length} windows as points, from ` +
          "the smallest sparse gain to the largest. Arrow keys move between them, Enter opens one.",
        onkeydown: walk,
      },
      axes(frame, x, y, `sparse gain with ${counted(data, k)}, nats`, "long gain, nats"),
      svg("line", { class: "zero", x1: x(0), x2: x(0), y1: frame.top, y2: frame.bottom }),
      svg("line", { class: "zero", x1: frame.left, x2: frame.right, y1: y(0), y2: y(0) }),
      svg("line", { class: "same", x1: x(from), y1: y(from), x2: x(to), y2: y(to) }),
      points,
    ),
    tip,
  );
  return { figure, outside };
}

function showTip(figure, tip, left, top, window, gain, long, context) {
  const local = window.tokens.slice(-6).join("");
  tip.replaceChildren(
    html("b", {}, `Window ${window.id}, ${window.class}`),
    `\u2026${local} \u25b8${window.target}`,
    html("br"),
    `sparse ${digits(gain, 3)}, long ${digits(long, 3)} nats`,
  );
  tip.hidden = false;
  const drawing = figure.querySelector("svg");
  const x = drawing.offsetLeft || 12;
  const box = drawing.getBoundingClientRect();
  const outer = figure.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(outer.width - tip.offsetWidth - 4, x + left * box.width - tip.offsetWidth / 2))}px`;
  tip.style.top = `${box.top - outer.top + top * box.height + (top > 0.5 ? -tip.offsetHeight - 14 : 14)}px`;
}

/** Draws Figure 4, the real context beside the null one. */
function drawFigure4(data, state, place, words, passes, open) {
  const width = panelWidth(place);
  const panels = Object.keys(CONTEXTS).map((context) => scatter(data, context, state, width, passes, open));
  place.replaceChildren(...panels.map((panel) => panel.figure));
  const k = state.measuredK;
  const [real, foreign] = Object.keys(CONTEXTS).map((context) => entryOf(data.summary.selections, state.selector, context, k));
  const num = data.sample.num_sample;
  const drawn = data.sample.all
    ? `All ${num} windows`
    : `Drawn: the random sample of ${num} windows; the numbers above are of all ${data.summary.num_windows.toLocaleString("en")}`;
  const fraction = real.sees_target && real.recovered_fraction ? `; R(${k}) with its optimism: ${fractionWords(data.summary, real)}` : "";
  const border = panels[0].outside + panels[1].outside;
  words.textContent =
    `${drawn}. Real context: ${othersOf(real)}${fraction}. Null context: ${othersOf(foreign)}. Real minus null context, the excess gain: ${interval(real.excess_gain_nats, 3)} nats` +
    (real.corrected_gain_nats
      ? `; optimism, real context: ${interval(real.optimism_nats, 3)} nats`
      : "") +
    (real.gain_over_random_nats && !real.sees_target
      ? `; gain over random, real context: ${interval(real.gain_over_random_nats, 3)} nats`
      : "") +
    (border ? `. Open points at the border (${border}) lie beyond the frame` : "") +
    ".";
}

/** Fades the points of the windows that the filters exclude. */
function fadePoints(place, windowById, passes) {
  for (const point of place.querySelectorAll("circle"))
    point.classList.toggle("faded", !passes(windowById.get(Number(point.dataset.window))));
}

/** Marks a window's points in both panels and goes to the first. */
function findPoints(place, window) {
  const points = [...place.querySelectorAll("circle")];
  for (const point of points) point.classList.toggle("here", Number(point.dataset.window) === window.id);
  const first = points.find((point) => point.classList.contains("here"));
  place.scrollIntoView({ block: "start" });
  first.focus({ preventScroll: true });
}
