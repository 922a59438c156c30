// Wires the parts: a change of the state asks for a plan, which is drawn; what takes longer follows when it is looked at.

import { AnswerCard, type Card } from './answer';
import { Sentence } from './ask';
import { below } from './below';
import { Beside, smallMap } from './beside';
import { changeButton, type Change } from './change';
import { Command } from './command';
import { byId, download, h } from './dom';
import { listen } from './drop';
import { clearError, showError, showInSection } from './errors';
import { currencyOf, fitForm, priceOf, priced } from './fit';
import { Flags } from './flags';
import { count, devices, devicesText } from './format';
import { makeInputs } from './inputs';
import { MemoryMap } from './map';
import { Model, filesOf, nameOf, type Chosen } from './model';
import { Refused, planners, type Planner } from './planner';
import { workloadForm } from './prefix';
import { type State, fromFragment, toFragment } from './state';
import { showLayers } from './strip';
import { TierForm } from './tiers';
import type { Admits, Choices, Derivation, Fit, Opened, Place, Planned } from './types';
import { Why } from './why';

const { quick, slow } = planners();
const { classList } = document.body;
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
  let besides: { chosen: Chosen; model: Model } | null = null;
  let planned: Planned | null = null;
  /** The names of the parts of the map that were gone into. */
  let into: string[] = [];

  /** Asks something of the models, the budget and the device that are there by then. */
  const ask = <T>(planner: Planner, question: object, about: Model = model, device = state.device, bytes: BlobPart[] = []): Promise<T> => {
    const { budget, stage, weights } = state;
    const of = { budget, device, stage: device === state.device ? stage : 0, weights: weights || null };
    return about.ask<T>(planner, (model, draft) => ({ of: { model, draft, ...of }, ...question }), draft, bytes);
  };
  /** How wide pictures are drawn. */
  const width = () => outputs.clientWidth;
  const explain = async (subject: string) => (await ask<{ derivation: Derivation }>(quick, { ask: 'explain', subject })).derivation;
  const planOn = (about: Model, device: string, into: string[], width: number) => {
    const price = priceOf(state.fit.prices, devices(device).name);
    return ask<Planned>(quick, { ask: 'plan', into, width, people: state.people, price }, about, device);
  };

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
        const waits = setTimeout(() => classList.add('asking'), 250);
        classList.toggle('stale', !(await guarded(round)));
        clearTimeout(waits);
        classList.remove('asking');
      }
      running = null;
    })();
  };
  const change = (part: Partial<State>): void => {
    state = { ...state, ...part };
    refresh();
  };
  const choose = (chosen: Chosen): void => {
    model = modelOf(chosen);
    into = [];
    change({ chosen, stage: 0 });
  };
  const set = (key: string, value: string | null): void => {
    edits.set(key, value);
    // What is typed of the weights stands above what was chosen of them.
    if (key === 'memory.weights' && value !== null) state = { ...state, weights: '' };
    // A share is of something, which must be said; of the device as its maker counts it, unless it is stated.
    if (key === 'memory.fraction' && value !== null && !planned?.stated['memory.of']) edits.set('memory.of', 'total');
    if (key === 'memory.fraction' && value === null) edits.set('memory.of', null);
    refresh();
  };

  const names = Object.keys(zoo);
  const sentence = new Sentence(choices, names, places, {
    choose,
    people: (people) => change({ people }),
    context: (tokens) => set('max_seq_len', tokens),
    device: (device) => {
      // Other GPUs are divided anew.
      const [before, after] = [devices(state.device).count, devices(device).count];
      if (before !== after && state.budget.includes('parallel')) for (const name of ['tp', 'pp', 'dp', 'ep', 'cp', 'dcp']) edits.set(`parallel.${name}`, null);
      change({ device, stage: 0 });
    },
    weights: (weights) => {
      if (state.budget.includes('weights')) edits.set('memory.weights', null);
      change({ weights });
    },
    reserve: (size) => set('memory.reserve', size || null),
    by: (by) => change({ by }),
    price: (text) =>
      void guarded(async () => {
        const question = { ask: 'prices', text, stated: state.fit.prices, device: devices(state.device).name };
        const { prices } = await quick.ask<{ prices: string }>(question);
        change({ fit: { ...state.fit, prices } });
      }),
    // Twice as many of the same, until somebody says otherwise.
    beside: () => {
      const { count, name } = devices(state.device);
      change({ beside: { chosen: null, device: devicesText(2 * count, name) } });
    },
  });
  const beside = new Beside(choices, names, places, (beside) => change({ beside }), () => state);
  const inputs = makeInputs(choices, names, places, {
    draft: (chosen) => {
      draft = chosen && modelOf(chosen);
      // A draft is for speculation, which must be said.
      if (chosen && !planned?.stated['speculation.draft_tokens']) edits.set('speculation.draft_tokens', '4');
      if (!chosen) edits.set('speculation.draft_tokens', null);
      change({ draft: chosen });
    },
    set,
    budget: (budget) => change({ budget }),
    stage: (stage) => change({ stage }),
  });
  const command = new Command({ planner: slow, zoo, places, choices, modelOf, guarded: (run) => guarded(run) });
  const ways = [
    ['Plan a model', false],
    ['Read a command', true],
  ].map(([title, isCommand]) => h('button', { type: 'button', click: () => way(isCommand as boolean) }, title as string));
  byId('ways').append(...ways);

  /** What is asked about: a command, or a model. */
  function way(asksCommand: boolean): void {
    classList.toggle('of-command', asksCommand);
    byId('command').hidden = !asksCommand;
    ways.forEach((button, at) => button.setAttribute('aria-pressed', String((at === 1) === asksCommand)));
    clearError();
    byId(asksCommand ? 'command' : 'answers').after(byId('error'));
    if (asksCommand) command.showDevice(devices(state.device).name);
    else refresh();
  }
  way(false);

  const answer = new AnswerCard(byId('summary'));
  const why = new Why(explain, (run) => guarded(run));
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
  byId('downloads').append(
    h('button', { type: 'button', click: save('svg', 'image/svg+xml') }, 'The map as SVG'),
    h('button', { type: 'button', click: save('html', 'text/html') }, 'All pictures as one HTML file'),
    h('p', { class: 'help' }, 'The plan as JSON, and files for each engine, stand under “Engines’ flags”.'),
  );
  const flags = new Flags(choices.targets);
  byId('fit').append(
    fitForm(state.fit, (part) => change({ fit: { ...state.fit, ...part } })),
    h('div', { class: 'answer' }),
  );
  byId('prefix').append(
    workloadForm(state.workload, (workload) => {
      state = { ...state, workload };
      later.due('prefix', 'tiers');
    }),
    h('div', { class: 'answer' }),
  );
  const tiers = new TierForm(state.tiers, (tiers) => {
    state = { ...state, tiers };
    later.due('tiers');
  });
  byId('tiers').append(tiers.element, h('div', { class: 'answer' }));

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
    inputs.showDraft(state.draft);
    sentence.show(state);
    beside.show(state);
    const [asked, chosen] = [model, state.chosen];
    let opened: Opened;
    try {
      opened = await asked.opened(quick);
    } catch (error) {
      // Nothing that is shown is of this model.
      if (asked === model) {
        classList.add('unread');
        sentence.showModel(chosen, null);
        why.showNoModel();
        answer.clear();
      }
      throw error;
    }
    if (asked !== model) return;
    classList.remove('unread');
    // Shown also where its plan is then refused, and so is what would hold it.
    sentence.showModel(chosen, opened);
    why.showModel(chosen.from === 'zoo' ? chosen.name : opened.type, opened);
    later.due('fit');
    let found: Planned;
    try {
      found = await planOn(asked, state.device, into, width());
    } catch (error) {
      if (asked === model && error instanceof Refused) {
        planned = null;
        answer.plan({ failure: error.failure }, card());
        // Engines have rules of their own.
        later.due('answers', 'beside-card');
      }
      await besidePlan();
      throw error;
    }
    if (asked !== model) return;
    planned = found;
    into = found.pictures.path.slice(1).map(([name]) => name);
    draw(found);
    measure();
    await besidePlan();
    later.due();
    await remember();
  }

  /** What the answer is said with; its name stands above it where there are two. */
  function card(): Card {
    const { beside, chosen, device, fit, by, people } = state;
    return {
      title: beside ? `${nameOf(chosen)} on ${device}` : undefined,
      currency: currencyOf(fit.prices),
      by,
      people,
      tokens: tokens(),
      model: chosen.from === 'zoo' || chosen.from === 'hub' ? chosen.name : 'MODEL',
    };
  }

  /** Tokens of each sequence. */
  function tokens(): number {
    return sentence.tokens() ?? planned?.plan.limits.max_seq_len ?? 4096;
  }

  /** What engines hold: of the model and the device that are asked about, where the plan is still that one. */
  async function admits(by: string | null, about: Model, device: string, show: (found: Admits) => void): Promise<void> {
    const of = planned;
    let found: Admits;
    try {
      found = await ask<Admits>(slow, { ask: 'admits', people: state.people, as: by, prices: priced(state.fit.prices) }, about, device);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      found = { engines: [], unasked: [error.message.split('\n')[0]!] };
    }
    if (planned === of) show(found);
  }

  /** How wide one of two is. */
  const half = () => (width() > 700 ? width() / 2 - 40 : width() - 24);

  async function besidePlan(): Promise<void> {
    await beside.refresh(state, card(), (chosen, device) => {
      if (chosen === state.chosen) return planOn(model, device, [], half());
      if (besides?.chosen !== chosen) besides = { chosen, model: modelOf(chosen) };
      return planOn(besides.model, device, [], half());
    });
  }

  function draw(found: Planned): void {
    const { plan, pictures } = found;
    if (!classList.contains('of-command')) clearError();
    classList.remove('stale', 'unplanned');
    inputs.show(found);
    inputs.showStages(found.stages, state.stage);
    sentence.showPlan(found, state);
    answer.plan({ found }, { ...card(), map: state.beside ? smallMap(pictures) : undefined });
    why.showPlan(found);
    byId('change')
      .querySelector('.knobs')!
      .replaceChildren(...found.knobs.map(({ change, sequences }) => changeButton(change, ` would admit ${count(sequences)}`, plan.parallel, make)));
    map.show(pictures, found.terms);
    flags.showPlan(plan);
    showLayers(pictures.layers, (subject) => void guarded(() => map.derive(subject)));
  }

  function make({ device, keys }: Change): void {
    for (const [key, value] of keys) edits.set(key, value);
    change(device === null ? {} : { device });
  }

  const later = below(
    {
      planner: slow,
      state: () => state,
      model: () => model,
      planned: () => planned,
      tokens,
      ask: (planner, question, bytes) => ask(planner, question, model, state.device, bytes),
      width,
      apply,
      admits: (by) =>
        admits(by, model, state.device, (found) => {
          if (found.usual) sentence.showUsual(found.usual, state);
          answer.engines(found);
        }),
      admitsBeside: async () => {
        const { beside: other, by } = state;
        if (!other || by === 'plan') return;
        const about = other.chosen ? besides!.model : model;
        await admits(by, about, other.device, (found) => beside.engines(found));
      },
      remember,
      busy: () => running !== null,
      guarded,
    },
    flags,
    tiers,
  );

  function apply(fit: Fit): void {
    const { tp, pp, dp, ep } = fit.parallel;
    for (const [name, size] of Object.entries({ tp, pp, dp, ep })) edits.set(`parallel.${name}`, size > 1 ? String(size) : null);
    edits.set('max_batch_size', null);
    change({ device: devicesText(fit.devices, devices(fit.device).name), stage: 0 });
    scrollTo({ top: 0, behavior: 'smooth' });
  }

  /** Runs it, and says whether that went well; what is refused is shown. */
  async function guarded(run: () => Promise<void>, section?: HTMLElement): Promise<boolean> {
    try {
      await run();
      if (!section && classList.contains('of-command')) clearError();
      return true;
    } catch (error) {
      if (section) {
        showInSection(error, section);
      } else {
        const { chosen } = state;
        const waits = chosen.from === 'hub' && !chosen.asked && !choices.reads_disk && !classList.contains('of-command');
        showError(error, { make, askHub: waits ? () => choose({ ...chosen, asked: true }) : null, ofPools: state.by !== 'plan' && !classList.contains('of-command') });
        await remember();
      }
      return false;
    }
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

  const config = (chosen: Chosen) => (classList.contains('of-command') ? command.use(chosen) : choose(chosen));
  listen({
    model: (files) => config(filesOf(files)),
    config: (text) => config({ from: 'text', name: 'config.json', text }),
    trace: (file) => {
      tiers.take(file);
      byId('tiers').scrollIntoView();
    },
    commands: (files) => {
      way(true);
      void guarded(() => command.take(files));
    },
    command: (text) => {
      way(true);
      command.set(text);
    },
  });

  let drawn = width();
  new ResizeObserver(() => {
    // What is drawn makes the page no narrower.
    if (planned && width() > 0 && Math.abs(width() - drawn) > 8) refresh();
    drawn = width() || drawn;
  }).observe(outputs);
}

start().catch((error: unknown) => showError(error, { make: () => undefined, askHub: null, ofPools: false }));
