// A command, script or manifest that starts an engine: what it would log, what caps it, and what would change that.

import { fact } from './answer';
import { byId, folded, h } from './dom';
import { counted, range } from './format';
import { modelField } from './ask';
import { Model, chosenBy, meantBy, nameOf, placeNamed, plainName, type Chosen } from './model';
import { Refused, type Planner } from './planner';
import { hint, meant, MEANING, type Meant } from './term';
import type { Change, Choices, Found, Place, Started } from './types';

export interface Surroundings {
  planner: Planner;
  zoo: Record<string, string>;
  places: Place[];
  choices: Choices;
  modelOf: (chosen: Chosen) => Model;
  /** What is refused is said where all errors are. */
  guarded: (run: () => Promise<void>) => Promise<boolean>;
}

/** A text that looks like a command or a manifest rather than a config. */
export function isCommand(text: string): boolean {
  const isJson = text.trimStart().startsWith('{');
  return isJson ? /"apiVersion"\s*:/.test(text) : /\b(vllm|sglang|trtllm-serve|llama-server)\b|^(apiVersion|services)\s*:/m.test(text);
}

const EXAMPLE = 'vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2 --max-model-len 32768';

export class Command {
  private name = 'the command';
  private readonly files: Record<string, string> = {};
  /** What was chosen in the place of models, by the names that commands have for them. */
  private readonly configs = new Map<string, Chosen>();
  private readonly models = new WeakMap<Chosen, Model>();
  /** The model that the command names. */
  private named = '';
  /** The GPU that nobody typed: one that the text names stands above it. */
  private shown = '';
  private at = 0;
  private asked = 0;
  private readonly text = h('textarea', { id: 'command-text', rows: 5, spellcheck: 'false', autocomplete: 'off', placeholder: 'vllm serve …' });
  private readonly file = h('input', { id: 'command-file', type: 'file', multiple: true, accept: '.sh,.bash,.zsh,.txt,.yaml,.yml' });
  private readonly device = h('input', { id: 'command-device', type: 'text', list: 'devices', placeholder: 'as the text says', autocomplete: 'off', spellcheck: 'false' });
  private readonly bytes = h('input', { id: 'command-bytes', type: 'text', placeholder: 'not known', autocomplete: 'off', spellcheck: 'false' });
  private readonly weights = h('input', { id: 'command-weights', type: 'text', placeholder: 'as the model has them', autocomplete: 'off', spellcheck: 'false' });
  private readonly reserve = h('input', { id: 'command-reserve', type: 'text', placeholder: 'nothing', autocomplete: 'off', spellcheck: 'false' });
  private readonly model: ReturnType<typeof modelField>;
  private readonly pasted = h('textarea', { id: 'command-config', rows: 3, spellcheck: 'false', placeholder: '{ "model_type": …' });
  private readonly which = h('select', { id: 'command-which' });
  private readonly choose = h('div', { class: 'side', hidden: true }, h('label', { for: 'command-which' }, 'Command'), this.which);
  private readonly answer = h('div', { class: 'answer', role: 'status' });

