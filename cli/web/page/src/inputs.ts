// The budget. Every control is a key of its TOML: either edits the other.

import { byId, folded, h } from './dom';
import { count, plain, tokensOf } from './format';
import { modelField } from './ask';
import { filesOf, type Chosen } from './model';
import { hint } from './term';
import type { Choices, Key, Place, Planned } from './types';

interface Slider {
  key: string;
  label: string;
  steps: number[];
  show: (value: number) => string;
}

/** Shows what a plan was made with. */
type Show = (found: Planned) => void;

function doubling(from: number, to: number, between: boolean): number[] {
  const steps: number[] = [];
  for (let at = from; at <= to; at *= 2) {
    steps.push(at);
    if (between && at > 1 && at * 1.5 < to) steps.push(at * 1.5);
  }
  return steps;
}

const ranks = doubling(1, 64, false);
const SLIDERS: Slider[] = [
  { key: 'max_seq_len', label: 'Context', steps: doubling(1024, 1 << 20, true), show: (value) => `${count(value)} tokens` },
  { key: 'max_batch_size', label: 'Sequences at most', steps: doubling(1, 4096, true), show: count },
  {
    key: 'memory.fraction',
    label: 'Share of the device',
    steps: Array.from({ length: 51 }, (_, at) => (50 + at) / 100),
    show: (value) => `${Math.round(100 * value)} %`,
  },
  { key: 'parallel.tp', label: 'Tensor parallel', steps: ranks, show: count },
  { key: 'parallel.pp', label: 'Pipeline stages', steps: ranks, show: count },
  { key: 'parallel.dp', label: 'Replicas', steps: ranks, show: count },
  { key: 'parallel.ep', label: 'Expert parallel', steps: ranks, show: count },
];

/** What llama.cpp alone keeps keys and values in. */
const OF_LLAMA_CPP = ['q8_0', 'q4_0'];

const DTYPES: [string, string, string[]][] = [
  ['dtypes.kv', 'Keys and values', ['bf16', 'f16', 'fp8', 'f32', ...OF_LLAMA_CPP]],
  ['dtypes.ssm', 'Recurrent states', ['f32', 'bf16', 'f16']],
];

export interface Inputs {
  /** Shows the values that a budget states; a control that is being moved stays. */
  show(found: Planned): void;
  showBudget(text: string): void;
  showDraft(draft: Chosen | null): void;
  showStages(stages: number, stage: number): void;
}

export interface Events {
  /** The model that drafts, or none. */
  draft(chosen: Chosen | null): void;
  set(key: string, value: string | null): void;
  budget(text: string): void;
  stage(stage: number): void;
}

