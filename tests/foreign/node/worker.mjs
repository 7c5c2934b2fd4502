// A worker of the real packages, for steps that another engine dispatches. It notes what it does in a file.
//   node worker.mjs '{"url": …, "prefix": …, "notes": …, "pollMs": 20, "leaseMs": 30000, "deleteLateMs": 0}'
//   node worker.mjs '{"sqs": {"endpoint": …, "region": …, "credentials": …}, "prefix": …, "notes": …}'
// deleteLateMs: the first delete of each task comes that late, as in a process that stalls there.
import 'reflect-metadata';
import { appendFileSync, existsSync, readFileSync } from 'node:fs';
import { DbTransport } from '@dudousxd/nestjs-durable-transport-db';
import { executorFor } from './executor.mjs';

const said = JSON.parse(process.argv[2]);
const { prefix = 'durable', notes, pollMs = 20, leaseMs = 30000, deleteLateMs = 0 } = said;
const note = (text) => appendFileSync(notes, text + '\n');
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

process.on('unhandledRejection', (error) => {
  process.stdout.write(JSON.stringify({ died: String(error?.code ?? ''), message: String(error?.message ?? error) }) + '\n');
  process.exit(7);
});

const counts = new Map();
const count = (step) => counts.set(step, (counts.get(step) ?? 0) + 1).get(step);

const handlers = {
  echo: async (input) => ({ echo: input ?? null, by: 'node' }),
  nothing: async () => undefined,
  none: async () => null,
  'a:b.c': async (input) => input + 1,
  fails: async (input) => {
    note(`fails ${input}`);
    throw Object.assign(new Error(`no ${input}`), { code: 'E_NO' });
  },
  fatal: async () => {
    note('fatal');
    throw Object.assign(new Error('never'), { code: 'E_NEVER', retryable: false });
  },
  third_time: async (input) => {
    const n = count(`third ${input}`);
    note(`third_time ${input} ${n}`);
    if (n < 3) throw new Error('not yet');
    return n;
  },
  slow: async (ms) => {
    note(`slow began ${process.pid}`);
    await sleep(ms);
    note(`slow ended ${process.pid}`);
    return 'slow';
  },
  hangs_once: async () => {
    const first = !(existsSync(notes) && readFileSync(notes, 'utf8').includes('hangs_once'));
    note(`hangs_once ${process.pid}`);
    if (first) await sleep(600000);
    return 'finished by another';
  },
};

async function tables() {
  const executor = await executorFor(said.url, said.isolation ?? '');
  const late = new Set();
  const query = executor.query;
  executor.query = async (sql, params) => {
    if (deleteLateMs && sql.startsWith('DELETE') && sql.includes('_tasks') && !late.has(params[0])) {
      late.add(params[0]);
      await sleep(deleteLateMs);
      note(`deleted late ${params[0]}`);
    }
    return query(sql, params);
  };
  return (group) => new DbTransport({ executor, prefix, pollMs, leaseMs, group, instanceId: `node-${process.pid}` });
}

async function queues() {
  const { SqsTransport } = await import('@dudousxd/nestjs-durable-transport-sqs');
  return (group) => new SqsTransport({
    clientConfig: said.sqs, prefix, group, autoCreate: true, waitTimeSeconds: 1, visibilityTimeoutSec: said.visibility ?? 30,
  });
}

const transport = await (said.sqs ? queues() : tables());
for (const step of said.steps ?? Object.keys(handlers)) {
  const worker = transport(step.replaceAll(':', '-'));
  worker.handle(step, handlers[step]);
}
process.stdout.write(JSON.stringify({ ready: true }) + '\n');
