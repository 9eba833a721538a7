// A list that holds the latest values, up to a limit. Everything on the page that grows with time is one of these, so
// a page that stays open for days uses no more memory than after ten minutes.

export class Ring<T> {
  private items: T[] = [];
  private start = 0;

  constructor(readonly limit: number) {}

  get size(): number {
    return this.items.length;
  }

  push(value: T): void {
    if (this.items.length < this.limit) {
      this.items.push(value);
    } else {
      this.items[this.start] = value;
      this.start = (this.start + 1) % this.limit;
    }
  }

  /** Adds a value behind all that are not larger; the smallest values of a full list are dropped. */
  insert(value: T, key: (value: T) => number): void {
    if (this.size === this.limit && key(value) < key(this.at(0))) return;
    this.push(value);
    const place = (index: number) => (this.start + index) % this.items.length;
    for (let index = this.size - 1; index > 0 && key(this.at(index - 1)) > key(value); index--) {
      this.items[place(index)] = this.at(index - 1);
      this.items[place(index - 1)] = value;
    }
  }

  /** The value at an index, 0 for the oldest. */
  at(index: number): T {
    return this.items[(this.start + index) % this.items.length];
  }

  last(): T | undefined {
    return this.size ? this.at(this.size - 1) : undefined;
  }

  /** Newest first. */
  *newest(): Generator<T> {
    for (let index = this.size - 1; index >= 0; index--) yield this.at(index);
  }
}
