-- Holdfast's queries for PostgreSQL. The other dialects hold the same names in the same order: review them with diff.
-- Times: coalesce(:now, statement_timestamp()) is the server's clock unless a test sets :now.
-- Batches: each column of a batch is an array parameter.

-- schema_create: make the configured schema, if one is configured.
create schema if not exists holdfast_schema;

-- schema_lock: let one migrator in at a time; freed when its transaction ends.
select pg_advisory_xact_lock(hashtextextended('holdfast_meta', 0));

-- meta_create: make the table that holds the schema version.
create table if not exists holdfast_meta (key text primary key, value text not null);

-- meta_present: tell whether Holdfast's tables were ever made here.
select to_regclass('holdfast_meta') is not null;

-- version_read: read the schema version.
select value from holdfast_meta where key = 'schema_version';

-- version_write: record the schema version.
insert into holdfast_meta (key, value) values ('schema_version', :version)
on conflict (key) do update set value = excluded.value;

-- clock: read the database's time.
select coalesce(:now::timestamptz, statement_timestamp());

-- enqueue: add one job, and wake its queue's workers at commit.
-- A repeated insert of the same id adds nothing, so a lost reply to COMMIT may be answered by running it again; also
-- when a worker has finished the job meanwhile.
insert into holdfast_jobs
    (id, queue, kind, payload, headers, priority, available_at, created_at, max_attempts, lease_ms, key, bucket, unique_key)
select :id::uuid, :queue, :kind, :payload, :headers, :priority,
    coalesce(:run_at::timestamptz, coalesce(:now::timestamptz, statement_timestamp()) + :delay_ms::bigint * interval '1 millisecond'),
    coalesce(:now::timestamptz, statement_timestamp()), :max_attempts, :lease_ms, :key, :bucket, :unique_key
 where not exists (select 1 from holdfast_finished f where f.id = :id::uuid)
on conflict do nothing
returning id, case when :channel::text is not null and available_at <= created_at then pg_notify(:channel, queue)::text end;

-- enqueue_many: add a batch of jobs, and wake each queue once at commit.
-- The look into the finished table is a scalar subquery, which cannot become a join that reads all of it; it costs
-- about 1 µs a job (10,000 jobs, 1,000,000 finished rows).
with added as (
    insert into holdfast_jobs
        (id, queue, kind, payload, headers, priority, available_at, created_at, max_attempts, lease_ms, key, bucket, unique_key)
    select u.id, u.queue, u.kind, u.payload::json, u.headers::json, u.priority,
           coalesce(u.run_at, coalesce(:now::timestamptz, statement_timestamp()) + u.delay_ms * interval '1 millisecond'),
           coalesce(:now::timestamptz, statement_timestamp()), u.max_attempts, u.lease_ms, u.key, u.bucket, u.unique_key
      from unnest(:id::uuid[], :queue::text[], :kind::text[], :payload::text[], :headers::text[], :priority::smallint[],
                  :run_at::timestamptz[], :delay_ms::bigint[], :max_attempts::integer[], :lease_ms::integer[],
                  :key::text[], :bucket::smallint[], :unique_key::text[])
           as u (id, queue, kind, payload, headers, priority, run_at, delay_ms, max_attempts, lease_ms, key, bucket, unique_key)
     where (select f.id from holdfast_finished f where f.id = u.id) is null
    on conflict do nothing
    returning queue, available_at, created_at)
select pg_notify(:channel, q.queue)::text
  from (select distinct queue from added where available_at <= created_at) q
 where :channel::text is not null;

-- unique_find: read the live jobs that hold these unique keys.
select j.kind, j.unique_key, j.id
  from unnest(:kind::text[], :unique_key::text[]) as u (kind, unique_key)
  join holdfast_jobs j on j.kind = u.kind and j.unique_key = u.unique_key
 where j.unique_key is not null;

-- keys_take: take idempotency keys that are free or past their window; the flow reads back who holds them.
-- On a key that another transaction is taking, this waits for it: nobody can miss a key that then commits.
insert into holdfast_keys (scope, key, job_id, expires_at)
select u.scope, u.key, u.job_id, coalesce(:now::timestamptz, statement_timestamp()) + u.window_ms * interval '1 millisecond'
  from unnest(:scope::text[], :key::text[], :job_id::uuid[], :window_ms::bigint[]) as u (scope, key, job_id, window_ms)
on conflict (scope, key) do update set job_id = excluded.job_id, expires_at = excluded.expires_at
 where holdfast_keys.expires_at <= coalesce(:now::timestamptz, statement_timestamp());

