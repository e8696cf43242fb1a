"use strict";
// Charts against k. They draw the numbers of `summarize`, and compute none.

const CURVES = [
  {
    quantity: "gain_over_random_nats",
    title: "Gain over random",
    unit: "gain over random, nats",
    contexts: ["real"],
    fits: (s) => !s.sees_target && s.name !== "random",
    empty: "No selector that is shown chooses without the target.",
    unmeasured: "Not measured: random is not among the selectors.",
    words: "Only selectors that do not see the target: no selection luck.",
  },
  {
    quantity: "real_minus_luck_nats",
    title: "Real minus luck",
    unit: "real minus luck, nats",
    contexts: ["real"],
    fits: (s) => s.sees_target,
    empty: "No selector that is shown sees the target.",
    unmeasured: "Not measured: no resampled targets were drawn (influence.resampled_draws).",
    words: "Only selectors that see the target: sparse gain minus that on resampled targets.",
  },
  {
    quantity: "luck_nats",
    title: "Selection luck",
    unit: "luck, nats",
    contexts: ["real"],
    fits: (s) => s.sees_target,
    empty: "No selector that is shown sees the target.",
    unmeasured: "Not measured: no resampled targets were drawn (influence.resampled_draws).",
    words: "Sparse gain on resampled targets, for which the long context cannot matter.",
  },
  {
    quantity: "recovered_fraction",
    title: "R(k)",
    unit: "recovered fraction",
    contexts: ["real", "null"],
    fraction: true,
    words: "It includes luck where the selector sees the target.",
  },
  {
    quantity: "excess_gain_nats",
    title: "Real minus null context",
    unit: "excess gain, nats",
    contexts: ["real"],
    words: "Does the content matter? Foreign text misleads, so random has an excess, too.",
  },
  {
    quantity: "gain_sparse_nats",
    title: "Sparse gain",
    unit: "sparse gain, nats",
    contexts: ["real", "null"],
    longGain: true,
    words: "Dashed, with its interval: the long gain.",
  },
];

/** Draws the numbers against k, for the selectors in `shown`. */
function drawCurves(data, shown, state, place) {
  place.replaceChildren(
    ...CURVES.map((curve) => oneCurve(data, shown, state, panelWidth(place, 320), curve)),
    curvesTable(data),
  );
}

/** Returns one chart of `CURVES`. */
function oneCurve(data, shown, state, width, curve) {
  const { quantity, contexts, fraction } = curve;
  if (fraction && data.summary.gate === "failed") return withoutDrawing(curve.title, data.words.no_fraction);
  const names = data.selectors.filter((s) => shown.has(s.name) && (!curve.fits || curve.fits(s))).map((s) => s.name);
  if (!names.length) return withoutDrawing(curve.title, curve.empty ?? "No selector is shown.");
  const entries = data.summary.selections.filter(
    (e) => names.includes(e.selector) && contexts.includes(e.context) && e[quantity],
  );
  if (!entries.length) return withoutDrawing(curve.title, curve.unmeasured ?? "Not measured.");
  const long = curve.longGain ? data.summary.long_gain_nats : null;
  const among = fraction ? [0, 1] : long ? [0, long.low ?? long.mean, long.high ?? long.mean] : [0];
  const area = areaOfK(data.ks, width, numbersOf(entries.map((e) => e[quantity])), among, fraction);
  const parts = [axesOfK(data, area, curve.unit), ...levelLines(area, fraction, long)];
  names.forEach((name, number) => {
    const shift = 4 * (number - (names.length - 1) / 2);
    for (const context of contexts) {
      const of = entries.filter((e) => e.selector === name && e.context === context);
      const points = of.map((e) => [area.x(Math.log2(e.k)) + shift, e[quantity]]);
      const dash = context === "null" ? "2 4" : null;
      parts.push(series(area, points, name, { dash, open: context === "null", strong: name === state.selector }));
    }
  });
  const words = [curve.words, fraction ? data.words.fragile : ""].filter(Boolean).join(" ");
  return picture(curve.title, words, lastNumbers(data, names, curve), width, area.height, parts);
}

