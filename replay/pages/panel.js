// The panel of one turn: what was asked and answered, its numbers, and what went over the wire.

const MOST_FRAMES = 400; // shown at once
const ENDED = { stop: "", open: "cancelled, or the recording ends", failed: "failed" };

/** The panel of a turn, or of one turn beside its counterpart. `sides` are { letter, fixture, turn }, one or two. */
function turnPanel(sides, differs) {
  const [one, other] = sides;
  const prompts = sides.map(({ fixture, turn }) => read(turn.prompt, fixture.blobs));
  const answers = sides.map(({ fixture, turn }) => read(turn.said, fixture.blobs));
  const marks = other ? [compared(prompts), compared(answers)] : [[[]], [[]]];
  const column = ({ letter, fixture, turn }, n) =>
    element(
      "div",
      { class: "side" },
      letter ? element("h3", { class: "letter" }, `${letter} · ${fixture.name}, turn ${turn.number}`) : null,
      facts(turnFacts(turn)),
      turn.failure ? element("p", { class: "failure" }, turn.failure) : null,
      turn.lost.map((problem) => element("p", { class: "failure" }, `Cannot be replayed: ${problem}.`)),
      pace(fixture, turn),
      element(
        "h3",
        {},
        "New in the prompt",
        turn.before ? element("small", {}, `after ${several(turn.before, "item")} as before`) : null,
      ),
      conversation(prompts[n], marks[0][n]),
      element("h3", {}, "Answer"),
      answers[n].length
        ? conversation(answers[n], marks[1][n])
        : element(
            "p",
            { class: "none" },
            turn.end === "open" ? "Cancelled before anything was said." : "Nothing was said.",
          ),
      settings(fixture, turn),
      wire(fixture, turn.session, turn.frames, fixture.tracks[turn.track].lane),
    );
  return element(
    "div",
    {},
    other
      ? element(
          "p",
          { class: "verdict" },
          differs.length ? ["Differs: ", differs.map(badge)] : "The same in all that is compared.",
        )
      : null,
    element("div", { class: other ? "sides" : "" }, sides.map(column)),
  );
}

/** The panel of a message that led to no turn. */
function markPanel(fixture, mark) {
  const list = wire(fixture, mark.session, mark.frames, mark.lane);
  list.open = true;
  return element(
    "div",
    {},
    facts([
      ["At", seconds(mark.at)],
      ["Session", String(mark.session)],
    ]),
    mark.lost.map((problem) => element("p", { class: "failure" }, `Cannot be replayed: ${problem}.`)),
    list,
  );
}

function turnFacts(turn) {
  const { usage } = turn;
  return [
    ["Model", turn.model],
    ["Begins at", seconds(turn.at)],
    ["First token after", seconds(turn.first)],
    ["Took", seconds(turn.took)],
    ["Rate", rate(turn.rate)],
    [
      "Tokens in",
      usage && `${count(usage.input_tokens)}${usage.cached_tokens ? ` (${count(usage.cached_tokens)} cached)` : ""}`,
    ],
    [
      "Tokens out",
      usage &&
        `${count(usage.output_tokens)}${usage.reasoning_tokens ? ` (${count(usage.reasoning_tokens)} reasoning)` : ""}`,
    ],
    ["Waited before", turn.waited === null ? null : `${seconds(turn.waited)} ${turn.waitedFor}`],
    ["Ended", ENDED[turn.end] ?? `by ${turn.end}`],
    ["Line", String(turn.line)],
  ];
}

function read(items, blobs) {
  return items.map((item) => readItem(unpacked(item, blobs)));
}

/** For both sides and each of their items: the ranges that its counterpart, the item at the same place, does not have. */
function compared([one, other]) {
  const marks = [[], []];
  for (let n = 0; n < Math.max(one.length, other.length); n += 1) {
    const [mine, theirs] = differences(one[n]?.text ?? "", other[n]?.text ?? "");
    marks[0].push({ tag: "del", ranges: mine });
    marks[1].push({ tag: "ins", ranges: theirs });
  }
  return marks;
}

