-- Airlock's outbox table, on PostgreSQL: the only database that it is for.
-- Rows are found by primary key where a holder writes: statistics that were gathered while nobody held a row make the
-- planner read the whole of a partial index instead. The value of each row of a batch is at its id's place. Arrays
-- are cast once, in a `select` of their own: cast for each row, a batch of a hundred took 50 ms instead of 5.

-- create: make the tables as Airlock's own migration makes them; one creator of ours at a time.
select pg_advisory_xact_lock(hashtextextended('foreign_lock', 0));
create table if not exists foreign_messages (
    id uuid primary key,
    aggregate_type varchar(64) not null,
    aggregate_id varchar(64) not null,
    event_type varchar(128) not null,
    partition_key varchar(64) not null,
    payload jsonb not null,
    payload_size integer not null,
    idempotency_key varchar(128),
    status varchar(16) not null default 'PENDING',
    retry_count integer not null default 0,
    next_retry_at timestamptz not null default current_timestamp,
    locked_by varchar(64),
    locked_until timestamptz,
    error_reason text,
    created_at timestamptz not null default current_timestamp,
    first_attempt_at timestamptz,
    last_attempt_at timestamptz,
    processed_at timestamptz
);
create index if not exists foreign_due on foreign_messages (next_retry_at)
    where status in ('PENDING', 'IN_FLIGHT');
create index if not exists foreign_failed on foreign_messages (created_at) where status = 'FAILED';
create index if not exists foreign_processed on foreign_messages (processed_at) where status = 'PROCESSED';
create unique index if not exists foreign_idem on foreign_messages (idempotency_key)
    where idempotency_key is not null;
create index if not exists foreign_partition on foreign_messages (partition_key, created_at)
    where status in ('PENDING', 'IN_FLIGHT');
create table if not exists foreign_meta (
    key varchar(64) primary key,
    value varchar(64) not null
);
insert into foreign_meta (key, value) values ('schema_version', '0') on conflict (key) do nothing;

-- walk: let the planner walk the index of what is due instead of sorting, until this transaction ends.
-- Without good statistics it expects hardly one row that is due, and would read and sort all of them at each claim:
-- 120 ms with 20,000 of them, where the walk takes less than 1 ms.
select set_config('enable_sort', 'off', true);

-- pick: lock due messages in the order of next_retry_at, under Airlock's own condition; what another locks is skipped.
-- The payload is measured and not read: what goes beyond the limit of a claim must not reach our memory.
-- One that names no type is picked, too: nobody serves it, and it becomes a dead letter.
select m.id::text, coalesce(octet_length(m.payload::text), 0), m.locked_by, coalesce(m.retry_count, 0)
  from foreign_messages m
 where m.status in ('PENDING', 'IN_FLIGHT') and m.next_retry_at <= :now
   and (m.locked_until is null or m.locked_until < :now)
   and (m.event_type = any(:types::text[]) or m.event_type is null)  -- when types
   and (m.event_type <> all(:others::text[]) or m.event_type is null)  -- when others
 order by m.next_retry_at
 limit :limit
   for update skip locked;

-- take: lease picked messages. A lease of ours that ran out counts as a failed attempt, because its worker died.
-- Airlock's relay leaves what its byte limit cuts leased to the end, so that one of its leases says nothing.
update foreign_messages m
   set status = 'IN_FLIGHT', locked_by = :holder, locked_until = :now + :lease_ms::bigint * interval '1 millisecond',
       retry_count = coalesce(m.retry_count, 0) + case when left(m.locked_by, 9) = 'holdfast/' then 1 else 0 end,
       first_attempt_at = coalesce(m.first_attempt_at, :now), last_attempt_at = :now
 where m.id = any((select :ids::text::uuid[])::uuid[])