export function makeInputs(
  choices: Choices,
  zoo: string[],
  places: Place[],
  on: Events,
): Inputs {
  const shows: Show[] = [];
  const control = (label: string, help: string, input: HTMLElement, ...more: HTMLElement[]) => {
    const id = `input-${label.replaceAll(/[^a-zA-Z]+/g, '-')}`;
    input.id = id;
    return h('div', { class: 'control' }, h('label', { for: id }, label), hint(label, help), input, ...more);
  };
  const helpOf = (path: string) => choices.keys.find((key) => key.path === path)?.help ?? '';

  const parts: HTMLElement[] = [];

  for (const slider of SLIDERS) {
    const input = h('input', { type: 'range', min: 0, max: slider.steps.length - 1, step: 1 });
    const output = h('output');
    const unset = h('button', { type: 'button', class: 'unset', 'aria-label': `${slider.label}: not set` }, '×');
    const say = (text: string) => {
      output.textContent = text;
      input.setAttribute('aria-valuetext', text);
    };
    input.addEventListener('input', () => {
      performance.mark('slider');
      const value = slider.steps[Number(input.value)]!;
      say(slider.show(value));
      on.set(slider.key, String(value));
    });
    unset.addEventListener('click', () => on.set(slider.key, null));
    const place = control(slider.label, helpOf(slider.key), input, output, unset);
    output.setAttribute('for', input.id);
    const otherwise = choices.keys.find((key) => key.path === slider.key)?.default ?? 'not set';
    shows.push(({ stated, usual, plan }) => {
      const value = stated[slider.key];
      unset.hidden = value === undefined;
      place.classList.toggle('is-default', value === undefined);
      // What the plan came to where nobody states it: several devices are ranks.
      const made: Record<string, number | undefined> = { max_batch_size: plan.capacity.sequences, 'parallel.tp': plan.parallel.tp };
      const text = plain(String(value ?? usual[slider.key] ?? made[slider.key] ?? otherwise));
      const holds = tokensOf(text) ?? Number(text);
      if (document.activeElement !== input && holds > 0) input.value = String(nearest(slider.steps, holds));
      const shown = Number.isNaN(holds) ? text : slider.show(holds);
      const unsaid = usual[slider.key] === undefined && slider.key !== 'parallel.tp' ? otherwise : shown;
      say(value === undefined ? unsaid : shown);
    });
    parts.push(place);
  }

  for (const [key, label, names] of DTYPES) {
    const input = h('select', {}, h('option', { value: '' }, "the model's own"), ...names.map((name) => h('option', { value: name }, OF_LLAMA_CPP.includes(name) ? `${name}, of llama.cpp` : name)));
    input.addEventListener('change', () => on.set(key, input.value || null));
    shows.push(({ stated }) => {
      const value = plain(stated[key] ?? '""');
      if (![...input.options].some((option) => option.value === value)) input.append(h('option', {}, value));
      input.value = value;
    });
    parts.push(control(label, helpOf(key), input));
  }

  const stage = h('input', { type: 'number', min: 0, value: 0 });
  stage.addEventListener('change', () => on.stage(Number(stage.value)));
  const stagePlace = control('Pipeline stage shown', 'Each stage has a plan of its own', stage);
  parts.push(stagePlace);

  const text = h('textarea', { rows: 6, spellcheck: 'false', autocomplete: 'off' });
  text.addEventListener('input', () => on.budget(text.value));
  const budget = h('div', { class: 'control toml' }, h('label', { for: 'toml' }, 'The same as TOML, as --budget reads it'), text);
  text.id = 'toml';

  const known = new Set([...SLIDERS.map((slider) => slider.key), ...DTYPES.map(([key]) => key)]);
  const rest = choices.keys.filter((key) => !known.has(key.path));
  const sections = [...new Set(rest.map((key) => key.section))].map((section) => {
    const keys = rest.filter((key) => key.section === section);
    return folded(section === '' ? 'Other keys' : `[${section}]`, ...keys.map((key) => otherKey(key, control, shows, on)));
  });
  const draft = modelField('draft-zoo', zoo, places, choices, on.draft);
  const draftFiles = h('input', { id: 'draft-files', type: 'file', multiple: true, accept: '.json,.gguf,.safetensors' });
  draftFiles.addEventListener('change', () => draftFiles.files && draftFiles.files.length > 0 && on.draft(filesOf(draftFiles.files)));
  const drafts = folded(
    'Draft model',
    h('p', { class: 'help' }, 'A smaller model that guesses tokens ahead; 4 of them where nothing else is said.'),
    ...draft.nodes,
    h('label', { for: 'draft-files' }, 'Or its files'),
    draftFiles,
    h('button', { type: 'button', click: () => on.draft(null) }, 'Without a draft model'),
  );
  byId('change').append(
    h('p', { class: 'help' }, 'In the planner’s own pools, unless a button names an engine:'),
    h('div', { class: 'knobs' }),
    h('div', { class: 'controls' }, ...parts),
    drafts,
    folded('Every other key of the budget', ...sections),
    budget,
  );

  return {
    show: (found) => shows.forEach((show) => show(found)),
    showBudget: (value) => {
      if (text.value !== value) text.value = value;
    },
    showDraft: (chosen) => {
      if (chosen) draft.show(chosen);
    },
    showStages: (stages, shown) => {
      stagePlace.hidden = stages < 2;
      stage.max = String(stages - 1);
      if (document.activeElement !== stage) stage.value = String(shown);
    },
  };
}

function nearest(steps: number[], value: number): number {
  const distance = (step: number) => Math.abs(Math.log(step) - Math.log(value));
  return steps.reduce((best, step, at) => (distance(step) < distance(steps[best]!) ? at : best), 0);
}

/** A key without a slider: a list of its choices, or the text that the file would have. */
function otherKey(
  key: Key,
  control: (label: string, help: string, input: HTMLElement, ...more: HTMLElement[]) => HTMLElement,
  shows: Show[],
  on: Events,
): HTMLElement {
  const help = h('p', { class: 'help' }, `Default: ${key.default}.`);
  if (key.values.kind === 'choice') {
    const names = key.values.names.map(([name, meaning]) => h('option', { value: name, title: meaning }, name));
    const input = h('select', {}, h('option', { value: '' }, 'not set'), ...names);
    input.addEventListener('change', () => on.set(key.path, input.value || null));
    shows.push(({ stated }) => {
      input.value = plain(stated[key.path] ?? '""');
    });
    return control(key.path, key.help, input, help);
  }
  const input = h('input', { type: 'text', spellcheck: 'false', autocomplete: 'off', placeholder: key.default });
  input.addEventListener('change', () => on.set(key.path, input.value.trim() || null));
  shows.push(({ stated }) => {
    if (document.activeElement !== input) input.value = plain(stated[key.path] ?? '""');
  });
  return control(key.path, key.help, input, help);
}
