// The memory of one GPU as nested areas: what it holds, by size. A click goes down, to a layer's tensor and its axes.

import { onColour, otherColour, poolColour } from './colours';
import { h, table } from './dom';
import { bytes, count, percent, ranges } from './format';
import type { Derivation, Planned, Pool } from './types';

export interface Cell {
  name: string;
  bytes: number;
  fill: string;
  /** What a reader wants to know of it, name and text. */
  facts: [string, string][];
  /** What the planner explains it as. */
  subject?: string;
  children?: Cell[];
}

interface Area {
  x: number;
  y: number;
  width: number;
  height: number;
}

/** Cells are drawn at least so large, so that every one can be seen and pointed at. */
const SMALLEST = 0.002;

export function cells(planned: Planned): Cell {
  const { plan, device } = planned;
  const place = new Map(plan.pools.map((pool, at) => [pool.id, at]));
  const resources = new Map(plan.resources.map((resource) => [resource.name, resource]));
  const ofPool = (pool: Pool): Cell => {
    const fill = poolColour(place.get(pool.id) ?? 0);
    const unit = pool.unit === 'block' ? `blocks of ${pool.tokens_per_block} tokens` : pool.unit === 'slot' ? 'slots' : 'tensors';
    const window: [string, string][] = pool.window ? [['window', `${count(pool.window)} tokens`]] : [];
    return {
      name: pool.id,
      bytes: pool.bytes,
      fill,
      subject: pool.id,
      facts: [
        ['owner', pool.owner],
        ['formula', `${count(pool.units)} ${unit} × ${count(pool.unit_bytes)} bytes`],
        ['layers', ranges(pool.layers)],
        ['dtype', pool.dtype],
        ...window,
      ],
      children: pool.members.map((member) => {
        const resource = resources.get(member.resource);
        return {
          name: resource?.layer === null || !resource ? member.resource : `layer ${resource.layer}`,
          bytes: member.bytes * pool.units,
          fill,
          subject: member.resource,
          facts: [
            ['resource', `${member.resource}, ${resource?.kind ?? ''}`],
            ['owner', resource?.owner ?? pool.owner],
            ['reason', resource?.reason ?? ''],
            ['source', resource?.source ?? ''],
            ['formula', `${count(member.bytes)} bytes × ${count(pool.units)} ${unit}`],
          ],
        };
      }),
    };
  };
  const caches: Cell[] = [];
  const others: Cell[] = [];
  for (const line of plan.ledger) {
    const pool = plan.pools.find(({ id }) => id === line.name);
    if (pool) {
      caches.push(ofPool(pool));
    } else if (line.name === 'local') {
      caches.push(...plan.pools.filter(({ owner }) => owner === 'local').map(ofPool));
    } else if (line.bytes > 0) {
      const more: [string, string][] = line.uncertain_bytes ? [['may take', `${bytes(line.uncertain_bytes)} more`]] : [];
      const facts: [string, string][] = [['source', line.source], ['reason', line.note], ...more];
      const cell = { name: line.name, bytes: line.bytes, fill: otherColour(line.name), subject: line.name, facts };
      (line.name === 'unused' ? caches : others).push(cell);
    }
  }
  const sum = (parts: Cell[]) => parts.reduce((all, part) => all + part.bytes, 0);
  const left = (device?.total_bytes ?? 0) - sum(others) - sum(caches);
  if (left > 0) {
    const facts: [string, string][] = [['reason', 'outside the share that the budget takes of the device']];
    others.push({ name: 'left to others', bytes: left, fill: otherColour('left to others'), facts });
  }
  const together: Cell = { name: 'caches', bytes: sum(caches), fill: '#ffffff', facts: [['holds', 'all pools, and what is free for them']], children: caches };
  const children = caches.length > 0 ? [...others, together] : others;
  const name = device ? device.name.replace(' (nominal)', '') : 'all that is planned';
  return { name, bytes: sum(children), fill: '#ffffff', facts: [], children };
}

/** Areas in proportion, each as square as can be (squarified treemaps, Bruls et al.). Sizes must not be all 0. */
export function areas(sizes: number[], { x, y, width, height }: Area): Area[] {
  const whole = sizes.reduce((all, size) => all + size, 0);
  const shares = sizes.map((size) => Math.max(size / whole, SMALLEST));
  const scale = (width * height) / shares.reduce((all, share) => all + share, 0);
  const order = shares.map((_, at) => at).sort((left, right) => shares[right]! - shares[left]!);
  const found: Area[] = new Array(sizes.length);
  const worst = (row: number[], side: number) => {
    const parts = row.map((at) => shares[at]! * scale);
    const all = parts.reduce((sum, part) => sum + part, 0);
    return Math.max((side * side * Math.max(...parts)) / (all * all), (all * all) / (side * side * Math.min(...parts)));
  };
  for (let from = 0; from < order.length; ) {
    const side = Math.min(width, height);
    let to = from + 1;
    while (to < order.length && worst(order.slice(from, to + 1), side) <= worst(order.slice(from, to), side)) to += 1;
    const row = order.slice(from, to);
    const thick = row.reduce((all, at) => all + shares[at]! * scale, 0) / side;
    let along = 0;
    for (const at of row) {
      const long = (shares[at]! * scale) / thick;
      found[at] =
        width >= height
          ? { x, y: y + along, width: thick, height: long }
          : { x: x + along, y, width: long, height: thick };
      along += long;
    }
    if (width >= height) [x, width] = [x + thick, width - thick];
    else [y, height] = [y + thick, height - thick];
    from = to;
  }
  return found;
}

