// The memory of one GPU as the planner drew it. A click goes down, to a layer's tensor and its axes.

import { draw, folded, h, usable } from './dom';
import type { Derivation, Pictures } from './types';

export class MemoryMap {
  private readonly path = h('nav', { class: 'path', 'aria-label': 'Where in the memory' });
  private readonly picture = h('div', {});
  private readonly facts = h('dl', { class: 'facts' });
  private readonly why = h('div', { class: 'why', 'aria-live': 'polite' });
  private readonly terms = h('dl', { class: 'facts terms' });
  private readonly numbers = folded('The same as a table');
  private focus = false;

  /** `go` is told the names of the parts that are gone into, `explain` what is to be explained. */
  constructor(
    within: HTMLElement,
    private readonly go: (into: string[]) => void,
    private readonly explain: (subject: string) => Promise<Derivation>,
  ) {
    const how = h('p', { class: 'help' }, 'Point at a part for its bytes, its owner and why; click it to go into it.');
    const side = h('div', { class: 'beside' }, how, this.facts, this.why);
    within.append(this.path, h('div', { class: 'with-side' }, h('div', {}, this.picture, this.terms), side), this.numbers);
  }

  show({ path, map, ledger }: Pictures, terms: [string, string][]): void {
    this.terms.replaceChildren(...terms.flatMap(([pool, meaning]) => [h('dt', {}, pool), h('dd', {}, meaning)]));
    const names = path.slice(1).map(([name]) => name);
    this.path.replaceChildren(
      ...path.map(([, title], at) => {
        if (at === path.length - 1) return h('span', { 'aria-current': 'location' }, title);
        return h('button', { type: 'button', click: () => this.leave(names.slice(0, at)) }, title);
      }),
    );
    const picture = draw(map);
    usable(picture, (facts) => this.tell(facts), (part) => {
      const { into, subject } = part.dataset;
      if (into) this.leave([...names, into]);
      if (subject) void this.derive(subject);
    });
    this.picture.replaceChildren(picture);
    this.tell([path.at(-1)![1].replace(' · ', ': ')]);
    if (this.focus) this.picture.querySelector<SVGElement>('.part')?.focus();
    this.focus = false;
    this.numbers.replaceChildren(this.numbers.firstElementChild!, h('div', { class: 'scrolls', tabindex: 0 }, draw(ledger)));
  }

  private leave(into: string[]): void {
    this.focus = true;
    this.go(into);
  }

  private tell(facts: string[]): void {
    const rows = facts.map((fact) => fact.split(/: (.*)/s));
    this.facts.replaceChildren(...rows.flatMap(([name, text]) => [h('dt', {}, name), h('dd', {}, text)]));
  }

  async derive(subject: string): Promise<void> {
    const derivation = await this.explain(subject);
    this.why.replaceChildren(h('h3', {}, `Why: ${subject}`), steps(derivation));
  }
}

/** A derivation as a list in lists. */
export function steps(derivation: Derivation): HTMLElement {
  return h('ul', { class: 'derivation' }, step(derivation));
}

function step({ claim, from }: Derivation): HTMLElement {
  return h('li', {}, claim, from && from.length > 0 ? h('ul', {}, ...from.map(step)) : null);
}
