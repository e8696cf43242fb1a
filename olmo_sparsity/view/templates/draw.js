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
const SPACE = "\u2423"; // in place of a token of white space where it stands alone

/** Returns a linear scale, from numbers between low and high to pixels between from and to. */
function linear(low, high, from, to) {
  const scale = (value) => from + ((value - low) / (high - low || 1)) * (to - from);
  return Object.assign(scale, { low, high, ticks: roundTicks(low, high, 6) });
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

/** Returns the text of a token where it stands alone; `unseen`: what stands for texts of which nothing can be seen. */
const tokenWords = (unseen, text) => (Object.hasOwn(unseen, text) ? unseen[text] : text);

const colour = (selector) => `var(--of-${selector})`;

/** Returns grid lines, tick labels and titles of both axes. `frame`: {left, right, top, bottom} in pixels. */
function axes(frame, x, y, xTitle, yTitle) {
  const parts = [];
  for (const value of x.ticks) {
    parts.push(svg("line", { class: "grid", x1: x(value), x2: x(value), y1: frame.top, y2: frame.bottom }));
    parts.push(
      svg("text", { class: "tick", x: x(value), y: frame.bottom + 16, "text-anchor": "middle" }, tickWords(value)),
    );
  }
  for (const value of y.ticks) {
    parts.push(svg("line", { class: "grid", x1: frame.left, x2: frame.right, y1: y(value), y2: y(value) }));
    parts.push(svg("text", { class: "tick", x: frame.left - 6, y: y(value) + 4, "text-anchor": "end" }, tickWords(value)));
  }
  parts.push(svg("text", { x: (frame.left + frame.right) / 2, y: frame.bottom + 35, "text-anchor": "middle" }, xTitle));
  const middle = (frame.top + frame.bottom) / 2;
  parts.push(svg("text", { x: 12, y: middle, transform: `rotate(-90 12 ${middle})`, "text-anchor": "middle" }, yTitle));
  return svg("g", { "aria-hidden": "true" }, parts);
}
