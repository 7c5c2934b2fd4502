// A durable engine under remote control: one JSON object per line on stdin, one per line on stdout.
//   node engine.mjs <url> <prefix> [pollMs] [isolation level, on MySQL]
//   {"cmd":"start","run":"r1","step":"pipeline.extract","input":…,"options":{"retries":3}}   → {"run":"r1","started":true}
//   {"cmd":"wait","run":"r1","ms":5000}   → {"run":"r1","status":"completed","output":…,"error":…}
//   {"cmd":"close"}
// A second engine or a worker of the same packages: {"cmd":"serve","group":"g","step":"name"} answers {"echo": input}.
import 'reflect-metadata';
import { createInterface } from 'node:readline';
import { InMemoryStateStore, WorkflowEngine } from '@dudousxd/nestjs-durable-core';
import { DbTransport } from '@dudousxd/nestjs-durable-transport-db';
import { executorFor } from './executor.mjs';

const [url, prefix, pollMs = '20', isolation = ''] = process.argv.slice(2);
const say = (line) => process.stdout.write(JSON.stringify(line) + '\n');

process.on('unhandledRejection', (error) => {
  say({ died: String(error?.code ?? error?.errno ?? ''), message: String(error?.message ?? error) });
  process.exit(7);
});

const executor = await executorFor(url, isolation);
const transport = new DbTransport({ executor, prefix, pollMs: Number(pollMs) });
const store = new InMemoryStateStore();
const engine = new WorkflowEngine({ store, transport });
const workers = [];
engine.register('wf', '1', (ctx, input) => ctx.step(input.step, input.input, input.options ?? {}));
const timers = setInterval(() => engine.resumeDueTimers().catch((error) => say({ timer: String(error) })), 30);

async function wait(run, ms) {
  const end = Date.now() + ms;
  for (;;) {
    const found = await store.getRun(run);
    if (found && ['completed', 'failed', 'cancelled', 'dead'].includes(found.status)) {
      return {
        run,
        status: found.status,
        output: found.output,
        absent: found.output === undefined,
        error: found.error,
        checkpoints: (await store.listCheckpoints(run)).map((c) => ({
          status: c.status, attempts: c.attempts, error: c.error, startedAt: c.startedAt, enqueuedAt: c.enqueuedAt, group: c.workerGroup,
        })),
      };
    }
    if (Date.now() > end) return { run, status: found?.status ?? 'unknown', late: true };
    await new Promise((resolve) => setTimeout(resolve, 15));
  }
}

async function obey(line) {
  switch (line.cmd) {
    case 'start':
      await engine.start('wf', { step: line.step, input: line.input, options: line.options }, line.run, line.opts);
      return { run: line.run, started: true };
    case 'wait':
      return wait(line.run, line.ms);
    case 'serve': {
      const worker = new DbTransport({ executor, prefix, pollMs: Number(pollMs), group: line.group, leaseMs: line.leaseMs });
      worker.handle(line.step, async (input) => ({ echo: input ?? null, by: 'node' }));
      workers.push(worker);
      return { serving: line.step };
    }
    case 'close':
      clearInterval(timers);
      await Promise.all([transport, ...workers].map((each) => each.close()));
      await executor.end();
      say({ closed: true });
      process.exit(0);
  }
  return { unknown: line.cmd };
}

say({ ready: true });
for await (const text of createInterface({ input: process.stdin })) {
  const line = JSON.parse(text);
  obey(line).then((answer) => say({ id: line.id, ...answer }), (error) => say({ id: line.id, error: String(error?.stack ?? error) }));
}
