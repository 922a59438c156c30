// The prefix cache over a workload: hit rate over the number of checkpoints, for each policy.

import { byId, draw, folded, h, type Drawing } from './dom';
import { count } from './format';
import type { Simulated } from './types';

export const CHECKPOINTS = [1, 4, 16, 64, 256, 1024];

export const WORKLOADS: [string, string][] = [
  ['chat', 'conversations, single questions and prompts sent again'],
  ['agents', 'long contexts that grow, retry and branch'],
  ['rag', 'documents behind a system prompt'],
];

export function workloadForm(workload: string, changed: (workload: string) => void): HTMLElement {
  const input = h('select', { id: 'workload' }, ...WORKLOADS.map(([name, meaning]) => h('option', { value: name }, `${name}: ${meaning}`)));
  input.value = workload;
  input.addEventListener('change', () => changed(input.value));
  return h('div', { class: 'control' }, h('label', { for: 'workload' }, 'Workload'), input);
}

/** What was simulated so far, as the planner draws it: each policy with its hit rates by the number of checkpoints. */
export function rates(found: Simulated[]): [string, [number, number][]][] {
  const { policies } = found.at(-1)!;
  return policies.map(({ policy }, at) => [
    policy,
    found.map((one) => one.policies[at]!.points[0]!).map(({ checkpoints, hit_rate }) => [checkpoints, hit_rate]),
  ]);
}

export function showPrefix({ planned, states, reuse }: Simulated, drawn: { picture: Drawing; numbers: Drawing }): void {
  const about = states
    ? `This plan has room for ${count(planned)} checkpoints; the sizes of its other pools are simulated as they are.`
    : 'This model keeps no states: every page that is resident is a hit, whatever the checkpoints.';
  byId('prefix')
    .querySelector('.answer')
    ?.replaceChildren(
      h('p', {}, about),
      reuse ? h('p', {}, reuse) : h('span'),
      draw(drawn.picture),
      folded('The same as a table', draw(drawn.numbers)),
    );
}
