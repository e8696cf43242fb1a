"use strict";
// Windows as text: long-range tokens shaded by score, chosen ones framed and numbered, local context, target, losses.

/** Returns the loss with the local tokens and J_k visible, or null if this k was not measured. */
function sparseLoss(data, window, state) {
  if (state.k === 0) return window.loss_short_nats;
  const index = data.ks.indexOf(state.k);
  return index < 0 ? null : window.selections[state.selector][state.context].loss[index];
}

/** Returns the optimism of a choice, or null if it was not measured or the target is not seen. */
const optimismOf = (data, window, state) =>
  window.selections[state.selector].optimism?.[data.ks.indexOf(state.k)] ?? null;

/**
 * Returns tokens as inline elements. A line breaks only before a token that begins with a space, so words stay whole.
 * A token without text holds a part of a character, which stands at a later token.
 */
function tokenNodes(texts, dress) {
  return texts.flatMap((text, index) => {
    const trimmed = text.replace(/^ /, "");
    return [trimmed.length < text.length ? " " : "", dress(trimmed || (text && SPACE), index)];
  });
}

/** Returns the long-range tokens of a card, with the first k of the ranking visible. */
function longRange(data, window, state) {
  const { positions, ranks, scores } = window.selections[state.selector][state.context];
  const texts =
    state.context === "real"
      ? window.tokens.slice(0, window.tokens.length - data.summary.local_len)
      : window.null_tokens;
  const rank = new Map(positions.map((position, i) => [position, ranks[i]]).filter(([, r]) => r <= state.k));
  return html(
    "p",
    { class: "far" },
    tokenNodes(texts, (text, index) => {
      const score = scores[index];
      const share = Math.abs(score ?? 0) / data.score_steps;
      const chosen = rank.get(index);
      const words = chosen ? tokenWords(data.unseen, text) : text;
      const node = html(chosen ? "mark" : "span", { class: `token${score < 0 ? " against" : ""}` }, words);
      node.style.setProperty("--heat-share", share.toFixed(2));
      node.title = scoreWords(data, window, state, index, score, texts.length);
      if (chosen && rank.get(index + 1) !== chosen) {
        node.append(html("sup", {}, html("span", { class: "hidden" }, " chosen as J_"), String(chosen)));
      }
      return node;
    }),
  );
}

/** Returns how much is visible: "8 of them", "8 entries", or "2 sentences of 31 tokens". */
function visibleWords(data, window, state) {
  if (data.summary.unit === "token") return data.units.many === "tokens" ? `${state.k} of them` : counted(data, state.k);
  const shown = window.selections[state.selector][state.context].ranks.filter((r) => r <= state.k);
  return `${countedIn(data.group_units, new Set(shown).size)} of ${countedIn(data.token_units, shown.length)}`;
}

function scoreWords(data, window, state, index, score, numLongRange) {
  const back = numLongRange + data.summary.local_len - index;
  if (score === null) return `${back} tokens before the target`;
  const value = (score / data.score_steps) * window.selections[state.selector][state.context].score_scale;
  return `${back} tokens before the target; score ${Number(value.toPrecision(2))}`;
}

/** Returns a loss as a bar; all windows of the page share one scale. */
function lossBar(kind, name, value, longest, note) {
  const share = value === null ? 0 : (100 * value) / longest;
  return html(
    "div",
    { class: "loss" },
    html("span", {}, name),
    html("span", {}, value === null ? note : `${digits(value, 3)} nats`),
    svg(
      "svg",
      { viewBox: "0 0 100 4", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("rect", { class: "all", x: 0, y: 1.7, width: 100, height: 0.6 }),
      svg("rect", { class: kind, x: 0, y: 0, width: share, height: 4 }),
    ),
  );
}

/** Returns the part of a card that depends on the state: words and losses. */
function cardBody(data, window, state, longest) {
  const local = window.tokens.slice(-data.summary.local_len);
  const real = state.context === "real";
  const sparse = sparseLoss(data, window, state);
  const long = real ? window.loss_long_nats : window.null_loss_long_nats;
  const far = data.summary.num_long_range;
  const foreign = real ? "" : `, null context: of document ${window.null_doc.slice(0, 8)}`;
  const gain = sparse === null ? null : window.loss_short_nats - sparse;
  const optimism = real ? optimismOf(data, window, state) : null;
  return html(
    "div",
    { class: "body" },
    html(
      "div",
      { class: "words" },
      html(
        "h4",
        {},
        `${far} long-range tokens${foreign}, ${visibleWords(data, window, state)} visible`,
      ),
      longRange(data, window, state),
      html(
        "div",
        { class: "local" },
        html("h4", {}, `${local.length} local tokens, always visible, and the target`),
        html(
          "p",
          {},
          tokenNodes(local, (text) => html("span", { class: "token" }, text)),
          tokenNodes([window.target], (text) =>
            html("strong", { class: "token next" }, html("span", { class: "hidden" }, "target: "), text),
          ),
        ),
      ),
    ),
    html(
      "div",
      { class: "losses" },
      lossBar("short", "L_short, local only", window.loss_short_nats, longest),
      lossBar("sparse", `L_short,sparse(${state.k})`, sparse, longest, `measured at k = ${data.ks.join(", ")}`),
      lossBar("long", real ? "L_long, all tokens" : "L_long, null context", long, longest),
      html(
        "p",
        { class: "gains" },
        gain === null ? "" : `sparse gain ${digits(gain, 3)}, `,
        `long gain ${digits(window.loss_short_nats - long, 3)} nats`,
        optimism === null ? "" : html("br"),
        optimism === null ? "" : `optimism, measured on resampled targets, ${digits(optimism, 3)} nats`,
      ),
    ),
  );
}

/** Returns a window as an article; `update` redraws what depends on the state, `findPoint` shows it in Figure 4. */
function card(data, window, state, longest, findPoint) {
  const article = html(
    "article",
    { class: "card", id: `w${window.id}`, tabindex: "-1", "aria-labelledby": `w${window.id}-title` },
    html(
      "header",
      {},
      html("h3", { id: `w${window.id}-title` }, html("a", { href: `#w${window.id}` }, `Window ${window.id}`)),
      html("p", { class: "tag", title: data.class_words[window.class] || "" }, window.class),
      window.group === "largest" ? html("p", { class: "tag" }, "among the largest long gains") : null,
      html("p", {}, `document ${window.doc.slice(0, 8)}, from token ${window.start}`),
      window.group === "sample"
        ? html(
            "button",
            { type: "button", class: "quiet-button", onclick: () => findPoint(window) },
            "its point in Figure 4",
          )
        : null,
    ),
    cardBody(data, window, state, longest),
  );
  return {
    window,
    article,
    update: (now) => article.lastElementChild.replaceWith(cardBody(data, window, now, longest)),
  };
}
