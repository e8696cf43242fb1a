"use strict";
// Classes of targets. The chart draws the numbers of `by_class`, and computes none.

/** Draws the classes of targets: long gain with its contrast, R(k), and gain over random or real minus luck. */
function drawClasses(data, state, place) {
  const k = state.measuredK;
  const names = [...new Set([state.selector, "random"])].filter((name) => data.selectors.some((s) => s.name === name));
  const rows = classRows(data);
  const grid = classGrid(rows, place);
  const panels = classPanels(data, state, names, grid.narrow);
  const parts = [
    ...classShades(rows, grid),
    ...panels.flatMap((panel, number) => classPanel(rows, panel, grid, grid.lefts[number])),
    ...classLabels(rows, grid), // on a narrow page over the lines of the panels
  ];
  const said = rows.map(({ name, gain, one }) => `${name}: long gain ${interval(gain, 3)}${one ? `, gate ${one.gate}` : ""}`);
  const fragile = data.classes.filter((one) => one.is_fragile).map((one) => one.target_class);
  const figure = picture(
    `By class of the target: ${state.selector}${names.length > 1 ? " beside random" : ""}, k = ${k}`,
    [
      "Gains in nats, 95% intervals over the documents that hold such targets; grey: the gate of the class failed.",
      "Open circles: all other targets.",
      fragile.length ? `Fragile R(${k}): ${fragile.join(", ")}.` : "",
    ].join(" "),
    said.join("; "),
    grid.width,
    grid.bottom + 22,
    parts,
  );
  place.replaceChildren(figure, classTable(data, state));
}

/** Returns the rows: one for each class, and below a class whose rule looks for the target one for the same rule on
 *  the null context. `others`: the long gain of all other targets; `one`: the class, if the row is one. */
function classRows(data) {
  return data.classes.flatMap((one) => {
    const { target_class: name, num_windows: count, long_gain_nats: gain, contrast } = one;
    if (!contrast) return [{ name, count, gain, others: null, one }];
    return [
      { name, count, gain, others: contrast.others_gain_nats, one },
      {
        name: `${name}, null context`,
        count: contrast.null_num_windows,
        gain: contrast.null_gain_nats,
        others: contrast.null_others_gain_nats,
        one: null,
      },
    ];
  });
}

/** Returns where rows and panels lie, in pixels. On a narrow page the names stand above their rows. */
function classGrid(rows, place) {
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
  return { narrow, width, row, panelSize, lefts, top, bottom: top + row * rows.length };
}

const NUM_CLASS_PANELS = 3;

/** Returns the panels: title, level to compare with, and the values of a row as [look, estimate, open]. */
function classPanels(data, state, names, narrow) {
  const k = state.measuredK;
  const of = (row, name) => (row.one ? entryOf(row.one.selections, name, "real", k) : {});
  const seen = data.selectors.find((s) => s.name === state.selector).sees_target;
  const last = seen ? ["minus luck", "real minus luck, nats"] : ["over random", "gain over random, nats"];
  const quantity = seen ? "real_minus_luck_nats" : "gain_over_random_nats";
  return [
    {
      title: narrow ? "long gain" : "long gain, nats",
      zero: 0,
      values: (row) => [["black", row.gain], ...(row.others ? [["black", row.others, true]] : [])],
    },
    {
      title: `R(${k})`,
      fraction: true,
      zero: 1,
      values: (row) => (row.one ? names.map((name) => [name, of(row, name).recovered_fraction]) : []),
    },
    { title: last[narrow ? 0 : 1], zero: 0, values: (row) => [[state.selector, of(row, state.selector)[quantity]]] },
  ];
}

/** Returns grey for the rows of the classes whose gate failed. */
function classShades(rows, { width, row: height, top }) {
  return rows.map(({ one }, i) =>
    one?.gate === "failed" ? svg("rect", { class: "quiet", x: 0, width, y: top + i * height + 1, height: height - 2 }) : null,
  );
}