function conversation(items, marks) {
  return element(
    "ol",
    { class: "items" },
    items.map(({ kind, name, text }, n) =>
      element(
        "li",
        { class: `item ${known(kind)}` },
        element("div", { class: "kind" }, kind, name ? element("b", {}, name) : null),
        block(text, marks[n]),
      ),
    ),
  );
}

/** The kind of an item as a class name. */
function known(kind) {
  return ["user", "assistant", "developer", "system", "reasoning", "call", "output"].includes(kind) ? kind : "other";
}

function badge(name) {
  return element("span", { class: "badge" }, name);
}

/** When the reads of a turn came, as a row of strokes from its start to its end. */
function pace(fixture, turn) {
  if (!turn.took || turn.first === null) return null;
  const session = fixture.sessions[turn.session];
  const began = turn.at - session.at;
  const [, first, end] = turn.frames;
  const lane = fixture.tracks[turn.track].lane;
  const times = session.frames
    .slice(first, end)
    .filter((frame) => (frame.l ?? null) === lane && (frame.d || /\.delta$/.test(frame.s?.type)))
    .map((frame) => frame.t - began);
  const at = (time) => Math.max(0, Math.min(1000, (time / turn.took) * 1000)).toFixed(1);
  const drawing = (name, properties, ...children) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(properties)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  return element(
    "figure",
    { class: "pace" },
    drawing(
      "svg",
      {
        viewBox: "0 0 1000 20",
        preserveAspectRatio: "none",
        role: "img",
        "aria-label": `${several(turn.n_reads, "read")} of the backend over ${seconds(turn.took)}`,
      },
      drawing("rect", { class: "prefill", x: 0, y: 0, width: at(turn.first), height: 20 }),
      drawing("path", { d: times.map((time) => `M${at(time)} 2V18`).join("") }),
    ),
    element(
      "figcaption",
      {},
      element("span", {}, "0"),
      element("span", {}, `${several(turn.n_reads, "read")} with tokens`),
      element("span", {}, seconds(turn.took)),
    ),
  );
}

/** All that was asked beside the conversation. */
function settings(fixture, turn) {
  return lazily("Settings of the request", () => {
    const frame = fixture.sessions[turn.session].frames[turn.frames[0]];
    const { input, ...rest } = Object(unpacked(frame?.c, fixture.blobs));
    return block(JSON.stringify(rest, null, 2));
  });
}

/** What went over the wire: a line each, and the whole of it on a click. */
function wire(fixture, number, indices, lane) {
  const session = fixture.sessions[number];
  return lazily("Frames", () => {
    const found = messages(session, indices, lane, fixture.blobs);
    const list = element("ol", { class: "frames" }, found.slice(0, MOST_FRAMES).map(frameRow));
    if (found.length <= MOST_FRAMES) return list;
    const more = element(
      "button",
      {
        type: "button",
        class: "more",
        onclick: () => {
          list.append(...found.slice(MOST_FRAMES).map(frameRow));
          more.remove();
        },
      },
      `Show all ${count(found.length)} frames`,
    );
    return element("div", {}, list, more);
  });
}

function frameRow({ at, from, title, preview, value }) {
  const line = [
    element("time", {}, `${at.toFixed(3)}`),
    element("span", { class: `from ${from}` }, { client: "client →", server: "← server", "": "" }[from]),
    element("code", {}, title),
    preview ? element("q", {}, preview.slice(0, 200)) : null,
  ];
  if (!value) return element("li", { class: "event" }, line);
  const shown = () => {
    const made = value();
    return block(typeof made === "string" ? made : JSON.stringify(made, null, 2));
  };
  return element("li", {}, lazily(line, shown));
}

/** Something that opens, and is made when it does. */
function lazily(summary, make) {
  const details = element("details", {}, element("summary", {}, summary));
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(make());
  });
  return details;
}