  constructor(private readonly around: Surroundings) {
    const later = () => void this.run();
    const anew = () => {
      [this.name, this.at] = ['the command', 0];
      later();
    };
    // A question each time that the text rests.
    let waiting: ReturnType<typeof setTimeout> | undefined;
    this.text.addEventListener('input', () => {
      clearTimeout(waiting);
      waiting = setTimeout(anew, 400);
    });
    this.file.addEventListener('change', () => void this.take([...(this.file.files ?? [])]));
    for (const field of [this.device, this.bytes, this.weights, this.reserve]) field.addEventListener('change', later);
    const { zoo, places, choices } = around;
    this.model = modelField('command-model', Object.keys(zoo), places, choices, (chosen) => this.use(chosen));
    this.pasted.addEventListener('change', () => this.pasted.value.trim() !== '' && this.use({ from: 'text', name: 'config.json', text: this.pasted.value }));
    const side = (label: string, field: HTMLElement, ...more: HTMLElement[]) => h('div', { class: 'side' }, h('label', { for: field.id }, label), ...more, field);
    this.which.addEventListener('change', () => {
      this.at = Number(this.which.value);
      later();
    });
    byId('command').append(
      h('label', { for: 'command-text', class: 'sentence' }, 'What would this command do?'),
      this.text,
      h('p', { class: 'help' }, 'A command, script, Compose file or Kubernetes manifest for vLLM, SGLang, TensorRT-LLM or llama.cpp. It stays on this page: no link holds it, and secrets in it are not shown.'),
      h(
        'div',
        { class: 'sides' },
        side('Or a file', this.file),
        side('GPU', this.device),
        side('Its model’s config', this.model.nodes[0]!, hint('the config', MEANING.config)),
        this.model.nodes[1]!,
        side('Weights (--weights)', this.weights, hint('--weights', MEANING['--weights'])),
        side('Others on the GPU (--reserve)', this.reserve, hint('--reserve', MEANING['--reserve'])),
        side('Bytes for caches, from its log', this.bytes),
        this.choose,
      ),
      folded('Or paste the config.json', this.pasted),
      this.answer,
    );
    this.answer.append(...this.example());
  }

  /** What stands there before anything is asked. */
  private example(): Node[] {
    return [
      h('p', { class: 'help' }, 'For instance'),
      h('pre', { tabindex: 0 }, EXAMPLE),
      h('button', { type: 'button', click: () => this.set(EXAMPLE) }, 'Put it into the field'),
    ];
  }

  /** Where nobody said another. */
  showDevice(name: string): void {
    if (this.device.value === '') this.device.value = this.shown = name;
  }

  set(text: string): void {
    [this.text.value, this.name, this.at] = [text, 'the command', 0];
    void this.run();
  }

  /** Files that were dropped: the first is the command where none is asked about; others may be its options. */
  async take(files: File[]): Promise<void> {
    for (const file of files) {
      const text = await file.text();
      const isOptions = this.text.value.trim() !== '' && this.text.value.includes(file.name);
      if (!isOptions && (file === files[0] || this.text.value.trim() === '')) {
        [this.text.value, this.name, this.at] = [text, file.name, 0];
      } else {
        this.files[file.name] = text;
      }
    }
    await this.run();
  }

  /** The model in the place of the one that the command names. */
  use(chosen: Chosen): void {
    this.configs.set(this.named, chosen);
    this.model.show(chosen);
    void this.run();
  }

  private async run(): Promise<void> {
    const asked = (this.asked += 1);
    this.answer.setAttribute('aria-busy', 'true');
    const went = await this.around.guarded(async () => {
      if (this.text.value.trim() === '') return this.answer.replaceChildren(...this.example());
      const of = {
        name: this.name,
        text: this.text.value,
        files: this.files,
        device: this.device.value.trim(),
        cache_bytes: this.bytes.value.trim(),
        weights: this.weights.value.trim(),
        reserve: this.reserve.value.trim(),
        // A model without a file that is named may be given apart; which it is is not known yet.
        model_is_given: true,
      };
      const { commands } = await this.around.planner.ask<{ commands: Found[] }>({ ask: 'commands', of });
      if (asked !== this.asked) return;
      this.choose.hidden = commands.length < 2;
      this.which.replaceChildren(...commands.map(({ place }, at) => h('option', { value: at }, place || `command ${at + 1}`)));
      this.at = Math.min(this.at, commands.length - 1);
      this.which.value = String(this.at);
      const found = commands[this.at]!;
      this.named = found.model ?? '';
      if (found.device !== null && this.device.value === this.shown) this.device.value = of.device = '';
      if (found.device !== null && this.device.value === '') this.device.placeholder = found.device;
      const { chosen, model, why } = await this.modelNamed(found);
      if (chosen) this.model.show(chosen);
      const nodes = model !== null || found.model === null ? await this.answered(of, found, model) : this.wants(found, chosen!, why);
      const left = found.left_out.length > 0 ? [h('p', { class: 'note' }, `Not taken of the line of cacheplan: ${found.left_out.join(', ')}`)] : [];
      if (asked === this.asked) this.answer.replaceChildren(...left, ...nodes);
    });
    if (asked !== this.asked) return;
    this.answer.removeAttribute('aria-busy');
    if (!went) this.answer.replaceChildren();
  }

