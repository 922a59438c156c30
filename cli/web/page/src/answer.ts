// The answer in large words: whether it serves so many people, how many, what caps it, what it costs, and how fast at best.

import { byId, folded, h } from './dom';
import { bytes, count, price, range, rate, short } from './format';
import { MEANING, meant, type Meant } from './term';
import type { Admits, AtBest, EngineRow, Failure, Planned } from './types';

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

/** How a card is made. */
export interface Card {
  /** Where several stand side by side. */
  title?: string | undefined;
  /** The sign of the prices. */
  currency: string;
  /** The engine whose answer is the headline, the usual one where it is empty; `plan` for the planner's own. */
  by: string;
  people: number;
  tokens: number;
  /** As commands name it. */
  model: string;
  /** What stands below the facts. */
  map?: HTMLElement | undefined;
}

/** What the planner's own pools hold, or why there is no plan. */
type Own = { found: Planned } | { failure: Failure };

/** The answer in large words: an engine's by its own row, with the planner's own pools behind it, or these. */
export class AnswerCard {
  private asked: { own: Own; card: Card } | null = null;

  constructor(private readonly at: HTMLElement) {}

  clear(): void {
    this.asked = null;
    this.at.replaceChildren();
  }

  /** What the planner says, which is the answer where no engine is asked; of an engine the answer before stays, in grey. */
  plan(own: Own, card: Card): void {
    const isAsked = this.asked !== null && this.asked.card.by === card.by && this.asked.card.title === card.title;
    this.asked = { own, card };
    if (card.by === 'plan') this.draw(...ownCard(own, card));
    else if (isAsked && this.at.querySelector('.verdict')) this.at.classList.add('waits');
    else this.draw(h('p', { class: 'verdict' }, `Asking ${card.by || 'the engine'} …`));
  }

  /** What engines hold by their own commands: of the one that is asked, and of all of them once these are there. */
  engines({ engines, unasked, usual }: Admits): void {
    if (!this.asked) return;
    const { own, card } = this.asked;
    const by = card.by || usual || 'vllm';
    const row = engines.find((one) => one.engine === by);
    if (card.by === 'plan') this.draw(...ownCard(own, card, others(engines, card)), ...commands(engines, unasked, card));
    else if (row) this.draw(...engineCard(row, own, card, others(engines.filter((one) => one !== row), card)), ...commands(engines, unasked, card));
    else this.draw(...ownCard(own, card, others(engines, card)), ...commands(engines, unasked.length > 0 ? unasked : [`${by} has no answer`], card));
  }

  private draw(...nodes: Node[]): void {
    const { title, map } = this.asked!.card;
    // What somebody reads of the answer stays open when more of it comes.
    const terms = () => [...this.at.querySelectorAll<HTMLElement>('.term')];
    const read = terms().find((term) => term === document.activeElement)?.textContent;
    const told = () => this.at.querySelector<HTMLDetailsElement>('details.of-engines');
    const isOpen = told()?.open ?? false;
    this.at.classList.remove('waits');
    this.at.replaceChildren(...(title === undefined ? [] : [h('p', { class: 'card-title' }, title)]), ...nodes, ...(map ? [map] : []));
    terms().find((term) => term.textContent === read)?.focus();
    const after = told();
    if (after) after.open = isOpen;
  }
}

function bound(best: AtBest, tokens: number): HTMLElement {
  // Rounded up, as a bound is.
  const most = (each: number) => rate(Math.ceil(each));
  const of = best.sequences === 1 ? 'one alone' : `all ${count(best.sequences)}; ${most(best.alone_per_second)} for one alone`;
  return fact(meant('at best', 'At best, a bound'), `${most(best.tokens_per_second)} tokens/s`, ` for ${of}, and ${rate(best.prompt_seconds)} s to read ${short(tokens)} tokens`);
}

/** What an hour costs of so many GPUs that hold so many people. */
function cost(per_hour: number | null, gpus: number, people: number, best: AtBest | null | undefined, currency: string): HTMLElement {
  if (per_hour === null) return fact(meant('price', 'Price'), '', h('button', { type: 'button', class: 'to-price', click: toPrice }, 'say what an hour costs'));
  const per_million = best?.per_million_tokens;
  return fact(
    meant('price', 'Price'),
    `${price(per_hour, currency)} an hour`,
    ` for ${gpus === 1 ? 'one GPU' : `${count(gpus)} GPUs`}`,
    people > 0 ? `, ${price(per_hour / people, currency)} a person` : '',
    per_million ? `; ${price(per_million, currency)} for a million tokens at that bound` : '',
  );
}

