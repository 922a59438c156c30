// Tiers below the device: how large host memory and disk must be for a workload, or for a trace that was dropped or chosen.

import { byId, download, draw, folded, h } from './dom';
import { bytes, count } from './format';
import type { State } from './state';
import type { Tiered, TierPoint } from './types';

export type Asked = State['tiers'];

/** A trace is replayed in full: more than this the planner refuses. */
const LONGEST_TRACE = 16 << 20;

/** Requests as JSON lines: those of cacheplan have a prompt, those of Mooncake hashes. */
export function isTrace(text: string): boolean {
  const first = text.trimStart().split('\n', 1)[0]!;
  return /^\{.*"(hash_ids|prompt)"\s*:/.test(first);
}

export function isTraceFile(file: File): boolean {
  return /\.jsonl$/i.test(file.name);
}

/** What is replayed: a trace, where one was given. */
export class TierForm {
  private trace: File | null = null;
  private readonly file = h('input', { id: 'tiers-trace', type: 'file', accept: '.jsonl,.json,.txt' });
  private readonly shown = h('p', { class: 'help' });
  readonly element: HTMLElement;

  constructor(private asked: Asked, private readonly changed: (asked: Asked) => void) {
    const field = (label: string, name: keyof Asked, help: string) => {
      const id = `tiers-${name}`;
      const input = h('input', { id, type: 'text', value: asked[name], spellcheck: 'false', autocomplete: 'off' });
      input.addEventListener('change', () => {
        this.asked = { ...this.asked, [name]: input.value.trim() };
        this.changed(this.asked);
      });
      return h('div', { class: 'control' }, h('label', { for: id, title: help }, label), input);
    };
    this.file.addEventListener('change', () => this.take(this.file.files?.[0] ?? null));
    this.element = h(
      'div',
      {},
      h(
        'div',
        { class: 'controls' },
        field('Host memory', 'host', 'The most of each rank, such as 1TiB; none where it is empty'),
        field('Disk', 'disk', 'The most of each rank, such as 4TiB; none where it is empty'),
        field('Hit rate', 'hit', 'Such as 0.6; where it is empty, until more brings less than a hundredth'),
        h('div', { class: 'control' }, h('label', { for: 'tiers-trace', title: 'JSON lines, of cacheplan or of Mooncake' }, 'Trace'), this.file),
      ),
      this.shown,
    );
    this.show();
  }

  /** Replays this trace from now on, or the workload again. */
  take(trace: File | null): void {
    this.trace = trace;
    if (!trace) this.file.value = '';
    this.show();
    this.changed(this.asked);
  }

  /** The question but for the plan, and the bytes it speaks of. */
  question(workload: string): [object, BlobPart[]] {
    const { host, disk, hit } = this.asked;
    const asked = { host: host || null, disk: disk || null, target_hit: hit === '' ? null : rateOf(hit) };
    if (!this.trace) return [{ ask: 'tiers', asked, workload }, []];
    if (this.trace.size > LONGEST_TRACE) throw new Error(`${this.trace.name} has ${bytes(this.trace.size)}; at most ${bytes(LONGEST_TRACE)} are replayed here, \`cacheplan tiers\` replays more`);
    return [{ ask: 'tiers', asked, trace: this.trace.name }, [this.trace]];
  }

  private show(): void {
    this.shown.replaceChildren(
      this.trace
        ? h('span', {}, `Replayed is ${this.trace.name}. `, h('button', { type: 'button', class: 'knob', click: () => this.take(null) }, 'the workload instead'))
        : 'Replayed is the workload of the prefix cache. Drop or choose a trace, JSON lines of cacheplan or of Mooncake, to replay that.',
    );
  }
}

/** `0.6`, also as `60 %`. */
export function rateOf(text: string): number {
  const share = /^([\d.]+)\s*%$/.exec(text)?.[1];
  const rate = share === undefined ? Number(text) : Number(share) / 100;
  if (!Number.isFinite(rate)) throw new Error(`${text} is no hit rate; 0.6 is one`);
  return rate;
}

function sizes({ sizes: { host, disk } }: TierPoint): string {
  const all = ({ keys, windows, states }: typeof host) => keys + windows + states;
  const parts = [['host memory', all(host)], ['disk', all(disk)]] as const;
  return parts.filter(([, size]) => size > 0).map(([name, size]) => `${bytes(size)} of ${name}`).join(' and ');
}

export function showTiers({ told, table, drawn, svg, out_of_reach, note }: Tiered): void {
  const { answer, engines, trace } = told;
  const percent = (rate: number) => `${(100 * rate).toFixed(1)} %`;
  const { chosen, planned } = answer;
  const point = chosen ?? answer.curve.at(-1) ?? planned;
  const below = sizes(point);
  const enough = below === '' ? (chosen ? 'The device alone is enough' : 'Nothing below the device was tried') : `${below} for each rank ${chosen ? 'are enough' : 'are the most that was tried'}`;
  const rates = `${percent(point.hit_rate)} of the prompts' tokens are not computed again, with the device alone ${percent(planned.hit_rate)}, with room for everything on it ${percent(answer.ceiling)}.`;
  const found = `${out_of_reach ? `${out_of_reach}. ` : ''}${enough}: ${rates}`;
  const left = answer.left_out > 0 ? ` ${count(answer.left_out)} are longer than this plan serves, and left out.` : '';
  byId('tiers')
    .querySelector('.answer')
    ?.replaceChildren(
      h('p', {}, h('b', {}, found)),
      h('p', {}, `${trace}: ${count(answer.requests)} requests, replayed ${answer.replays} times.${left} ${note ?? ''}`),
      draw(drawn.picture),
      folded('The same as a table', draw(drawn.numbers)),
      folded('Everything, as the command prints it', h('pre', { class: 'file' }, table)),
      ...engines.map(({ engine, read_in, lines, notes }) => folded(engine, h('pre', { class: 'file' }, [...lines, ...notes.map((note) => `# ${note}`)].join('\n')), h('p', { class: 'help' }, `Read in ${read_in}`))),
      h('p', {}, h('button', { type: 'button', click: () => download('tiers.svg', svg, 'image/svg+xml') }, 'The curve as SVG')),
    );
}
