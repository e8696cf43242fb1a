"use strict";
// Building blocks: elements, and numbers as text. Data is only ever set as text, never as markup.

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

/** Returns the text of a token where it stands alone; `unseen`: what stands for texts of which nothing can be seen. */
const tokenWords = (unseen, text) => (Object.hasOwn(unseen, text) ? unseen[text] : text);

const colour = (selector) => `var(--of-${selector})`;
