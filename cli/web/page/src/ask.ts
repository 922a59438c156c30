// The question as a sentence to fill in: which model, how many people, how long, on what.

import { byId, folded, h } from './dom';
import { bytes, devices, devicesText, rate, short, tokensOf } from './format';
import { chosenBy, filesOf, nameOf, type Chosen } from './model';
import { currencyOf, priceOf, prices } from './fit';
import { hint, MEANING } from './term';
import type { Choices, Offered, Opened, Place, Planned } from './types';
import type { State } from './state';

export interface Asking {
  choose(chosen: Chosen): void;
  people(people: number): void;
  context(tokens: string): void;
  device(device: string): void;
  weights(weights: string): void;
  reserve(size: string): void;
  by(engine: string): void;
  price(price: string): void;
  /** Another question beside it. */
  beside(): void;
}

/** Counts of GPUs on the slider; any other is typed. */
const COUNTS = [1, 2, 4, 8, 16, 32, 64, 72];

/** A model's name as it is typed; `names` and `places` are offered. */
export function modelField(id: string, names: string[], places: Place[], choices: Choices, choose: (chosen: Chosen) => void): { nodes: HTMLElement[]; show: (chosen: Chosen) => void } {
  const input = h('input', { id, type: 'search', list: `${id}-names`, class: 'name', 'aria-label': 'Model', autocomplete: 'off', spellcheck: 'false', placeholder: `Search ${names.length} models` });
  const options = [...places.map(({ name, path }) => h('option', { value: path }, name)), ...names.map((name) => h('option', { value: name }))];
  let shown = '';
  const take = () => {
    const text = input.value.trim();
    if (text === '' || text === shown) return;
    choose(chosenBy(text, names, choices.reads_disk));
  };
  // Empty while it is looked for, so that all names are offered; left alone it is as before.
  input.addEventListener('focus', () => {
    input.placeholder = shown;
    input.value = '';
  });
  input.addEventListener('blur', () => {
    input.value = shown;
  });
  input.addEventListener('input', () => names.includes(input.value) && take());
  input.addEventListener('change', take);
  const show = (chosen: Chosen) => {
    shown = shortName(nameOf(chosen));
    input.title = nameOf(chosen);
    input.classList.toggle('long', shown.length > 24);
    input.classList.toggle('longest', shown.length > 42);
    if (document.activeElement !== input) input.value = shown;
    else if (input.value !== shown) input.placeholder = shown;
    fit(input, shown);
  };
  return { nodes: [input, h('datalist', { id: `${id}-names` }, ...options)], show };
}

/** Without its owner, or its folder. */
function shortName(name: string): string {
  return name.split('/').filter(Boolean).at(-1) ?? name;
}

/** As wide as what is in it, also where the browser cannot do that by itself. */
function fit(input: HTMLInputElement, text = input.value): void {
  input.size = Math.min(Math.max(text.length, 2), 48);
}

/** How many of which device. */
export function deviceField(id: string, choices: Choices, set: (device: string) => void): { nodes: (HTMLElement | string)[]; slider: HTMLElement; show: (device: string) => void } {
  let [number, name] = [1, ''];
  const many = h('input', { id: `${id}-count`, type: 'number', min: 1, max: 4096, class: 'number-in', 'aria-label': 'How many GPUs' });
  const which = h('input', { id, type: 'text', list: `${id}s`, class: 'name', 'aria-label': 'GPU, or a size such as 24GiB', autocomplete: 'off', spellcheck: 'false' });
  const slider = h('input', { id: `${id}-slider`, type: 'range', min: 0, max: COUNTS.length - 1, step: 1, 'aria-label': 'How many GPUs' });
  const say = () => {
    slider.setAttribute('aria-valuetext', `${number} GPUs`);
    if (document.activeElement !== many) many.value = String(number);
    fit(many, String(number));
  };
  const changed = () => {
    say();
    set(devicesText(number, name));
  };
  many.addEventListener('change', () => {
    number = Math.min(Math.max(1, Math.trunc(Number(many.value)) || 1), 4096);
    slider.value = String(nearest(number));
    changed();
  });
  slider.addEventListener('input', () => {
    performance.mark('slider');
    number = COUNTS[Number(slider.value)]!;
    changed();
  });
  const take = () => {
    const typed = devices(which.value);
    if (which.value.trim() === '' ) return;
    [name, number] = [typed.name, typed.count > 1 ? typed.count : number];
    changed();
  };
  which.addEventListener('focus', () => {
    which.placeholder = name;
    which.value = '';
  });
  which.addEventListener('blur', () => {
    which.value = name;
  });
  which.addEventListener('input', () => choices.devices.includes(which.value.trim()) && take());
  which.addEventListener('change', take);
  const list = h('datalist', { id: `${id}s` }, ...choices.devices.map((known) => h('option', { value: known })));
  return {
    nodes: [many, ' × ', which, list],
    slider,
    show: (device) => {
      ({ count: number, name } = devices(device));
      which.placeholder = 'no GPU';
      if (document.activeElement !== which) which.value = name;
      fit(which, name || which.placeholder);
      if (document.activeElement !== slider) slider.value = String(nearest(number));
      say();
    },
  };
}

