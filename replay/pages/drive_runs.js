// The runs of a drive: a timeline for each, and where a free one departed.

function runSection(pair, n) {
  const run = pair.find(Boolean);
  const summary = element(
    "summary",
    {},
    element("h2", {}, run.fixture, run.repeat > 1 ? `, time ${run.repeat}` : ""),
    pair.map(
      (each) =>
        each &&
        element(
          "span",
          { class: "counts" },
          letter(each.letter),
          Object.entries(each.counts).map(([verdict, many]) =>
            element("span", { class: `badge ${verdict}` }, `${many} ${verdict}`),
          ),
          ` ${seconds(each.timings.wall_s)}, recorded ${seconds(each.timings.recorded_wall_s)}`,
        ),
    ),
  );
  const details = element("details", { class: "run" }, summary);
  details.addEventListener("toggle", () => {
    if (!details.open || details.children.length > 1) return;
    const line = element("section", { class: "timeline", "aria-label": `Timeline of ${run.fixture}` });
    details.append(
      line,
      pair
        .flatMap((each) => each?.departures.map((departure) => departed(each, departure)) ?? [])
        .reduce((all, each) => (all.append(each), all), document.createDocumentFragment()),
      turnList(pair),
    );
    drawTimeline(line, pair);
    new ResizeObserver(() => drawTimeline(line, pair)).observe(details);
  });
  if (n === 0) details.open = true;
  return details;
}

/** A lane for every conversation of each report: from the request to the first token, to the end. */
function drawTimeline(root, pair) {
  const present = pair.filter(Boolean);
  const times = present.flatMap((run) =>
    run.timings.turns.map((turn) => [turn.began_s, turn.began_s + (turn.got.took_s ?? 0)]),
  );
  const scale = new Scale(times, Math.max(0.001, ...times.map(([, end]) => end)), true);
  const axis = element("div", { class: "lane" });
  const grid = element(
    "div",
    { class: "grid", style: { "--zoom": 1 } },
    element("div", { class: "row axis", "aria-hidden": "true" }, element("div", { class: "label" }), axis),
  );
  root.replaceChildren(grid);
  axis.append(...axisMarks(scale, axis.clientWidth, TICK_PX));
  for (const run of present) {
    for (const thread of new Set(run.turns.map((turn) => turn.thread))) {
      const bars = run.turns
        .filter((turn) => turn.thread === thread)
        .map((turn) => {
          const { began_s: began, got } = turn.timings;
          const [from, to] = [scale.at(began), scale.at(began + (got.took_s ?? 0))];
          const first = got.ttft_s === null ? to : scale.at(began + got.ttft_s);
          return element("a", {
            class: `bar ${turn.verdict === "failed" ? "failed" : ""}`,
            href: `#${anchor(run, turn)}`,
            title: told(turn),
            "aria-label": told(turn),
            onclick: () => openTurn(run, turn),
            style: {
              left: share(from),
              width: share(to - from),
              "--first": to > from ? share((first - from) / (to - from)) : "0%",
            },
          });
        });
      grid.append(
        element(
          "div",
          { class: "row", role: "group", "aria-label": `${run.letter} conversation ${thread}` },
          element("div", { class: "label" }, letter(run.letter), `conversation ${thread}`),
          element("div", { class: "lane" }, bars),
        ),
      );
    }
  }
}

function told(turn) {
  return `Turn ${turn.turn}: ${turn.verdict}, ${seconds(turn.timings.got.took_s)}, first token after ${seconds(turn.timings.got.ttft_s)}`;
}

function anchor(run, turn) {
  return `run-${run.run}-turn-${turn.turn}`;
}

function openTurn(run, turn) {
  const details = document.getElementById(anchor(run, turn));
  if (details) details.open = true;
}

function departed(run, { turn, where, reason, expected, got }) {
  const calls = (list) => list.map(({ name, arguments: text }) => `${name} ${text}`).join("\n") || "no call";
  return element(
    "section",
    { class: "departure" },
    element("h3", {}, letter(run.letter), `Departed at turn ${turn}, ${where}`),
    element("p", {}, reason),
    element(
      "div",
      { class: "sides" },
      element("div", {}, element("h3", {}, "Recorded"), block(calls(expected))),
      element("div", {}, element("h3", {}, "Came"), block(calls(got))),
    ),
  );
}
