// The parts below the answer that take longer: each is asked for when it is in sight.

import { admitted } from './answer';
import { showCapacity } from './capacity';
import { byId, h, type Drawing } from './dom';
import { fitAnswer, layout, priced, showFit, surely, tried } from './fit';
import type { Flags } from './flags';
import { count, devices } from './format';
import { Later, type Part } from './later';
import type { Model } from './model';
import type { Planner } from './planner';
import { CHECKPOINTS, rates, showPrefix } from './prefix';
import type { State } from './state';
import { showTiers, type TierForm } from './tiers';
import type { Curves, Fit, Fits, Planned, Simulated, Tiered, Told } from './types';

/** What the parts know of what is asked by then. */
export interface Asked {
  planner: Planner;
  state(): State;
  model(): Model;
  planned(): Planned | null;
  /** Tokens of each sequence. */
  tokens(): number;
  ask<T>(planner: Planner, question: object, bytes?: BlobPart[]): Promise<T>;
  width(): number;
  apply(fit: Fit): void;
  /** Asks an engine, or all of them, and shows what they hold in the answer. */
  admits(by: string | null): Promise<void>;
  /** The same of what stands beside it. */
  admitsBeside(): Promise<void>;
  remember(): Promise<void>;
  busy(): boolean;
  guarded(run: () => Promise<void>, section: HTMLElement): Promise<boolean>;
}

export function below(asked: Asked, flags: Flags, tiers: TierForm): Later {
  const { planner, state, ask, width } = asked;
  const part = (run: () => Promise<void>, always = false): Part => ({ due: false, seen: always, always, run });
  const fits = (names: string[], most: number, by: string): Promise<Fits> => {
    const { fit, people, weights, budget } = state();
    return asked.model().ask<Fits>(planner, (model) => ({
      ask: 'fit',
      model,
      context: asked.tokens(),
      sequences: people,
      devices: names,
      max_devices: most,
      prices: priced(fit.prices),
      weights: weights || null,
      budget,
      as: by || null,
      width: width(),
    }));
  };

  /** The same GPUs divided otherwise, where that holds more. Devices are tried with no other key of the budget. */
  async function change(): Promise<void> {
    const { device, people, by } = state();
    const { count: number, name } = devices(device);
    const planned = asked.planned();
    const isPlain = planned && Object.keys(planned.stated).every((key) => ['max_seq_len', 'memory.weights', 'memory.reserve'].includes(key));
    if (!isPlain || number === 1 || number > 64) return;
    // Engines take longer to ask, so that they are where the answer hangs on it.
    if (by !== 'plan' && byId('summary').querySelector('.verdict.yes')) return;
    const alike = (await fits([name], number, by)).answer.fits.filter((fit) => fit.devices === number && fit.kv_dtype === null && fit.state_dtype === null);
    const held = by === 'plan' ? admitted(planned) : surely(alike.find((fit) => layout(fit) === layout(planned.plan)));
    const best = alike.reduce<Fit | null>((best, fit) => (surely(fit) > (best ? surely(best) : held) ? fit : best), null);
    if (!best || asked.planned() !== planned || later.isDue('answers')) return;
    const knobs = byId('change').querySelector('.knobs')!;
    const divide = (text: string) => h('button', { type: 'button', class: 'knob layout', click: () => asked.apply(best) }, text);
    const said = `the same ${number} GPUs as ${layout(best)}`;
    knobs.querySelector('.layout')?.remove();
    knobs.prepend(divide(`${said} would admit ${count(surely(best))}${by === 'plan' ? '' : ` in ${best.engine}`}`));
    // A No that another layout turns is a Yes.
    const verdict = byId('summary').querySelector('.verdict');
    if (held < people && surely(best) >= people && verdict) {
      verdict.replaceChildren(h('b', {}, 'Yes'), `, divided otherwise: as ${layout(planned.plan)} it holds ${count(held)} of ${count(people)}.`);
      verdict.className = 'verdict yes';
      verdict.after(h('p', { class: 'otherwise' }, divide(`${said} hold ${count(surely(best))}`)));
    }
  }

  /** What engines hold by themselves: first the one that is asked, which is the answer, then all of them. */
  async function engines(): Promise<void> {
    const { by } = state();
    if (by !== 'plan') await asked.admits(by);
    if (!later.isDue('answers')) await asked.admits(null);
  }

  async function prefix(): Promise<void> {
    // Each takes as long as a long trace does; where the plan changes meanwhile, the rest is not asked for.
    const found: Simulated[] = [];
    for (const checkpoints of CHECKPOINTS) {
      const one = await ask<Simulated>(planner, { ask: 'simulate', workload: state().workload, checkpoints: [checkpoints] });
      found.push(one);
      const drawn = await ask<{ picture: Drawing; numbers: Drawing }>(planner, { ask: 'rates', rates: rates(found), width: width() });
      if (later.isDue('prefix')) return;
      showPrefix(one, drawn);
    }
    await asked.remember();
  }

  const later = new Later(
    {
      answers: part(engines, true),
      'beside-card': part(asked.admitsBeside, true),
      change: part(change, true),
      capacity: part(async () => showCapacity((await ask<Curves>(planner, { ask: 'curves', width: width() })).pictures)),
      fit: part(async () => {
        const { chosen, fit, by } = state();
        const name = chosen.from === 'zoo' || chosen.from === 'hub' ? chosen.name : '<MODEL>';
        showFit(fitAnswer(await fits(tried(fit), fit.most, by), name, asked.apply));
        await asked.remember();
      }),
      prefix: part(prefix),
      tiers: part(async () => {
        const [question, bytes] = tiers.question(state().workload);
        showTiers(await ask<Tiered>(planner, { ...question, width: width() }, bytes));
        await asked.remember();
      }),
      flags: part(async () => {
        const { chosen } = state();
        flags.show((await ask<{ targets: Told[] }>(planner, { ask: 'flags', model: chosen.from === 'zoo' ? chosen.name : null })).targets);
      }),
    },
    asked.busy,
    asked.guarded,
  );
  return later;
}