returning m.id::text, m.aggregate_type, m.aggregate_id, m.event_type, m.partition_key, m.payload::text,
          m.idempotency_key, m.retry_count, date_part('epoch', m.next_retry_at) * 1000000,
          date_part('epoch', m.created_at) * 1000000, (date_part('epoch', :now) * 1000000)::bigint;

-- held: lock messages, for a holder to see whether they are still its own.
select m.id::text, m.status, m.locked_by, date_part('epoch', m.last_attempt_at) * 1000000
  from foreign_messages m
 where m.id = any((select :ids::text::uuid[])::uuid[])
 order by m.id
   for update;

-- renew: put the end of leases off.
update foreign_messages m set locked_until = :now + :lease_ms::bigint * interval '1 millisecond'
 where m.id = any((select :ids::text::uuid[])::uuid[]);

-- processed: write that messages are done; last_attempt_at stays, by which a repeated write is told.
with batch as (select :ids::text::uuid[] as ids, :reasons::text[] as reasons)
update foreign_messages m
   set status = 'PROCESSED', processed_at = :now, locked_by = null, locked_until = null,
       error_reason = coalesce(
           ((select reasons from batch))[array_position((select ids from batch), m.id)], m.error_reason)
 where m.id = any((select ids from batch)::uuid[])
returning m.id::text;

-- put_back: give messages back, at once to their old place or after a delay, with or without a failed attempt.
with batch as (
    select :ids::text::uuid[] as ids, :failures::text::integer[] as failures, :delays::text::bigint[] as delays,
           :reasons::text[] as reasons
)
update foreign_messages m
   set status = 'PENDING', locked_by = null, locked_until = null,
       retry_count = coalesce(m.retry_count, 0)
                     + ((select failures from batch))[array_position((select ids from batch), m.id)],
       next_retry_at = coalesce(:now + ((select delays from batch))[array_position((select ids from batch), m.id)]
                                     * interval '1 millisecond', m.next_retry_at),
       error_reason = coalesce(
           ((select reasons from batch))[array_position((select ids from batch), m.id)], m.error_reason)
 where m.id = any((select ids from batch)::uuid[])
returning m.id::text;

-- bury: make dead letters, each with its reason.
with batch as (select :ids::text::uuid[] as ids, :reasons::text[] as reasons)
update foreign_messages m
   set status = 'FAILED', locked_by = null, locked_until = null, retry_count = coalesce(m.retry_count, 0) + 1,
       error_reason = ((select reasons from batch))[array_position((select ids from batch), m.id)]
 where m.id = any((select ids from batch)::uuid[])
returning m.id::text;

-- strays: lock messages that one worker holds without knowing of them.
select m.id::text
  from foreign_messages m
 where m.status in ('PENDING', 'IN_FLIGHT') and m.locked_by = :holder
   and m.id <> all((select :known::text::uuid[])::uuid[])
   for update skip locked;

-- counts: count messages by aggregate type: due, later, leased, abandoned, dead, and since when the oldest is due.
select coalesce(m.aggregate_type, ''),
       count(*) filter (where m.status <> 'FAILED' and m.next_retry_at <= :now
                          and (m.locked_until is null or (m.locked_until < :now and m.status = 'PENDING'))),
       count(*) filter (where m.status <> 'FAILED' and m.next_retry_at > :now
                          and (m.locked_until is null or m.locked_until < :now)),
       count(*) filter (where m.status <> 'FAILED' and m.locked_until >= :now),
       count(*) filter (where m.status = 'IN_FLIGHT' and m.next_retry_at <= :now and m.locked_until < :now),
       count(*) filter (where m.status = 'FAILED'),
       date_part('epoch', :now - min(m.next_retry_at) filter (
           where m.status <> 'FAILED' and m.next_retry_at <= :now
             and (m.locked_until is null or (m.locked_until < :now and m.status = 'PENDING'))))
  from foreign_messages m
 where m.status in ('PENDING', 'IN_FLIGHT', 'FAILED')
 group by 1
 order by 1;

