// pg-boss: four loops that claim 1,000 each, the fastest setting found; otherwise one loop that claims 100, woken by NOTIFY.
// Ordered jobs are in a queue of strict order by key (key_strict_fifo).
import pg from "pg";
import { PgBoss } from "pg-boss";
import { Peer, run, sleep } from "./serve.mjs";

const FAST = { batchSize: 1000, burstWhenBatchFull: true, localConcurrency: 4 };
const WOKEN = { batchSize: 100, burstWhenBatchFull: true };

class Boss extends Peer {
  async open() {
    this.pool = new pg.Pool({ connectionString: this.url, max: 1 });
  }

  async boss(over) {
    const boss = new PgBoss({ connectionString: this.url, useListenNotify: true, ...over });
    boss.on("error", (error) => console.error(error));
    await boss.start();
    return boss;
  }

  async install() {
    const boss = await this.boss();
    await boss.createQueue("bench", { notify: true });
    await boss.createQueue("fifo", { policy: "key_strict_fifo" });
    await boss.stop({ graceful: false });
  }

  async clear() {
    await this.pool.query("truncate pgboss.job");
  }

  async add(jobs) {
    this.sender ??= await this.boss({ useListenNotify: false, supervise: false, schedule: false });
    return jobs.length === 1
      ? this.sender.send("bench", jobs[0])
      : this.sender.insert("bench", jobs.map((data) => ({ data })));
  }

  async addKeyed(jobs, keys) {
    this.sender ??= await this.boss({ useListenNotify: false, supervise: false, schedule: false });
    return this.sender.insert("fifo", jobs.map((data, place) => ({ data, singletonKey: keys[place] })));
  }

  async serve(mode) {
    this.worker = await this.boss();
    if (mode === "ordered") {
      this.fetching = this.fetchAll();
      return;
    }
    const settings = { pollingIntervalSeconds: 0.5, ...(mode === "drain" ? FAST : WOKEN) };
    await this.worker.work("bench", settings, async (jobs) => jobs.forEach((job) => this.came(job.data)));
  }

  /**
   * Its own loop waits half a second after a batch that is not full, and where keys are busy none is: this one does
   * not wait. Several of them were slower than one.
   */
  async fetchAll() {
    while (!this.rests) {
      const jobs = await this.worker.fetch("fifo", { batchSize: 1000 });
      jobs.forEach((job) => this.came(job.data));
      await (jobs.length ? this.worker.complete("fifo", jobs.map((job) => job.id)) : sleep(1));
    }
    this.rests = false;
  }

  async rest() {
    if (this.fetching) {
      this.rests = true;
      await this.fetching;
      this.fetching = null;
    }
    await this.worker.stop({ graceful: false });
  }

  async unfinished() {
    const found = await this.pool.query("select count(*) from pgboss.job where state < 'completed'");
    return +found.rows[0].count;
  }
}

await run((url) => new Boss(url));
