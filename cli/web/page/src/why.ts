// Why the answer is what it is: what a token and a sequence take, what was read of the model, and the derivation of the number.

import { byId, folded, h } from './dom';
import { count } from './format';
import { steps } from './map';
import type { Derivation, Opened, Planned } from './types';

export class Why {
  private readonly totals = h('p', {});
  private readonly notes = h('ul', { class: 'notes' });
  private readonly derivation = h('div', { class: 'derived', 'aria-live': 'polite' });
  private readonly derive = h('button', { type: 'button' }, 'Where the number comes from');
  private readonly ranks = folded('What the GPUs agreed on');
  private readonly said = h('div', { class: 'said' });

  constructor(explain: (subject: string) => Promise<Derivation>, guarded: (run: () => Promise<void>) => Promise<boolean>) {
    this.derive.addEventListener('click', () => {
      void guarded(async () => this.derivation.replaceChildren(steps(await explain('capacity'))));
    });
    const planned = h('div', { class: 'planned' }, this.totals, this.notes, this.derive, this.derivation, this.ranks);
    byId('why').append(planned, this.said);
  }

  showPlan({ totals, notes, ranks, at_best }: Planned): void {
    this.totals.textContent = `${totals}.`;
    const all = [...notes, ...(at_best === null ? [] : [`At best: ${at_best.bound_by === 'memory' ? 'reading memory' : 'multiplying'} takes longest; rates of the GPU by ${at_best.source}.`])];
    this.notes.replaceChildren(...all.map((note) => h('li', {}, note)));
    this.derivation.replaceChildren();
    this.ranks.hidden = ranks === null;
    this.ranks.replaceChildren(this.ranks.firstElementChild!, h('pre', { tabindex: 0 }, ranks ?? ''));
  }

  showModel(title: string, model: Opened): void {
    document.title = `${title} · cacheplan`;
    const longest = model.longest === null ? '' : `, up to ${count(model.longest)} tokens`;
    this.said.replaceChildren(
      h('h3', { class: 'chosen' }, title),
      h('p', {}, `${model.type}, ${model.dtype}${longest}`),
      h('p', {}, `${model.source}; assumed: ${model.assumed}`),
      folded('What was read, and what was assumed', h('pre', { tabindex: 0 }, model.inspection)),
    );
  }

  /** Takes away what was said of the model before. */
  showNoModel(): void {
    document.title = 'cacheplan';
    this.said.replaceChildren();
  }
}
