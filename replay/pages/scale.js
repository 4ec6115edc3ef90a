// Time as a share of the width: to scale, or with the long waits in which nothing runs drawn shorter.

const LONGEST_WAIT = 0.04; // of the time in which something runs: how much of it a shortened wait is drawn as

class Scale {
  /**
   * @param spans  [start, end] in seconds, of everything that runs, in any order
   * @param end  where the scale ends, in seconds
   */
  constructor(spans, end, shorten) {
    const busy = merged(spans);
    const most = shorten ? LONGEST_WAIT * sum(busy.map(([from, to]) => to - from)) : Infinity;
    this.points = [[0, 0]]; // [seconds, seconds as drawn], rising
    this.breaks = []; // waits that are drawn shorter: [from, to] in seconds
    let at = 0;
    for (const [from, to] of [...busy, [end, end]]) {
      if (from - at > most && most > 0) {
        this.breaks.push([at, from]);
        this.add(from, most);
      } else this.add(from, from - at);
      this.add(to, to - from);
      at = to;
    }
    this.end = end;
    this.drawn = Math.max(this.points.at(-1)[1], 1e-6);
  }

  add(time, drawn) {
    const [last, before] = this.points.at(-1);
    if (time > last) this.points.push([time, before + drawn]);
  }

  /** The share of the width, from 0 to 1, at which a time stands. */
  at(time) {
    const { points } = this;
    let low = 0,
      high = points.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (points[middle][0] <= time) low = middle;
      else high = middle - 1;
    }
    const [from, drawn] = points[low];
    const next = points[low + 1];
    const share = next ? ((time - from) / (next[0] - from)) * (next[1] - drawn) : 0;
    return Math.min(1, (drawn + share) / this.drawn);
  }

  /** Round times that are at least `apart` of the width from each other. */
  ticks(apart) {
    const step = rounded(this.drawn * apart);
    const found = [];
    let last = -Infinity;
    for (let n = 0; n * step <= this.end && found.length < 2000; n += 1) {
      const time = n * step,
        at = this.at(time);
      if (at - last >= apart * 0.9) {
        found.push({ time, at });
        last = at;
      } else if (at > 0) {
        const wait = this.breaks.find(([from, to]) => from <= time && time < to);
        if (wait) n = Math.max(n, Math.floor(wait[1] / step) - 1); // the rest of a shortened wait has no room for any
      }
    }
    return found;
  }
}

/** Spans that overlap as one, in order. */
function merged(spans) {
  const found = [];
  for (const [from, to] of [...spans].sort((a, b) => a[0] - b[0])) {
    const last = found.at(-1);
    if (last && from <= last[1]) last[1] = Math.max(last[1], to);
    else found.push([from, to]);
  }
  return found;
}

/** 1, 2 or 5 times a power of ten, or a round number of minutes: the next above `value`. */
function rounded(value) {
  if (value > 30)
    return [60, 120, 300, 600, 1800, 3600, 7200].find((step) => step >= value) ?? Math.ceil(value / 86400) * 86400;
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1e-6)));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= value * 0.999);
}

/** A tick's label: as exact as its step is. */
function clock(time) {
  if (time < 60) return `${Number(time.toPrecision(6))} s`;
  const minutes = Math.floor(time / 60),
    rest = Math.round((time % 60) * 100) / 100;
  return `${minutes}:${String(rest).padStart(2, "0")}`;
}

/** A share of the width, from 0 to 1, as CSS has it. */
function share(value) {
  return `${(value * 100).toFixed(4)}%`;
}

/**
 * The ticks of an axis, and a mark for every wait that is drawn shorter.
 *
 * @param width  of the axis, and `apart` what a tick needs, in pixels
 */
function axisMarks(scale, width, apart) {
  return [
    ...scale
      .ticks(Math.min(1, apart / Math.max(width, 1)))
      .map(({ time, at }) =>
        element("span", { class: at > 0.97 ? "tick last" : "tick", style: { left: share(at) } }, clock(time)),
      ),
    ...scale.breaks.map(([from, to]) =>
      element("span", {
        class: "break",
        title: `${seconds(to - from)} in which nothing ran`,
        style: { left: share(scale.at(from)), width: share(scale.at(to) - scale.at(from)) },
      }),
    ),
  ];
}
