"use strict";
// Classes of targets. The chart draws the numbers of `by_class`, and computes none.

/** Draws the classes of targets: long gain, R(k), and gain over random, of the chosen selector and of random. */
function drawClasses(data, state, place) {
  const k = state.measuredK;
  const names = [...new Set([state.selector, "random"])].filter((name) => data.selectors.some((s) => s.name === name));
  const grid = classGrid(data, place);
  const panels = classPanels(state, names, grid.narrow);
  const parts = [
    ...classLabels(data, grid),
    ...panels.flatMap((panel, number) => classPanel(data, panel, grid, grid.lefts[number])),
  ];
  const said = data.classes
    .map((one) => `${one.target_class}: long gain ${interval(one.long_gain_nats, 3)}, gate ${one.gate}`)
    .join("; ");
  const figure = picture(
    `By class of the target: ${state.selector}${names.length > 1 ? " beside random" : ""}, k = ${k}`,
    "Gains in nats, 95% intervals over the documents that hold such targets; grey: the gate of the class failed",
    said,
    grid.width,
    grid.bottom + 22,
    parts,
  );
  place.replaceChildren(figure, classTable(data, state));
}

/** Returns where rows and panels lie, in pixels. On a narrow page the names stand above their rows. */
function classGrid(data, place) {
  const total = place.clientWidth || 800;
  const narrow = total < 700;
  const width = total - 28;
  const row = narrow ? 40 : 34;
  const labelWidth = narrow ? 0 : 150;
  const gap = narrow ? 24 : 30;
  const panelSize = (width - labelWidth - gap * NUM_CLASS_PANELS) / NUM_CLASS_PANELS;
  const lefts = Array.from(
    { length: NUM_CLASS_PANELS },
    (_, number) => labelWidth + gap * (number + 1) - (narrow ? 14 : 0) + panelSize * number,
  );
  const top = 26;
  return { narrow, width, row, panelSize, lefts, top, bottom: top + row * data.classes.length };
}

const NUM_CLASS_PANELS = 3;

/** Returns the panels: title, level to compare with, and the values of a class as pairs of a look and an estimate. */
function classPanels(state, names, narrow) {
  const k = state.measuredK;
  return [
    { title: narrow ? "long gain" : "long gain, nats", values: (one) => [["black", one.long_gain_nats]], zero: 0 },
    {
      title: `R(${k})`,
      fraction: true,
      zero: 1,
      values: (one) => names.map((name) => [name, entryOf(one.selections, name, "real", k).recovered_fraction]),
    },
    {
      title: narrow ? "over random" : "gain over random, nats",
      zero: 0,
      values: (one) => [[state.selector, entryOf(one.selections, state.selector, "real", k).gain_over_random_nats]],
    },
  ];
}

/** Returns the names of the classes, and grey behind those whose gate failed. */
function classLabels(data, { narrow, width, row, top }) {
  return data.classes.flatMap((one, i) => {
    const y = top + i * row;
    const name = narrow ? `${one.target_class}, ${one.num_windows} windows` : one.target_class;
    return [
      one.gate === "failed" ? svg("rect", { class: "quiet", x: 0, width, y: y + 1, height: row - 2 }) : null,
      svg("text", { class: "over-grid", x: 4, y: y + (narrow ? 13 : row / 2 - 2) }, name),
      narrow ? null : svg("text", { class: "tick", x: 4, y: y + row / 2 + 12 }, `${one.num_windows} windows`),
    ];
  });
}

/** Returns one panel: its title, its scale, and a row of estimates for each class. */
function classPanel(data, panel, grid, left) {
  const { narrow, row, panelSize, top, bottom } = grid;
  const centre = left + panelSize / 2;
  const found = data.classes.map((one) => panel.values(one));
  const numbers = numbersOf(found.flatMap((of) => of.map(([, e]) => e)).filter((e) => e));
  const parts = [svg("text", { x: centre, y: 12, "text-anchor": "middle" }, panel.title)];
  if (!numbers.length)
    return [...parts, svg("text", { class: "tick", x: centre, y: (top + bottom) / 2, "text-anchor": "middle" }, "nothing to show")];
  const x = (panel.fraction ? signedLog : linear)(...extent(numbers, [0, panel.zero]), left, left + panelSize);
  if (narrow) x.ticks = x.ticks.filter((tick) => tick === 0 || tick === panel.zero || tick === x.ticks.at(-1));
  parts.push(...classScale(panel, x, top, bottom));
  found.forEach((of, i) =>
    of.forEach(([look, value], j) => {
      const y = top + i * row + (narrow ? row * 0.68 : row / 2) + (j - (of.length - 1) / 2) * 9;
      if (value) parts.push(...classMark(look, value, x, y));
      else if (panel.fraction && j === 0)
        parts.push(
          svg("text", { class: "tick", x: centre, y: y + 8, "text-anchor": "middle" }, narrow ? "gate failed" : "gate failed: no R(k)"),
        );
    }),
  );
  return parts;
}

/** Returns grid lines with their numbers, and the level to compare with. */
function classScale(panel, x, top, bottom) {
  const line = (kind, value) => svg("line", { class: kind, x1: x(value), x2: x(value), y1: top, y2: bottom });
  return [
    ...x.ticks.flatMap((tick) => [
      line("grid", tick),
      svg("text", { class: "tick", x: x(tick), y: bottom + 15, "text-anchor": "middle" }, tickWords(tick)),
    ]),
    line(panel.fraction ? "same" : "zero", panel.zero),
  ];
}

/** Returns an estimate with its interval. `look`: a selector, or `black`. */
function classMark(look, value, x, y) {
  const ink = look === "black" ? "var(--text)" : colour(look);
  return [
    value.low === null ? null : svg("path", { d: `M${x(value.low)},${y}H${x(value.high)}`, stroke: ink, "stroke-width": 2 }),
    look === "black" ? svg("circle", { cx: x(value.mean), cy: y, r: 4.5, fill: ink }) : marker(look, x(value.mean), y, 4.5),
  ];
}

/** Returns the numbers of the classes as a table. */
function classTable(data, state) {
  const k = state.measuredK;
  const rows = data.classes.map((one) => {
    const e = entryOf(one.selections, state.selector, "real", k);
    return [
      one.target_class,
      data.class_words[one.target_class] || "",
      String(one.num_windows),
      interval(one.window_share),
      interval(one.long_gain_nats, 3),
      one.gate,
      e.recovered_fraction ? interval(e.recovered_fraction) : "gate failed",
      interval(e.gain_over_random_nats, 3),
      interval(e.excess_gain_nats, 3),
    ];
  });
  const head = [
    "class", "definition", "windows", "share of windows", "long gain, nats", "gate", `R(${k})`, "gain over random, nats",
    "excess gain, nats",
  ];
  return numbersTable(`Classes of targets, ${state.selector}, k = ${k}`, head, rows);
}
