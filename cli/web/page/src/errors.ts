// What is refused: said as the command says it, with what would do as buttons.

import { ONE, changeButton, proposed, type Change } from './change';
import { byId, h } from './dom';
import { Refused } from './planner';

export interface Mending {
  make(change: Change): void;
  /** Asks the hub, where a model waits for that. */
  askHub: (() => void) | null;
  /** Whether an engine's answer stands above, of which what the planner's own pools lack is no part. */
  ofPools: boolean;
}

function message(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

export function showError(error: unknown, { make, askHub, ofPools }: Mending): void {
  const said = message(error);
  const code = error instanceof Refused && error.failure.code > 0 ? ` (exit code ${error.failure.code})` : '';
  const box = byId('error');
  const isBehind = ofPools && error instanceof Refused && error.failure.code === 3;
  // A name on the hub that is not yet asked for is no error.
  box.classList.toggle('calm', askHub !== null || isBehind);
  box.replaceChildren(
    h('pre', {}, askHub ? said : `${isBehind ? 'the planner’s own pools' : 'error'}: ${said}${code}`),
    askHub ? h('button', { type: 'button', class: 'main', click: askHub }, 'Ask huggingface.co') : '',
    ...proposed(said).map(({ change, rest }) => changeButton(change, `: ${rest}`, ONE, make)),
  );
  box.hidden = false;
}

/** Of a part below: in its place, where it has one for answers. */
export function showInSection(error: unknown, section: HTMLElement): void {
  section.querySelector('.answer')?.replaceChildren(h('p', { class: 'refused' }, message(error)));
}

export function clearError(): void {
  byId('error').hidden = true;
}
