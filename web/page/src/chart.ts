// Lines over a logarithmic axis, with names that never overlap.

import { s } from './dom';

export interface Line {
  name: string;
  colour: string;
  dash: string;
  points: [number, number][];
  /** What is said of a point besides its numbers. */
  note?: (at: number) => string;
  /** The colour from a point to the next, where it changes. */
  colourAt?: (at: number) => string;
}

export interface Axes {
  label: string;
  xName: string;
  yName: string;
  x: (value: number) => string;
  y: (value: number) => string;
  /** Whether `y` is logarithmic too. */
  logY: boolean;
  /** A value of `x` to mark. */
  mark?: number;
  /** How wide it is drawn, so that its letters are as large as others. */
  within: HTMLElement;
}

const WIDEST = 860;
const NARROWEST = 320;
const HEIGHT = 320;
const LEFT = 64;
const RIGHT = 138;
const TOP = 24;
const BOTTOM = 44;
const ROW = 15;
const TICK = 44;

/** Places for names beside their lines' ends, moved apart, top to bottom in the order of those ends. */
export function apart(ends: number[], row: number, least: number, most: number): number[] {
  const order = ends.map((_, at) => at).sort((left, right) => ends[left]! - ends[right]!);
  const places: number[] = new Array(ends.length);
  let free = least;
  for (const at of order) {
    places[at] = Math.max(ends[at]!, free);
    free = places[at]! + row;
  }
  // Those pushed out at the bottom push back.
  let bound = most;
  for (const at of order.reverse()) {
    places[at] = Math.min(places[at]!, bound);
    bound = places[at]! - row;
  }
  return places;
}

export function chart(lines: Line[], axes: Axes): SVGSVGElement {
  const points = lines.flatMap((line) => line.points);
  const xs = [...new Set(points.map(([x]) => x))].sort((left, right) => left - right);
  const mostY = Math.max(1e-9, ...points.map(([, y]) => y));
  const logs = (value: number) => Math.log(Math.max(value, 1));
  const [first, last] = [xs[0] ?? 1, xs.at(-1) ?? 1];
  const all = Math.min(Math.max(axes.within.clientWidth, NARROWEST), WIDEST);
  const [width, height] = [all - LEFT - RIGHT, HEIGHT - TOP - BOTTOM];
  const x = (value: number) => LEFT + (last > first ? ((logs(value) - logs(first)) / (logs(last) - logs(first))) * width : 0);
  const y = (value: number) => TOP + height * (1 - (axes.logY ? logs(value) / Math.max(logs(mostY), 1e-9) : value / mostY));
  const picture = s('svg', { viewBox: `0 0 ${all} ${HEIGHT}`, width: all, height: HEIGHT, role: 'img', 'aria-label': axes.label, class: 'chart' });
  const text = (at: [number, number], anchor: string, value: string) =>
    s('text', { x: at[0], y: at[1], 'text-anchor': anchor }, value);
  const ticks = axes.logY
    ? Array.from({ length: 12 }, (_, power) => 10 ** power).filter((tick) => tick <= mostY)
    : [0, 0.25, 0.5, 0.75, 1].map((share) => share * mostY);
  for (const tick of ticks) {
    picture.append(s('line', { class: 'grid', x1: LEFT, x2: LEFT + width, y1: y(tick), y2: y(tick) }));
    picture.append(text([LEFT - 6, y(tick) + 4], 'end', axes.y(tick)));
  }
  const every = Math.ceil((xs.length * TICK) / width);
  xs.forEach((value, at) => {
    if (at % every === 0) picture.append(text([x(value), HEIGHT - BOTTOM + 16], 'middle', axes.x(value)));
  });
  picture.append(text([LEFT + width / 2, HEIGHT - 8], 'middle', axes.xName), text([4, TOP - 12], 'start', axes.yName));
  if (axes.mark !== undefined && axes.mark >= first && axes.mark <= last) {
    picture.append(s('line', { class: 'mark', x1: x(axes.mark), x2: x(axes.mark), y1: TOP, y2: TOP + height }));
  }
  const ends = lines.map((line) => y(line.points.at(-1)?.[1] ?? 0));
  const places = apart(ends, ROW, TOP + 6, TOP + height + 4);
  lines.forEach((line, index) => {
    line.points.forEach(([px, py], at) => {
      const colour = line.colourAt?.(at) ?? line.colour;
      const next = line.points[at + 1];
      if (next) {
        const segment = { x1: x(px), y1: y(py), x2: x(next[0]), y2: y(next[1]), 'stroke-width': 2.5, 'stroke-dasharray': line.dash };
        picture.append(inColour(s('line', segment), 'stroke', colour));
      }
      const title = `${line.name}: ${axes.y(py)} at ${axes.x(px)}${line.note ? `, ${line.note(at)}` : ''}`;
      picture.append(inColour(s('circle', { cx: x(px), cy: y(py), r: 3.5 }, s('title', {}, title)), 'fill', colour));
    });
    const right = LEFT + width + 6;
    const name = text([right + 26, places[index]! + 4], 'start', line.name);
    const sample = { x1: right + 4, x2: right + 24, y1: places[index]!, y2: places[index]!, 'stroke-width': 2.5, 'stroke-dasharray': line.dash };
    picture.append(inColour(s('line', sample), 'stroke', line.colour), name);
  });
  return picture;
}

/** By its style, which may name a colour of the theme. */
function inColour<E extends SVGElement>(element: E, what: 'fill' | 'stroke', colour: string): E {
  element.style[what] = colour;
  return element;
}
