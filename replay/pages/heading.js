// What stands above the timeline: names, sums, and the tools to search and zoom.

function header() {
  const title = (fixture) =>
    element("h1", {}, fixture.letter ? element("span", { class: "letter" }, fixture.letter) : null, fixture.name);
  const line = (fixture) => {
    const { n_sessions, n_calls, n_bytes } = fixture.counts;
    const agents = [
      ...new Set(
        Object.values(fixture.sessions)
          .flatMap((session) => [
            session.agent,
            session.upstream && `relayed to ${session.upstream.split(" of ").at(-1)}`,
          ])
          .filter(Boolean),
      ),
    ];
    const first = Math.min(...Object.values(fixture.sessions).map((session) => session.wall));
    return element(
      "p",
      {},
      [
        several(n_sessions, "session"),
        several(fixture.turns.length, "turn"),
        several(n_calls, "tool call"),
        size(n_bytes),
        moment(first),
        ...agents.slice(0, 4),
        fixture.whole ? "" : "cut off",
      ]
        .filter(Boolean)
        .join(" · "),
    );
  };
  return element(
    "header",
    {},
    fixtures.map((fixture) => element("div", {}, title(fixture), line(fixture))),
  );
}

/** Each name with its value in every fixture. */
function tiles() {
  const each = (name, of) =>
    element(
      "div",
      { class: "tile" },
      element("dt", {}, name),
      fixtures.map((fixture) =>
        element(
          "dd",
          {},
          fixture.letter ? element("span", { class: "letter" }, fixture.letter) : null,
          of(fixture.turns),
        ),
      ),
    );
  const used = (name) => (turns) =>
    count(turns.some((turn) => turn.usage) ? sum(turns.map((turn) => turn.usage?.[name] ?? 0)) : null);
  return element(
    "dl",
    { class: "tiles" },
    each("Wall time", (turns) => seconds(extent(turns))),
    each("Model", (turns) => seconds(sum(turns.map((turn) => turn.took)))),
    each("Tools", (turns) =>
      seconds(sum(turns.map((turn) => (turn.waitedFor === "for tools" ? (turn.waited ?? 0) : 0)))),
    ),
    each("First token, median", (turns) => seconds(median(turns.map((turn) => turn.first)))),
    each("Rate, median", (turns) => rate(median(turns.map((turn) => turn.rate)))),
    each("Tokens in", used("input_tokens")),
    each("Cached", used("cached_tokens")),
    each("Tokens out", used("output_tokens")),
    shown.pairs
      ? element(
          "div",
          { class: "tile" },
          element("dt", {}, "Turns that differ"),
          element("dd", {}, `${entries.filter(isDifferent).length} of ${entries.length}`),
        )
      : null,
  );
}

function toolbar() {
  const search = element("input", {
    type: "search",
    placeholder: "Search texts",
    "aria-label": "Search texts of all turns",
    autocomplete: "off",
    spellcheck: "false",
    oninput: () => find(search.value),
    onkeydown: (event) => {
      if (event.key === "Enter") nextFound(event.shiftKey ? -1 : 1);
    },
  });
  const zoom = (label, name, factor) =>
    element(
      "button",
      {
        type: "button",
        "aria-label": name,
        title: name,
        onclick: () => zoomTo(factor === 0 ? 1 : state.zoom * factor),
      },
      label,
    );
  const shorten = element("input", {
    type: "checkbox",
    checked: state.shorten,
    onchange: () => {
      state.shorten = shorten.checked;
      drawTimeline();
    },
  });
  return element(
    "div",
    { class: "toolbar", role: "search" },
    search,
    element("output", { id: "found", "aria-live": "polite" }),
    element(
      "span",
      { class: "zoom", role: "group", "aria-label": "Zoom" },
      zoom("−", "Zoom out", 0.5),
      zoom("Fit", "Fit to the width", 0),
      zoom("+", "Zoom in", 2),
    ),
    element("label", {}, shorten, "Shorten waits"),
  );
}
