"use strict";
// Building blocks: elements, scales, axes, numbers as text. Data is only ever set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** Returns an HTML element; children that are strings become text. */
const html = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);

/** Returns an SVG element. */
const svg = (name, attributes = {}, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

const byId = (id) => document.getElementById(id);

/** Returns a number with `count` digits after the point and a typographic minus sign; never minus zero. */
function digits(value, count) {
  const text = value.toFixed(count);
  return (/[1-9]/.test(text) ? text : text.replace("-", "")).replace("-", "\u2212");
}

const NONE = "\u2013";

/** Returns an estimate as text, as `interval` in statistics/wording.py does: 0.41 [0.36, 0.47]. */
function interval(estimate, count = 2) {
  if (!estimate || estimate.mean === null || estimate.mean === undefined) return NONE;
  if (estimate.low === null) return digits(estimate.mean, count);
  return `${digits(estimate.mean, count)} [${digits(estimate.low, count)}, ${digits(estimate.high, count)}]`;
}

/** Returns a linear scale, from numbers between low and high to pixels between from and to. */
function linear(low, high, from, to) {
  const scale = (value) => from + ((value - low) / (high - low || 1)) * (to - from);
  return Object.assign(scale, { low, high, ticks: roundTicks(low, high, 6) });
}

/** Returns a logarithmic scale of positive numbers, with ticks at powers of two, or at four numbers where these are too few. */
function logarithmic(low, high, from, to) {
  const inner = linear(Math.log2(low), Math.log2(high), from, to);
  const powers = Array.from({ length: 32 }, (_, i) => 2 ** i).filter((t) => t >= low && t <= high);
  const few = [0, 1, 2, 3].map((i) => Math.round((low + 0.5) * (high / (low + 0.5)) ** (i / 3)));
  const every = Math.ceil(powers.length / 8);
  const ticks = powers.length > 2 ? powers.filter((_, i) => (powers.length - 1 - i) % every === 0) : few;
  return Object.assign((value) => inner(Math.log2(value)), { low, high, ticks });
}

/** Returns a scale that is linear from -1 to 1 and logarithmic beyond, for fractions: luck may be worth ten long gains. */
function signedLog(low, high, from, to) {
  const squeeze = (v) => (Math.abs(v) <= 1 ? v : Math.sign(v) * (1 + Math.log10(Math.abs(v))));
  const inner = linear(squeeze(low), squeeze(high), from, to);
  if (Math.max(-low, high) <= 1.5) return linear(low, high, from, to);
  const ticks = [-1000, -300, -100, -30, -10, -3, -1, 0, 0.5, 1, 3, 10, 30, 100, 300, 1000].filter(
    (t) => t >= low && t <= high,
  );
  return Object.assign((value) => inner(squeeze(value)), { low, high, ticks });
}

/** Returns about `count` round numbers between low and high. */
function roundTicks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((m) => m * power >= rough);
  const ticks = [];
  for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9; i++)
    ticks.push(Number((i * step).toPrecision(12)));
  return ticks;
}

const tickWords = (value) => String(value).replace("-", "\u2212");

/** Returns the smallest and largest of the numbers with a small margin; the numbers `among` are always inside. */
function extent(values, among = [], margin = 0.05) {
  const all = [...values, ...among].filter(Number.isFinite);
  const low = Math.min(...all);
  const high = Math.max(...all);
  const room = (high - low || 1) * margin;
  return [low - room, high + room];
}

/** Shapes of markers, by the names that Matplotlib gives them; paths around 0, 0 of radius r. */
const SHAPES = {
  o: (r) => `M${-r},0a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0Z`,
  v: (r) => `M0,${1.2 * r}L${1.1 * r},${-0.8 * r}H${-1.1 * r}Z`,
  "*": (r) => star(5, 1.35 * r, 0.55 * r),
  D: (r) => `M0,${-1.3 * r}L${1.3 * r},0L0,${1.3 * r}L${-1.3 * r},0Z`,
  P: (r) => star(4, 1.4 * r, 0.55 * r),
  s: (r) => `M${-0.95 * r},${-0.95 * r}h${1.9 * r}v${1.9 * r}h${-1.9 * r}Z`,
  p: (r) => star(5, 1.2 * r, 0.97 * r),
  h: (r) => star(3, 1.2 * r, 1.2 * r),
  "^": (r) => `M0,${-1.2 * r}L${1.1 * r},${0.8 * r}H${-1.1 * r}Z`,
  x: (r) =>
    `M${-r},${-0.5 * r}l${0.5 * r},${-0.5 * r}l${0.5 * r},${0.5 * r}l${0.5 * r},${-0.5 * r}l${0.5 * r},${0.5 * r}` +
    `l${-0.5 * r},${0.5 * r}l${0.5 * r},${0.5 * r}l${-0.5 * r},${0.5 * r}l${-0.5 * r},${-0.5 * r}l${-0.5 * r},${0.5 * r}` +
    `l${-0.5 * r},${-0.5 * r}l${0.5 * r},${-0.5 * r}Z`,
};