function nearest(number: number): number {
  return COUNTS.reduce((best, step, at) => (Math.abs(step - number) < Math.abs(COUNTS[best]! - number) ? at : best), 0);
}

export class Sentence {
  private readonly model: ReturnType<typeof modelField>;
  private readonly device: ReturnType<typeof deviceField>;
  private readonly people = h('input', { id: 'people', type: 'number', min: 1, class: 'number-in', 'aria-label': 'How many people at once' });
  private readonly context = h('input', { id: 'context', type: 'text', class: 'number-in', 'aria-label': 'Tokens of each, such as 32k', autocomplete: 'off', spellcheck: 'false' });
  private readonly persons = h('span', {}, 'people');
  private readonly by: HTMLSelectElement;
  /** What somebody typed of the weights; it stands above what is chosen here. */
  private readonly typed = h('option', { value: 'typed', hidden: true });
  private readonly stored = h('option', { value: '' }, 'as stored');
  private readonly weights = h('select', { id: 'weights' }, this.typed, this.stored);
  private readonly reserve = h('input', { id: 'reserve', type: 'text', class: 'number-in', placeholder: '0', autocomplete: 'off' });
  /** The engine that is asked where nobody names one. */
  private usual = 'vllm';
  private readonly price = h('input', { id: 'price', type: 'text', class: 'number-in', placeholder: '$2.50, or h100=$2.50, h200=$3.10', autocomplete: 'off' });

  constructor(choices: Choices, names: string[], places: Place[], on: Asking) {
    this.model = modelField('zoo', names, places, choices, on.choose);
    this.device = deviceField('device', choices, on.device);
    this.by = h('select', { id: 'by', 'aria-label': 'By whose rules' }, ...choices.engines.map((engine) => h('option', { value: engine }, engine)), h('option', { value: 'plan' }, 'the planner’s own pools'));
    this.by.addEventListener('change', () => on.by(this.by.value));
    this.people.addEventListener('input', () => {
      const people = Math.trunc(Number(this.people.value));
      fit(this.people);
      if (people >= 1 && people <= 2 ** 32) on.people(people);
    });
    this.context.addEventListener('change', () => this.context.value.trim() !== '' && on.context(this.context.value.trim()));
    this.weights.addEventListener('change', () => this.weights.value !== 'typed' && on.weights(this.weights.value));
    this.reserve.addEventListener('change', () => on.reserve(this.reserve.value.trim()));
    this.price.addEventListener('change', () => on.price(this.price.value));
    const files = h('input', { id: 'files', type: 'file', multiple: true, accept: '.json,.gguf,.safetensors,.onnx' });
    files.addEventListener('change', () => {
      if (files.files && files.files.length > 0) on.choose(filesOf(files.files));
    });
    const pasted = h('textarea', { id: 'pasted', rows: 3, spellcheck: 'false', placeholder: '{ "model_type": …' });
    pasted.addEventListener('change', () => pasted.value.trim() !== '' && on.choose({ from: 'text', name: 'config.json', text: pasted.value }));
    const labelled = (label: string, input: HTMLElement, ...more: HTMLElement[]) => h('div', { class: 'side' }, h('label', { for: input.id }, label), ...more, input);
    byId('ask').append(
      h('p', { class: 'sentence' }, 'Does ', ...this.model.nodes, ' serve ', this.people, ' ', this.persons, ' at ', this.context, ' tokens on ', ...this.device.nodes, ' in ', this.by, '?'),
    );
    const more = folded(
      'Weights, screen, price, another beside it',
      h(
        'div',
        { class: 'sides' },
        labelled('Weights', this.weights, hint('Weights', MEANING.weights)),
        labelled('Left to a screen or others', this.reserve, hint('what is left to others', MEANING['--reserve'])),
        labelled('An hour of one GPU costs', this.price, hint('the price', MEANING.price)),
        h('button', { type: 'button', id: 'set-beside', click: () => on.beside() }, 'Set another beside it'),
      ),
    );
    more.id = 'more';
    // On a phone the answer comes first.
    const wide = matchMedia('(min-width: 821px)');
    const open = () => {
      more.open = wide.matches;
    };
    wide.addEventListener('change', open);
    open();
    byId('ask').append(
      h('div', { class: 'ask-row' }, labelled('GPUs', this.device.slider), more),
      folded(
        'A model of your own: a file, or a config.json',
        h('p', { class: 'help' }, choices.reads_disk ? 'A folder or file of this machine, or a name on Hugging Face, can be typed into the sentence.' : 'A name on Hugging Face, org/name, can be typed into the sentence.', ' Files can be dropped anywhere; nothing is uploaded.'),
        h('label', { for: 'files' }, 'config.json, .gguf, .safetensors, .onnx'),
        files,
        h('label', { for: 'pasted' }, 'Or paste a config.json'),
        pasted,
      ),
    );
  }

