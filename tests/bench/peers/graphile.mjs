// Graphile Worker: its local queue at 2,000 and batched completion, the fastest setting found; idle, its defaults.
// Ordered jobs have a named queue for each key.
import { Logger, makeWorkerUtils, run as start, runMigrations } from "graphile-worker";
import pg from "pg";
import { Peer, run } from "./serve.mjs";

const logger = new Logger(() => () => {});
const FAST = {
  concurrentJobs: 100, maxPoolSize: 25, localQueue: { size: 2000 }, completeJobBatchDelay: 0, failJobBatchDelay: 0,
};

// What a named queue holds back is looked for by polling alone.
const ORDERED = { ...FAST, pollInterval: 10 };

class Graphile extends Peer {
  async open() {
    this.pool = new pg.Pool({ connectionString: this.url, max: 4 });
    for (const event of ["error", "connect"]) this.pool.on(event, (what) => what.on?.("error", () => {}));
    this.utils = await makeWorkerUtils({ pgPool: this.pool, logger });
  }

  async install() {
    await runMigrations({ pgPool: this.pool, logger });
  }

  async clear() {
    await this.pool.query("truncate graphile_worker._private_jobs, graphile_worker._private_job_queues cascade");
  }

  add(jobs) {
    return jobs.length === 1
      ? this.utils.addJob("noop", jobs[0])
      : this.utils.addJobs(jobs.map((job) => ({ identifier: "noop", payload: job })));
  }

  addKeyed(jobs, keys) {
    return this.utils.addJobs(jobs.map((job, place) => ({ identifier: "noop", payload: job, queueName: keys[place] })));
  }

  async serve(mode) {
    const settings = { ordered: ORDERED, idle: { concurrentJobs: 10, maxPoolSize: 11 } }[mode] ?? FAST;
    this.runner = await start({
      preset: { worker: { connectionString: this.url, logger, ...settings } },
      noHandleSignals: true,
      crontab: "",
      taskList: { noop: async (job) => this.came(job) },
    });
  }

  async rest() {
    await this.runner.stop();
  }

  async unfinished() {
    return +(await this.pool.query("select count(*) from graphile_worker._private_jobs")).rows[0].count;
  }
}

await run((url) => new Graphile(url));
