// The plan in the words of each engine, with what each cannot be told; to copy and to download.

import { byId, download, h } from './dom';
import { count } from './format';
import type { Plan, Told } from './types';

/** The plan itself stands first, as `cacheplan plan --format json` prints it. */
const OWN = 'plan.json';

export class Flags {
  private target = 'vllm';
  private told: Told[] = [];
  private plan: Plan | null = null;
  private readonly select = h('select', { id: 'target' });
  private readonly answer = h('div', { class: 'answer' });

  constructor(targets: string[]) {
    this.select.append(...[...targets, OWN].map((name) => h('option', { value: name }, name)));
    this.select.value = this.target;
    this.select.addEventListener('change', () => {
      this.target = this.select.value;
      this.draw();
    });
    const choose = h('div', { class: 'control' }, h('label', { for: 'target' }, 'Engine'), this.select);
    byId('flags').append(choose, this.answer);
  }

  showPlan(plan: Plan): void {
    this.plan = plan;
    if (this.target === OWN) this.draw();
  }

  show(told: Told[]): void {
    this.told = told;
    this.draw();
  }

  private draw(): void {
    if (this.target === OWN) {
      this.file(OWN, JSON.stringify(this.plan, null, 2), []);
      return;
    }
    const told = this.told.find(({ target }) => target === this.target)?.told;
    if (told?.export) {
      const { engine, file_name, text, admits, not_expressed } = told.export;
      const admitted = admits === undefined ? engine : `${engine} admits ${count(admits)} sequences with these values.`;
      this.file(file_name, text, [admitted], not_expressed);
    } else {
      this.answer.replaceChildren(h('p', { class: 'refused' }, told?.error ?? ''));
    }
  }

  private file(name: string, text: string, said: string[], gaps: string[] = []): void {
    const status = h('span', { role: 'status' });
    const copy = async () => {
      await navigator.clipboard.writeText(text);
      status.textContent = ' Copied.';
    };
    this.answer.replaceChildren(
      ...said.map((line) => h('p', {}, line)),
      h('pre', { tabindex: 0, class: 'file', 'aria-label': name }, text),
      h('button', { type: 'button', click: () => void copy() }, 'Copy'),
      h('button', { type: 'button', click: () => download(name, text, 'text/plain') }, `Download ${name}`),
      status,
      gaps.length > 0 ? h('h3', {}, 'What it cannot be told') : '',
      h('ul', {}, ...gaps.map((gap) => h('li', {}, gap))),
    );
  }
}
