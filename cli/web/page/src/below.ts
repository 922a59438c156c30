// The parts below the answer that take longer: each is asked for when it is in sight.

import { admitted, showEngines } from './answer';
import { showCapacity } from './capacity';
import { byId, h, type Drawing } from './dom';
import { currencyOf, fitAnswer, layout, priceOf, prices, showFit, tried } from './fit';
import type { Flags } from './flags';
import { count, devices } from './format';
import { Later, type Part } from './later';
import type { Model } from './model';
import type { Planner } from './planner';
import { CHECKPOINTS, rates, showPrefix } from './prefix';
import type { State } from './state';
import { showTiers, type TierForm } from './tiers';
import type { Admits, Curves, Fit, Fits, Planned, Simulated, Tiered, Told } from './types';

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
  remember(): Promise<void>;
  busy(): boolean;
  guarded(run: () => Promise<void>, section: HTMLElement): Promise<boolean>;
}

export function below(asked: Asked, flags: Flags, tiers: TierForm): Later {
  const { planner, state, ask, width } = asked;
  const part = (run: () => Promise<void>, always = false): Part => ({ due: false, seen: always, always, run });
  const fits = (names: string[], most: number, by: string): Promise<Fits> => {
    const { fit, people, bits, budget } = state();
    const per_hour = prices(fit.prices);
    return asked.model().ask<Fits>(planner, (model) => ({
      ask: 'fit',
      model,
      context: asked.tokens(),
      sequences: people,
      devices: names,
      max_devices: most,
      prices: Object.keys(per_hour).length > 0 ? { currency: currencyOf(fit.prices), per_hour } : null,
      bits: bits || null,
      budget,
      as: by || 'plan',
      width: width(),
    }));
  };

  /** The same GPUs divided otherwise, where that holds more. Devices are tried with no other key of the budget. */
  async function change(): Promise<void> {
    const { device, people } = state();
    const { count: number, name } = devices(device);
    const planned = asked.planned();
    const isPlain = planned && Object.keys(planned.stated).every((key) => key === 'max_seq_len' || key === 'memory.weights');
    if (!isPlain || number === 1 || number > 64) return;
    const alike = (await fits([name], number, '')).answer.fits.filter((fit) => fit.devices === number && fit.kv_dtype === null && fit.state_dtype === null);
    const best = alike.reduce<Fit | null>((best, fit) => (fit.sequences > (best?.sequences ?? admitted(planned)) ? fit : best), null);
    if (!best || asked.planned() !== planned) return;
    const knobs = byId('change').querySelector('.knobs')!;
    const divide = (text: string) => h('button', { type: 'button', class: 'knob layout', click: () => asked.apply(best) }, text);
    const said = `the same ${number} GPUs as ${layout(best)}`;
    knobs.querySelector('.layout')?.remove();
    knobs.prepend(divide(`${said} would admit ${count(best.sequences)}`));
    // A No that another layout turns is a Yes.
    const [held, verdict] = [admitted(planned), byId('summary').querySelector('.verdict')];
    if (state().by === '' && held < people && best.sequences >= people && verdict) {
      verdict.replaceChildren(h('b', {}, 'Yes'), `, divided otherwise: as ${layout(planned.plan)} it holds ${count(held)} of ${count(people)}.`);
      verdict.className = 'verdict yes';
      verdict.after(h('p', { class: 'otherwise' }, divide(`${said} hold ${count(best.sequences)}`)));
    }
  }

  /** What engines hold by themselves. It stands in the answer. */
  async function engines(): Promise<void> {
    const { chosen, people, by, fit, device } = state();
    const [planned, of] = [asked.planned(), devices(device)];
    const found = await ask<Admits>(planner, { ask: 'admits', people });
    if (asked.planned() === planned) {
      const price = priceOf(fit.prices, of.name);
      const model = chosen.from === 'zoo' || chosen.from === 'hub' ? chosen.name : 'MODEL';
      showEngines(found, { people, tokens: asked.tokens(), model, by, currency: currencyOf(fit.prices), per_hour: planned?.per_hour ?? (price === null ? null : price * of.count) });
    }
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
      change: part(change, true),
      capacity: part(async () => showCapacity((await ask<Curves>(planner, { ask: 'curves', width: width() })).pictures)),
      fit: part(async () => {
        const { chosen, fit, by } = state();
        const name = chosen.from === 'zoo' || chosen.from === 'hub' ? chosen.name : '<MODEL>';
        showFit(fitAnswer(await fits(tried(fit), fit.most, by), name, by, asked.apply));
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
