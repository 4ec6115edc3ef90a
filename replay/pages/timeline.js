// The timeline: a row for every lane, a bar for every turn, and the waits between them.

const SMALLEST_ZOOM = 1;
const LARGEST_ZOOM = 256;
const NUMBER_PX = 22; // what the number of a turn needs
const TICK_PX = 90; // what the label of a tick needs

const timeline = element("section", { class: "timeline", "aria-label": "Timeline" });

function drawTimeline() {
  const spans = fixtures.flatMap((fixture) => fixture.turns.map((turn) => [turn.at, turn.at + turn.took]));
  const end = Math.max(
    0.001,
    ...fixtures.flatMap((fixture) => [
      ...fixture.turns.map((turn) => turn.at + turn.took),
      ...fixture.marks.map((mark) => mark.at),
    ]),
  );
  const scale = new Scale(spans, end, state.shorten);
  const lanes = element("div", { class: "lane" });
  const grid = element(
    "div",
    { class: "grid", style: { "--zoom": state.zoom } },
    element("div", { class: "row axis", "aria-hidden": "true" }, element("div", { class: "label" }), lanes),
  );
  const { scrollLeft, scrollTop } = timeline;
  timeline.replaceChildren(grid);
  const width = lanes.clientWidth;
  const bar = (turn) => {
    const from = scale.at(turn.at),
      to = scale.at(turn.at + turn.took);
    const first = turn.first === null ? to : scale.at(turn.at + turn.first);
    return (turn.bar = element(
      "button",
      {
        type: "button",
        class: `bar ${turn.end}${isDifferent(turn.entry) ? " differs" : ""}`,
        tabindex: "-1",
        "aria-label": spoken(turn),
        title: spoken(turn),
        onclick: () => select(turn.entry),
        style: {
          left: share(from),
          width: share(to - from),
          "--first": to > from ? share((first - from) / (to - from)) : "0%",
        },
      },
      (to - first) * width > NUMBER_PX ? String(turn.number) : null,
    ));
  };
  const wait = (turn) =>
    turn.waited > 0 &&
    element("span", {
      class: `wait ${turn.waitedFor === "idle" ? "idle" : "tools"}`,
      title: `${seconds(turn.waited)} ${turn.waitedFor}`,
      style: {
        left: share(scale.at(turn.at - turn.waited)),
        width: share(scale.at(turn.at) - scale.at(turn.at - turn.waited)),
      },
    });
  const dot = (fixture) => (mark) =>
    element("button", {
      type: "button",
      class: `mark ${mark.kind}`,
      tabindex: "-1",
      "aria-label": `${markName(mark)} at ${seconds(mark.at)}`,
      title: markName(mark),
      style: { left: share(scale.at(mark.at)) },
      onclick: () => selectMark(fixture, mark),
    });
  const row =
    (fixture) =>
    ({ label, lane, turns, marks }) =>
      element(
        "div",
        { class: "row", role: "group", "aria-label": lane ? `${label}, ${lane}` : label },
        element(
          "div",
          { class: "label", title: lane ?? label },
          fixture.letter ? element("span", { class: "letter" }, fixture.letter) : null,
          label,
          lane ? element("small", {}, lane) : null,
        ),
        element("div", { class: "lane" }, turns.map(wait), turns.map(bar), marks.map(dot(fixture))),
      );
  lanes.append(...axisMarks(scale, width, TICK_PX));
  grid.append(...fixtures.flatMap((fixture) => fixture.rows.map(row(fixture))));
  timeline.scrollTo(scrollLeft, scrollTop);
  const stops = [...grid.querySelectorAll("button")];
  if (stops.length) stops[0].tabIndex = 0;
  grid.addEventListener("keydown", (event) =>
    move(event, grid, { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }),
  );
  showFound();
  showSelected();
}

function zoomTo(wanted) {
  const zoom = Math.max(SMALLEST_ZOOM, Math.min(LARGEST_ZOOM, wanted));
  const lanes = timeline.scrollWidth - timeline.clientWidth;
  const selected = state.selected?.turns.find(Boolean)?.bar;
  const centre = lanes > 0 ? (timeline.scrollLeft + timeline.clientWidth / 2) / timeline.scrollWidth : 0;
  state.zoom = zoom;
  drawTimeline();
  if (selected) state.selected.turns.find(Boolean).bar.scrollIntoView({ inline: "center", block: "nearest" });
  else timeline.scrollLeft = centre * timeline.scrollWidth - timeline.clientWidth / 2;
}

/** Moves the focus among the buttons below `root`; only the one that has it is a stop of the Tab key. */
function move(event, root, steps) {
  if (!(event.key in steps)) return;
  const stops = [...root.querySelectorAll("button")].filter(
    (stop) => stop.tabIndex >= -1 && stop.closest("details") === null,
  );
  const now = stops.indexOf(document.activeElement);
  if (now < 0) return;
  event.preventDefault();
  const next = stops[Math.max(0, Math.min(stops.length - 1, now + steps[event.key]))];
  for (const stop of stops) stop.tabIndex = stop === next ? 0 : -1;
  next.focus();
  next.scrollIntoView({ inline: "nearest", block: "nearest" });
}
