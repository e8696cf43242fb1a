"use strict";
// Where each token of a long document stands, computed once for a width, so that only the lines in view need to exist.

const LINE = 34; // pixels from line to line
const BREAK = "\u21b5"; // the mark of a line break, behind which a line ends

/** Returns a function that gives the width in pixels of a text in the font of an element. */
function measureIn(element) {
  const style = getComputedStyle(element);
  const context = document.createElement("canvas").getContext("2d");
  context.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  const known = new Map();
  return (text) => {
    if (!known.has(text)) known.set(text, context.measureText(text).width);
    return known.get(text);
  };
}

/**
 * Returns {lines: [[first, behind], ...], places: [{line, x, width, text}, ...]} of tokens in lines of a width. Words stay whole
 * where they fit into a line: a line breaks only before a token that begins with a space, or behind a line break.
 */
function layOut(texts, width, measure) {
  const lines = [];
  const places = new Array(texts.length);
  let first = 0;
  let x = 0;
  const end = (behind) => {
    if (behind > first) lines.push([first, behind]);
    first = behind;
    x = 0;
  };
  const place = (index) => {
    let text = texts[index];
    if (x === 0) text = text.replace(/^ +/, "") || SPACE;
    const wide = measure(text);
    if (x > 0 && x + wide > width) {
      end(index);
      return place(index);
    }
    places[index] = { line: lines.length, x, width: wide, text };
    x += wide;
  };
  let index = 0;
  while (index < texts.length) {
    let behind = index + 1; // of the word
    let wide = measure(texts[index]);
    while (behind < texts.length && !/^\s/.test(texts[behind]) && !texts[behind - 1].includes(BREAK))
      wide += measure(texts[behind++]);
    if (x > 0 && x + wide > width) end(index);
    for (; index < behind; index++) place(index);
    if (texts[behind - 1].includes(BREAK)) end(behind);
  }
  end(texts.length);
  return { lines, places };
}
