// The Node twin of holdfast.bench.serve: one contestant in a process of its own, driven by JSON lines.
import fs from "node:fs";
import readline from "node:readline";

export const payload = (order) => ({ order, amount: 12.5 });
export const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const seconds = () => Number(process.hrtime.bigint()) / 1e9;
const between = ([low, high]) => low + Math.random() * (high - low);
const LOOK = 5;

/** A peer says how to add jobs and how to work (`add`, `serve`, `clear`, `unfinished`, `install`); the rest is made of it. */
export class Peer {
  stamps = [];
  left = 0;
  allCame = () => {};

  constructor(url) {
    this.url = url;
  }

  came(job) {
    if (job.sent !== undefined) this.stamps.push((Number(process.hrtime.bigint()) - job.sent) / 1e6);
    else if (--this.left === 0) this.allCame();
  }

  async aenqueue_one({ count }) {
    for (let order = 0; order < count; order++) await this.add([payload(order)]);
  }

  /** With `keys` jobs of the same key run one at a time, in their order. */
  async enqueue_many({ count, per_call, keys = 0 }) {
    for (let start = 0; start < count; start += per_call) {
      const orders = Array.from({ length: Math.min(per_call, count - start) }, (_, place) => start + place);
      const jobs = orders.map(payload);
      await (keys ? this.addKeyed(jobs, orders.map((order) => `key ${order % keys}`)) : this.add(jobs));
    }
  }

  /** Work until every job was handled and the database shows none unfinished. */
  async drain({ count, keys = 0 }) {
    this.left = count;
    const all = new Promise((done) => (this.allCame = done));
    const began = seconds();
    await this.serve(keys ? "ordered" : "drain");
    await all;
    let ended = seconds(); // read before the query: what it sees is no older
    while (await this.unfinished()) {
      await sleep(LOOK);
      ended = seconds();
    }
    await this.rest();
    return ended - began;
  }

  async work({ busy = false }) {
    this.stamps = [];
    await this.serve(busy ? "flow" : "idle");
    await sleep(500);
  }

  async produce({ count, per_call, gap }) {
    let due = seconds();
    for (let sent = 0; sent < count; sent += per_call) {
      due += between(gap);
      await sleep(Math.max(0, (due - seconds()) * 1000));
      const now = Number(process.hrtime.bigint());
      await this.add(Array.from({ length: per_call }, () => ({ sent: now })));
    }
  }

  async received({ count }) {
    while (this.stamps.length < count) await sleep(20);
    await this.rest();
    return this.stamps;
  }

  async pause({ seconds: length }) {
    await sleep(length * 1000);
  }

  async idle({ seconds: length }) {
    const before = process.cpuUsage(), began = seconds();
    await sleep(length * 1000);
    const used = process.cpuUsage(before);
    const cpu_percent = (used.user + used.system) / 1e4 / (seconds() - began);
    return { cpu_percent, rss_mb: process.memoryUsage().rss / 1e6 };
  }

  async uninstall() {}
}

const say = (answer) => fs.writeSync(1, JSON.stringify(answer) + "\n");

/** Answer requests until there are no more. */
export async function run(make) {
  let peer;
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { do: name, ...args } = JSON.parse(line);
    const began = seconds();
    try {
      if (!peer) {
        peer = make(args.url);
        await peer.open();
        say({ value: "ready", seconds: 0 });
        continue;
      }
      const value = await peer[name](args);
      say({ value: value ?? null, seconds: seconds() - began });
    } catch (error) {
      say({ error: `${name}: ${error.stack ?? error}` });
    }
  }
  process.exit(0);
}
