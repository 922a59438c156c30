// What is dropped or pasted anywhere on the page: files and configs of a model, commands and manifests, traces.

import { isCommand } from './command';
import { isOfModel } from './model';
import { isTrace, isTraceFile } from './tiers';

export interface Dropped {
  model(files: File[]): void;
  config(text: string): void;
  trace(file: File): void;
  commands(files: File[]): void;
  command(text: string): void;
}

export function listen(on: Dropped): void {
  addEventListener('dragover', (event) => event.preventDefault());
  addEventListener('drop', (event) => {
    event.preventDefault();
    const files = [...(event.dataTransfer?.files ?? [])];
    const trace = files.find(isTraceFile);
    const commands = files.filter((file) => !isOfModel(file));
    if (trace) on.trace(trace);
    else if (commands.length > 0) on.commands(commands);
    else if (files.length > 0) on.model(files);
  });
  addEventListener('paste', (event) => {
    if (event.target instanceof HTMLInputElement || event.target instanceof HTMLTextAreaElement) return;
    const text = event.clipboardData?.getData('text') ?? '';
    if (isTrace(text)) on.trace(new File([text], 'the pasted trace'));
    else if (isCommand(text)) on.command(text);
    else if (text.trimStart().startsWith('{')) on.config(text);
  });
}