  /** The model by what was chosen for it, the line's config, or its name; without one why it is not to be had. */
  private async modelNamed({ model: name, model_config }: Found): Promise<{ chosen: Chosen | null; model: Model | null; why?: string }> {
    if (name === null) return { chosen: null, model: null };
    const chosen = this.configs.get(name) ?? this.chosenBy(model_config ?? name);
    if (chosen.from === 'hub' && !chosen.asked && !this.around.choices.reads_disk) return { chosen, model: null };
    const model = this.opened(chosen);
    try {
      await model.opened(this.around.planner);
      return { chosen, model };
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      return { chosen, model: null, why: error.message };
    }
  }

  private chosenBy(name: string): Chosen {
    const { zoo, places, choices } = this.around;
    const known = Object.keys(zoo).find((known) => known.toLowerCase() === plainName(name));
    return placeNamed(name, places) ?? (known ? { from: 'zoo', name: known } : chosenBy(name, Object.keys(zoo), choices.reads_disk));
  }

  /** Opened once for each time that it was chosen. */
  private opened(chosen: Chosen): Model {
    const model = this.models.get(chosen) ?? this.around.modelOf(chosen);
    this.models.set(chosen, model);
    return model;
  }

  /** A model that is on the hub, or a file that is not here: its config may be given, and the name says of which it may be. */
  private wants(found: Found, chosen: Chosen, why?: string): Node[] {
    const { zoo, places, choices } = this.around;
    const name = nameOf(chosen);
    const onHub = !choices.reads_disk && /^[^/.~][^/]*\/[^/]+/.test(name) && !name.endsWith('.gguf');
    const ask = () => this.use({ from: 'hub', name, asked: true });
    const meant = meantBy(found.model ?? name, Object.keys(zoo), places);
    return [
      h('p', { class: 'verdict' }, 'Its model is ', h('b', {}, found.model ?? name), '.'),
      h('p', {}, onHub ? 'It is not in the zoo. Ask Hugging Face for its config and the headers of its weights, or drop its config.json here.' : 'Its config is not here: choose it in the field “Its model’s config”, or drop its config.json, or its .gguf file, here.'),
      onHub ? h('button', { type: 'button', class: 'main', click: ask }, 'Ask huggingface.co') : '',
      ...meant.map((one) => h('button', { type: 'button', click: () => this.use(one) }, `It is ${nameOf(one).split(/[/\\]/).at(-1)}`)),
      why ? h('p', { class: 'note' }, why) : '',
      h('pre', { tabindex: 0 }, found.shown),
    ].filter((node) => node !== '') as Node[];
  }

  private async answered(of: object, found: Found, model: Model | null): Promise<Node[]> {
    const { planner } = this.around;
    const start = { ask: 'start', of, at: this.at };
    let draft: Model | null = null;
    const named = found.draft === null ? null : this.chosenBy(found.draft);
    if (named?.from === 'hub' && !this.around.choices.reads_disk) throw new Refused({ message: `its draft model ${found.draft} is not in the zoo; \`cacheplan plan\` reads both`, code: 1 });
    if (named) draft = this.around.modelOf(named);
    // What its parser refuses is said without a model too.
    const ask = () => model!.ask<Started>(planner, (number, drafts) => ({ ...start, model: number, draft: drafts }), draft);
    const told = model === null ? await planner.ask<Started>({ ...start, model: null, draft: null }) : await ask();
    return told.answer ? this.started(told, found, this.insteadOf(found)) : this.refused(told, found);
  }

