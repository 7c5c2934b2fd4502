// A producer as Airlock's: the business row and the event in one transaction, with the columns that its adapter writes.
// It prints the id of each event as a line of JSON. Usage: node airlock.mjs URL TYPE COUNT [rollback]
import { randomUUID } from 'node:crypto';
import pg from 'pg';

const [url, type, count, ending] = process.argv.slice(2);
const client = new pg.Client({ connectionString: url });
await client.connect();
await client.query('create table if not exists orders (id integer primary key)');
for (let number = 0; number < Number(count); number++) {
  const event = {
    id: randomUUID(),
    source: 'airlock',
    specversion: '1.0',
    type,
    time: new Date().toISOString(),
    data: { order: number, note: 'naïve 🎈' },
    subject: `order:${number}`,
    datacontenttype: 'application/json',
  };
  const text = JSON.stringify(event);
  await client.query('begin');
  await client.query('insert into orders (id) values ($1)', [number]);
  await client.query(
    `insert into airlock_messages (id, aggregate_type, aggregate_id, event_type, partition_key, payload, payload_size,
                                   idempotency_key, status)
     values ($1, 'order', $2, $3, $2, $4, $5, $6, 'PENDING')`,
    [event.id, String(number), type, event, Buffer.byteLength(text, 'utf8'), `order-${number}`],
  );
  await client.query(ending === 'rollback' ? 'rollback' : 'commit');
  console.log(JSON.stringify({ id: event.id, data: event.data }));
}
await client.end();
