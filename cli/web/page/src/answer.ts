// The answer in large words: whether it serves so many people, how many, what caps it, what it costs, and how fast at best.

import { byId, folded, h } from './dom';
import { count, price, rate, short } from './format';
import { MEANING, meant, type Meant } from './term';
import type { Admits, Interval, Planned } from './types';

/** A fact with its name above it. */
export function fact(name: HTMLElement | string, value: string, ...more: (Node | string)[]): HTMLElement {
  return h('div', { class: 'fact' }, h('dt', {}, name), h('dd', {}, h('span', { class: 'value' }, value), ...more));
}

function cap(name: string): HTMLElement {
  return name in MEANING ? meant(name as Meant) : h('span', {}, name);
}

/** Where the price is stated. */
function toPrice(): void {
  const price = byId('price');
  const folded = price.closest('details');
  if (folded) folded.open = true;
  price.focus();
}

/** All sequences of a plan, over its replicas. */
export function admitted({ plan }: Planned): number {
  return plan.deployment?.sequences ?? plan.capacity.sequences;
}

export function serves(found: Planned, people: number): boolean {
  return admitted(found) >= people;
}

/** The nodes of a card; `title` where several stand side by side. */
export function answerCard(found: Planned, people: number, title?: string): Node[] {
  const { capacity } = found.plan;
  const all = admitted(found);
  const yes = all >= people;
  const tokens = short(capacity.tokens_per_sequence);
  const gpus = found.devices === 1 ? 'one GPU' : `${count(found.devices)} GPUs`;
  const cells = [
    fact(meant('capped by', 'Capped by'), '', cap(capacity.capped_by)),
  ];
  const best = found.at_best;
  if (best) {
    const of = best.sequences === 1 ? 'one alone' : `all ${count(best.sequences)}`;
    cells.push(
      fact(meant('at best', 'At best, a bound'), `${rate(best.tokens_per_second)} tokens/s`, ` for ${of}; ${rate(best.alone_per_second)} for one alone, and ${rate(best.prompt_seconds)} s to read ${tokens} tokens`),
    );
  }
  if (found.per_hour === null) {
    cells.push(fact(meant('price', 'Price'), '', h('button', { type: 'button', class: 'to-price', click: toPrice }, 'say what an hour costs')));
  } else {
    const per_million = best?.per_million_tokens;
    cells.push(
      fact(meant('price', 'Price'), `${price(found.per_hour)} an hour`, ` for ${gpus}`, all > 0 ? `, ${price(found.per_hour / Math.min(all, people))} a person` : '', per_million ? `; ${price(per_million)} for a million tokens at that bound` : ''),
    );
  }
  return [
    title === undefined ? '' : h('p', { class: 'card-title' }, title),
    h('p', { class: `verdict ${yes ? 'yes' : 'no'}` }, h('b', {}, yes ? 'Yes' : 'No'), `, it holds ${count(all)}${yes ? '' : ` of ${count(people)}`} `, meant('sequences'), ` of ${tokens} tokens at once.`),
    h('dl', { class: 'facts-row' }, ...cells),
  ].filter((node) => node !== '') as Node[];
}

/** What engines would hold by their own commands, beside what was planned for so many people. */
export function showEngines({ engines }: Admits, people: number, model: string): void {
  const [row, first] = [byId('summary').querySelector('.facts-row'), engines[0]];
  byId('summary').querySelectorAll('.of-engines').forEach((old) => old.remove());
  if (!row || !first) return;
  const held = ({ low, high }: Interval) => (high === 0 ? 'none' : low === high ? count(low) : `${count(low)} to ${count(high)}`);
  const few = ({ sequences: { low, high } }: Admits['engines'][number]) => (high < people ? ', too few' : low < people ? ', not surely enough' : '');
  const said = engines.map((one) => `${one.engine} ${one.version}${few(one)}`);
  const rest = engines.slice(1).map((one, at) => `; ${held(one.sequences)} in ${said[at + 1]}`);
  const cell = fact(meant('engines', 'Engines themselves hold'), held(first.sequences), ` in ${said[0]}`, ...rest);
  cell.classList.add('of-engines');
  const commands = folded('Their commands', ...engines.map(({ engine, command }) => h('pre', { tabindex: 0 }, command.replace('MODEL', () => (engine === 'llama.cpp' ? 'FILE.gguf' : model)))));
  commands.classList.add('of-engines');
  row.append(cell);
  row.after(commands);
}

/** The card of what is refused; the words of the refusal stand below it. */
export function noCard(why: string, title?: string): Node[] {
  const [, short] = /short of ([\d.]+ \w+)/.exec(why) ?? [];
  const said = short ? `, it does not fit: short of ${short}.` : /^does not fit/.test(why) ? ', it does not fit.' : ', that cannot be planned.';
  return [
    ...(title === undefined ? [] : [h('p', { class: 'card-title' }, title)]),
    h('p', { class: 'verdict no' }, h('b', {}, 'No'), said),
  ];
}
