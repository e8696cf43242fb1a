"use strict";
// Numbers as files, and text for the clipboard. Everything is made in the page; nothing is loaded or sent.

/** Offers a file to the user. */
function offer(blob, name) {
  const link = html("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** Returns the numbers of the page as CSV; it holds them compressed. */
async function numbersCsv(data) {
  const bytes = Uint8Array.from(atob(data.numbers), (character) => character.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

/** Returns CSV: text in quotes where it must be, numbers in full, missing ones empty. */
function csv(rows) {
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => `${row.map(cell).join(",")}\n`).join("");
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
