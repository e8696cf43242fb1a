"use strict";
// The other charts. They draw the numbers of `summarize`, `by_class` and `by_distance`, and compute none.

const CURVES = [
  {
    quantity: "gain_over_random_nats",
    title: "Gain over random",
    unit: "gain over random, nats",
    contexts: ["real"],
    blind: true,
    words: "Only selectors that do not see the target, so it holds no selection luck.",
  },
  {
    quantity: "real_minus_luck_nats",
    title: "Excess over random",
    unit: "excess over random, nats",
    contexts: ["real"],
    words: "Without the luck that the null context shows, and without what foreign text does to any choice.",
  },
  {
    quantity: "recovered_fraction",
    title: "R(k)",
    unit: "recovered fraction",
    contexts: ["real", "null"],
    fraction: true,
    words: "Mostly luck for selectors that see the target: look at their null context.",
  },
  {
    quantity: "excess_gain_nats",
    title: "Excess over the null context",
    unit: "excess fraction",
    contexts: ["real"],
    fraction: true,
    words: "Too large where foreign text misleads: compare it with random.",
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

function oneCurve(
  data,
  shown,
  state,
  width,
  { quantity, title, unit, contexts, fraction, blind, longGain: withLong, words },
) {
  if (fraction && data.summary.gate === "failed") {
    return html(
      "figure",
      {},
      html("figcaption", {}, title),
      html(
        "p",
        { class: "empty" },
        "Not shown: the validity gate failed. There is no long gain to recover.",
      ),
    );
  }
  const names = data.selectors
    .filter((s) => shown.has(s.name) && !(blind && (s.sees_target || s.name === "random")))
    .map((s) => s.name);
  const entries = data.summary.selections.filter(
    (e) => names.includes(e.selector) && contexts.includes(e.context) && e[quantity],
  );
  const values = entries
    .flatMap((e) => [e[quantity].mean, e[quantity].low, e[quantity].high])
    .filter((v) => v !== null);
  const long = data.summary.long_gain_nats;
  const among = fraction ? [0, 1] : withLong ? [0, long.low ?? long.mean, long.high ?? long.mean] : [0];
  const height = Math.round(Math.min(330, width * 0.72));
  const frame = { left: 50, right: width - 10, top: 8, bottom: height - 44 };
  const x = linear(Math.log2(data.ks[0]) - 0.3, Math.log2(data.ks.at(-1)) + 0.3, frame.left, frame.right);
  x.ticks = data.ks.map(Math.log2);
  const y = (fraction ? signedLog : linear)(...extent(values, among), frame.bottom, frame.top);
  const parts = [
    axes(frame, x, y, "k, unmasked long-range tokens", unit, (value) => String(Math.round(2 ** value))),
    svg("line", { class: "zero", x1: frame.left, x2: frame.right, y1: y(0), y2: y(0) }),
  ];
  if (fraction) parts.push(svg("line", { class: "same", x1: frame.left, x2: frame.right, y1: y(1), y2: y(1) }));
  if (withLong) {
    if (long.low !== null) {
      parts.push(
        svg("rect", {
          class: "band",
          x: frame.left,
          width: frame.right - frame.left,
          y: y(long.high),
          height: y(long.low) - y(long.high),
        }),
      );
    }
    parts.push(svg("line", { class: "same", x1: frame.left, x2: frame.right, y1: y(long.mean), y2: y(long.mean) }));
  }
  names.forEach((name, number) => {
    const shift = 4 * (number - (names.length - 1) / 2);
    for (const context of contexts) {
      const of = entries.filter((e) => e.selector === name && e.context === context);
      const places = of.map((e) => [x(Math.log2(e.k)) + shift, e[quantity]]);
      const line = places.map(([px, value]) => `${px.toFixed(1)},${y(value.mean).toFixed(1)}`).join("L");
      const isChosen = name === state.selector;
      const group = svg("g", {
        stroke: colour(name),
        fill: "none",
        "stroke-width": isChosen ? 2.4 : 1.2,
        class: isChosen ? "" : "lighter-line",
      });
      if (places.length > 1)
        group.append(svg("path", { d: `M${line}`, "stroke-dasharray": context === "null" ? "2 4" : null }));
      for (const [px, value] of places) {
        if (value.low !== null)
          group.append(
            svg("path", {
              d: `M${px},${y(value.low)}V${y(value.high)}M${px - 3},${y(value.low)}h6M${px - 3},${y(value.high)}h6`,
            }),
          );
        group.append(marker(name, px, y(value.mean), isChosen ? 5 : 3.8, context === "null"));
      }
      parts.push(group);
    }
  });
  const last = data.ks.at(-1);
  const said = names.map(
    (name) =>
      `${name} ${contexts
        .map((c) => {
          const e = entryOf(data.summary.selections, name, c, last);
          return `${interval(e[quantity], fraction ? 2 : 3)} (${c})`;
        })
        .join(", ")}`,
  );
  return picture(
    title,
    words,
    `At k = ${last}: ${said.join("; ")}. The table below the charts has every k.`,
    width,
    height,
    parts,
  );
}

function curvesTable(data) {
  const rows = data.summary.selections.map((e) => [
    `${e.selector}, ${e.context}, k = ${e.k}`,
    interval(e.gain_sparse_nats, 3),
    interval(e.recovered_fraction),
    interval(e.gain_over_random_nats, 3),
    interval(e.excess_gain_nats, 3),
    interval(e.excess_gain_nats, 3),
    interval(e.real_minus_luck_nats, 3),
  ]);
  return numbersTable(
    "Every selector, context and k",
    [
      "selector, context, k",
      "sparse gain, nats",
      "R(k)",
      "gain over random, nats",
      "excess gain, nats",
      "excess recovered fraction",
      "excess over random, nats",
    ],
    rows,
  );
}

/** Draws the classes of targets: long gain, R(k), and gain over random, of the chosen selector and of random. */
function drawClasses(data, state, place) {
  const k = state.measuredK;
  const total = place.clientWidth || 800;
  const narrow = total < 700;
  const width = total - 28;
  const row = narrow ? 40 : 34;
  const names = [...new Set([state.selector, "random"])].filter((name) => data.selectors.some((s) => s.name === name));
  const panels = [
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
  const labelWidth = narrow ? 0 : 150;
  const gap = narrow ? 24 : 30;
  const panelSize = (width - labelWidth - gap * panels.length) / panels.length;
  const top = 26;
  const bottom = top + row * data.classes.length;
  const parts = [];
  data.classes.forEach((one, i) => {
    if (one.gate === "failed")
      parts.push(svg("rect", { class: "quiet", x: 0, width, y: top + i * row + 1, height: row - 2 }));
    parts.push(
      svg(
        "text",
        { class: "over-grid", x: 4, y: top + i * row + (narrow ? 13 : row / 2 - 2) },
        narrow ? `${one.target_class}, ${one.num_windows} windows` : one.target_class,
      ),
    );
    if (!narrow)
      parts.push(svg("text", { class: "tick", x: 4, y: top + i * row + row / 2 + 12 }, `${one.num_windows} windows`));
  });
  panels.forEach((panel, number) => {
    const left = labelWidth + gap * (number + 1) - (narrow ? 14 : 0) + panelSize * number;
    const found = data.classes.map((one) => panel.values(one));
    const numbers = found
      .flat()
      .filter(([, e]) => e)
      .flatMap(([, e]) => [e.mean, e.low, e.high])
      .filter((v) => v !== null);
    const title = svg("text", { x: left + panelSize / 2, y: 12, "text-anchor": "middle" }, panel.title);
    parts.push(title);
    if (!numbers.length) {
      parts.push(
        svg(
          "text",
          { class: "tick", x: left + panelSize / 2, y: (top + bottom) / 2, "text-anchor": "middle" },
          "nothing to show",
        ),
      );
      return;
    }
    const x = (panel.fraction ? signedLog : linear)(...extent(numbers, [0, panel.zero]), left, left + panelSize);
    if (narrow) x.ticks = x.ticks.filter((tick) => tick === 0 || tick === panel.zero || tick === x.ticks.at(-1));
    for (const tick of x.ticks) {
      parts.push(svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: top, y2: bottom }));
      parts.push(svg("text", { class: "tick", x: x(tick), y: bottom + 15, "text-anchor": "middle" }, tickWords(tick)));
    }
    parts.push(
      svg("line", {
        class: panel.fraction ? "same" : "zero",
        x1: x(panel.zero),
        x2: x(panel.zero),
        y1: top,
        y2: bottom,
      }),
    );
    found.forEach((of, i) =>
      of.forEach(([name, value], j) => {
        const py = top + i * row + (narrow ? row * 0.68 : row / 2) + (j - (of.length - 1) / 2) * 9;
        if (!value) {
          if (panel.fraction && j === 0)
            parts.push(
              svg(
                "text",
                { class: "tick", x: left + panelSize / 2, y: py + 8, "text-anchor": "middle" },
                narrow ? "gate failed" : "gate failed: no R(k)",
              ),
            );
          return;
        }
        const ink = name === "black" ? "var(--text)" : colour(name);
        if (value.low !== null)
          parts.push(svg("path", { d: `M${x(value.low)},${py}H${x(value.high)}`, stroke: ink, "stroke-width": 2 }));
        parts.push(
          name === "black"
            ? svg("circle", { cx: x(value.mean), cy: py, r: 4.5, fill: ink })
            : marker(name, x(value.mean), py, 4.5),
        );
      }),
    );
  });
  const words = data.classes
    .map((one) => `${one.target_class}: long gain ${interval(one.long_gain_nats, 3)}, gate ${one.gate}`)
    .join("; ");
  const figure = picture(
    `By class of the target: ${state.selector}${names.length > 1 ? " beside random" : ""}, k = ${k}`,
    "Gains in nats, 95% intervals over the documents that hold such targets; grey: the gate of the class failed",
    words,
    width,
    bottom + 22,
    parts,
  );
  const rows = data.classes.map((one) => {
    const e = entryOf(one.selections, state.selector, "real", k);
    return [
      one.target_class,
      data.class_words[one.target_class] || "",
      String(one.num_windows),
      interval(one.window_share),
      interval(one.long_gain_nats, 3),
      one.gate,
      one.gate === "failed" || data.summary.gate === "failed" ? "gate failed" : interval(e.recovered_fraction),
      interval(e.gain_over_random_nats, 3),
      interval(e.excess_gain_nats, 3),
    ];
  });
  place.replaceChildren(
    figure,
    numbersTable(
      `Classes of targets, ${state.selector}, k = ${k}`,
      [
        "class",
        "definition",
        "windows",
        "share of windows",
        "long gain, nats",
        "gate",
        `R(${k})`,
        "gain over random, nats",
        "excess gain, nats",
      ],
      rows,
    ),
  );
}

/** Draws where the k chosen tokens lie, in the real and in the null context. */
function drawDistances(data, state, place) {
  const k = state.measuredK;
  const of = (context) =>
    data.distances.find((d) => d.selector === state.selector && d.context === context && d.k === k).bins;
  const width = (place.clientWidth || 800) - 28;
  const height = Math.round(Math.min(330, Math.max(230, width * 0.42)));
  const frame = { left: 54, right: width - 8, top: 8, bottom: height - 44 };
  const bins = of("real");
  const values = [...bins, ...of("null")].flatMap((b) => [b.mean, b.high, b.uniform]).filter(Number.isFinite);
  const x = linear(bins[0].from_tokens - 0.5, bins.at(-1).to_tokens + 0.5, frame.left, frame.right);
  const y = linear(0, Math.max(...values) * 1.05, frame.bottom, frame.top);
  const middle = (bin) => (bin.from_tokens + bin.to_tokens) / 2;
  const parts = [
    axes(frame, x, y, "distance to the target, tokens", "share of the chosen tokens"),
    svg("path", { class: "uniform", d: `M${bins.map((b) => `${x(middle(b))},${y(b.uniform)}`).join("L")}` }),
  ];
  for (const [context, shift] of [
    ["null", 3],
    ["real", -3],
  ]) {
    const group = svg("g", {
      stroke: colour(state.selector),
      fill: "none",
      "stroke-width": context === "real" ? 2 : 1.3,
    });
    group.append(
      svg("path", {
        d: `M${of(context)
          .map((b) => `${x(middle(b)) + shift},${y(b.mean)}`)
          .join("L")}`,
        "stroke-dasharray": context === "null" ? "2 4" : null,
      }),
    );
    for (const b of of(context)) {
      if (Number.isFinite(b.low)) group.append(svg("path", { d: `M${x(middle(b)) + shift},${y(b.low)}V${y(b.high)}` }));
      group.append(marker(state.selector, x(middle(b)) + shift, y(b.mean), 4, context === "null"));
    }
    parts.push(group);
  }
  const words = bins
    .map((b, i) => `${b.from_tokens} to ${b.to_tokens} tokens: ${interval(b)}, null ${interval(of("null")[i])}`)
    .join("; ");
  const figure = picture(
    `${state.selector}, k = ${k}`,
    "Filled, solid: real context. Open, dotted: null context. Dashed: a choice at random. Bars: 95% intervals.",
    words,
    width,
    height,
    parts,
  );
  place.replaceChildren(
    figure,
    numbersTable(
      `Distances, ${state.selector}, k = ${k}`,
      ["distance, tokens", "share, real context", "share, null context", "at random"],
      bins.map((b, i) => [
        b.from_tokens === b.to_tokens ? String(b.to_tokens) : `${b.from_tokens} to ${b.to_tokens}`,
        interval(b, 3),
        interval(of("null")[i], 3),
        digits(b.uniform, 3),
      ]),
    ),
  );
}
