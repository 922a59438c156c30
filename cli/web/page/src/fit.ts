// Devices by layout: how many sequences each holds, and what it costs where prices are given.

import { byId, download, draw, h, usable } from './dom';
import { bytes, count, counted, price, range } from './format';
import { START, type State } from './state';
import type { Fit, Fits, Freed } from './types';

export type Asked = State['fit'];

export function fitForm(asked: Asked, changed: (part: Partial<Asked>) => void): HTMLElement {
  const field = (label: string, name: keyof Asked, type: string, help: string) => {
    const id = `fit-${name}`;
    const input = h('input', { id, type, value: String(asked[name]), spellcheck: 'false', min: type === 'number' ? 1 : null });
    input.addEventListener('change', () => {
      const value = type === 'number' ? Math.max(1, Math.trunc(Number(input.value)) || 1) : input.value;
      changed({ [name]: value });
    });
    return h('div', { class: 'control' }, h('label', { for: id, title: help }, label), input);
  };
  return h(
    'div',
    { class: 'controls' },
    field('Devices', 'devices', 'text', 'Names, with blanks between them'),
    field('At most', 'most', 'number', 'The most devices'),
    h('p', { class: 'help' }, 'Where prices are stated, above, the GPUs that have one are tried.'),
  );
}

/** The devices to try: those that can be had, by their prices, until somebody names others. */
export function tried({ devices, prices: text }: Asked): string[] {
  const priced = Object.keys(prices(text));
  return devices === START.fit.devices && priced.length > 0 ? priced : devices.split(/[\s,]+/).filter(Boolean);
}

/** `h100=$2.5 h200=$3.1`, as the planner writes what was typed. */
export function prices(text: string): Record<string, number> {
  const found: Record<string, number> = {};
  for (const pair of text.split(/[\s,;]+/)) {
    const [name, price] = pair.split('=');
    const number = Number(price?.replace(SIGN, ''));
    if (name && price && Number.isFinite(number) && number >= 0) found[name.toLowerCase()] = number;
  }
  return found;
}

/** The sign of a currency. */
const SIGN = /[$€£¥]/;

/** Prices as the planner is asked with them; none where nobody states any. */
export function priced(text: string): { currency: string; per_hour: Record<string, number> } | null {
  const per_hour = prices(text);
  return Object.keys(per_hour).length > 0 ? { currency: currencyOf(text), per_hour } : null;
}

/** What prices are in; nothing where nobody says. */
export function currencyOf(text: string): string {
  return SIGN.exec(text)?.[0] ?? '';
}

/** The price of one device, where it is stated. */
export function priceOf(text: string, device: string): number | null {
  return prices(text)[device.toLowerCase()] ?? null;
}

/** How GPUs are divided: `tp 4 dp 2`. */
export function layout({ parallel }: Pick<Fit, 'parallel'>): string {
  const sizes = Object.entries(parallel).filter(([, size]) => typeof size === 'number' && size > 1);
  return sizes.map(([name, size]) => `${name} ${size}`).join(' ') || 'one';
}

/** How many it surely holds. */
export function surely(fit: Fit | undefined): number {
  return fit?.sequences_between?.[0] ?? fit?.sequences ?? 0;
}

/** How many it holds. */
function held({ sequences, sequences_between: between }: Fit): string {
  return between ? `${range({ low: between[0], high: between[1] })} sequences` : counted(sequences, 'sequence');
}

/** Whose rules answered, in a sentence. */
export function byRules(fits: Pick<Fit, 'engine'>[]): string {
  const engines = [...new Set(fits.map(({ engine }) => engine))].filter((engine) => engine !== null);
  return engines.length === 0 ? 'By the planner’s own pools, which are no engine’s; name an engine in the question to have its rules.' : `By the rules of ${engines.join(' and ')}, as \`cacheplan fit\` has them.`;
}

/** `model` is what a command calls it. */
export function fitAnswer(fits: Fits, model: string, apply: (fit: Fit) => void): Node[] {
  const { answer, pictures } = fits;
  const currency = answer.currency ?? '';
  const best = answer.fits[0]?.holds ? answer.fits[0] : undefined;
  const may = best ? undefined : answer.fits.find((fit) => fit.may_hold);
  const said = best
    ? `Best: ${best.devices} × ${best.device}, ${[layout(best), best.kv_dtype && `${best.kv_dtype} keys and values`, best.state_dtype && `${best.state_dtype} states`].filter(Boolean).join(', ')}: ${held(best)}`
    : `Nothing tried ${may ? 'surely ' : ''}holds ${counted(answer.sequences, 'sequence')} of ${count(answer.context)} tokens${may ? `; ${may.devices} × ${may.device}, ${layout(may)}, may: ${held(may)}, as the engine finds at its start` : ''}.`;
  const told = h('p', { class: 'told', 'aria-live': 'polite' }, 'Point at a layout, or click it to plan it.');
  const map = draw(pictures.more);
  usable(map, (facts) => told.replaceChildren(facts.join('; ')), (part) => apply(answer.fits[Number(part.dataset['at'])]!));
  return [
    h('p', { class: 'rules' }, byRules(answer.fits)),
    h('p', {}, said, best?.per_hour ? `; ${price(best.per_hour, currency)} an hour, ${price(best.per_hour / answer.sequences, currency)} for each of the sequences asked for` : ''),
    ...(answer.fewer_bits ?? []).flatMap(({ bits, weights_bytes, fit }) => fewer(bits, weights_bytes, fit, currency, !best)),
    ...(answer.freed ? freed(answer.freed, currency) : []),
    ...answer.notes.map((note) => h('p', { class: 'note' }, note)),
    fits.flags ? h('pre', { tabindex: 0 }, `cacheplan plan ${model} ${fits.flags}`) : h('span'),
    draw(pictures.curves),
    told,
    h('div', { class: 'scrolls', tabindex: 0, role: 'region', 'aria-label': 'Devices by layout' }, map),
    h('button', { type: 'button', click: () => download('fit.svg', fits.svg, 'image/svg+xml') }, 'Download as SVG'),
    h('button', { type: 'button', click: () => download('fit.html', fits.html, 'text/html') }, 'as one HTML file'),
  ];
}

/** What holds it by flags that take neither devices nor precision. */
function freed({ fit, flags, reuses_prefixes }: Freed, currency: string): Node[] {
  const cost = fit.per_hour ? `, ${price(fit.per_hour, currency)} an hour` : '';
  const lost = reuses_prefixes ? '' : ', and reuses no prefix';
  return [h('p', { class: 'note' }, `With ${flags.join(' and ')}: ${fit.devices} × ${fit.device}, ${layout(fit)}: surely ${held(fit)}${cost}${lost}`)];
}

/** What weights of fewer bits would need, where that costs less; where nothing holds it, what they take. */
function fewer(bits: number, weights: number, fit: Fit | null, currency: string, noBest: boolean): Node[] {
  if (!fit) return noBest ? [h('p', { class: 'note' }, `Weights of ${bits} bits would take some ${bytes(weights)}.`)] : [];
  const sizes = [layout(fit), fit.kv_dtype && `${fit.kv_dtype} keys and values`].filter(Boolean).join(', ');
  const cost = fit.per_hour ? `, ${price(fit.per_hour, currency)} an hour` : '';
  return [h('p', { class: 'note' }, `With ${bits}-bit weights, assumed ${bytes(weights)}: ${fit.devices} × ${fit.device}, ${sizes}: ${held(fit)}${cost}`)];
}

/** Where fits are shown, below their form. */
export function showFit(nodes: Node[]): void {
  byId('fit').querySelector('.answer')?.replaceChildren(...nodes);
}