/** Returns what stands in place of a chart, with the reason. */
const withoutDrawing = (title, reason) =>
  html("figure", {}, html("figcaption", {}, title), html("p", { class: "empty" }, reason));

/** Returns the means and bounds of estimates, as far as there are any. */
const numbersOf = (estimates) => estimates.flatMap((e) => [e.mean, e.low, e.high]).filter((v) => v !== null);

/** Returns frame, scales and height of a chart against k. The numbers `among` are always inside. */
function areaOfK(ks, width, values, among, fraction) {
  const height = Math.round(Math.min(330, width * 0.72));
  const frame = { left: 60, right: width - 10, top: 8, bottom: height - 44 };
  const x = linear(Math.log2(ks[0]) - 0.3, Math.log2(ks.at(-1)) + 0.3, frame.left, frame.right);
  x.ticks = ks.map(Math.log2);
  const y = (fraction ? signedLog : linear)(...extent(values, among), frame.bottom, frame.top);
  return { frame, x, y, height };
}

const axesOfK = (data, { frame, x, y }, unit) =>
  axes(frame, x, y, `k, unmasked long-range ${data.units.many}`, unit, (value) => String(Math.round(2 ** value)));

/** Returns the level 0, of fractions also 1, and the long gain with its interval. */
function levelLines({ frame, y }, fraction, long) {
  const level = (kind, value) =>
    svg("line", { class: kind, x1: frame.left, x2: frame.right, y1: y(value), y2: y(value) });
  const parts = [level("zero", 0)];
  if (fraction) parts.push(level("same", 1));
  if (long && long.low !== null)
    parts.push(
      svg("rect", {
        class: "band",
        x: frame.left,
        width: frame.right - frame.left,
        y: y(long.high),
        height: y(long.low) - y(long.high),
      }),
    );
  if (long) parts.push(level("same", long.mean));
  return parts;
}

/** Returns a selector's numbers against k, joined by a line. `points`: pairs of a pixel and an estimate. */
function series({ y }, points, name, { dash = null, open = false, strong = false, words = null }) {
  const group = svg("g", {
    stroke: colour(name), fill: "none", "stroke-width": strong ? 2.4 : 1.2,
    "data-series": words ?? `${name}${open ? ", null context" : ""}`, "data-name": name, "data-open": open ? "open" : null,
  });
  const line = points.map(([px, value]) => `${px.toFixed(1)},${y(value.mean).toFixed(1)}`).join("L");
  if (points.length > 1) group.append(svg("path", { d: `M${line}`, "stroke-dasharray": dash }));
  for (const [px, value] of points) {
    if (value.low !== null)
      group.append(
        svg("path", {
          d: `M${px},${y(value.low)}V${y(value.high)}M${px - 3},${y(value.low)}h6M${px - 3},${y(value.high)}h6`,
        }),
      );
    group.append(marker(name, px, y(value.mean), strong ? 5 : 3.8, open));
  }
  return group;
}

/** Returns the numbers of a chart at one k in words, for screen readers. */
function lastNumbers(data, names, { quantity, contexts, fraction }) {
  const k = data.first_k;
  const number = (name, context) =>
    `${interval(entryOf(data.summary.selections, name, context, k)[quantity], fraction ? 2 : 3)} (${context})`;
  const said = names.map((name) => `${name} ${contexts.map((context) => number(name, context)).join(", ")}`);
  return `At k = ${k}: ${said.join("; ")}. The table below the charts has every k.`;
}

function curvesTable(data) {
  const rows = data.summary.selections
    .filter((e) => e.context in CONTEXTS)
    .map((e) => [
      `${e.selector}, ${e.context}, k = ${e.k}`,
      interval(e.gain_sparse_nats, 3),
      fractionWords(data.summary, e),
      e.sees_target ? NONE : interval(e.gain_over_random_nats, 3),
      interval(e.luck_nats, 3),
      interval(e.real_minus_luck_nats, 3),
      interval(e.excess_gain_nats, 3),
    ]);
  return numbersTable(
    "Every selector, context and k",
    [
      "selector, context, k",
      "sparse gain, nats",
      "R(k)",
      "gain over random, nats",
      "luck, nats",
      "real minus luck, nats",
      "excess gain, nats",
    ],
    rows,
  );
}