function star(corners, outer, inner) {
  const points = Array.from({ length: 2 * corners }, (_, i) => {
    const radius = i % 2 ? inner : outer;
    const angle = (Math.PI * i) / corners - Math.PI / 2;
    return `${(radius * Math.cos(angle)).toFixed(2)},${(radius * Math.sin(angle)).toFixed(2)}`;
  });
  return `M${points.join("L")}Z`;
}

/** Returns the path of a selector's marker; selectors differ in more than hue. */
const shape = (selector, radius) => (SHAPES[MARKERS[selector]] ?? SHAPES.o)(radius);

const colour = (selector) => `var(--${selector})`;

/** Returns a marker at a place; an open one (the null context) is filled with the background. */
function marker(selector, x, y, radius, open = false) {
  return svg("path", {
    d: shape(selector, radius),
    transform: `translate(${x},${y})`,
    fill: open ? "var(--card)" : colour(selector),
    stroke: colour(selector),
    "stroke-width": 1.5,
  });
}

/** Returns grid lines, tick labels and titles of both axes. `frame`: {left, right, top, bottom} in pixels. */
function axes(frame, x, y, xTitle, yTitle, xWords = tickWords, yWords = tickWords) {
  const parts = [];
  for (const value of x.ticks) {
    parts.push(svg("line", { class: "grid", x1: x(value), x2: x(value), y1: frame.top, y2: frame.bottom }));
    parts.push(
      svg("text", { class: "tick", x: x(value), y: frame.bottom + 16, "text-anchor": "middle" }, xWords(value)),
    );
  }
  for (const value of y.ticks) {
    parts.push(svg("line", { class: "grid", x1: frame.left, x2: frame.right, y1: y(value), y2: y(value) }));
    parts.push(svg("text", { class: "tick", x: frame.left - 6, y: y(value) + 4, "text-anchor": "end" }, yWords(value)));
  }
  parts.push(svg("text", { x: (frame.left + frame.right) / 2, y: frame.bottom + 35, "text-anchor": "middle" }, xTitle));
  const middle = (frame.top + frame.bottom) / 2;
  parts.push(svg("text", { x: 12, y: middle, transform: `rotate(-90 12 ${middle})`, "text-anchor": "middle" }, yTitle));
  return svg("g", { "aria-hidden": "true" }, parts);
}

/** Returns the numbers of a chart as a table, also for screen readers. */
function numbersTable(caption, head, rows, summary = "The numbers as a table", open = false) {
  return html(
    "details",
    { open },
    html("summary", {}, summary),
    html(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
      html(
        "table",
        {},
        html("caption", { class: "hidden" }, caption),
        html(
          "thead",
          {},
          html(
            "tr",
            {},
            head.map((cell) => html("th", { scope: "col" }, cell)),
          ),
        ),
        html(
          "tbody",
          {},
          rows.map(([first, ...rest]) =>
            html(
              "tr",
              {},
              html("th", { scope: "row" }, first),
              rest.map((cell) => html("td", { class: /\[/.test(cell) ? "number" : null }, cell)),
            ),
          ),
        ),
      ),
    ),
  );
}

/** Returns a figure with a title, a description for screen readers, the drawing, and buttons to save it. */
function picture(title, subtitle, description, width, height, parts) {
  const figure = html(
    "figure",
    {},
    html("figcaption", {}, title, html("span", {}, subtitle)),
    svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}. ${description}` }, parts),
  );
  return withFiles(figure, title);
}