export class Treemap {
  private readonly path = h('nav', { class: 'path', 'aria-label': 'Where in the memory' });
  private readonly picture = h('div', { class: 'treemap', role: 'group' });
  private readonly facts = h('dl', { class: 'facts' });
  private readonly why = h('div', { class: 'why', 'aria-live': 'polite' });
  private readonly numbers = h('div');
  private root: Cell = { name: '', bytes: 0, fill: '#ffffff', facts: [] };
  /** The names of the cells that were gone into. */
  private into: string[] = [];

  constructor(
    within: HTMLElement,
    private readonly explain: (subject: string) => Promise<Derivation>,
  ) {
    const side = h('div', { class: 'beside' }, this.facts, this.why);
    const numbers = h('details', {}, h('summary', {}, 'The same as a table'), this.numbers);
    within.append(this.path, h('div', { class: 'with-side' }, this.picture, side), numbers);
    new ResizeObserver(() => this.draw()).observe(this.picture);
  }

  show(planned: Planned): void {
    this.root = cells(planned);
    this.draw();
    const rows = planned.plan.ledger.map((line) => [line.name, count(line.bytes), bytes(line.bytes), line.source, line.note]);
    this.numbers.replaceChildren(table('Where the bytes of the device go', ['', 'bytes', 'size', 'known by', 'why'], rows));
  }

  /** From the root to the cell that is shown; what a new plan has not any more is left. */
  private line(): Cell[] {
    const line = [this.root];
    for (const name of this.into) {
      const next = line.at(-1)!.children?.find((cell) => cell.name === name);
      if (!next?.children) break;
      line.push(next);
    }
    return line;
  }

  private draw(): void {
    const line = this.line();
    const shown = line.at(-1)!;
    this.path.replaceChildren(
      ...line.map((cell, at) => {
        const text = `${cell.name} · ${bytes(cell.bytes)}`;
        if (at === line.length - 1) return h('span', { 'aria-current': 'location' }, text);
        return h('button', { type: 'button', click: () => this.go(this.into.slice(0, at)) }, text);
      }),
    );
    const [width, height] = [this.picture.clientWidth, this.picture.clientHeight];
    this.picture.setAttribute('aria-label', `${shown.name}, ${bytes(shown.bytes)}: areas by size`);
    if (width === 0 || shown.bytes === 0) {
      this.picture.replaceChildren();
      return;
    }
    this.picture.replaceChildren(...this.areasOf(shown, { x: 0, y: 0, width, height }, shown.bytes, this.into.slice(0, line.length - 1)));
    this.tell(shown);
  }

  private areasOf(parent: Cell, area: Area, whole: number, path: string[]): HTMLElement[] {
    const children = parent.children ?? [];
    if (children.length === 0) return [];
    const places = areas(children.map((cell) => cell.bytes), area);
    return children.flatMap((cell, at) => {
      const place = places[at]!;
      const button = this.button(cell, place, whole, [...path, cell.name]);
      // What is in the caches is seen at once, with the caches' own name above it.
      if (cell.name !== 'caches' || place.width < 60 || place.height < 50) return [button];
      button.classList.add('around');
      const inside = { x: place.x + 2, y: place.y + 20, width: place.width - 4, height: place.height - 22 };
      return [button, ...this.areasOf(cell, inside, whole, [...path, cell.name])];
    });
  }

  private button(cell: Cell, { x, y, width, height }: Area, whole: number, path: string[]): HTMLElement {
    const size = `${bytes(cell.bytes)}, ${percent(cell.bytes, whole)}`;
    const button = h(
      'button',
      { type: 'button', 'aria-label': `${cell.name}, ${size}` },
      width > 44 && height > 18 ? h('b', {}, cell.name) : null,
      width > 44 && height > 36 && cell.name !== 'caches' ? h('span', {}, size) : null,
    );
    const { style } = button;
    [style.left, style.top, style.width, style.height] = [`${x}px`, `${y}px`, `${width}px`, `${height}px`];
    [style.backgroundColor, style.color] = [cell.fill, onColour(cell.fill)];
    const tell = () => this.tell(cell);
    if (width < 20 || height < 14) button.classList.add('tiny');
    button.addEventListener('mouseenter', tell);
    button.addEventListener('focus', tell);
    button.addEventListener('click', () => {
      if (cell.children && cell.children.length > 0) this.go(path);
      if (cell.subject) void this.derive(cell.subject);
    });
    return button;
  }

  private go(path: string[]): void {
    this.into = path;
    this.draw();
    this.picture.querySelector('button')?.focus();
  }

  private tell(cell: Cell): void {
    const facts: [string, string][] = [[cell.name, `${bytes(cell.bytes)} (${count(cell.bytes)} bytes)`], ...cell.facts];
    this.facts.replaceChildren(...facts.filter(([, text]) => text !== '').flatMap(([name, text]) => [h('dt', {}, name), h('dd', {}, text)]));
  }

  async derive(subject: string): Promise<void> {
    const derivation = await this.explain(subject);
    this.why.replaceChildren(h('h3', {}, `Why: ${subject}`), h('ul', { class: 'derivation' }, step(derivation)));
  }
}

function step({ claim, from }: Derivation): HTMLElement {
  return h('li', {}, claim, from && from.length > 0 ? h('ul', {}, ...from.map(step)) : null);
}
