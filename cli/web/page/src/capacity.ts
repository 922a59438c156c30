// How many sequences fit over their length, ours and each engine's, as the planner drew it.

import { byId, draw, folded, h } from './dom';
import type { Charts } from './types';

export function showCapacity({ curves, more, numbers }: Charts): void {
  const scrolls = (table: Element) => h('div', { class: 'scrolls', tabindex: 0 }, table);
  const section = byId('capacity');
  const children = [draw(curves), folded('The same as a table', scrolls(draw(numbers!))), scrolls(draw(more))];
  section.replaceChildren(section.querySelector('h2')!, ...children);
}
