"use strict";
// Distances of the chosen tokens. The chart draws the numbers of `by_distance`, and computes none.

/** Draws where the k chosen tokens lie, in the real and in the null context. */
function drawDistances(data, state, place) {
  const k = state.measuredK;
  const of = (context) =>
    data.distances.find((d) => d.selector === state.selector && d.context === context && d.k === k).bins;
  const width = (place.clientWidth || 800) - 28;
  const height = Math.round(Math.min(330, Math.max(230, width * 0.42)));
  const frame = { left: 54, right: width - 8, top: 8, bottom: height - 44 };
  const bins = of("real");
  // Of bins of unequal widths the shares are shown over those of a random choice.
  const share = (b, value) => (data.log_distances ? value / b.uniform : value);
  const values = [...bins, ...of("null")]
    .flatMap((b) => [b.mean, b.high, b.uniform].filter(Number.isFinite).map((value) => share(b, value)))
    .filter(Number.isFinite);
  const scale = data.log_distances ? logarithmic : linear;
  const x = scale(bins[0].from_tokens - 0.5, bins.at(-1).to_tokens + 0.5, frame.left, frame.right);
  const y = linear(0, Math.max(...values) * 1.05, frame.bottom, frame.top);
  const middle = (bin) => (bin.from_tokens + bin.to_tokens) / 2;
  const parts = [
    axes(frame, x, y, "distance to the target, tokens",
      data.log_distances ? "share over a random choice\u2019s"
        : `share of the ${data.summary.unit === "token" ? "" : "tokens of the "}chosen ${data.units.many}`),
    svg("path", { class: "uniform", d: `M${bins.map((b) => `${x(middle(b))},${y(share(b, b.uniform))}`).join("L")}` }),
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
          .map((b) => `${x(middle(b)) + shift},${y(share(b, b.mean))}`)
          .join("L")}`,
        "stroke-dasharray": context === "null" ? "2 4" : null,
      }),
    );
    for (const b of of(context)) {
      const px = x(middle(b)) + shift;
      if (Number.isFinite(b.low))
        group.append(svg("path", { d: `M${px},${y(share(b, b.low))}V${y(share(b, b.high))}` }));
      group.append(marker(state.selector, px, y(share(b, b.mean)), 4, context === "null"));
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
