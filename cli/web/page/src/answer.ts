// The answer in large words: whether it serves so many people, how many, what caps it, what it costs, and how fast at best.

import { byId, folded, h } from './dom';
import { bytes, count, price, range, rate, short } from './format';
import { MEANING, meant, type Meant } from './term';
import type { Admits, EngineRow, Failure, Planned } from './types';

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

/** How a card is made. */
export interface Card {
  /** Where several stand side by side. */
  title?: string | undefined;
  /** The sign of the prices. */
  currency: string;
  /** The engine whose answer is the headline; the planner's own where it is empty. */
  by: string;
}

/** The nodes of a card. */
export function answerCard(found: Planned, people: number, { title, currency, by }: Card): Node[] {
  const { capacity } = found.plan;
  const all = admitted(found);
  const yes = all >= people;
  const tokens = short(capacity.tokens_per_sequence);
  const gpus = found.devices === 1 ? 'one GPU' : `${count(found.devices)} GPUs`;
  const cells = [
    ...(by === '' ? [] : [fact(meant('own pools', 'The planner’s own pools hold'), count(all))]),
    fact(meant('capped by', 'Capped by'), '', cap(capacity.capped_by)),
  ];
  const best = found.at_best;
  if (best) {
    const of = best.sequences === 1 ? 'one alone' : `all ${count(best.sequences)}; ${rate(best.alone_per_second)} for one alone`;
    cells.push(
      fact(meant('at best', 'At best, a bound'), `${rate(best.tokens_per_second)} tokens/s`, ` for ${of}, and ${rate(best.prompt_seconds)} s to read ${tokens} tokens`),
    );
  }
  if (found.per_hour === null) {
    cells.push(fact(meant('price', 'Price'), '', h('button', { type: 'button', class: 'to-price', click: toPrice }, 'say what an hour costs')));
  } else {
    const per_million = best?.per_million_tokens;
    cells.push(
      fact(meant('price', 'Price'), `${price(found.per_hour, currency)} an hour`, ` for ${gpus}`, all > 0 && by === '' ? `, ${price(found.per_hour / Math.min(all, people), currency)} a person` : '', per_million ? `; ${price(per_million, currency)} for a million tokens at that bound` : ''),
    );
  }
  return [
    title === undefined ? '' : h('p', { class: 'card-title' }, title),
    by === ''
      ? h('p', { class: `verdict ${yes ? 'yes' : 'no'}` }, h('b', {}, yes ? 'Yes' : 'No'), `, it holds ${count(all)}${yes ? '' : ` of ${count(people)}`} `, meant('sequences', (yes ? all : people) === 1 ? 'sequence' : 'sequences'), ` of ${tokens} tokens at once, in `, meant('own pools', 'the planner’s own pools'), '.')
      : asking(by),
    h('dl', { class: 'facts-row' }, ...cells),
  ].filter((node) => node !== '') as Node[];
}

/** Where an engine's answer will stand. */
function asking(by: string): HTMLElement {
  return h('p', { class: 'verdict' }, `Asking ${by} …`);
}

/** An engine's answer as the headline; `why` it has none. */
export function engineVerdict(row: EngineRow | undefined, by: string, why: string | undefined, people: number, tokens: number): HTMLElement {
  if (!row) return h('p', { class: 'verdict' }, h('b', {}, 'No answer'), ` of ${by}${why ? `: ${why}` : ''}`);
  const { low, high } = row.sequences;
  const [kind, word] = low >= people ? ['yes', 'Yes'] : high >= people ? ['maybe', 'Perhaps'] : ['no', 'No'];
  const of = kind === 'yes' ? '' : ` of ${count(people)}`;
  return h('p', { class: `verdict ${kind}` }, h('b', {}, word), `, ${row.engine} ${row.version} holds ${range(row.sequences)}${of} `, meant('sequences', (of === '' ? high : people) === 1 ? 'sequence' : 'sequences'), ` of ${short(tokens)} tokens at once.`);
}

/** What engines are asked with. */
export interface ByEngines {
  people: number;
  tokens: number;
  /** As commands name it. */
  model: string;
  by: string;
  currency: string;
  per_hour: number | null;
}

/** What engines would hold by their own commands, beside what was planned for so many people, or in its place. */
export function showEngines({ engines, unasked }: Admits, { people, tokens, model, by, currency, per_hour }: ByEngines): void {
  const summary = byId('summary');
  const [row, first] = [summary.querySelector('.facts-row'), engines[0]];
  summary.querySelectorAll('.of-engines').forEach((old) => old.remove());
  if (!row) return;
  const marked = <T extends HTMLElement>(node: T): T => {
    node.classList.add('of-engines');
    return node;
  };
  const notes = unasked.map((why) => h('p', { class: 'note' }, `${why}.`));
  if (by !== '') {
    const named = engines.find((one) => one.engine === by);
    const why = unasked.find((one) => one.startsWith(`${by} `) || one.startsWith('no engine') || one.includes(`, ${by} `));
    summary.querySelector('.verdict')?.replaceWith(engineVerdict(named, by, why, people, tokens));
    const least = Math.min(named?.sequences.low ?? 0, people);
    if (per_hour !== null && least > 0) row.append(marked(fact('A person', price(per_hour / least, currency), ' an hour')));
  }
  if (!first) {
    row.after(...notes.map(marked));
    return;
  }
  const few = ({ sequences: { low, high } }: EngineRow) => (high < people ? ', too few' : low < people ? ', not surely enough' : '');
  const said = engines.map((one) => `${one.engine} ${one.version}${few(one)}`);
  const rest = engines.slice(1).map((one, at) => `; ${range(one.sequences)} in ${said[at + 1]}`);
  row.append(marked(fact(meant('engines', 'Engines themselves hold'), range(first.sequences), ` in ${said[0]}`, ...rest)));
  row.after(marked(folded('Their commands', ...engines.flatMap((one) => commandOf(one, model)), ...notes)));
}

/** An engine's command, and what its words stand for. */
function commandOf({ command, others }: EngineRow, model: string): HTMLElement[] {
  if (command === null) return [];
  const named = command.replace(/ MODEL(?= |$)/, () => ` ${model}`);
  return [
    h('pre', { tabindex: 0 }, named),
    ...(others ? [h('p', { class: 'note' }, `${others.name}: one of this model whose weights take ${bytes(others.bytes)}; its own take ${bytes(others.own)}.`)] : []),
  ];
}

/** The card of what is refused; the words of the refusal stand below it, and what engines make of it beside. */
export function noCard({ message, code }: Failure, { title, by }: Pick<Card, 'title' | 'by'>): Node[] {
  const [, short] = /short of ([\d.]+ \w+)/.exec(message) ?? [];
  // Only what does not fit is answered; all else is not known.
  const verdict =
    code === 3
      ? h('p', { class: 'verdict no' }, h('b', {}, 'No'), `, it does not fit${short ? `: short of ${short}` : ''}, in `, meant('own pools', 'the planner’s own pools'), '.')
      : h('p', { class: 'verdict' }, h('b', {}, 'No answer'), ': as it stands this cannot be planned.');
  return [
    ...(title === undefined ? [] : [h('p', { class: 'card-title' }, title)]),
    code === 3 && by !== '' ? asking(by) : verdict,
    h('dl', { class: 'facts-row' }),
  ];
}
