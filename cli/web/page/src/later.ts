// What is below: asked for when it is in sight, one part after the other, with the newest state.

import { byId } from './dom';

export interface Part {
  due: boolean;
  seen: boolean;
  /** Asked for whether it is in sight or not. */
  always: boolean;
  run: () => Promise<void>;
}

export class Later {
  private looking: Promise<void> | null = null;

  /** `busy` is whether something above is being planned, `guarded` runs a part and says what it refuses in its section. */
  constructor(
    private readonly parts: Record<string, Part>,
    private readonly busy: () => boolean,
    private readonly guarded: (run: () => Promise<void>, section: HTMLElement) => Promise<boolean>,
  ) {
    const observer = new IntersectionObserver(
      (entries) => {
        for (const { target, isIntersecting } of entries) {
          const part = parts[target.id]!;
          // What was in sight when it fell due is drawn, also where what is drawn above it pushes it out.
          part.seen = isIntersecting || part.always || (part.seen && part.due);
        }
        this.look();
      },
      { rootMargin: '200px' },
    );
    for (const name of Object.keys(parts)) observer.observe(byId(name));
  }

  /** All of these are to be asked for again; all where none is named. */
  due(...names: string[]): void {
    for (const name of names.length > 0 ? names : Object.keys(this.parts)) this.parts[name]!.due = true;
    this.look();
  }

  isDue(name: string): boolean {
    return this.parts[name]!.due;
  }

  private look(): void {
    this.looking ??= (async () => {
      for (;;) {
        // A slider that moves is drawn first.
        await new Promise((resolve) => setTimeout(resolve, 60));
        if (this.busy()) continue;
        const [name, part] = Object.entries(this.parts).find(([, part]) => part.due && part.seen) ?? [];
        if (!name || !part) break;
        part.due = false;
        const section = byId(name);
        section.setAttribute('aria-busy', 'true');
        await this.guarded(part.run, section);
        section.removeAttribute('aria-busy');
      }
      this.looking = null;
    })();
  }
}
