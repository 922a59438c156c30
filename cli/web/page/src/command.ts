// A command, script or manifest that starts an engine: what it would log, what caps it, and what would change that.

import { fact } from './answer';
import { byId, folded, h } from './dom';
import { count } from './format';
import { Model, chosenBy, nameOf, type Chosen } from './model';
import { Refused, type Planner } from './planner';
import { meant, MEANING, type Meant } from './term';
import type { Change, Interval, Found, Started } from './types';

export interface Surroundings {
  planner: Planner;
  zoo: Record<string, string>;
  readsDisk: boolean;
  modelOf: (chosen: Chosen) => Model;
  /** What is refused is said where all errors are. */
  guarded: (run: () => Promise<void>) => Promise<boolean>;
}

/** A text that looks like a command or a manifest rather than a config. */
export function isCommand(text: string): boolean {
  return !text.trimStart().startsWith('{') && /\b(vllm|sglang|trtllm-serve|llama-server)\b|^(apiVersion|services)\s*:/m.test(text);
}

export function range({ low, high }: Interval): string {
  return low === high ? count(low) : `${count(low)} to ${count(high)}`;
}

const EXAMPLE = 'vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2 --max-model-len 32768';

export class Command {
  private name = 'the command';
  private readonly files: Record<string, string> = {};
  /** What was chosen in the place of the model that the command names. */
  private instead: Chosen | null = null;
  private at = 0;
  private asked = 0;
  private readonly text = h('textarea', { id: 'command-text', rows: 5, spellcheck: 'false', autocomplete: 'off', placeholder: 'vllm serve …' });
  private readonly file = h('input', { id: 'command-file', type: 'file', multiple: true, accept: '.sh,.bash,.zsh,.txt,.yaml,.yml' });
  private readonly device = h('input', { id: 'command-device', type: 'text', list: 'devices', placeholder: 'as the text says', autocomplete: 'off', spellcheck: 'false' });
  private readonly bytes = h('input', { id: 'command-bytes', type: 'text', placeholder: 'not known', autocomplete: 'off', spellcheck: 'false' });
  private readonly which = h('select', { id: 'command-which' });
  private readonly choose = h('div', { class: 'side', hidden: true }, h('label', { for: 'command-which' }, 'Command'), this.which);
  private readonly answer = h('div', { class: 'answer', role: 'status' });

