// pg-boss: four loops that claim 1,000 each, the fastest setting found; otherwise one loop that claims 100, woken by NOTIFY.
import pg from "pg";
import { PgBoss } from "pg-boss";
import { Peer, run } from "./serve.mjs";

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

  async serve(mode) {
    this.worker = await this.boss();
    const settings = { pollingIntervalSeconds: 0.5, ...(mode === "drain" ? FAST : WOKEN) };
    await this.worker.work("bench", settings, async (jobs) => jobs.forEach((job) => this.came(job.data)));
  }

  async rest() {
    await this.worker.stop({ graceful: false });
  }

  async unfinished() {
    const found = await this.pool.query("select count(*) from pgboss.job where state < 'completed'");
    return +found.rows[0].count;
  }
}

await run((url) => new Boss(url));
