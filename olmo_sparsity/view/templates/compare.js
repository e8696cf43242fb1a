"use strict";
// The comparison's figures, one of gains in nats and one of fractions: values of each measurement on the left, differences from
// the first on the right, one row for each quantity. Losses would flatten the gains; they are only in the table.

const DATA = JSON.parse(byId("data").textContent);
// The looks of selectors, reused for measurements: they differ in grey as well, and to the colour-blind.
const LOOKS = ["unmask-one", "kl", "nearest", "gradient", "greedy", "attention", "lasso", "random"];
const look = (index) => LOOKS[index % LOOKS.length];
// Below the title of every figure that is saved.
const PAGE_NOTE = DATA.note;
const isFraction = (row) => row.quantity.endsWith("fraction");
const name = (row) => (row.selector ? `${row.selector}, k = ${row.k}: ` : "") + row.words.replace(", nats", "");

/** Draws rows of estimates on a common axis. `of(row)` gives [[measurement, estimate], ...]. */
function panel(rows, of, left, right, top, height, title) {
  const values = rows
    .flatMap(of)
    .flatMap(([, e]) => (e ? [e.mean, e.low, e.high] : []))
    .filter((v) => v !== null);
  const x = linear(...extent(values, [0]), left, right);
  const bottom = top + height * rows.length;
  const parts = [svg("text", { x: (left + right) / 2, y: top - 8, "text-anchor": "middle" }, title)];
  for (const tick of x.ticks.filter((_, i) => right - left > 200 || i % 2 === 0)) {
    parts.push(svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: top, y2: bottom }));
    parts.push(svg("text", { class: "tick", x: x(tick), y: bottom + 15, "text-anchor": "middle" }, tickWords(tick)));
  }
  parts.push(svg("line", { class: "zero", x1: x(0), x2: x(0), y1: top, y2: bottom }));
  rows.forEach((row, i) =>
    of(row).forEach(([measurement, value], j, all) => {
      if (!value) return;
      const y = top + (i + 0.5) * height + (j - (all.length - 1) / 2) * 9;
      const shape = look(measurement);
      parts.push(
        // A file that is saved names its series from these groups.
        svg("g", { "data-series": DATA.labels[measurement], "data-name": shape, stroke: colour(shape) }, [
          value.low === null ? null : svg("path", { d: `M${x(value.low)},${y}H${x(value.high)}`, "stroke-width": 2 }),
          marker(shape, x(value.mean), y, 4),
        ]),
      );
    }),
  );
  return parts;
}

/** Returns the picture of rows of one unit. Where no row has a difference, the values have the whole width. */
function forest(rows, unit) {
  const width = byId("forest").clientWidth - 28;
  const narrow = width < 600;
  const labels = narrow ? 0 : 230;
  const height = Math.max(28, 12 + 9 * DATA.labels.length) + (narrow ? 16 : 0);
  const differ = rows.some((row) => row.differences.some((e) => e));
  const half = differ ? (width - labels - 60) / 2 : width - labels - 28;
  const top = 24;
  const bottom = top + height * rows.length;
  const parts = rows.map((row, i) =>
    svg("line", { class: "grid", x1: 0, x2: width, y1: top + i * height, y2: top + i * height }),
  );
  parts.push(
    ...panel(
      rows,
      (row) => row.values.map((e, i) => [i, e]),
      labels + 20,
      labels + 20 + half,
      top,
      height,
      `value, ${unit}`,
    ),
  );
  if (differ)
    parts.push(
      ...panel(
        rows,
        (row) => row.differences.map((e, i) => [i + 1, e]),
        labels + 50 + half,
        width - 8,
        top,
        height,
        `difference, ${unit}`,
      ),
    );
  // The names last: on a narrow page they stand over the lines of the panels.
  parts.push(
    ...rows.map((row, i) =>
      svg(
        "text",
        { class: "over-grid", x: 0, y: narrow ? top + i * height + 12 : top + (i + 0.5) * height + 4 },
        name(row),
      ),
    ),
  );
  const [title, subtitle, of] = differ
    ? ["Values and differences", "", "differences"]
    : ["Values", "No differences: the page gives the reasons.", "values"];
  const count = unit === "nats" ? 3 : 2;
  const said = rows.map((row) => `${name(row)}: ${row[of].map((e) => interval(e, count)).join("; ")}`).join(". ");
  return picture(`${title}, ${unit}`, subtitle, `${of}: ${said}`, width, bottom + 22, parts);
}

function draw() {
  byId("forest").replaceChildren(
    html(
      "p",
      { class: "legend" },
      DATA.labels.map((label, i) =>
        html(
          "span",
          { class: "entry" },
          svg("svg", { viewBox: "-7 -7 14 14", "aria-hidden": "true" }, marker(look(i), 0, 0, 4.5)),
          ` ${label}`,
        ),
      ),
    ),
    ...["nats", "fractions"].map((unit) => {
      const rows = DATA.rows.filter(
        (row) => row.main && !row.quantity.startsWith("loss") && isFraction(row) === (unit === "fractions"),
      );
      return rows.some((row) => row.values.some((e) => e)) ? forest(rows, unit) : "";
    }),
  );
}

function cells(row, at) {
  const count = isFraction(row) ? 2 : 3;
  return [
    row.words,
    row.selector || "",
    row.k === null ? "" : String(row.k),
    ...row.values.map((e) => interval(e, count)),
    ...row.differences.flatMap((e, i) => [interval(e, count), DATA.verdicts[at][i]]),
  ];
}

const HEAD = [
  "quantity",
  "selector",
  "k",
  ...DATA.labels,
  ...DATA.labels.slice(1).flatMap((label) => [`${label} minus ${DATA.labels[0]}`, "verdict"]),
];
const rows = DATA.rows.map((row, at) => [row, cells(row, at)]);
byId("numbers").replaceChildren(
  numbersTable(
    "The main numbers",
    HEAD,
    rows.filter(([row]) => row.main).map(([, cell]) => cell),
    "The main numbers",
    true,
  ),
  numbersTable(
    "Every quantity, selector and k",
    HEAD,
    rows.map(([, cell]) => cell),
    "Every quantity, selector and k",
  ),
);
draw();
let waiting;
addEventListener("resize", () => {
  clearTimeout(waiting);
  waiting = setTimeout(draw, 150);
});
document.documentElement.dataset.ready = "yes";
