// How many sequences fit over their length: ours, coloured by what runs out first, and each engine's.

import { LINES, poolColour } from './colours';
import { chart, type Line } from './chart';
import { byId, folded, h, table } from './dom';
import { bytes, count, tokens } from './format';
import type { Curves, Plan } from './types';

/** The lengths of a curve: 1,024 to 1,048,576 tokens. */
export const CONTEXTS = Array.from({ length: 11 }, (_, power) => 1024 << power);

export function showCapacity(curves: Curves, plan: Plan): void {
  const caps = [...new Set(curves.ours.map((point) => point.capped_by))];
  const colourOf = (cap: string) => {
    const place = plan.pools.findIndex((pool) => pool.id === cap);
    return place >= 0 ? poolColour(place) : 'var(--line-1)';
  };
  const held = (points: { context: number; sequences: number }[]): [number, number][] =>
    points.filter((point) => point.sequences > 0).map((point) => [point.context, point.sequences]);
  const points = curves.ours.filter((point) => point.sequences > 0);
  const ours: Line = {
    name: 'cacheplan',
    ...LINES[0]!,
    points: held(points),
    note: (at) => `capped by ${points[at]!.capped_by}`,
    colourAt: (at) => colourOf(points[at]!.capped_by),
  };
  const theirs = curves.engines.map((engine, at) => ({ name: engine.engine, ...LINES[(at + 1) % LINES.length]!, points: held(engine.points) }));
  // Ours is drawn last, on top of those that are equal.
  const lines = [...theirs, ours].filter((line) => line.points.length > 0);
  const section = byId('capacity');
  const children: Node[] = [section.querySelector('h2')!];
  if (lines.length === 0) {
    children.push(h('p', {}, 'Nothing is held at any length.'));
  } else {
    children.push(
      h('p', {}, 'Sequences at once, each as long as the axis says; both axes are logarithmic.'),
      chart(lines, {
        label: 'Sequences at once over the length of each, for cacheplan and each engine; the table below has the numbers',
        xName: 'tokens of each sequence',
        yName: 'sequences',
        x: tokens,
        y: count,
        logY: true,
        within: section,
        mark: plan.limits.max_seq_len,
      }),
      h(
        'ul',
        { class: 'legend' },
        ...caps.map((cap) => {
          const swatch = h('i', { class: 'swatch' });
          swatch.style.backgroundColor = colourOf(cap);
          return h('li', {}, swatch, `ours is capped by ${cap}`);
        }),
      ),
    );
  }
  const head = ['tokens', 'cacheplan', 'capped by', ...curves.engines.map((engine) => engine.engine)];
  const rows = curves.ours.map((point) => [
    count(point.context),
    count(point.sequences),
    point.capped_by,
    ...curves.engines.map((engine) => {
      const there = engine.points.find((other) => other.context === point.context);
      return there ? count(there.sequences) : '-';
    }),
  ]);
  children.push(folded('The same as a table', table('Sequences at once by the length of each', head, rows)));
  const here = curves.engines.map(({ engine, row, error }) =>
    row
      ? [`${row.engine} ${row.version}`, count(row.sequences), count(row.engine_sequences), bytes(row.wasted_bytes), bytes(row.engine_wasted_bytes), h('ul', {}, ...row.why.map((why) => h('li', {}, why)))]
      : [engine, '-', '-', '-', '-', error],
  );
  const caption = 'With this budget and the dtypes that each engine chooses, for the same bytes';
  children.push(table(caption, ['engine', 'ours', "engine's", 'our waste', 'its waste', 'why'], here));
  section.replaceChildren(...children);
}
