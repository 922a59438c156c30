// Words that need one, with their meaning where they stand: shown by pointer, keyboard and touch.

import { h } from './dom';

/** What the answer's words mean. */
export const MEANING = {
  sequences: 'A sequence is one request with its prompt and its answer, as long as it runs. A server that answers so many people at once runs as many of them.',
  context: 'The most tokens of one sequence, prompt and answer together. Every sequence is planned at this length.',
  'capped by': 'What the next sequence would break.',
  memory: 'The bytes that the GPU has left for caches, once the weights and everything else have theirs.',
  max_batch_size: 'The budget states the most sequences at once; memory would hold more.',
  max_num_tokens: 'Every running sequence takes a token of each step, and the budget states the most tokens of a step.',
  'another rank': 'All GPUs run the same sequences, and another one has less room for them.',
  'the most that is planned': 'More sequences than any scheduler runs are not planned.',
  'at best': 'A bound, which no software exceeds: in a step the GPU reads each weight that is used and each cache that is attended to, and multiplies. Servers reach a part of it. Speculation and cached prefixes are left out.',
  weights: 'Files as they are published, or what they would take with 8 or 4 bits in each weight of the layers: 8 as fp8 alone, 4 with a scale of 16 bits for every 32 of them. A GGUF file has so many bits for each weight as llama-quantize states of Llama 3.1 8B. All of that is assumed: whether somebody publishes such files, and how well they answer, is not known here; what a file takes can be typed below as memory.weights.',
  price: 'What one GPU costs for an hour, in any currency: one number for the GPU of the question, or h100=$2.50, h200=$3.10 for several, of which “Other devices” then chooses. Nothing is assumed where it is empty.',
  'own pools': 'Pools as this planner divides the memory, which no engine has: what the caches of the model need at least. An engine’s own number is that of its rules; name one in the question to have it as the answer.',
  config: 'What the model is: one of the zoo, a name on Hugging Face, or one that `cacheplan web` was given. Of a file that is not here nothing else tells it.',
  '--weights': 'What the file of its weights takes, such as 4.92GB for a Q4_K_M of 8 billion weights; else what its config comes to.',
  '--reserve': 'What others take of each GPU, such as 1GiB for a screen on it; nothing where it is empty.',
  engines: 'What engines hold by rules of their own, started with the command below: each takes memory for its steps, divides the rest in its way, and some of that is known within bounds alone.',
} as const;

export type Meant = keyof typeof MEANING;

let number = 0;

/** A word that says what it means; `text` in its place where that stands otherwise in a sentence. */
export function term(word: string, meaning: string, text = word): HTMLElement {
  const id = `meaning-${(number += 1)}`;
  const tip = h('span', { class: 'tip', role: 'tooltip', id }, meaning);
  const button = h('button', { type: 'button', class: 'term', 'aria-describedby': id }, text);
  const around = h('span', { class: 'with-tip' }, button, tip);
  const show = (shown: boolean) => {
    around.classList.toggle('shown', shown);
    if (!shown) return;
    // Within the page, wherever the word stands.
    tip.style.translate = '';
    const { left, right } = tip.getBoundingClientRect();
    const over = Math.max(0, right - document.documentElement.clientWidth + 8);
    tip.style.translate = `${Math.max(-over, 8 - left)}px`;
  };
  for (const kind of ['mouseenter', 'focusin', 'click']) around.addEventListener(kind, () => show(true));
  for (const kind of ['mouseleave', 'focusout']) around.addEventListener(kind, () => show(around.matches(':hover') && kind === 'focusout'));
  around.addEventListener('keydown', ({ key }) => key === 'Escape' && show(false));
  return around;
}

/** A word of the answer. */
export function meant(word: Meant, text?: string): HTMLElement {
  return term(word, MEANING[word], text);
}

/** A mark behind a label, with the help on it. */
export function hint(label: string, help: string): HTMLElement {
  const mark = term(label, help, '?');
  mark.classList.add('hint');
  mark.querySelector('button')!.setAttribute('aria-label', `What is ${label}?`);
  return mark;
}