/** Returns the names of the rows. */
function classLabels(rows, { narrow, row: height, top }) {
  return rows.flatMap(({ name, count }, i) => {
    const y = top + i * height;
    return [
      svg(
        "text",
        { class: "over-grid", x: 4, y: y + (narrow ? 13 : height / 2 - 2) },
        narrow ? `${name}, ${count} windows` : name,
      ),
      narrow ? null : svg("text", { class: "tick", x: 4, y: y + height / 2 + 12 }, `${count} windows`),
    ];
  });
}

/** Returns one panel: its title, its scale, and the estimates of each row. */
function classPanel(rows, panel, grid, left) {
  const { narrow, row: height, panelSize, top, bottom } = grid;
  const centre = left + panelSize / 2;
  const note = (y, words) => svg("text", { class: "tick over-grid", x: centre, y, "text-anchor": "middle" }, words);
  const found = rows.map((row) => panel.values(row));
  const numbers = numbersOf(found.flatMap((of) => of.map(([, e]) => e)).filter((e) => e));
  const parts = [svg("text", { x: centre, y: 12, "text-anchor": "middle" }, panel.title)];
  if (!numbers.length) return [...parts, note((top + bottom) / 2, "nothing to show")];
  const x = (panel.fraction ? signedLog : linear)(...extent(numbers, [0, panel.zero]), left, left + panelSize);
  if (narrow) x.ticks = x.ticks.filter((tick) => tick === 0 || tick === panel.zero || tick === x.ticks.at(-1));
  parts.push(...classScale(panel, x, top, bottom));
  found.forEach((of, i) =>
    of.forEach(([look, value, open], j) => {
      const y = top + i * height + (narrow ? height * 0.68 : height / 2) + (j - (of.length - 1) / 2) * 9;
      if (value) parts.push(...classMark(look, value, x, y, open));
      else if (panel.fraction && j === 0) {
        const reason = rows[i].one.no_fraction;
        parts.push(note(y + 8, narrow ? reason : `${reason}: no R(k)`));
      }
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
function classMark(look, value, x, y, open) {
  const ink = look === "black" ? "var(--text)" : colour(look);
  const bar =
    value.low === null
      ? null
      : svg("path", { d: `M${x(value.low)},${y}H${x(value.high)}`, stroke: ink, "stroke-width": open ? 1.2 : 2 });
  if (look === "black")
    return [bar, svg("circle", { cx: x(value.mean), cy: y, r: 4.2, stroke: ink, fill: open ? "var(--card)" : ink })];
  // A file that is saved names its series from this group.
  return [svg("g", { "data-series": look, "data-name": look, stroke: ink }, [bar, marker(look, x(value.mean), y, 4.5)])];
}

/** Returns the numbers of the classes as a table. */
function classTable(data, state) {
  const k = state.measuredK;
  const seen = data.selectors.find((s) => s.name === state.selector).sees_target;
  const rows = classRows(data).map(({ name, count, gain, others, one }) => {
    const e = one && entryOf(one.selections, state.selector, "real", k);
    return [
      name,
      one ? data.class_words[name] || "" : "the same rule, with the tokens of the null context",
      String(count),
      one ? interval(one.window_share) : NONE,
      interval(gain, 3),
      interval(others, 3),
      one ? one.gate : NONE,
      one ? fractionWords(one, e) : NONE,
      one ? interval(seen ? e.real_minus_luck_nats : e.gain_over_random_nats, 3) : NONE,
      one ? interval(e.excess_gain_nats, 3) : NONE,
    ];
  });
  const head = [
    "class",
    "definition",
    "windows",
    "share of windows, weighted",
    "long gain, nats",
    "long gain of all other targets, nats",
    "gate",
    `R(${k})`,
    seen ? "real minus luck, nats" : "gain over random, nats",
    "excess gain, nats",
  ];
  return numbersTable(`Classes of targets, ${state.selector}, k = ${k}`, head, rows);
}