-- rows: read messages by age; a line marked `when` is there only if its parameter is given.
select m.id::text, m.aggregate_type, m.aggregate_id, m.event_type, m.partition_key, m.payload::text,
       m.idempotency_key, m.status, coalesce(m.retry_count, 0), date_part('epoch', m.next_retry_at) * 1000000,
       m.locked_by, date_part('epoch', m.locked_until) * 1000000, m.error_reason,
       date_part('epoch', m.created_at) * 1000000, date_part('epoch', m.last_attempt_at) * 1000000,
       date_part('epoch', m.processed_at) * 1000000, coalesce(m.locked_until >= :now, false)
  from foreign_messages m
 where true
   and m.status in ('PENDING', 'IN_FLIGHT')  -- when live
   and m.status = 'FAILED'  -- when failed
   and coalesce(m.locked_until < :now, true)  -- when pending
   and m.locked_until >= :now  -- when leased
   and m.aggregate_type = :queue  -- when queue
   and m.event_type = :kind  -- when kind
   and m.partition_key = :key  -- when key
   and m.id = any(:row_ids::text::uuid[])  -- when row_ids
   and m.created_at >= :created_after::text::timestamptz  -- when created_after
   and m.created_at < :created_before::text::timestamptz  -- when created_before
   and coalesce(m.last_attempt_at, m.created_at) >= :finished_after::text::timestamptz  -- when finished_after
   and coalesce(m.last_attempt_at, m.created_at) < :finished_before::text::timestamptz  -- when finished_before
   and (m.created_at, m.id) > (:after_at::text::timestamptz, :newer_than::text::uuid)  -- when newer_than
   and (m.created_at, m.id) < (:after_at::text::timestamptz, :older_than::text::uuid)  -- when older_than
   and (m.created_at, m.id) >= (:end_at::text::timestamptz, :from_id::text::uuid)  -- when from_id
   and (m.created_at, m.id) <= (:end_at::text::timestamptz, :to_id::text::uuid)  -- when to_id
 order by
       m.created_at desc, m.id desc,  -- when newest
       m.created_at, m.id
 limit :limit;

-- letters_horizon: name the dead letter that is the last of this many, and the one behind it, if there is one.
select m.id::text
  from foreign_messages m
 where m.status = 'FAILED'
   and (m.created_at, m.id) > (:after_at::text::timestamptz, :newer_than::text::uuid)  -- when newer_than
   and (m.created_at, m.id) < (:after_at::text::timestamptz, :older_than::text::uuid)  -- when older_than
 order by
       m.created_at desc, m.id desc,  -- when newest
       m.created_at, m.id
 limit 2 offset :skipped;

-- letter_count: count dead letters.
select count(*)
  from foreign_messages m
 where m.status = 'FAILED'
   and m.aggregate_type = :queue  -- when queue
   and m.event_type = :kind  -- when kind
   and m.partition_key = :key  -- when key
   and m.id = any(:row_ids::text::uuid[])  -- when row_ids
   and coalesce(m.last_attempt_at, m.created_at) >= :finished_after::text::timestamptz  -- when finished_after
   and coalesce(m.last_attempt_at, m.created_at) < :finished_before::text::timestamptz;  -- when finished_before

-- due: make messages due that wait and that nobody holds.
update foreign_messages m set next_retry_at = :now, locked_until = null
 where m.id = any((select :ids::text::uuid[])::uuid[]) and m.status in ('PENDING', 'IN_FLIGHT')
   and (m.locked_until is null or m.locked_until < :now)
returning m.id::text;

-- letters: lock dead letters.
select m.id::text, m.aggregate_type, m.aggregate_id, m.event_type, m.partition_key, m.payload::text
  from foreign_messages m
 where m.id = any((select :ids::text::uuid[])::uuid[]) and m.status = 'FAILED'
 order by m.id
   for update;

