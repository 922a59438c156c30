// Devices by layout: how many sequences each holds, and what it costs where prices are given.

import { byId, download, h } from './dom';
import { bytes, count, tokens } from './format';
import type { State } from './state';
import type { Fit, Fits } from './types';

export type Asked = State['fit'];

export function fitForm(asked: Asked, changed: (asked: Asked) => void): HTMLElement {
  const field = (label: string, name: keyof Asked, type: string, help: string) => {
    const id = `fit-${name}`;
    const input = h('input', { id, type, value: String(asked[name]), spellcheck: 'false', min: type === 'number' ? 1 : null });
    input.addEventListener('change', () => {
      const value = type === 'number' ? Math.max(1, Math.trunc(Number(input.value)) || 1) : input.value;
      asked = { ...asked, [name]: value };
      changed(asked);
    });
    return h('div', { class: 'control' }, h('label', { for: id, title: help }, label), input);
  };
  return h(
    'div',
    { class: 'controls' },
    field('Tokens of each', 'context', 'number', 'Tokens of each sequence, prompt and output'),
    field('Sequences', 'sequences', 'number', 'Sequences at once'),
    field('Devices', 'devices', 'text', 'Names, with blanks between them'),
    field('At most', 'most', 'number', 'The most devices'),
    field('Prices of an hour', 'prices', 'text', 'Such as h100=2.5 h200=3.1'),
  );
}

/** `h100=2.5 h200=3.1`. */
export function prices(text: string): Record<string, number> {
  const found: Record<string, number> = {};
  for (const pair of text.split(/[\s,;]+/)) {
    const [name, price] = pair.split('=');
    const number = Number(price);
    if (name && price && Number.isFinite(number) && number >= 0) found[name.toLowerCase()] = number;
  }
  return found;
}

function layout({ parallel }: Fit): string {
  const sizes = Object.entries(parallel).filter(([, size]) => typeof size === 'number' && size > 1);
  return sizes.map(([name, size]) => `${name} ${size}`).join(' ') || 'one';
}

export function fitTable(fits: Fits, apply: (fit: Fit) => void): Node[] {
  const { answer } = fits;
  const own = answer.fits.filter((fit) => fit.kv_dtype === null && fit.state_dtype === null);
  const devices = [...new Set(own.map((fit) => fit.device))].sort();
  const key = (fit: Fit) => `${String(fit.devices).padStart(4, '0')} ${layout(fit)}`;
  const layouts = new Map([...own].sort((a, b) => key(a).localeCompare(key(b))).map((fit) => [layout(fit), fit.devices]));
  const most = Math.max(1, ...own.map((fit) => fit.sequences));
  const cell = (device: string, of: string) => {
    const fit = own.find((one) => one.device === device && layout(one) === of);
    if (!fit) return h('td', { class: 'none' }, '');
    const price = fit.per_hour === null ? '' : `${fit.per_hour.toFixed(2)}/h`;
    const label = `${fit.devices} × ${device}, ${of}: ${count(fit.sequences)} sequences, capped by ${fit.capped_by}, ${bytes(fit.cache_bytes)} for caches${price && `, ${price}`}`;
    const button = h(
      'button',
      { type: 'button', title: label, 'aria-label': `${label}; plan it`, click: () => apply(fit) },
      fit.sequences > 0 ? `${fit.holds ? '✓ ' : ''}${short(fit.sequences)}` : '–',
      price ? h('small', {}, price) : null,
    );
    // From pale to full by its logarithm: more is darker, in one hue.
    const share = fit.sequences > 0 ? 0.12 + 0.78 * (Math.log(fit.sequences) / Math.max(Math.log(most), 1)) : 0;
    button.style.setProperty('--share', `${Math.round(100 * share)}%`);
    button.classList.toggle('dark', share > 0.7);
    button.classList.toggle('holds', fit.holds);
    return h('td', {}, button);
  };
  const best = answer.fits[0]?.holds ? answer.fits[0] : undefined;
  const flags = fits.flags[0];
  const said = best
    ? `Best: ${best.devices} × ${best.device}, ${[layout(best), best.kv_dtype && `${best.kv_dtype} keys and values`].filter(Boolean).join(', ')}: ${count(best.sequences)} sequences`
    : `Nothing tried holds ${count(answer.sequences)} sequences of ${count(answer.context)} tokens.`;
  return [
    h('p', {}, said, best?.per_million_tokens ? `; ${best.per_million_tokens.toFixed(4)} an hour for each million tokens that are held` : ''),
    best && flags ? h('pre', { tabindex: 0 }, `vllm serve <MODEL> ${flags.vllm}`) : h('span'),
    h(
      'div',
      { class: 'scrolls', tabindex: 0, role: 'region', 'aria-label': 'Devices by layout' },
      h(
        'table',
        { class: 'heat' },
        h('caption', {}, `Sequences of ${tokens(answer.context)} tokens at once; ✓ where ${count(answer.sequences)} are held. A click plans it.`),
        h('thead', {}, h('tr', {}, h('td'), ...[...layouts].map(([name, of]) => h('th', { scope: 'col' }, h('span', {}, `${of} GPU${of > 1 ? 's' : ''}`), name)))),
        h('tbody', {}, ...devices.map((device) => h('tr', {}, h('th', { scope: 'row' }, device), ...[...layouts.keys()].map((of) => cell(device, of))))),
      ),
    ),
    h('button', { type: 'button', click: () => download('fit.svg', fits.svg, 'image/svg+xml') }, 'Download as SVG'),
  ];
}

function short(value: number): string {
  return value >= 10000 ? `${Math.round(value / 1000)}k` : count(value);
}

/** Where fits are shown, below their form. */
export function showFit(nodes: Node[]): void {
  byId('fit').querySelector('.answer')?.replaceChildren(...nodes);
}
