"use strict";
// The map: a dot for each token chosen for a target, by the place of the target and the distance; bars by distance beside it. Dots
// and bars are drawn once, and what changes with every scroll above and below them.

const MARGIN = { left: 44, right: 8, top: 10, bottom: 30, bars: 90, gap: 14 };

/** Returns the scales of the map in an element: from tokens and distances to pixels, and back to tokens. */
function mapScales(data, { clientWidth: width, clientHeight: height }) {
  const right = width - MARGIN.right - MARGIN.bars - MARGIN.gap;
  const [low, high] = [data.local_len + 1, data.full_len];
  const step = (height - MARGIN.top - MARGIN.bottom) / (high - low + 1);
  const span = Math.max(1, data.texts.length - 1);
  return {
    x: (token) => MARGIN.left + (token / span) * (right - MARGIN.left),
    y: (distance) => height - MARGIN.bottom - (distance - low + 0.5) * step,
    step,
    right,
    token: (x) => Math.round(((x - MARGIN.left) / (right - MARGIN.left)) * span),
  };
}

/** Returns a canvas in pixels of the screen, as large as an element, and a pen that draws on it in CSS pixels. */
function sheet(canvas, { clientWidth, clientHeight }) {
  const ratio = devicePixelRatio || 1;
  [canvas.width, canvas.height] = [Math.round(clientWidth * ratio), Math.round(clientHeight * ratio)];
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  return pen;
}

/** Returns a function that gives the value of a colour of the page. */
function inkOf(element) {
  const style = getComputedStyle(element);
  return (name) => style.getPropertyValue(name).trim();
}

/**
 * Returns a canvas with axes, dots and bars. `sides`: for each selector its colour, the distances of the tokens chosen for each
 * target, and a Map from distance to the number of targets.
 */
function mapLayer(element, data, sides) {
  const layer = document.createElement("canvas");
  const pen = sheet(layer, element);
  const [at, ink] = [mapScales(data, element), inkOf(element)];
  pen.font = `11px ${getComputedStyle(element).fontFamily}`;
  pen.fillStyle = ink("--muted");
  pen.textAlign = "right";
  const every = Math.max(1, Math.ceil(14 / at.step));
  for (let distance = data.local_len + 1; distance <= data.full_len; distance += every)
    pen.fillText(String(distance), MARGIN.left - 6, at.y(distance) + 4);
  pen.textAlign = "left";
  pen.fillText("token of the document \u2192", MARGIN.left, element.clientHeight - 8);
  pen.fillText("targets", at.right + MARGIN.gap, element.clientHeight - 8);
  const most = Math.max(1, ...sides.flatMap(({ count }) => [...count.values()]));
  const thick = Math.max(1, (at.step * 0.8) / sides.length);
  sides.forEach(({ colour, chosen, count }, side) => {
    const top = (distance) => at.y(distance) - (thick * sides.length) / 2 + side * thick;
    pen.fillStyle = ink(colour);
    pen.globalAlpha = 0.7;
    chosen.forEach((distances, target) => {
      for (const distance of distances)
        pen.fillRect(at.x(data.first_target + target) - 1.25, top(distance), 2.5, Math.max(1.5, thick * 0.85));
    });
    pen.globalAlpha = 1;
    for (const [distance, number] of count)
      pen.fillRect(at.right + MARGIN.gap, top(distance), (number / most) * MARGIN.bars, thick * 0.85);
  });
  return layer;
}

/** Draws the map: its layer, behind it the tokens in view, and over it the chosen token, or none. */
function drawMap(element, data, layer, { shown, token }) {
  if (element.clientWidth === 0) return; // a notebook's frame may have no size yet; it is drawn when it has
  const pen = sheet(element, element);
  const [at, ink] = [mapScales(data, element), inkOf(element)];
  const high = element.clientHeight - MARGIN.top - MARGIN.bottom;
  pen.fillStyle = ink("--grid");
  pen.fillRect(at.x(shown[0]), MARGIN.top, Math.max(2, at.x(shown[1]) - at.x(shown[0])), high);
  pen.drawImage(layer, 0, 0, element.clientWidth, element.clientHeight);
  if (token !== null) {
    pen.fillStyle = ink("--target-line");
    pen.fillRect(at.x(token) - 1, MARGIN.top, 2, high);
  }
}