-- keys_find: read which job holds each key.
select k.scope, k.key, k.job_id
  from unnest(:scope::text[], :key::text[]) as u (scope, key)
  join holdfast_keys k on k.scope = u.scope and k.key = u.key;

-- keys_point: let keys name the unique job that was found instead of the one that was not added.
update holdfast_keys k
   set job_id = u.holder
  from unnest(:scope::text[], :key::text[], :job_id::uuid[], :holder::uuid[]) as u (scope, key, job_id, holder)
 where k.scope = u.scope and k.key = u.key and k.job_id = u.job_id;

-- claim: lease the next due jobs of these queues, raise their fence and count the attempt.
-- Rows are addressed by primary key (id = any): a join here may walk the whole table when statistics are stale.
update holdfast_jobs j
   set state = 'leased', fence = j.fence + 1, attempts = j.attempts + 1, leased_by = :worker,
       leased_at = coalesce(:now::timestamptz, statement_timestamp()),
       lease_expires_at = coalesce(:now::timestamptz, statement_timestamp())
           + coalesce(j.lease_ms, (:leases::integer[])[array_position(:kinds::text[], j.kind)], :lease_ms::integer) * interval '1 millisecond'
 where j.id = any (array(
    select d.id
      from unnest(:queues::text[]) as q (queue)
     cross join lateral (
        select id, priority, available_at
          from holdfast_jobs
         where queue = q.queue and state = 'pending'
           and available_at <= coalesce(:now::timestamptz, statement_timestamp())
           and (:kinds::text[] is null or kind = any (:kinds::text[]))
         order by priority desc, available_at, id
         limit :limit
           for update skip locked) d
     order by d.priority desc, d.available_at, d.id
     limit :limit))
returning j.id, j.queue, j.kind, j.payload::text, j.headers::text, j.key, j.priority, j.attempts, j.max_attempts, j.fence,
    coalesce(j.lease_ms, (:leases::integer[])[array_position(:kinds::text[], j.kind)], :lease_ms::integer),
    j.available_at, j.created_at;

-- renew: put the end of held leases off, and tell who was asked to stop.
update holdfast_jobs j
   set lease_expires_at = coalesce(:now::timestamptz, statement_timestamp()) + u.lease_ms * interval '1 millisecond'
  from unnest(:id::uuid[], :fence::bigint[], :lease_ms::integer[]) as u (id, fence, lease_ms)
 where j.id = u.id and j.fence = u.fence
returning j.id, j.cancel_requested;

-- put_back: return leased jobs to their queue: retry (delay, error), snooze (delay, attempt back), release (attempt back).
-- The fence rises here too, so that whoever held the lease can no longer write.
update holdfast_jobs j
   set state = 'pending', fence = j.fence + 1, attempts = j.attempts - u.attempts_back,
       available_at = coalesce(coalesce(:now::timestamptz, statement_timestamp()) + u.delay_ms * interval '1 millisecond', j.available_at),
       leased_by = null, leased_at = null, lease_expires_at = null,
       errors = case when u.error is null then j.errors else coalesce(j.errors, '[]'::jsonb) || u.error::jsonb end
  from unnest(:id::uuid[], :fence::bigint[], :delay_ms::bigint[], :attempts_back::integer[], :error::text[])
       as u (id, fence, delay_ms, attempts_back, error)
 where j.id = u.id and j.fence = u.fence
returning j.id, case when :channel::text is not null and coalesce(u.delay_ms, 0) = 0 then pg_notify(:channel, j.queue)::text end;

-- finish: move leased jobs to the finished table with their outcome.
with gone as (
    delete from holdfast_jobs j
     using unnest(:id::uuid[], :fence::bigint[], :outcome::text[], :result::text[], :error::text[], :fingerprint::text[])
           as u (id, fence, outcome, result, error, fingerprint)
     where j.id = u.id and j.fence = u.fence
    returning j.*, u.outcome, u.result, u.error, u.fingerprint)
insert into holdfast_finished
    (id, fence, available_at, created_at, leased_at, finished_at, attempts, max_attempts, lease_ms, replays, priority, bucket,
     outcome, queue, kind, key, unique_key, leased_by, fingerprint, payload, headers, progress, result, errors)
