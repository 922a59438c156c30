// Wires the parts: a change of the state asks for a plan, which is drawn; what takes longer follows when it is looked at.

import { byId, download, h, type Drawing } from './dom';
import { count } from './format';
import { showCapacity } from './capacity';
import { fitAnswer, fitForm, prices, showFit } from './fit';
import { Flags } from './flags';
import { makeInputs } from './inputs';
import { MemoryMap } from './map';
import { Model, type Chosen } from './model';
import { Refused, planners, type Planner } from './planner';
import { CHECKPOINTS, rates, showPrefix, workloadForm } from './prefix';
import { type State, fromFragment, toFragment } from './state';
import { showLayers } from './strip';
import type { Choices, Curves, Derivation, Fit, Fits, Opened, Place, Plan, Planned, Simulated, Told } from './types';

const { quick, slow } = planners();
const outputs = document.querySelector('.outputs')!;

async function start(): Promise<void> {
  // The token is gone from the address by now.
  const address = location.hash.slice(1);
  const zoo = (await (await fetch('./zoo.json')).json()) as Record<string, string>;
  const choices = await quick.ask<Choices>({ ask: 'choices' });
  const { places } = await quick.ask<{ places: Place[] }>({ ask: 'places' });
  const named = places.find(({ named }) => named);
  let state = await fromFragment(address, named && { from: 'path', path: named.path });

  /** One that cannot be had says so when it is asked. */
  const modelOf = (chosen: Chosen): Model => {
    try {
      return Model.of(chosen, zoo, choices.reads_disk);
    } catch (error) {
      return new Model(() => Promise.reject(error));
    }
  };
  let model = modelOf(state.chosen);
  let draft = state.draft && modelOf(state.draft);
  let planned: Planned | null = null;
  /** The names of the parts of the map that were gone into. */
  let into: string[] = [];

  /** Asks something of the models, the budget and the device that are there by then. */
  const ask = <T>(planner: Planner, question: object, about: Model = model): Promise<T> => {
    const { budget, device, stage } = state;
    return about.ask<T>(planner, (model, draft) => ({ of: { model, draft, budget, device, stage }, ...question }), draft);
  };
  /** How wide pictures are drawn. */
  const width = () => outputs.clientWidth;
  const explain = async (subject: string) => (await ask<{ derivation: Derivation }>(quick, { ask: 'explain', subject })).derivation;

  // Edits of keys wait here, the newest of each key, until they are written into the TOML.
  const edits = new Map<string, string | null>();
  let running: Promise<void> | null = null;
  let again = false;

  /** Plans what the state is by then; changes meanwhile are one more round. */
  const refresh = (): void => {
    again = true;
    running ??= (async () => {
      while (again) {
        again = false;
        const { classList } = document.body;
        classList.toggle('stale', !(await guarded(round)));
      }
      running = null;
    })();
  };
  const change = (part: Partial<State>): void => {
    state = { ...state, ...part };
    refresh();
  };

  const inputs = makeInputs(choices, Object.keys(zoo), places, {
    choose: (chosen) => {
      void guarded(async () => {
        model = modelOf(chosen);
        into = [];
        change({ chosen, stage: 0 });
      });
    },
    draft: (chosen) => {
      draft = chosen && modelOf(chosen);
      // A draft is for speculation, which must be said.
      if (chosen && !planned?.stated['speculation.draft_tokens']) edits.set('speculation.draft_tokens', '4');
      if (!chosen) edits.set('speculation.draft_tokens', null);
      change({ draft: chosen });
    },
    set: (key, value) => {
      edits.set(key, value);
      // A share is of something, which must be said; of the device as its maker counts it, unless it is stated.
      if (key === 'memory.fraction' && value !== null && !planned?.stated['memory.of']) edits.set('memory.of', 'total');
      if (key === 'memory.fraction' && value === null) edits.set('memory.of', null);
      refresh();
    },
    budget: (budget) => change({ budget }),
    device: (device) => change({ device }),
    stage: (stage) => change({ stage }),
  });

  const map = new MemoryMap(
    byId('map'),
    (names) => {
      into = names;
      refresh();
    },
    explain,
  );
  const save = (format: string, type: string) => () =>
    void guarded(async () => download(`plan.${format}`, (await ask<{ text: string }>(quick, { ask: 'file', format })).text, type));
  byId('map').append(
    h('button', { type: 'button', click: save('svg', 'image/svg+xml') }, 'Download as SVG'),
    h('button', { type: 'button', click: save('html', 'text/html') }, 'all pictures as one HTML file'),
  );
  const flags = new Flags(choices.targets);
  byId('fit').append(
    fitForm(state.fit, (fit) => {
      state = { ...state, fit };
      later.fit.due = true;
      lookAgain();
    }),
    h('div', { class: 'answer' }),
  );
  byId('prefix').append(
    workloadForm(state.workload, (workload) => {
      state = { ...state, workload };
      later.prefix.due = true;
      lookAgain();
    }),
    h('div', { class: 'answer' }),
  );

  /** How long it took from a slider to the frame with its picture, for who looks at the browser's own measurements. */
  function measure(): void {
    const start = performance.getEntriesByName('slider').at(-1)?.startTime;
    performance.clearMarks('slider');
    if (start === undefined) return;
    const painted = () => performance.measure('slider-to-picture', { start });
    // What is asked for in one frame is there in the next.
    requestAnimationFrame(() => requestAnimationFrame(painted));
  }

  async function round(): Promise<void> {
    for (const [key, value] of edits) {
      edits.delete(key);
      state.budget = (await quick.ask<{ budget: string }>({ ask: 'set', budget: state.budget, key, value })).budget;
    }
    inputs.showBudget(state.budget);
    inputs.showDevice(state.device);
    const asked = model;
    const { classList } = document.body;
    let opened: Opened;
    try {
      opened = await asked.opened(quick);
    } catch (error) {
      // Nothing that is shown is of this model.
      if (asked === model) {
        classList.add('unread');
        inputs.showNoModel();
      }
      throw error;
    }
    if (asked !== model) return;
    classList.remove('unread');
    // Shown also where its plan is then refused, and so is what would hold it.
    showModel(opened);
    later.fit.due = true;
    const found = await ask<Planned>(quick, { ask: 'plan', into, width: width() }, asked);
    if (asked !== model) return;
    planned = found;
    into = found.pictures.path.slice(1).map(([name]) => name);
    draw(found);
    measure();
    for (const part of Object.values(later)) part.due = true;
    lookAgain();
    await remember();
  }

  function showModel(model: Opened): void {
    const longest = model.longest === null ? '' : `, up to ${count(model.longest)} tokens`;
    const title = state.chosen.from === 'zoo' ? state.chosen.name : model.type;
    inputs.showModel(title, [`${model.type}, ${model.dtype}${longest}`, `${model.source}; assumed: ${model.assumed}`], model.inspection);
  }

  function draw(found: Planned): void {
    const { plan, pictures } = found;
    byId('error').hidden = true;
    document.body.classList.remove('stale');
    inputs.show(found);
    inputs.showStages(found.stages, state.stage);
    const { capacity } = plan;
    const all = plan.deployment ? `, ${count(plan.deployment.sequences)} over all replicas` : '';
    byId('summary').replaceChildren(
      h('b', {}, `${count(capacity.sequences)} sequences`),
      ` of ${count(capacity.tokens_per_sequence)} tokens at once${all}, capped by `,
      h('b', {}, capacity.capped_by),
      `. ${found.totals}. `,
      found.at_best === null ? '' : `${found.at_best} `,
      ...found.knobs.map((knob) => turn(knob.change, `${knob.change}${onGpus(knob.change, plan)} would admit ${count(knob.sequences)}`)),
      ...found.notes.map((note) => h('span', { class: 'note' }, note)),
    );
    map.show(pictures);
    flags.showPlan(plan);
    showLayers(pictures.layers, (subject) => void guarded(() => map.derive(subject)));
  }

  /** How many GPUs a plan would be for once it is divided otherwise. */
  function onGpus(change: string, { parallel }: Plan): string {
    const [, name, size] = /^parallel\.(tp|pp|dp) = (\d+)$/.exec(change) ?? [];
    if (!name) return '';
    const { tp, pp, dp, cp }: Plan['parallel'] = { ...parallel, [name]: Number(size) };
    return ` (${count(tp * pp * dp * cp)} GPUs)`;
  }

  /** A change that the planner proposes: a button where it is one key with its value. */
  function turn(change: string, text: string): HTMLElement {
    const assignment = /^([a-z_.]+) = (.+)$/.exec(change);
    if (!assignment) return h('span', { class: 'note' }, text);
    const [, key, value] = assignment as unknown as [string, string, string];
    const click = () => {
      edits.set(key, value);
      refresh();
    };
    return h('button', { type: 'button', class: 'knob', click }, text);
  }

  // What is below is asked for when it is in sight, one after the other, with the newest state.
  const later: Record<'capacity' | 'fit' | 'prefix' | 'flags', { due: boolean; seen: boolean; run: () => Promise<void> }> = {
    capacity: {
      due: false,
      seen: false,
      run: async () => {
        showCapacity((await ask<Curves>(slow, { ask: 'curves', width: width() })).pictures);
      },
    },
    flags: {
      due: false,
      seen: false,
      run: async () => {
        const name = state.chosen.from === 'zoo' ? state.chosen.name : null;
        const { targets } = await ask<{ targets: Told[] }>(slow, { ask: 'flags', model: name });
        flags.show(targets);
      },
    },
    fit: {
      due: false,
      seen: false,
      run: async () => {
        const { fit } = state;
        const per_hour = prices(fit.prices);
        const fits = await model.ask<Fits>(slow, (number) => ({
          ask: 'fit',
          model: number,
          context: fit.context,
          sequences: fit.sequences,
          devices: fit.devices.split(/[\s,]+/).filter(Boolean),
          max_devices: fit.most,
          prices: Object.keys(per_hour).length > 0 ? { currency: '', per_hour } : null,
          width: width(),
        }));
        showFit(fitAnswer(fits, apply));
        await remember();
      },
    },
    prefix: {
      due: false,
      seen: false,
      run: async () => {
        // Each takes as long as a long trace does; where the plan changes meanwhile, the rest is not asked for.
        const found: Simulated[] = [];
        for (const checkpoints of CHECKPOINTS) {
          const one = await ask<Simulated>(slow, { ask: 'simulate', workload: state.workload, checkpoints: [checkpoints] });
          found.push(one);
          const drawn = await ask<{ picture: Drawing; numbers: Drawing }>(slow, { ask: 'rates', rates: rates(found), width: width() });
          if (later.prefix.due) return;
          showPrefix(one, drawn);
        }
        await remember();
      },
    },
  };

  function apply(fit: Fit): void {
    const { tp, pp, dp, ep } = fit.parallel;
    for (const [name, size] of Object.entries({ tp, pp, dp, ep })) edits.set(`parallel.${name}`, size > 1 ? String(size) : null);
    edits.set('max_seq_len', String(state.fit.context));
    edits.set('max_batch_size', null);
    change({ device: fit.device, stage: 0 });
    byId('map').scrollIntoView({ behavior: 'smooth' });
  }

  let looking: Promise<void> | null = null;
  function lookAgain(): void {
    looking ??= (async () => {
      for (;;) {
        // A slider that moves is drawn first.
        await new Promise((resolve) => setTimeout(resolve, 60));
        if (running) continue;
        const [name, part] = Object.entries(later).find(([, part]) => part.due && part.seen) ?? [];
        if (!name || !part) break;
        part.due = false;
        const section = byId(name);
        section.setAttribute('aria-busy', 'true');
        await guarded(part.run, section);
        section.removeAttribute('aria-busy');
      }
      looking = null;
    })();
  }
  const observer = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) {
        const part = later[target.id as keyof typeof later];
        // What was in sight when it fell due is drawn, also where what is drawn above it pushes it out.
        part.seen = isIntersecting || (part.seen && part.due);
      }
      lookAgain();
    },
    { rootMargin: '200px' },
  );
  for (const name of Object.keys(later)) observer.observe(byId(name));

  /** Runs it, and says whether that went well; what is refused is shown as the command says it. */
  async function guarded(run: () => Promise<void>, section?: HTMLElement): Promise<boolean> {
    try {
      await run();
      return true;
    } catch (error) {
      const message = error instanceof Error ? error.message : String(error);
      const answer = section?.querySelector('.answer');
      if (answer) {
        answer.replaceChildren(h('p', { class: 'refused' }, message));
        return false;
      }
      const code = error instanceof Refused && error.failure.code > 0 ? ` (exit code ${error.failure.code})` : '';
      byId('error').replaceChildren(h('pre', {}, `error: ${message}${code}`), ...tries(message));
      byId('error').hidden = false;
      await remember();
      return false;
    }
  }

  /** What an error proposes, line by line: `  try max_seq_len = 2048: 3 sequence(s), …`. */
  function tries(message: string): HTMLElement[] {
    const found = message.matchAll(/^ {2}try ([a-z_.]+ = [^:]+): (.*)$/gm);
    return [...found].map(([, change, rest]) => turn(change!, `${change}: ${rest}`));
  }

  async function remember(): Promise<void> {
    history.replaceState(null, '', `#${await toFragment(state)}`);
  }

  addEventListener('hashchange', () => {
    void guarded(async () => {
      state = await fromFragment(location.hash.slice(1));
      model = modelOf(state.chosen);
      draft = state.draft && modelOf(state.draft);
      into = [];
      refresh();
    });
  });
  let drawn = width();
  new ResizeObserver(() => {
    // What is drawn makes the page no narrower.
    if (planned && Math.abs(width() - drawn) > 8) refresh();
    drawn = width();
  }).observe(outputs);
  refresh();
}

start().catch((error: unknown) => {
  const said = byId('error');
  said.replaceChildren(h('pre', {}, `error: ${error instanceof Error ? error.message : String(error)}`));
  said.hidden = false;
});
