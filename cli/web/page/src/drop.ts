// What is dropped or pasted anywhere on the page: files and configs of a model, commands and manifests.

import { isCommand } from './command';
import { isOfModel } from './model';

export interface Dropped {
  model(files: File[]): void;
  config(text: string): void;
  commands(files: File[]): void;
  command(text: string): void;
}

export function listen(on: Dropped): void {
  addEventListener('dragover', (event) => event.preventDefault());
  addEventListener('drop', (event) => {
    event.preventDefault();
    const files = [...(event.dataTransfer?.files ?? [])];
    const commands = files.filter((file) => !isOfModel(file));
    if (commands.length > 0) on.commands(commands);
    else if (files.length > 0) on.model(files);
  });
  addEventListener('paste', (event) => {
    if (event.target instanceof HTMLInputElement || event.target instanceof HTMLTextAreaElement) return;
    const text = event.clipboardData?.getData('text') ?? '';
    if (isCommand(text)) on.command(text);
    else if (text.trimStart().startsWith('{')) on.config(text);
  });
}