select id, fence, available_at, created_at, leased_at, coalesce(:now::timestamptz, statement_timestamp()), attempts, max_attempts,
       lease_ms, replays, priority, bucket, outcome, queue, kind, key, unique_key, leased_by, fingerprint, payload, headers,
       progress, result::json, case when error is null then errors else coalesce(errors, '[]'::jsonb) || error::jsonb end
  from gone
returning id;

-- drop: delete leased jobs that leave no trace (retention 0).
delete from holdfast_jobs j
 using unnest(:id::uuid[], :fence::bigint[]) as u (id, fence)
 where j.id = u.id and j.fence = u.fence
returning j.id;

-- settled: tell which of these jobs are finished, with the fence they ended with, for a settle whose answer was lost.
select f.id, f.fence from holdfast_finished f where f.id = any (:ids::uuid[]);

-- live: tell which of these jobs are still in the live table, with the fence they have now.
select j.id, j.fence from holdfast_jobs j where j.id = any (:ids::uuid[]);

-- progress: store how far a leased job is.
update holdfast_jobs set progress = :progress where id = :id and fence = :fence returning id;

-- reap_pick: lock leases that ran out, oldest first; the flow decides what becomes of each.
select id, queue, kind, fence, attempts, max_attempts, leased_by, leased_at, lease_expires_at, cancel_requested
  from holdfast_jobs
 where state = 'leased' and lease_expires_at < coalesce(:now::timestamptz, statement_timestamp())
   and (:kinds::text[] is null or kind = any (:kinds::text[]))
   and not (id = any (:ids::uuid[]))
 order by lease_expires_at
 limit :limit
   for update skip locked;

-- reap_mark: raise the fence of leases that were picked, so that a late holder's write cannot be taken for the reaper's.
update holdfast_jobs set fence = fence + 1 where id = any (:ids::uuid[]);

-- strays: read the leases that the table says a worker holds, but for those it knows of.
select id, fence from holdfast_jobs
 where state = 'leased' and leased_by = :worker and not (id = any (:ids::uuid[]));

-- beat: record that a worker is alive. A beat never un-drains.
insert into holdfast_workers (id, status, started_at, seen_at, info)
values (:id, 'alive', coalesce(:now::timestamptz, statement_timestamp()), coalesce(:now::timestamptz, statement_timestamp()), :info)
on conflict (id) do update set seen_at = excluded.seen_at, info = excluded.info,
    status = case when holdfast_workers.status = 'dead' then 'alive' else holdfast_workers.status end
returning status;

-- worker_mark: set a worker's status.
update holdfast_workers set status = :status, seen_at = coalesce(:now::timestamptz, statement_timestamp())
 where id = :id
returning id;

-- workers_bury: mark workers dead that have been silent for too long.
update holdfast_workers set status = 'dead'
 where status <> 'dead' and seen_at < coalesce(:now::timestamptz, statement_timestamp()) - :silent_ms::bigint * interval '1 millisecond'
returning id;

-- workers_forget: delete dead workers that nobody asks about any more.
delete from holdfast_workers
 where status = 'dead' and seen_at < coalesce(:now::timestamptz, statement_timestamp()) - :older_ms::bigint * interval '1 millisecond'
returning id;

-- workers_list: read the registry with the age of each beat in milliseconds.
select id, status, started_at, seen_at,
       (extract(epoch from coalesce(:now::timestamptz, statement_timestamp()) - seen_at) * 1000)::bigint, info::text
  from holdfast_workers
 order by started_at, id;

-- prune_queues: list the queues that have finished rows, by outcome, hopping over the index instead of reading it all.
with recursive hop as (
    (select outcome, queue from holdfast_finished order by outcome, queue limit 1)
    union all
    select n.outcome, n.queue
      from hop cross join lateral (
        select outcome, queue from holdfast_finished f
         where (f.outcome, f.queue) > (hop.outcome, hop.queue)
         order by outcome, queue limit 1) n)
select outcome, queue from hop;

-- prune: delete a chunk of finished rows older than their retention.
delete from holdfast_finished
 where id = any (array(
    select id from holdfast_finished
     where outcome = :outcome and queue = :queue
       and finished_at < coalesce(:now::timestamptz, statement_timestamp()) - :older_ms::bigint * interval '1 millisecond'
     order by finished_at
     limit :limit
       for update skip locked))
returning id;

-- keys_prune: delete a chunk of idempotency keys past their window.
delete from holdfast_keys
 where (scope, key) in (
    select scope, key from holdfast_keys
     where expires_at <= coalesce(:now::timestamptz, statement_timestamp())
     order by expires_at
     limit :limit
       for update skip locked)
returning key;
