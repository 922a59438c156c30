// The layers in model order: kind, window, sharing, pool, bytes. Layers alike look alike, so that the odd ones stand out.

import { onColour, poolColour } from './colours';
import { byId, h } from './dom';
import { bytes, count, ranges } from './format';
import type { Layer, Plan, Resource } from './types';

interface Alike {
  /** What all of them are. */
  text: string;
  layers: number[];
  fills: string[];
  mark: string;
  /** Bytes of each of them on the device. */
  bytes: number;
}

/** Groups of layers that are alike, in order of first appearance. */
export function alike(plan: Plan, layers: Layer[]): Alike[] {
  const groups = new Map<string, Alike>();
  const pools = new Map(plan.pools.map((pool, place) => [pool.id, { pool, place }]));
  const own = new Map<number, Resource[]>();
  const readers = new Map<number, string>();
  for (const resource of plan.resources) {
    if (resource.drafts) continue;
    if (resource.layer !== null) own.set(resource.layer, [...(own.get(resource.layer) ?? []), resource]);
    for (const layer of resource.shared_by ?? []) readers.set(layer, resource.name);
  }
  for (let layer = 0; layer < plan.model.layers; layer += 1) {
    const spec = layers[layer];
    const resources = own.get(layer) ?? [];
    const places = resources.map((resource) => pools.get(resource.pool));
    const parts = [spec ? `${spec.kind} (${spec.blocks.join(', ')})` : 'layer'];
    if (spec?.window) parts.push(`window of ${count(spec.window)}`);
    parts.push(...resources.map((resource) => `${resource.kind} in ${resource.owner === 'local' ? 'a tensor of its own' : resource.pool}`));
    const shared = readers.get(layer) !== undefined;
    if (shared) parts.push("reads another layer's keys and values");
    if (resources.length === 0 && !shared) parts.push('no cache');
    const size = resources.reduce((sum, resource, at) => {
      const pool = places[at]?.pool;
      const member = pool?.members.find((one) => one.resource === resource.name);
      return sum + (member?.bytes ?? 0) * (pool?.units ?? 0);
    }, 0);
    const text = parts.join('; ');
    const key = `${text} ${size}`;
    const fills = places.flatMap((found) => (found ? [poolColour(found.place)] : []));
    const mark = shared ? '↑' : spec?.window ? 'w' : '';
    const group = groups.get(key) ?? { text, layers: [], fills, mark, bytes: size };
    group.layers.push(layer);
    groups.set(key, group);
  }
  return [...groups.values()];
}

export function showLayers(plan: Plan, layers: Layer[], explain: (subject: string) => void): void {
  const groups = alike(plan, layers);
  const of = new Map(groups.flatMap((group) => group.layers.map((layer) => [layer, group] as const)));
  const most = Math.max(...groups.map((group) => group.layers.length));
  const strip = h('div', { class: 'strip', role: 'group', 'aria-label': 'Layers in model order' });
  const told = h('p', { class: 'told', 'aria-live': 'polite' }, 'Point at a layer, or click it to see why it has its bytes.');
  for (let layer = 0; layer < plan.model.layers; layer += 1) {
    const group = of.get(layer)!;
    const text = `layer ${layer}: ${group.text}; ${bytes(group.bytes)}`;
    const odd = group.layers.length * 8 <= most;
    const bands = group.fills.map((fill) => {
      const band = h('i');
      band.style.backgroundColor = fill;
      return band;
    });
    const mark = group.mark ? h('b', { 'aria-hidden': 'true' }, group.mark) : null;
    if (mark && group.fills[0]) mark.style.color = onColour(group.fills[0]);
    const button = h('button', { type: 'button', class: odd ? 'odd' : '', 'aria-label': text }, ...bands, mark);
    const tell = () => {
      told.textContent = text;
    };
    button.addEventListener('mouseenter', tell);
    button.addEventListener('focus', tell);
    button.addEventListener('click', () => explain(String(layer)));
    strip.append(button);
  }
  const legend = h(
    'ul',
    { class: 'legend' },
    ...groups.map((group) => {
      const swatches = (group.fills.length > 0 ? group.fills : ['']).map((fill) => {
        const swatch = h('i', { class: 'swatch' });
        if (fill) swatch.style.backgroundColor = fill;
        return swatch;
      });
      return h('li', {}, ...swatches, `${group.layers.length} × ${group.text}, ${bytes(group.bytes)} each: ${ranges(group.layers)}`);
    }),
  );
  const section = byId('layers');
  section.replaceChildren(section.querySelector('h2')!, strip, told, legend);
}