function verdict(kind: 'yes' | 'maybe' | 'no', holds: (Node | string)[]): HTMLElement {
  return h('p', { class: `verdict ${kind}` }, h('b', {}, { yes: 'Yes', maybe: 'Perhaps', no: 'No' }[kind]), ', ', ...holds);
}

/** `100 sequences of 32k tokens at once`. */
function asMany(held: string, most: number, { people, tokens }: Card, enough: boolean): (Node | string)[] {
  const word = (enough ? most : people) === 1 ? 'sequence' : 'sequences';
  return [`${held}${enough ? '' : ` of ${count(people)}`} `, meant('sequences', word), ` of ${short(tokens)} tokens at once`];
}

/** By the planner's own pools, which no engine has. */
function ownCard(own: Own, card: Card, ...more: HTMLElement[]): Node[] {
  const pools = meant('own pools', 'the planner’s own pools');
  if ('failure' in own) {
    // Only what does not fit is answered; all else is not known.
    const { code, message } = own.failure;
    const [, lacks] = /short of ([\d.]+ \w+)/.exec(message) ?? [];
    return [
      code === 3 ? verdict('no', [`it does not fit${lacks ? `: short of ${lacks}` : ''}, in `, pools, '.']) : h('p', { class: 'verdict' }, h('b', {}, 'No answer'), ': as it stands this cannot be planned.'),
      h('dl', { class: 'facts-row' }, ...more),
    ];
  }
  const { found } = own;
  const [all, best] = [admitted(found), found.at_best];
  const yes = all >= card.people;
  return [
    verdict(yes ? 'yes' : 'no', ['it holds ', ...asMany(count(all), all, { ...card, tokens: found.plan.capacity.tokens_per_sequence }, yes), ', in ', pools, '.']),
    h(
      'dl',
      { class: 'facts-row' },
      fact(meant('capped by', 'Capped by'), '', cap(found.plan.capacity.capped_by)),
      ...(best ? [bound(best, found.plan.capacity.tokens_per_sequence)] : []),
      cost(found.per_hour, found.devices, Math.min(all, card.people), best, card.currency),
      ...more,
    ),
  ];
}

/** By an engine's own row: how many, what caps it, how fast at best, at what price. */
function engineCard(row: EngineRow, own: Own, card: Card, ...more: HTMLElement[]): Node[] {
  const { low, high } = row.sequences;
  const kind = low >= card.people ? 'yes' : high >= card.people ? 'maybe' : 'no';
  const held = 'found' in own ? count(admitted(own.found)) : 'none';
  return [
    verdict(kind, [`${row.engine} ${row.version} holds `, ...asMany(range(row.sequences), high, card, kind === 'yes'), '.']),
    h(
      'dl',
      { class: 'facts-row' },
      fact(meant('capped by', 'Capped by'), '', cap(row.capped_by), ...(row.caches ? [`, most of the caches being ${row.caches}`] : [])),
      ...(row.at_best ? [bound(row.at_best, card.tokens)] : []),
      cost(row.per_hour, row.devices, Math.min(low, card.people), row.at_best, card.currency),
      fact(meant('own pools', 'The planner’s own pools hold'), held),
      ...more,
    ),
  ];
}

/** What other engines hold, each by its own command. */
function others(engines: EngineRow[], { people, by }: Card): HTMLElement {
  const few = ({ sequences: { low, high } }: EngineRow) => (high < people ? ', too few' : low < people ? ', not surely enough' : '');
  const said = engines.map((one) => `${one.engine} ${one.version}${few(one)}`);
  const [first, ...rest] = engines;
  if (!first) return h('div', { hidden: true });
  const words = by === 'plan' ? 'Engines themselves hold' : 'Other engines hold';
  return fact(meant('engines', words), range(first.sequences), ` in ${said[0]}`, ...rest.map((one, at) => `; ${range(one.sequences)} in ${said[at + 1]}`));
}

/** The engines' commands, and why others are not asked. */
function commands(engines: EngineRow[], unasked: string[], { model }: Card): HTMLElement[] {
  const notes = unasked.map((why) => h('p', { class: 'note' }, `${why}.`));
  if (engines.length === 0) return notes;
  const told = folded(engines.length === 1 ? 'Its command' : 'Their commands', ...engines.flatMap((one) => commandOf(one, model)), ...notes);
  told.classList.add('of-engines');
  return [told];
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
