// The layers in model order, as the planner drew them.

import { byId, draw, h, usable, type Drawing } from './dom';

export function showLayers(layers: Drawing, explain: (subject: string) => void): void {
  const picture = draw(layers);
  const told = h('p', { class: 'told', 'aria-live': 'polite' }, 'Point at a layer, or click it to see why it has its bytes.');
  usable(picture, ([text]) => told.replaceChildren(text ?? ''), (part) => explain(part.dataset['subject']!));
  const section = byId('layers');
  section.replaceChildren(section.querySelector('h2')!, told, picture);
}