  /** What its config is of, where that is not the model that it names. */
  private insteadOf({ model, model_config }: Found): string | null {
    const given = this.configs.get(model ?? '');
    return given ? nameOf(given) : model_config;
  }

  private started({ answer, text, changed, holds, said }: Started, found: Found, instead: string | null): Node[] {
    const { engine, version, model, starts, reason, cautions = [], capped_by, lines, changes, notes, read } = answer!;
    const words = { yes: ['yes', 'Yes', ', it starts.'], maybe: ['maybe', 'Perhaps', ': the bytes for caches are not known exactly.'], no: ['no', 'No', ', it would not start.'] }[starts];
    const cells = [
      holds ? fact(meant('sequences', 'Holds'), holds) : '',
      fact(meant('capped by', 'Capped by'), '', capped_by in MEANING ? meant(capped_by as Meant) : h('span', {}, capped_by)),
      fact('Engine', '', h('span', {}, `${engine} ${version}`)),
      fact('Model', '', h('span', {}, instead === null ? model : `${instead}, for ${model}`)),
    ].filter((cell) => cell !== '') as Node[];
    return [
      h('p', { class: `verdict ${words![0]}` }, h('b', {}, words![1]), words![2]),
      ...cautions.map((caution) => h('p', { class: 'note' }, h('b', {}, 'Caution: '), caution)),
      reason ? h('pre', { class: 'refused', tabindex: 0 }, reason) : '',
      h('dl', { class: 'facts-row' }, ...cells),
      lines.length > 0 ? h('h2', {}, 'Lines of its start') : '',
      lines.length > 0 ? h('pre', { class: 'log', tabindex: 0 }, lines.join('\n')) : '',
      ...this.changes(changes, changed ?? [], said ?? []),
      notes.length > 0 ? h('h2', {}, 'To know') : '',
      notes.length > 0 ? h('ul', {}, ...notes.map((note) => h('li', {}, note))) : '',
      folded(
        'How it was read',
        h('pre', { tabindex: 0 }, found.shown),
        h('div', { class: 'scrolls', tabindex: 0 }, h('table', {}, h('tbody', {}, ...read.map(({ flag, value, says }) => h('tr', {}, h('th', { scope: 'row' }, flag), h('td', {}, value), h('td', {}, says)))))),
      ),
      folded('All of it as text, as `cacheplan plan` prints it', h('pre', { tabindex: 0 }, text ?? '')),
    ].filter((node) => node !== '') as Node[];
  }

  private refused({ refused, wants_device, changes, changed }: Started, found: Found): Node[] {
    if (wants_device) return [h('p', { class: 'verdict' }, 'On which GPU? ', h('b', {}, 'Name it'), ' in the field “GPU”.'), h('pre', { tabindex: 0 }, found.shown)];
    return [
      h('p', { class: 'verdict no' }, h('b', {}, 'No'), ', it would not start.'),
      h('pre', { class: 'refused', tabindex: 0 }, `error: ${refused!.message} (exit code ${refused!.code})`),
      ...this.changes(changes ?? [], changed ?? [], []),
      h('pre', { tabindex: 0 }, found.shown),
    ];
  }

  private changes(changes: Change[], commands: string[], said: string[]): Node[] {
    if (changes.length === 0) return [];
    const own = ({ change, sequences, starts }: Change) => `${change}${sequences ? `: ${sequences.low === sequences.high ? counted(sequences.low, 'sequence') : `${range(sequences)} sequences`}` : ''}${starts === 'maybe' ? ', may start' : ''}`;
    const row = (change: Change, at: number) =>
      h(
        'li',
        {},
        h('p', {}, said[at] ?? own(change)),
        h('pre', { tabindex: 0 }, commands[at]),
        h('button', { type: 'button', click: () => this.set(commands[at]!.replaceAll('<hidden>', 'hidden')) }, 'Put it into the field'),
      );
    return [h('h2', {}, 'What would change it'), h('ul', { class: 'changes' }, ...changes.map(row))];
  }
}
