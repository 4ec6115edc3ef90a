// The page of a drive's report, or of two side by side: runs, timelines, and a line for every turn.

const TICK_PX = 90; // what the label of a tick needs
const shown = JSON.parse(document.getElementById("shown").textContent);
const reports = shown.reports.map((report, n) => ({ ...report, letter: shown.reports.length > 1 ? "AB"[n] : "" }));
const runs = paired(reports.map(runsOf), (run) => `${run.fixture}\n${run.repeat}`);

/** The runs of a report, each turn with its verdict, its timings and the letter of its report. */
function runsOf({ verdicts, timings, letter }) {
  return verdicts.runs.map((run, n) => ({
    ...run,
    letter,
    timings: timings.runs[n],
    turns: run.turns.map((turn, k) => ({ ...turn, letter, timings: timings.runs[n].turns[k] })),
  }));
}

/** What has the same key in each list stands together: an array with a place for every list. */
function paired(lists, key) {
  const rows = new Map();
  lists.forEach((list, n) =>
    list.forEach((each) => {
      if (!rows.has(key(each)))
        rows.set(
          key(each),
          lists.map(() => undefined),
        );
      rows.get(key(each))[n] = each;
    }),
  );
  return [...rows.values()];
}

function letter(name) {
  return name ? element("span", { class: "letter" }, name) : null;
}

// --- the whole --------------------------------------------------------------------------------------------------

function header() {
  return element(
    "header",
    {},
    reports.map(({ setup, verdicts, timings, letter: name }) =>
      element(
        "div",
        {},
        element("h1", {}, letter(name), setup.target),
        element(
          "p",
          {},
          [
            several(verdicts.fixtures.length, "fixture"),
            several(verdicts.runs.length, "run"),
            verdicts.mode,
            verdicts.design,
            setup.model ? `model ${setup.model}` : "",
            `tool time ${setup.tool_time}`,
            `${setup.parallel} at once`,
            moment(timings.began),
            `Turntape ${setup.turntape}`,
          ]
            .filter(Boolean)
            .join(" · "),
        ),
      ),
    ),
  );
}

function tiles() {
  const turnsOf = (report) => report.timings.runs.flatMap((run) => run.turns);
  const each = (name, of) =>
    element(
      "div",
      { class: "tile" },
      element("dt", {}, name),
      reports.map((report) => element("dd", {}, letter(report.letter), of(report))),
    );
  const recorded = (value, before) => [value, element("small", {}, `recorded ${before}`)];
  const middle = (report, of, read) =>
    recorded(
      read(median(turnsOf(report).map((turn) => of(turn.got)))),
      read(median(turnsOf(report).map((turn) => of(turn.recorded)))),
    );
  return element(
    "dl",
    { class: "tiles" },
    each("Turns", (report) => count(sum(Object.values(report.verdicts.counts)))),
    each("Verdicts", (report) =>
      Object.entries(report.verdicts.counts).map(([verdict, n]) =>
        element("span", { class: `badge ${verdict}` }, `${count(n)} ${verdict}`),
      ),
    ),
    each("First token, median", (report) => middle(report, (pace) => pace.ttft_s, seconds)),
    each("Rate, median", (report) => middle(report, (pace) => pace.tokens_per_s, rate)),
    each("Overhead, median", (report) => seconds(median(turnsOf(report).map(overhead)))),
    each("Wall time of runs", (report) =>
      recorded(
        seconds(sum(report.timings.runs.map((run) => run.wall_s))),
        seconds(sum(report.timings.runs.map((run) => run.recorded_wall_s))),
      ),
    ),
    each("Tokens in", (report) => count(sum(report.timings.runs.map((run) => run.input_tokens)))),
    each("Cached", (report) => count(sum(report.timings.runs.map((run) => run.cached_tokens)))),
    each("Tokens out", (report) => count(sum(report.timings.runs.map((run) => run.output_tokens)))),
    reports.length > 1
      ? element(
          "div",
          { class: "tile" },
          element("dt", {}, "Verdicts that changed"),
          element("dd", {}, count(sum(runs.map((pair) => turnPairs(pair).filter(changed).length)))),
        )
      : null,
  );
}

/** What the server added to a turn; null where there is no backend of our own to tell it apart. */
function overhead(timings) {
  return timings.overhead_before_s === null ? null : timings.overhead_before_s + (timings.overhead_after_s ?? 0);
}

function turnPairs(pair) {
  return paired(
    pair.map((run) => run?.turns ?? []),
    (turn) => turn.where || `beyond the recording ${turn.turn}`,
  );
}

function changed(turns) {
  return turns.length > 1 && turns[0]?.verdict !== turns[1]?.verdict;
}

document.body.append(header(), tiles());
for (const report of reports) {
  const left = report.verdicts.fixtures.flatMap((fixture) => fixture.left_out);
  if (left.length)
    document.body.append(
      element(
        "details",
        {},
        element("summary", {}, letter(report.letter), `${several(left.length, "recorded turn")} left out`),
        element(
          "ul",
          {},
          left.map(({ where, reason }) => element("li", {}, `${where}: ${reason}`)),
        ),
      ),
    );
}
document.body.append(element("main", { class: "runs" }, runs.map(runSection)));
