"use strict";
// The view in the address, so that it can be sent: selector, k, context, range of the axes, filters and window, as far as they
// are not what the page begins with. An address is a stranger's text: what it names is looked up, and taken only if it is there.

const FILTERS = ["search", "gain-from", "gain-to", "excess-from", "excess-to", "order", "group"];

/** Returns the view as the part of an address behind #. */
function addressOf(data, state) {
  const view = new URLSearchParams();
  if (state.selector !== data.shown_first) view.set("selector", state.selector);
  if (state.k !== data.first_k) view.set("k", state.k);
  if (state.context !== "real") view.set("context", state.context);
  if (state.range !== "shown") view.set("range", state.range);
  for (const id of FILTERS) {
    const control = byId(id);
    if (control && control.value !== (control.options?.[0].value ?? "")) view.set(id, control.value);
  }
  const classes = [...document.querySelectorAll("#class-filters input")];
  if (classes.some((box) => !box.checked))
    view.set("classes", classes.filter((box) => box.checked).map((box) => box.value).join(","));
  if (state.page) view.set("page", state.page + 1);
  if (state.window !== null) view.set("window", state.window);
  return view.toString();
}

/** Returns the view that an address names, or null where it names none: an id of the page, or nothing. */
function viewOf(hash) {
  const text = hash.replace(/^#/, "");
  if (/^w\d+$/.test(text)) return new URLSearchParams({ window: text.slice(1) });
  return text.includes("=") ? new URLSearchParams(text) : null;
}

/** Sets the state and the controls to a view; what it does not name, or names wrongly, is as the page begins. */
function setView(data, state, view) {
  const among = (name, values, otherwise) => (values.includes(view.get(name)) ? view.get(name) : otherwise);
  const whole = (name, most, otherwise) => {
    const text = view.get(name) ?? "";
    return /^\d{1,15}$/.test(text) && Number(text) <= most ? Number(text) : otherwise;
  };
  state.selector = among("selector", data.selectors.map((s) => s.name), data.shown_first);
  state.k = whole("k", data.ks.at(-1), data.first_k);
  state.context = among("context", Object.keys(CONTEXTS), "real");
  state.range = among("range", ["shown", "shared"], "shown");
  state.page = Math.max(0, whole("page", 1e9, 1) - 1);
  state.window = whole("window", Number.MAX_SAFE_INTEGER, null);
  byId("filters").reset();
  for (const id of FILTERS) {
    const control = byId(id);
    const value = view.get(id);
    if (!control || value === null || (control.type === "number" && !Number.isFinite(Number(value)))) continue;
    if (!control.options || [...control.options].some((option) => option.value === value)) control.value = value;
  }
  const classes = view.get("classes")?.split(",");
  for (const box of document.querySelectorAll("#class-filters input")) box.checked = !classes || classes.includes(box.value);
  byId("selector").value = state.selector;
  byId("k").value = state.k;
  byId("range").value = state.range;
  for (const radio of document.querySelectorAll('input[name="context"]')) radio.checked = radio.value === state.context;
}