  showModel(chosen: Chosen, opened: Opened | null): void {
    this.model.show(chosen);
    if (!opened) return;
    const { stored, offered } = opened.weights;
    this.stored.textContent = stored === null ? 'as stored' : `as stored: ${bytes(stored)}`;
    const option = ({ word, called, bits, bytes: taken }: Offered) => {
      const each = bits === null ? '' : ` of ${rate(bits)} bits each`;
      return h('option', { value: word, disabled: taken === null }, taken === null ? `${called}: not known of this model` : `${called}${each}, assumed: ${bytes(taken)}`);
    };
    const files = h('optgroup', { label: 'A GGUF file, for llama.cpp' }, ...offered.filter(({ file }) => file).map(option));
    const chosenBefore = this.weights.value;
    this.weights.replaceChildren(this.typed, this.stored, ...offered.filter(({ file }) => !file).map(option), files);
    this.weights.value = chosenBefore;
  }

  /** The engine that answers where nobody names one. */
  showUsual(engine: string, state: State): void {
    this.usual = engine;
    this.by.value = state.by || engine;
  }

  /** Tokens of each sequence, as the sentence has them. */
  tokens(): number | null {
    return tokensOf(this.context.value);
  }

  /** What the state says; what is being typed stays. */
  show(state: State): void {
    if (document.activeElement !== this.people) this.people.value = String(state.people);
    fit(this.people);
    this.device.show(state.device);
    this.by.value = state.by || this.usual;
    this.persons.textContent = state.people === 1 ? 'person' : 'people';
    if (this.typed.hidden) this.weights.value = state.weights;
    // What the planner makes of it follows, where it makes anything of it.
    const [, stated] = /^\s*max_seq_len\s*=\s*["']?([^"'\s#]+)/m.exec(state.budget) ?? [];
    if (stated && document.activeElement !== this.context) this.context.value = /^\d+$/.test(stated) ? short(Number(stated)) : stated;
    fit(this.context);
    const [, left] = /^\s*reserve\s*=\s*["']?([^"'\s#]+)/m.exec(state.budget) ?? [];
    if (document.activeElement !== this.reserve) this.reserve.value = left ?? '';
    const [all, price] = [prices(state.fit.prices), priceOf(state.fit.prices, devices(state.device).name)];
    const currency = currencyOf(state.fit.prices);
    const listed = Object.entries(all).map(([name, each]) => `${name}=${currency}${each}`).join(', ');
    // One alone that is another device's has to say whose it is.
    const shown = Object.keys(all).length === 1 && price !== null ? `${currency}${price}` : listed;
    if (document.activeElement !== this.price) this.price.value = shown;
  }

  showPlan({ plan, devices: planned, weights_typed: typed }: Planned, state: State): void {
    this.typed.hidden = typed === null;
    this.typed.textContent = `as typed: ${typed}`;
    this.weights.value = typed === null ? state.weights : 'typed';
    // Ranks that the budget states are GPUs too.
    this.device.show(devicesText(planned, devices(state.device).name));
    const text = short(plan.limits.max_seq_len);
    if (document.activeElement !== this.context) this.context.value = text;
    fit(this.context, text);
  }
}