-- replay: make dead letters due, with no failed attempt; the rows and their idempotency keys stay what they are.
update foreign_messages m
   set status = 'PENDING', retry_count = 0, next_retry_at = :now, locked_by = null, locked_until = null
 where m.id = any((select :ids::text::uuid[])::uuid[]);

-- empty: keep no more of messages than their idempotency keys, which a producer that repeats itself must find taken.
update foreign_messages m
   set status = 'PROCESSED', processed_at = :now, payload = '{}', payload_size = 2, error_reason = 'discarded'
 where m.id = any((select :ids::text::uuid[])::uuid[]) and m.idempotency_key is not null;

-- delete: delete messages that have no idempotency key.
delete from foreign_messages m where m.id = any((select :ids::text::uuid[])::uuid[]) and m.idempotency_key is null;

-- kept: list the aggregate types of finished messages, by status.
select distinct m.status, coalesce(m.aggregate_type, '')
  from foreign_messages m
 where m.status in ('PROCESSED', 'FAILED')
 order by 1 desc, 2;

-- older: count finished messages of one status that are older than a span.
select count(*)
  from foreign_messages m
 where coalesce(m.aggregate_type, '') = :queue
   -- when done:
   and m.status = 'PROCESSED' and m.processed_at < :now - :age_ms::bigint * interval '1 millisecond'
   -- end
   -- when dead:
   and m.status = 'FAILED'
   and coalesce(m.last_attempt_at, m.created_at) < :now - :age_ms::bigint * interval '1 millisecond'
   -- end
;

-- prune: delete a chunk of finished messages of one status that are older than a span.
with old as (
    select o.id
      from foreign_messages o
     where true
       and coalesce(o.aggregate_type, '') = :queue  -- when queue
       -- when done:
       and o.status = 'PROCESSED' and o.processed_at < :now - :age_ms::bigint * interval '1 millisecond'
       -- end
       -- when dead:
       and o.status = 'FAILED'
       and coalesce(o.last_attempt_at, o.created_at) < :now - :age_ms::bigint * interval '1 millisecond'
       -- end
     order by
           o.processed_at,  -- when done
           o.created_at
     limit :limit
       for update skip locked
)
delete from foreign_messages m using old where m.id = old.id returning m.id::text;

-- malformed: count messages, of the first that relays meet, whose payload is not an event, with one of them.
select count(*), min(first.id::text)
  from (select m.id, m.event_type, m.payload
          from foreign_messages m
         where m.status in ('PENDING', 'IN_FLIGHT')
         order by m.next_retry_at
         limit :limit) first
 where first.payload is null or jsonb_typeof(first.payload) not in ('object', 'string')
    or (jsonb_typeof(first.payload) = 'object'
        and (coalesce(first.payload ->> 'id', '') = '' or coalesce(first.payload ->> 'source', '') = ''
             or first.payload ->> 'type' is distinct from first.event_type));

-- flaws: count rows that no relay will ever take, with one of each kind.
select count(*) filter (where m.status not in ('PENDING', 'IN_FLIGHT', 'PROCESSED', 'FAILED')),
       min(m.id::text) filter (where m.status not in ('PENDING', 'IN_FLIGHT', 'PROCESSED', 'FAILED')),
       count(*) filter (where m.status in ('PENDING', 'IN_FLIGHT') and m.next_retry_at is null),
       min(m.id::text) filter (where m.status in ('PENDING', 'IN_FLIGHT') and m.next_retry_at is null)
  from foreign_messages m
 where m.status not in ('PROCESSED', 'FAILED');

-- columns: list the columns of a table.
select attname::text from pg_attribute
 where attrelid = to_regclass(quote_ident(cast(:table as text))) and attnum > 0 and not attisdropped;

-- version: read which version of Airlock's tables this is.
select value from foreign_meta where key = 'schema_version';

-- present: tell whether a table is there.
select 1 where to_regclass(quote_ident(cast(:table as text))) is not null;