  constructor(private readonly around: Surroundings) {
    const later = () => void this.run();
    const anew = () => {
      [this.name, this.at, this.instead] = ['the command', 0, null];
      later();
    };
    // A question each time that the text rests.
    let waiting: ReturnType<typeof setTimeout> | undefined;
    this.text.addEventListener('input', () => {
      clearTimeout(waiting);
      waiting = setTimeout(anew, 400);
    });
    this.file.addEventListener('change', () => void this.take([...(this.file.files ?? [])]));
    for (const field of [this.device, this.bytes]) field.addEventListener('change', later);
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
        h('div', { class: 'side' }, h('label', { for: 'command-file' }, 'Or a file'), this.file),
        h('div', { class: 'side' }, h('label', { for: 'command-device' }, 'GPU'), this.device),
        h('div', { class: 'side' }, h('label', { for: 'command-bytes' }, 'Bytes for caches, from its log'), this.bytes),
        this.choose,
      ),
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
    if (this.device.value === '') this.device.value = name;
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
        [this.text.value, this.name, this.at, this.instead] = [text, file.name, 0, null];
      } else {
        this.files[file.name] = text;
      }
    }
    await this.run();
  }

  /** The model in the place of the one that the command names. */
  use(chosen: Chosen): void {
    this.instead = chosen;
    void this.run();
  }

  private async run(): Promise<void> {
    const asked = (this.asked += 1);
    this.answer.setAttribute('aria-busy', 'true');
    const went = await this.around.guarded(async () => {
      if (this.text.value.trim() === '') return this.answer.replaceChildren(...this.example());
      const of = { name: this.name, text: this.text.value, files: this.files, device: this.device.value.trim(), cache_bytes: this.bytes.value.trim() };
      const { commands } = await this.around.planner.ask<{ commands: Found[] }>({ ask: 'commands', of });
      if (asked !== this.asked) return;
      this.choose.hidden = commands.length < 2;
      this.which.replaceChildren(...commands.map(({ place }, at) => h('option', { value: at }, place || `command ${at + 1}`)));
      this.at = Math.min(this.at, commands.length - 1);
      this.which.value = String(this.at);
      const found = commands[this.at]!;
      if (found.device !== null && this.device.value === '') this.device.placeholder = found.device;
      const wanted = this.modelNamed(found.model);
      const nodes = wanted instanceof Model || wanted === null ? await this.answered(of, found, wanted) : this.wants(found, wanted);
      if (asked === this.asked) this.answer.replaceChildren(...nodes);
    });
    if (asked !== this.asked) return;
    this.answer.removeAttribute('aria-busy');
    if (!went) this.answer.replaceChildren();
  }

  /** The model, or how it may be had. */
  private modelNamed(name: string | null): Model | null | Chosen {
    if (this.instead) return this.around.modelOf(this.instead);
    if (name === null) return null;
    const chosen = chosenBy(name, Object.keys(this.around.zoo), this.around.readsDisk);
    return chosen.from === 'hub' ? chosen : this.around.modelOf(chosen);
  }

  /** A model that is on the hub, or on a disk that the page does not read. */
  private wants(found: Found, chosen: Chosen): Node[] {
    const name = nameOf(chosen);
    const onHub = /^[^/.~][^/]*\/[^/]+/.test(name);
    const ask = () => this.use({ from: 'hub', name, asked: true });
    return [
      h('p', { class: 'verdict' }, 'Its model is ', h('b', {}, name), '.'),
      h('p', {}, onHub ? 'It is not in the zoo. Ask Hugging Face for its config and the headers of its weights, or drop its config.json here.' : 'This page does not read that place: drop its config.json, or its .gguf file, here.'),
      onHub ? h('button', { type: 'button', class: 'main', click: ask }, 'Ask huggingface.co') : '',
      h('pre', { tabindex: 0 }, found.shown),
    ].filter((node) => node !== '') as Node[];
  }

  private async answered(of: object, found: Found, model: Model | null): Promise<Node[]> {
    const { planner } = this.around;
    const start = { ask: 'start', of, at: this.at };
    let draft: Model | null = null;
    const named = found.draft === null ? null : chosenBy(found.draft, Object.keys(this.around.zoo), this.around.readsDisk);
    if (named?.from === 'hub') throw new Refused({ message: `its draft model ${found.draft} is not in the zoo; \`cacheplan plan\` reads both`, code: 1 });
    if (named) draft = this.around.modelOf(named);
    // What its parser refuses is said without a model too.
    const ask = () => model!.ask<Started>(planner, (number, drafts) => ({ ...start, model: number, draft: drafts }), draft);
    const told = model === null ? await planner.ask<Started>({ ...start, model: null, draft: null }) : await ask();
    return told.answer ? this.started(told, found) : this.refused(told, found);
  }

  private started({ answer, text, changed }: Started, found: Found): Node[] {
    const { engine, version, model, starts, reason, cautions = [], sequences, replicas = 1, capped_by, lines, changes, notes, read, limits } = answer!;
    const words = { yes: ['yes', 'Yes', ', it starts.'], maybe: ['maybe', 'Perhaps', ': the bytes for caches are not known exactly.'], no: ['no', 'No', ', it would not start.'] }[starts];
    const cells = [
      sequences ? fact(meant('sequences', 'Holds'), range(sequences), ` at once of ${count(limits.max_seq_len)} tokens${replicas > 1 ? ` on each of ${replicas} replicas` : ''}`) : '',
      fact(meant('capped by', 'Capped by'), '', capped_by in MEANING ? meant(capped_by as Meant) : h('span', {}, capped_by)),
      fact('Engine', '', h('span', {}, `${engine} ${version}`)),
      fact('Model', '', h('span', {}, this.instead ? `${nameOf(this.instead)}, for ${model}` : model)),
    ].filter((cell) => cell !== '') as Node[];
    return [
      h('p', { class: `verdict ${words![0]}` }, h('b', {}, words![1]), words![2]),
      ...cautions.map((caution) => h('p', { class: 'note' }, h('b', {}, 'Caution: '), caution)),
      reason ? h('pre', { class: 'refused', tabindex: 0 }, reason) : '',
      h('dl', { class: 'facts-row' }, ...cells),
      lines.length > 0 ? h('h2', {}, 'Lines of its start') : '',
      lines.length > 0 ? h('pre', { class: 'log', tabindex: 0 }, lines.join('\n')) : '',
      ...this.changes(changes, changed ?? []),
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
      ...this.changes(changes ?? [], changed ?? []),
      h('pre', { tabindex: 0 }, found.shown),
    ];
  }

  private changes(changes: Change[], commands: string[]): Node[] {
    if (changes.length === 0) return [];
    const row = ({ change, sequences, starts }: Change, at: number) =>
      h(
        'li',
        {},
        h('p', {}, h('b', {}, change), sequences ? `: ${range(sequences)} sequences` : '', starts === 'maybe' ? ', may start' : ''),
        h('pre', { tabindex: 0 }, commands[at]),
        h('button', { type: 'button', click: () => this.set(commands[at]!.replaceAll('<hidden>', 'hidden')) }, 'Put it into the field'),
      );
    return [h('h2', {}, 'What would change it'), h('ul', { class: 'changes' }, ...changes.map(row))];
  }
}
