"use strict";
// Figures and numbers as files, and text for the clipboard. Everything is made in the page; nothing is loaded or sent.

const PNG_SCALE = 3;
// What the style sheet gives to drawings, and a file of its own must say itself.
const DRAWN = [
  "fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "opacity", "font-family",
  "font-size", "font-weight", "text-anchor", "paint-order",
];

/** Offers a file to the user. */
function offer(blob, name) {
  const link = html("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** Returns CSV: text in quotes where it must be, numbers in full, missing ones empty. */
function csv(rows) {
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => `${row.map(cell).join(",")}\n`).join("");
}

/** Returns a text in lines of at most so many characters; a longer word has a line of its own. */
function wrapped(text, characters) {
  const lines = [];
  for (const word of text.split(/\s+/)) {
    const longer = lines.length ? `${lines.at(-1)} ${word}` : word;
    if (lines.length && longer.length <= characters) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

/** Returns what stands above a drawing in its file, from y = 0 down, and its height: title, notes, and names of its series. */
function headOf(drawing, title, notes, width, paper) {
  const words = { fill: getComputedStyle(document.body).color, "font-family": "sans-serif" };
  const parts = [];
  let y = 2;
  const write = (text, size, options) => {
    for (const line of wrapped(text, Math.floor((width - 16) / (0.66 * size)))) {
      y += size + 4;
      parts.push(svg("text", { ...words, ...options, x: 8, y, "font-size": size }, line));
    }
  };
  write(title, 14, { "font-weight": 600 });
  for (const note of notes.filter(Boolean)) write(note, 9, {});
  // Two measurements may have one label; their marks differ.
  const key = ({ dataset }) => `${dataset.name} ${dataset.open ?? ""} ${dataset.series}`;
  const series = new Map([...drawing.querySelectorAll("[data-series]")].map((group) => [key(group), group]));
  const most = Math.floor((width - 48) / 6.2);
  let x = width;
  for (const group of series.values()) {
    const lines = wrapped(group.dataset.series, most).map((line) => (line.length > most ? `…${line.slice(1 - most)}` : line));
    const space = 48 + 6.2 * Math.max(...lines.map((line) => line.length));
    if (x + space > width) [x, y] = [8, y + 16];
    const stroke = getComputedStyle(group).stroke;
    const fill = group.dataset.open ? paper : stroke;
    const dash = group.querySelector("path[stroke-dasharray]")?.getAttribute("stroke-dasharray");
    parts.push(
      svg("path", { d: `M${x},${y - 4}h30`, stroke, "stroke-dasharray": dash ?? null }),
      svg("path", { d: shape(group.dataset.name, 4), transform: `translate(${x + 15},${y - 4})`, fill, stroke }),
      ...lines.map((line, i) => svg("text", { ...words, x: x + 36, y: y + 12 * i, "font-size": 10 }, line)),
    );
    x = lines.length > 1 ? width : x + space; // below several lines the next one begins
    y += 12 * (lines.length - 1);
  }
  return { parts, height: y + 8 };
}

/** Returns a drawing as a file of its own: with its colours, a background, its title, notes, and the names of its series. */
function standalone(drawing, title, notes) {
  const copy = drawing.cloneNode(true);
  const copies = [copy, ...copy.querySelectorAll("*")];
  [drawing, ...drawing.querySelectorAll("*")].forEach((node, index) => {
    const style = getComputedStyle(node);
    for (const name of DRAWN) copies[index].setAttribute(name, style.getPropertyValue(name));
    for (const name of ["class", "role", "tabindex"]) copies[index].removeAttribute(name);
  });
  const [, , width, height] = drawing.getAttribute("viewBox").split(" ").map(Number);
  const background = getComputedStyle(drawing.closest("figure")).backgroundColor;
  const { parts, height: head } = headOf(drawing, title, notes, width, background);
  copy.prepend(
    svg("rect", { x: 0, y: -head, width, height: height + head, fill: background }),
    svg("g", { transform: `translate(0,${-head})` }, parts),
  );
  for (const [name, value] of Object.entries({
    xmlns: SVG, viewBox: `0 ${-head} ${width} ${height + head}`, width, height: height + head,
  }))
    copy.setAttribute(name, value);
  return { text: new XMLSerializer().serializeToString(copy), width, height: height + head };
}

/** Returns the drawing as a PNG. */
async function asPng({ text, width, height }) {
  const address = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  const image = new Image();
  image.src = address;
  await image.decode();
  const canvas = html("canvas", { width: Math.round(width * PNG_SCALE), height: Math.round(height * PNG_SCALE) });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(address);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

/** Adds buttons to a figure that save its drawing. The note of the page says what was measured and which gates passed. */
function withFiles(figure, title) {
  const subtitle = () => figure.querySelector("figcaption span")?.textContent ?? "";
  const drawing = () => standalone(figure.querySelector("svg"), title, [subtitle(), PAGE_NOTE]);
  const name = title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 60);
  figure.append(
    html(
      "p",
      { class: "files" },
      html("button", {
        type: "button", "aria-label": `Save as SVG: ${title}`,
        onclick: () => offer(new Blob([drawing().text], { type: "image/svg+xml" }), `${name}.svg`),
      }, "SVG"),
      html("button", {
        type: "button", "aria-label": `Save as PNG: ${title}`,
        onclick: async () => offer(await asPng(drawing()), `${name}.png`),
      }, "PNG"),
    ),
  );
  return figure;
}

/** Copies text, and says so; where the browser forbids it, selects the text for the user to copy. */
async function copyText(area, status) {
  try {
    await navigator.clipboard.writeText(area.value);
    status.textContent = "Copied.";
  } catch {
    area.focus();
    area.select();
    status.textContent = "Selected: copy it with the keyboard.";
  }
}

/** Returns the estimates among the values of an entry, by name; those of Figure 4's lines begin with figure4_. */
const estimatesOf = (entry, prefix = "") =>
  Object.entries(entry).flatMap(([name, value]) => {
    if (!value || typeof value !== "object" || Array.isArray(value)) return [];
    if ("mean" in value) return [[prefix + name, value]];
    return name === "figure4" ? estimatesOf(value, "figure4_") : [];
  });

/**
 * Returns every mean of the page with its interval: a row a number, with what was measured, by which definition, and the gates of
 * its windows. Its name ends in the unit.
 */
function numbersCsv(data) {
  const row = (key, name, e, { gate, beyond_gate } = data.summary) =>
    [...Object.values({ ...data.definition, gate, beyond_gate }), ...key, name, e.mean, e.low, e.high];
  const of = (entry, key, whole) => estimatesOf(entry).map(([name, e]) => row(key, name, e, whole));
  const ofSelections = (entry, which) =>
    entry.selections.flatMap((e) => of(e, [which, e.selector, e.context, e.k], entry));
  return csv([
    [...Object.keys(data.definition), "class", "selector", "context", "k", "number", "value", "low", "high"],
    ...of(data.summary, ["", "", "", ""]),
    ...ofSelections(data.summary, ""),
    ...data.classes.flatMap((one) => [
      ...of(one, [one.target_class, "", "", ""], one), ...ofSelections(one, one.target_class),
    ]),
    ...data.distances.flatMap((d) =>
      d.bins.map((b) =>
        row(["", d.selector, d.context, d.k], `share_${b.from_tokens}_to_${b.to_tokens}_tokens`, b)),
    ),
  ]);
}

/** Returns losses and gains of windows, a row each; without their words. */
function windowsCsv(data, windows) {
  const choices = data.selectors.flatMap(({ name }) =>
    Object.keys(CONTEXTS).flatMap((context) => data.ks.map((k, index) => ({ name, context, k, index }))),
  );
  return csv([
    ["window_id", "document", "weight", "class", "group", "loss_short_nats", "loss_long_nats", "gain_long_nats",
      "null_gain_long_nats",
      ...choices.map(({ name, context, k }) => `gain_${name}_${context}_k${k}_nats`)],
    ...windows.map((w) => [
      w.id, w.doc, w.weight, w.class, w.group, w.loss_short_nats, w.loss_long_nats, w.gain_long_nats,
      w.null_gain_long_nats,
      ...choices.map(({ name, context, index }) => w.selections[name][context].gain[index]),
    ]),
  ]);
}
