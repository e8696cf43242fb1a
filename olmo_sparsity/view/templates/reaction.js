"use strict";
// D(k), the share of the prediction that k tokens reproduce. It is drawn only beside what it needs: R(k), random, the null
// context, and the mimicry floor. The numbers are those of `summarize`.

/** Draws D(k) of the chosen selector beside R(k), or says why not. */
function drawReaction(data, state, place) {
  const imitator = data.imitators[state.selector];
  const missing = missingBesideD(data, imitator);
  if (missing) {
    place.replaceChildren(withoutDrawing("Prediction recovered, D(k)", missing));
    return;
  }
  const lines = linesOfD(data, state.selector, imitator);
  const width = panelWidth(place);
  const seen = data.selectors.find((s) => s.name === state.selector).sees_target;
  place.replaceChildren(
    html("div", { class: "legend" }, lines.map(legendEntry)),
    html(
      "div",
      { class: "pair" },
      fractionChart(data, width, "prediction_recovered", "Prediction recovered, D(k)", "", lines),
      fractionChart(
        data,
        width,
        "recovered_fraction",
        "Gain recovered, R(k)",
        [seen ? "It includes luck: the selector sees the target." : "", data.words.fragile].filter(Boolean).join(" "),
        lines.filter((line) => line.context === "real"),
      ),
    ),
    reactionTable(data, state, lines),
  );
}

/** Returns why D(k) cannot be shown, or an empty string. */
function missingBesideD(data, imitator) {
  if (data.summary.gate === "failed") return `${data.words.no_fraction} ${data.words.no_prediction}`;
  const lacks = [
    data.selectors.some((s) => s.name === "random") ? null : "random",
    imitator ? null : "the mimicry floor of kl or greedy-kl",
  ].filter(Boolean);
  return lacks.length ? `Not measured: ${lacks.join(" and ")}. ${data.words.no_prediction}` : "";
}

/** Returns the lines of the chart of D(k): whose choice in which context, in words, and how it is drawn. */
function linesOfD(data, selector, imitator) {
  const lines = [
    { name: selector, context: "real", words: `${selector}, real context`, strong: true },
    { name: selector, context: "null", words: `${selector}, null context`, open: true, dash: "2 4" },
    { name: "random", context: "real", words: "random, real context" },
    {
      name: imitator,
      context: "mimicry",
      words: `mimicry floor: ${data.units.many} of the null context chosen by ${imitator}`,
      dash: "8 4",
    },
  ];
  return selector === "random" ? lines.filter((line, at) => at !== 2) : lines;
}

const legendEntry = ({ name, words, open, dash }) =>
  html(
    "span",
    { class: "entry" },
    svg(
      "svg",
      { viewBox: "0 -7 34 14", class: "long", "aria-hidden": "true" },
      svg("path", { d: "M0,0H34", stroke: colour(name), "stroke-width": 1.8, "stroke-dasharray": dash ?? null }),
      marker(name, 17, 0, 4.5, open),
    ),
    ` ${words}`,
  );

/** Returns a chart of fractions against k. */
function fractionChart(data, width, quantity, title, subtitle, lines) {
  const of = lines.map((line) => data.ks.map((k) => entryOf(data.summary.selections, line.name, line.context, k)));
  const values = numbersOf(
    of
      .flat()
      .map((e) => e[quantity])
      .filter((e) => e),
  );
  const area = areaOfK(data.ks, width, values, [0, 1], true);
  const drawn = lines.map((line, number) => {
    const shift = 5 * (number - (lines.length - 1) / 2);
    const points = of[number].filter((e) => e[quantity]).map((e) => [area.x(Math.log2(e.k)) + shift, e[quantity]]);
    return series(area, points, line.name, line);
  });
  const shown = data.ks.indexOf(data.first_k);
  const said = lines.map((line, number) => `${line.words} ${interval(of[number][shown][quantity])}`).join("; ");
  return picture(
    title,
    subtitle,
    `At k = ${data.first_k}: ${said}. The table below has every k.`,
    width,
    area.height,
    [axesOfK(data, area, title.split(", ")[0].toLowerCase()), ...levelLines(area, true, null), ...drawn],
  );
}

/** Returns D(k) and R(k) of every line as a table. */
function reactionTable(data, state, lines) {
  const real = lines.filter((line) => line.context === "real");
  const rows = data.ks.map((k) => {
    const at = (line) => entryOf(data.summary.selections, line.name, line.context, k);
    return [
      String(k),
      ...lines.map((line) => interval(at(line).prediction_recovered)),
      ...real.map((line) => fractionWords(data.summary, at(line))),
    ];
  });
  return numbersTable(
    `Prediction recovered, ${state.selector}`,
    ["k", ...lines.map((line) => `D(k): ${line.words}`), ...real.map((line) => `R(k): ${line.words}`)],
    rows,
  );
}
