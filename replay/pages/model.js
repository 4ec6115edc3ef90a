// What follows from the recordings of a page: numbers, waits, rows of the timeline, and the turns that stand together.

const shown = JSON.parse(document.getElementById("shown").textContent);
const fixtures = shown.fixtures.map((fixture, n) => prepared(fixture, shown.fixtures.length > 1 ? "AB"[n] : ""));
const entries = shown.pairs
  ? shown.pairs.map(({ a, b, differs }) => ({ turns: [fixtures[0].turns[a], fixtures[1].turns[b]], differs }))
  : fixtures[0].turns.map((turn) => ({ turns: [turn], differs: [] }));
entries.forEach((entry, n) => {
  entry.number = n;
  entry.turns.forEach((turn) => {
    if (turn) turn.entry = entry;
  });
});

/** A fixture with what follows from it: numbers, rates, waits between turns, and the rows of its timeline. */
function prepared(fixture, letter) {
  fixture.letter = letter;
  const before = [];
  fixture.turns.forEach((turn, n) => {
    turn.number = n + 1;
    turn.fixture = fixture;
    const tokens = turn.usage?.output_tokens,
      saying = turn.took - turn.first;
    turn.rate = tokens > 1 && turn.first !== null && saying > 0 ? tokens / saying : null;
    const last = before[turn.track];
    turn.waited = last ? Math.max(0, turn.at - last.at - last.took) : null;
    turn.waitedFor = last?.said.some((item) => /_call$/.test(unpacked(item, fixture.blobs).type))
      ? "for tools"
      : "idle";
    before[turn.track] = turn;
  });
  fixture.rows = fixture.tracks.map((track, n) => ({
    label: track.transport === "websocket" ? `session ${track.session}` : "POSTs",
    lane: track.transport === "websocket" ? track.lane : `from session ${track.session}`,
    turns: fixture.turns.filter((turn) => turn.track === n),
    marks: fixture.marks.filter((mark) => mark.track === n),
  }));
  const withTurns = new Set(fixture.turns.map((turn) => turn.session));
  const left = fixture.marks.filter((mark) => mark.track === null);
  for (const mark of left.filter((mark) => withTurns.has(mark.session))) {
    fixture.rows.find((row) => row.turns.some((turn) => turn.session === mark.session)).marks.push(mark);
  }
  for (const [number, session] of Object.entries(fixture.sessions)) {
    if (withTurns.has(Number(number))) continue;
    const marks = left.filter((mark) => mark.session === Number(number));
    const last = fixture.rows.at(-1);
    if (session.transport !== "websocket" && last?.refused) last.marks.push(...marks);
    else
      fixture.rows.push({
        label: `session ${number}`,
        lane: "no turn",
        turns: [],
        marks,
        refused: session.transport !== "websocket",
      });
  }
  return fixture;
}

function extent(turns) {
  return turns.length
    ? Math.max(...turns.map((turn) => turn.at + turn.took)) - Math.min(...turns.map((turn) => turn.at))
    : 0;
}

function isDifferent(entry) {
  return entry.differs.length > 0 || entry.turns.includes(undefined);
}

function markName(mark) {
  return { refused: "Refused request", lost: "Not replayable", "warm-up": "Warm-up", message: "Message" }[mark.kind];
}

function spoken(turn) {
  const parts = [
    `Turn ${turn.number}`,
    `${seconds(turn.took)}`,
    turn.first === null ? "no token" : `first token after ${seconds(turn.first)}`,
    turn.rate === null ? null : rate(turn.rate),
    ENDED[turn.end] ?? `ended by ${turn.end}`,
  ];
  return (turn.fixture.letter ? `${turn.fixture.letter}: ` : "") + parts.filter(Boolean).join(", ");
}

/** All texts of a turn, for the search; made when first needed. */
function haystack(turn) {
  return (turn.haystack ??= [...turn.prompt, ...turn.said]
    .map((item) => {
      const { name, text } = readItem(unpacked(item, turn.fixture.blobs));
      return `${name}\n${text}`;
    })
    .concat(turn.model, turn.failure ?? "")
    .join("\n")
    .toLowerCase());
}
