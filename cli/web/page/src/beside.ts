// Another model or another device beside the one that is asked about, at the same length and for as many people.

import { byId, draw, h } from './dom';
import { AnswerCard, type Card } from './answer';
import { deviceField, modelField } from './ask';
import { nameOf, type Chosen } from './model';
import { Refused } from './planner';
import type { State } from './state';
import type { Admits, Choices, Pictures, Place, Planned } from './types';

export class Beside {
  private readonly model: ReturnType<typeof modelField>;
  private readonly device: ReturnType<typeof deviceField>;
  private readonly form: HTMLElement;
  private readonly at = h('div', { class: 'card', id: 'beside-card', role: 'status' });
  private readonly card = new AnswerCard(this.at);

  constructor(choices: Choices, names: string[], places: Place[], change: (beside: State['beside']) => void, private state: () => State) {
    const set = (part: Partial<NonNullable<State['beside']>>) => change({ ...this.state().beside!, ...part });
    this.model = modelField('beside-zoo', names, places, choices, (chosen) => set({ chosen }));
    this.device = deviceField('beside-device', choices, (device) => set({ device }));
    const away = h('button', { type: 'button', click: () => change(null) }, 'Take it away');
    this.form = h(
      'div',
      { class: 'beside-form', hidden: true },
      h('p', { class: 'sentence second' }, 'And ', ...this.model.nodes, ' on ', ...this.device.nodes, '?'),
      h('div', { class: 'sides' }, h('div', { class: 'side' }, h('label', { for: 'beside-device-slider' }, 'GPUs'), this.device.slider), away),
    );
    byId('ask').querySelector('.ask-row')!.after(this.form);
    byId('answers').append(this.at);
    this.at.hidden = true;
  }

  /** Shows what is asked. */
  show(state: State): void {
    const { beside } = state;
    this.form.hidden = this.at.hidden = beside === null;
    document.body.classList.toggle('compares', beside !== null);
    byId('set-beside').hidden = beside !== null;
    if (!beside) return;
    this.model.show(beside.chosen ?? state.chosen);
    this.device.show(beside.device);
  }

  /** Plans it, and shows the answer; what is refused is its answer too. */
  async refresh(state: State, card: Card, plan: (chosen: Chosen, device: string) => Promise<Planned>): Promise<void> {
    const { beside } = state;
    if (!beside) return;
    const chosen = beside.chosen ?? state.chosen;
    const of = { ...card, title: `${nameOf(chosen)} on ${beside.device}`, map: undefined };
    try {
      const found = await plan(chosen, beside.device);
      this.card.plan({ found }, { ...of, map: smallMap(found.pictures) });
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      this.card.plan({ failure: error.failure }, { ...of, map: h('p', { class: 'refused' }, error.message.split('\n')[0]!) });
    }
  }

  engines(admits: Admits): void {
    this.card.engines(admits);
  }
}

/** The memory of one of two. */
export function smallMap({ map }: Pictures): HTMLElement {
  return h('div', { class: 'small-map' }, draw(map));
}
