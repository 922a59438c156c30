// The prefix cache over a workload: hit rate over the number of checkpoints, for each policy.

import { LINES } from './colours';
import { chart } from './chart';
import { byId, folded, h, table } from './dom';
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

/** Shows what was simulated so far, for one number of checkpoints after the other. */
export function showPrefix(found: Simulated[]): void {
  const { policies, planned, states, reuse } = found.at(-1)!;
  const percent = (value: number) => `${(100 * value).toFixed(1)} %`;
  const rate = (one: Simulated, policy: number) => one.policies[policy]!.points[0]!;
  const lines = policies.map(({ policy }, at) => ({
    name: policy,
    ...LINES[at % LINES.length]!,
    points: found.map((one): [number, number] => [rate(one, at).checkpoints, rate(one, at).hit_rate]),
  }));
  const rows = found.map((one) => [count(rate(one, 0).checkpoints), ...policies.map((_, at) => percent(rate(one, at).hit_rate))]);
  const about = states
    ? `This plan has room for ${count(planned)} checkpoints; the sizes of its other pools are simulated as they are.`
    : 'This model keeps no states: every page that is resident is a hit, whatever the checkpoints.';
  byId('prefix')
    .querySelector('.answer')
    ?.replaceChildren(
      h('p', {}, about),
      reuse ? h('p', {}, reuse) : h('span'),
      chart(lines, {
        label: 'Share of prompt tokens that are not computed again, over the number of checkpoints; the table below has the numbers',
        xName: 'checkpoints of states',
        yName: 'hit tokens over prompt tokens',
        x: count,
        y: percent,
        logY: false,
        within: byId('prefix'),
        mark: planned,
      }),
      folded('The same as a table', table('Hit rate by checkpoints', ['checkpoints', ...policies.map(({ policy }) => policy)], rows)),
    );
}
