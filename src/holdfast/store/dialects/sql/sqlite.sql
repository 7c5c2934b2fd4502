-- Holdfast's queries for SQLite. The other dialects hold the same names in the same order: review them with diff.
-- Differs throughout: times are whole microseconds since 1970 and :now is always bound (the host's clock, or a test's).
-- Differs throughout: a batch is one JSON text, an array of rows, in :batch; lists are JSON texts too.
-- Differs throughout: a batch of held jobs is a JSON object: the fence by id in :held, all that follows the id in :batch.
-- Held jobs are joined with it: this planner begins there whatever it knows of the tables.
-- Differs throughout: nothing to notify; workers watch PRAGMA data_version.
-- Differs throughout: a column takes whatever it is given. What the worker counts with is cast, so that words in a row that
-- was written by hand stop nobody else; numbers at their ends stay there.
-- Differs throughout: no row locks and no SKIP LOCKED: a writing transaction starts with BEGIN IMMEDIATE and is alone.

-- schema_create: make the configured schema, if one is configured.
-- Differs: SQLite has no schemas.
select 1;

-- schema_lock: let one migrator in at a time; freed when its transaction ends.
-- Differs: BEGIN IMMEDIATE has locked the file already.
select 1;

-- schema_patience: say how long a step of a migration waits for a table that another transaction holds.
-- Differs: BEGIN IMMEDIATE has waited already.
select 1;

-- schema_unlock: let the next migrator in.
-- Differs: the end of the transaction does it.
select 1;

-- meta_create: make the table that holds the schema version.
-- Differs: "without rowid", as every table of ours.
create table if not exists holdfast_meta (key text primary key, value text not null) without rowid;

-- meta_present: tell whether Holdfast's tables were ever made here.
-- Differs: SQLite's catalogue is a table.
select exists (select 1 from sqlite_master where type = 'table' and name = 'holdfast_meta');

-- version_read: read the schema version.
select value from holdfast_meta where key = 'schema_version';

-- version_write: record the schema version.
insert into holdfast_meta (key, value) values ('schema_version', :version)
on conflict (key) do update set value = excluded.value;

-- clock: read the database's time.
select :now;

-- enqueue: add one job.
-- An id that is there adds nothing, so a lost reply to COMMIT may be answered by running it again; `take_back` sees to
-- jobs that were finished meanwhile. What is NULL, or 0 unless told, is left out: it takes time to bind, to send
-- and to read.
-- Differs: nothing to notify; workers watch PRAGMA data_version.
insert into holdfast_jobs
    (id, queue, kind, payload, available_at, created_at, max_attempts
    , priority  -- when priority
    , headers  -- when headers
    , lease_ms  -- when lease_ms
    , key  -- when key
    , bucket  -- when bucket
    , unique_key  -- when unique_key
    )
values (:id, :queue, :kind, :payload,
    coalesce(:run_at,  -- when run_at
    :now
        + :delay_ms * 1000  -- when delay_ms
    )  -- when run_at
    , :now, :max_attempts
    , :priority  -- when priority
    , :headers  -- when headers
    , :lease_ms  -- when lease_ms
    , :key  -- when key
    , :bucket  -- when bucket
    , :unique_key  -- when unique_key
    )
on conflict do nothing;

-- enqueue_alike: add a batch of jobs that differ in id and payload only.
-- Differs: run once per row by executemany; reading the fields out of JSON took 1.3 to 3.1 times its CPU (5,000 rows).
insert into holdfast_jobs
    (id, queue, kind, payload, available_at, created_at, max_attempts
    , priority  -- when priority
    , headers  -- when headers
    , lease_ms  -- when lease_ms
    , key  -- when key
    , bucket  -- when bucket
    , unique_key  -- when unique_key
    )
values (:id, :queue, :kind, :payload,
    coalesce(:run_at,  -- when run_at
    :now
        + :delay_ms * 1000  -- when delay_ms
    )  -- when run_at
    , :now, :max_attempts
    , :priority  -- when priority
    , :headers  -- when headers
    , :lease_ms  -- when lease_ms
    , :key  -- when key
    , :bucket  -- when bucket
    , :unique_key  -- when unique_key
    )
on conflict do nothing;

-- enqueue_many: add a batch of jobs of any sort.
-- Differs: run once per row, as enqueue_alike.
insert into holdfast_jobs
    (id, queue, kind, payload, headers, priority, available_at, created_at, max_attempts, lease_ms, key, bucket, unique_key)
values (:id, :queue, :kind, :payload, :headers, :priority, coalesce(:run_at, :now + :delay_ms * 1000),
    :now, :max_attempts, :lease_ms, :key, :bucket, :unique_key)
on conflict do nothing;

-- take_back: delete live jobs that are finished already: a repeated enqueue added them a second time.
-- Differs: no planner to lead away from a join.
delete from holdfast_jobs
 where id in (select value from json_each(:ids)) and exists (select 1 from holdfast_finished f where f.id = holdfast_jobs.id);

-- take_back_dropped: delete live jobs that were dropped already, since a moment before their first enqueue.
-- A job that was dropped had been claimed, so its fence was above 0; with 0 it is what the repeat has added, or its like.
-- Differs: the list is a subquery; there is no array to make of it.
delete from holdfast_jobs
 where fence = 0
   and id in (select value from json_each(:ids))
   and id in (
    select t.value
      from holdfast_dropped d
     cross join json_each(d.ids) t
     where d.at >= :since);

-- unique_find: read the live jobs that hold these unique keys, with the place of each in the batch.
-- No text comes back but the id: a caller's connection may decode texts in a way of its own.
-- Differs: an array of JSON counts from 0; a blob is what no text_factory decodes.
select u.key + 1, cast(j.id as blob)
  from json_each(:batch) u
  join holdfast_jobs j on j.kind = json_extract(u.value, '$[0]') and j.unique_key = json_extract(u.value, '$[1]')
 where j.unique_key is not null;

-- keys_take: take idempotency keys that are free or past their window; the flow reads who holds the others.
-- Differs: "where true" keeps the parser from reading ON CONFLICT as a join condition.
insert into holdfast_keys (scope, key, job_id, expires_at)
select json_extract(u.value, '$[0]'), json_extract(u.value, '$[1]'), json_extract(u.value, '$[2]'),
       :now + json_extract(u.value, '$[3]') * 1000
  from json_each(:batch) u
 where true
on conflict (scope, key) do update set job_id = excluded.job_id, expires_at = excluded.expires_at
 where holdfast_keys.expires_at <= :now
returning cast(job_id as blob);

-- keys_find: read which job holds each key, with the place of the key in the batch.
-- Differs: as unique_find.
select u.key + 1, cast(k.job_id as blob)
  from json_each(:batch) u
  join holdfast_keys k on k.scope = json_extract(u.value, '$[0]') and k.key = json_extract(u.value, '$[1]');

-- keys_point: let keys name the unique job that was found instead of the one that was not added.
update holdfast_keys
   set job_id = u.holder
  from (select json_extract(value, '$[0]') as scope, json_extract(value, '$[1]') as key, json_extract(value, '$[2]') as job_id,
               json_extract(value, '$[3]') as holder
          from json_each(:batch)) u
 where holdfast_keys.scope = u.scope and holdfast_keys.key = u.key and holdfast_keys.job_id = u.job_id;

-- claim: lease the next due jobs of these queues, raise their fence and count the attempt.
-- It hops from priority to priority: without the hops, 100,000 jobs for later cost each claim 60 ms.
-- Differs: no LATERAL; the correlated IN reads each priority of each queue in index order and stops at the limit. No floors:
-- a deleted row is gone from the index at once. Read first, then marked: RETURNING keeps its rows in a table of its own, and
-- took 7 µs of 17 a job.
with recursive level (queue, priority) as (
    select q.value, (select priority from holdfast_jobs where queue = q.value and state = 'pending'
                      order by priority desc limit 1)
      from json_each(:queues) q
    union all
    select level.queue, (select n.priority from holdfast_jobs n
                          where n.queue = level.queue and n.state = 'pending' and n.priority < level.priority
                          order by n.priority desc limit 1)
      from level where level.priority is not null)
select d.id, d.queue, d.kind, d.payload, d.headers, d.key, cast(d.priority as integer), cast(d.attempts as integer) + 1,
       cast(d.max_attempts as integer), min(cast(d.fence as integer), 9223372036854775806) + 1,
       coalesce(nullif(max(cast(d.lease_ms as integer), 0), 0),
           (select l.value from json_each(:kinds) k join json_each(:leases) l on l.key = k.key where k.value = d.kind),  -- when leases
           :lease_ms),
       d.available_at, d.created_at, d.cancel_requested, cast(d.lapses as integer)
  from level
  join holdfast_jobs d on d.id in (
    select id
      from holdfast_jobs
     where queue = level.queue and state = 'pending' and priority = level.priority
       and available_at <= :now and typeof(id) = 'text'
       and (:kinds is null or kind in (select value from json_each(:kinds)))
       and lapses = 0  -- when unsuspected
     order by available_at, id
     limit :limit)
 order by d.priority desc, d.available_at, d.id
 limit :limit;
update holdfast_jobs
   set state = 'leased', fence = min(cast(fence as integer), 9223372036854775806) + 1, attempts = cast(attempts as integer) + 1, began = false, leased_by = :worker,
       leased_at = :now,
       lease_expires_at = :now + 1000 * coalesce(nullif(max(cast(lease_ms as integer), 0), 0),
           (select l.value from json_each(:kinds) k join json_each(:leases) l on l.key = k.key where k.value = kind),  -- when leases
           :lease_ms)
 where id in (select value from json_each(:found));

-- renew: put the end of held leases off, note whose handler has begun, and tell who was asked to stop.
update holdfast_jobs
   set lease_expires_at = :now + u.lease_ms * 1000, began = holdfast_jobs.began or u.began
  from (select key as id, json_extract(value, '$[0]') as fence, json_extract(value, '$[1]') as lease_ms,
               json_extract(value, '$[2]') as began
          from json_each(:batch)) u
 where holdfast_jobs.id = u.id and holdfast_jobs.fence = u.fence
returning id, cancel_requested;

-- begin: record that the handler of a leased job is about to be called.
update holdfast_jobs set began = true where id = :id and fence = :fence returning id;

-- put_back: return leased jobs to their queue: retry (delay, error), snooze (delay, attempt back), release (attempt back).
-- The fence rises here too, so that whoever held the lease can no longer write.
update holdfast_jobs
   set state = 'pending', fence = min(cast(holdfast_jobs.fence as integer), 9223372036854775806) + 1,
       attempts = max(cast(attempts as integer), 1) - u.attempts_back,
       lapses = coalesce(u.lapses, holdfast_jobs.lapses),
       available_at = coalesce(:now + u.delay_ms * 1000, available_at),
       leased_by = null, leased_at = null, lease_expires_at = null,
       errors = case when u.error is null then errors else json_insert(case when errors is null then '[]' when json_valid(errors) and json_type(errors) = 'array' then errors
           else json_array(cast(errors as text)) end, '$[#]', json(u.error)) end
  from (select key as id, json_extract(value, '$[0]') as fence, json_extract(value, '$[1]') as delay_ms,
               json_extract(value, '$[2]') as attempts_back, json_extract(value, '$[3]') as error, json_extract(value, '$[4]') as lapses
          from json_each(:batch)) u
 where holdfast_jobs.id = u.id and holdfast_jobs.fence = u.fence
returning id;

-- finish: move leased jobs to the finished table with their outcome.
-- One NULL answers for all of them.
-- Differs: no writing CTE, so copy and delete are two statements of one transaction. What ended alike, with nothing to store
-- but the :outcome, comes without a :batch. If one was lost no row answers, and the flow looks which were written.
-- Where the caller's connection may run more in between, the delete itself answers: changes() would tell of that.
insert into holdfast_finished
    (id, fence, available_at, created_at, leased_at, finished_at, attempts, max_attempts, lease_ms, replays, priority, bucket,
     outcome, queue, kind, key, unique_key, leased_by, fingerprint, payload, headers, progress, result, errors)
select j.id, j.fence, available_at, created_at, leased_at, :now, attempts, max_attempts,
       lease_ms, replays, priority, bucket, u.outcome, queue, kind, key, unique_key, leased_by, u.fingerprint, payload, headers,
       progress, u.result, case when u.error is null then errors else json_insert(case when errors is null then '[]' when json_valid(errors) and json_type(errors) = 'array' then errors
           else json_array(cast(errors as text)) end, '$[#]', json(u.error)) end
  from (select key as id, value as fence, :outcome as outcome, null as result, null as error, null as fingerprint
          from json_each(:held)
         where :batch is null
         union all
        select key as id, json_extract(value, '$[0]') as fence, json_extract(value, '$[1]') as outcome,
               json_extract(value, '$[2]') as result, json_extract(value, '$[3]') as error, json_extract(value, '$[4]') as fingerprint
          from json_each(:batch)) u
  join holdfast_jobs j on j.id = u.id and j.fence = u.fence;
delete from holdfast_jobs where (id, fence) in (select key, value from json_each(:held))
returning id  -- when strict
;
select null where changes() = :size
    or :strict  -- when strict
;

-- drop: delete leased jobs that leave no finished row (retention 0), and note their ids for repeated enqueues.
-- The answer as in finish. The batch is noted as it came: an id in it that was not deleted does no harm, because its job
-- has a fence above 0 wherever it lives.
-- Differs: no writing CTE; noted first, so that changes() tells of the delete, which takes the batch as a list of pairs.
insert into holdfast_dropped (at, ids) values (:now, :ids);
delete from holdfast_jobs where (id, fence) in (select key, value from json_each(:held))
returning id  -- when strict
;
select null where changes() = :size
    or :strict  -- when strict
;

-- settled: tell which of these jobs are finished, with the fence they ended with, for a settle whose answer was lost.
select f.id, f.fence from holdfast_finished f where f.id in (select value from json_each(:ids));

-- live: tell which of these jobs are still in the live table, with the fence they have now.
select j.id, j.fence from holdfast_jobs j where j.id in (select value from json_each(:ids));

-- progress: store how far a leased job is.
update holdfast_jobs set progress = :progress where id = :id and fence = :fence returning id;

-- reap_pick: read leases that ran out, oldest first; the flow decides what becomes of each.
-- Differs: no rows to lock.
select id, queue, kind, cast(fence as integer), cast(attempts as integer), cast(max_attempts as integer), leased_by, leased_at,
       lease_expires_at, cancel_requested, began, cast(lapses as integer)
  from holdfast_jobs
 where state = 'leased' and lease_expires_at < :now
   and lease_expires_at >= :now - :look_back_ms * 1000  -- when look_back_ms
   and (:kinds is null or kind in (select value from json_each(:kinds)))
   and id not in (select value from json_each(:ids)) and typeof(id) = 'text'
 order by lease_expires_at
 limit :limit;

-- reap_mark: raise the fence of leases that were picked, so that a late holder's write cannot be taken for the reaper's.
update holdfast_jobs set fence = min(cast(fence as integer), 9223372036854775806) + 1 where id in (select value from json_each(:ids));

-- strays: read the leases that the table says a worker holds, but for those it knows of.
select id, fence from holdfast_jobs
 where state = 'leased' and leased_by = :worker and id not in (select value from json_each(:ids));

-- stuck: read rows, written by hand, that no claim and no reaper can ever take, and why.
-- Differs: a column takes whatever it is given, and words sort behind all numbers: such a time never comes.
select cast(id as text), why
  from (select id, case when typeof(id) <> 'text' then 'no text: id' else 'no time: available_at' end as why
          from holdfast_jobs
         where state = 'pending' and (typeof(id) <> 'text' or typeof(available_at) not in ('integer', 'real'))
         union all
        select id, case when typeof(id) <> 'text' then 'no text: id' else 'a lease without an end: lease_expires_at' end
          from holdfast_jobs
         where state = 'leased' and (typeof(id) <> 'text' or typeof(lease_expires_at) not in ('integer', 'real')))
 limit :limit;

-- beat: record that a worker is alive. A beat never un-drains.
insert into holdfast_workers (id, status, started_at, seen_at, info)
values (:id, 'alive', :now, :now, :info)
on conflict (id) do update set seen_at = excluded.seen_at, info = excluded.info,
    status = case when holdfast_workers.status = 'dead' then 'alive' else holdfast_workers.status end
returning status;

-- worker_mark: set a worker's status.
update holdfast_workers set status = :status, seen_at = :now
 where id = :id
returning id;

-- workers_bury: mark workers dead that have been silent for too long.
-- A draining one stays draining: dead, its next beat would revive it as alive, and a beat never un-drains.
update holdfast_workers set status = 'dead'
 where status = 'alive' and seen_at < :now - :silent_ms * 1000
returning id;

-- workers_forget: delete silent workers that nobody asks about any more.
delete from holdfast_workers
 where status <> 'alive' and seen_at < :now - :older_ms * 1000
returning id;

-- workers_list: read the registry with the age of each beat in milliseconds.
-- Differs: times are numbers, so their difference is one too.
select id, status, started_at, seen_at,
       (:now - seen_at) / 1000, info
  from holdfast_workers
 order by started_at, id;

-- prune_queues: list the queues that have finished rows, by outcome, hopping over the index instead of reading it all.
-- Differs: no LATERAL; the next pair is read by two correlated lookups.
with recursive hop (outcome, queue) as (
    select * from (select outcome, queue from holdfast_finished order by outcome, queue limit 1)
    union all
    select coalesce((select outcome from holdfast_finished f where f.outcome = hop.outcome and f.queue > hop.queue
                      order by outcome, queue limit 1),
                    (select outcome from holdfast_finished f where f.outcome > hop.outcome order by outcome, queue limit 1)),
           coalesce((select queue from holdfast_finished f where f.outcome = hop.outcome and f.queue > hop.queue
                      order by outcome, queue limit 1),
                    (select queue from holdfast_finished f where f.outcome > hop.outcome order by outcome, queue limit 1))
      from hop where hop.outcome is not null)
select outcome, queue from hop where outcome is not null;

-- prune: delete a chunk of finished rows older than their retention.
-- Differs: the list is a subquery; there is no array to make of it.
delete from holdfast_finished
 where id in (
    select id from holdfast_finished
     where outcome = :outcome and queue = :queue
       and finished_at < :now - :older_ms * 1000
     order by finished_at
     limit :limit)
returning id;

-- dropped_add: note the ids of jobs whose finished rows are gone.
insert into holdfast_dropped (at, ids) values (:now, :ids);

-- dropped_prune: delete a chunk of notes that no repeat can ask for any more.
-- Differs: ctid is called rowid, and the list is a subquery.
delete from holdfast_dropped
 where rowid in (
    select rowid from holdfast_dropped
     where at < :now - :older_ms * 1000
     order by at
     limit :limit)
returning 1;

-- keys_prune: delete a chunk of idempotency keys past their window.
delete from holdfast_keys
 where (scope, key) in (
    select scope, key from holdfast_keys
     where expires_at <= :now
     order by expires_at
     limit :limit)
returning key;

-- jobs_list: read live and finished jobs as one list; a line marked `when` is there only if its parameter is given.
-- The conditions are pushed into both arms and the arms are merged by primary key, so that a page costs a page.
-- Differs: both arms must give each column the same type, or SQLite reads and sorts both tables whole.
-- Differs: lower() knows the letters of ASCII only.
select id, state, queue, kind, priority, attempts, max_attempts, fence, key, unique_key, payload, headers,
       progress, result, errors, available_at, created_at, leased_at, lease_expires_at, leased_by,
       finished_at, fingerprint, replays, cancel_requested, lapses
  from (select id, state, queue, kind, priority, attempts, max_attempts, fence, key, unique_key, payload, headers,
               progress, cast(null as text) as result, errors, available_at, created_at, leased_at, lease_expires_at, leased_by,
               cast(null as integer) as finished_at, cast(null as text) as fingerprint, replays, cancel_requested, lapses
          from holdfast_jobs
         union all
        select id, outcome, queue, kind, priority, attempts, max_attempts, fence, key, unique_key, payload, headers,
               progress, result, errors, available_at, created_at, leased_at, cast(null as integer), leased_by,
               finished_at, fingerprint, replays, cast(0 as integer), cast(0 as integer)
          from holdfast_finished) j
 where true
   and state in (select value from json_each(:states))  -- when states
   and state = 'dead'  -- when only_dead
   and queue = :queue  -- when queue
   and kind = :kind  -- when kind
   and key = :key  -- when key
   and fingerprint = :group  -- when group
   and leased_by = :worker  -- when worker
   and id in (select value from json_each(:ids))  -- when ids
   and created_at >= :created_after  -- when created_after
   and created_at < :created_before  -- when created_before
   and finished_at >= :finished_after  -- when finished_after
   and finished_at < :finished_before  -- when finished_before
   and json_valid(errors) and instr(lower(json_extract(errors, '$[#-1].type') || ': ' || json_extract(errors, '$[#-1].message')), lower(:error)) > 0  -- when error
   and id < :older_than  -- when older_than
   and id > :newer_than  -- when newer_than
   and state = 'leased' and lease_expires_at < :now  -- when expired
 order by
       lease_expires_at,  -- when expired
       id desc,  -- when newest
       id
 limit :limit;

-- jobs_count: count live and finished jobs; the lines marked `when` as in jobs_list.
-- Differs: as jobs_list.
select count(*)
  from (select id, state, queue, kind, key, errors, created_at, leased_by,
               cast(null as integer) as finished_at, cast(null as text) as fingerprint
          from holdfast_jobs
         union all
        select id, outcome, queue, kind, key, errors, created_at, leased_by, finished_at, fingerprint
          from holdfast_finished) j
 where true
   and state in (select value from json_each(:states))  -- when states
   and state = 'dead'  -- when only_dead
   and queue = :queue  -- when queue
   and kind = :kind  -- when kind
   and key = :key  -- when key
   and fingerprint = :group  -- when group
   and leased_by = :worker  -- when worker
   and id in (select value from json_each(:ids))  -- when ids
   and created_at >= :created_after  -- when created_after
   and created_at < :created_before  -- when created_before
   and finished_at >= :finished_after  -- when finished_after
   and finished_at < :finished_before  -- when finished_before
   and json_valid(errors) and instr(lower(json_extract(errors, '$[#-1].type') || ': ' || json_extract(errors, '$[#-1].message')), lower(:error)) > 0  -- when error
;

-- queue_counts: count jobs by queue, kind and state.
select queue, kind, sum(pending), sum(due), sum(pending - due), sum(leased), sum(done), sum(dead), sum(cancelled)
  from (select queue, kind, count(*) filter (where state = 'pending') as pending,
               count(*) filter (where state = 'pending' and available_at <= :now) as due,
               count(*) filter (where state = 'leased') as leased, 0 as done, 0 as dead, 0 as cancelled
          from holdfast_jobs
         group by queue, kind
         union all
        select queue, kind, 0, 0, 0, count(*) filter (where outcome = 'done'), count(*) filter (where outcome = 'dead'),
               count(*) filter (where outcome = 'cancelled')
          from holdfast_finished
         group by queue, kind) c
 group by queue, kind
 order by queue, kind;

-- queue_lags: count the due jobs of each queue and tell for how many microseconds the first has been due.
-- Differs: times are numbers, so their difference is one too.
select queue, count(*), :now - min(available_at)
  from holdfast_jobs
 where state = 'pending' and available_at <= :now
 group by queue
 order by 3 desc, 1;

-- dead_groups: group dead letters by kind and fingerprint, with the error of the latest; `when` as in jobs_list.
-- Differs: no ordered aggregates; the time written with leading zeros puts the latest id at the end.
select g.fingerprint, g.kind, g.count, g.queues, iif(json_valid(f.errors), json_extract(f.errors, '$[#-1].type'), null),
       iif(json_valid(f.errors), json_extract(f.errors, '$[#-1].message'), null),
       g.first_at, g.last_at, f.id
  from (select fingerprint, kind, count(*) as count, json_group_array(distinct queue) as queues,
               min(finished_at) as first_at, max(finished_at) as last_at,
               substr(max(printf('%020d', finished_at) || id), 21) as latest
          from holdfast_finished
         where true
           and outcome in (select value from json_each(:states))  -- when states
           and outcome = 'dead'  -- when only_dead
           and queue = :queue  -- when queue
           and kind = :kind  -- when kind
           and key = :key  -- when key
           and fingerprint = :group  -- when group
           and leased_by = :worker  -- when worker
           and id in (select value from json_each(:ids))  -- when ids
           and created_at >= :created_after  -- when created_after
           and created_at < :created_before  -- when created_before
           and finished_at >= :finished_after  -- when finished_after
           and finished_at < :finished_before  -- when finished_before
           and json_valid(errors) and instr(lower(json_extract(errors, '$[#-1].type') || ': ' || json_extract(errors, '$[#-1].message')), lower(:error)) > 0  -- when error
         group by fingerprint, kind
         order by count(*) desc, max(finished_at) desc
         limit :limit) g
  join holdfast_finished f on f.id = g.latest
 order by g.count desc, g.last_at desc;

-- job_state: tell where a job is in its life.
select state from holdfast_jobs where id = :id
union all
select outcome from holdfast_finished where id = :id;

-- run_now: make a pending job due.
-- Differs: least is called min, and there is nothing to notify.
update holdfast_jobs set available_at = min(available_at, :now)
 where id = :id and state = 'pending'
returning queue, kind;

-- cancel_pending: move a pending job to the finished table as cancelled; a claim that came first leaves nothing to move.
-- Differs: no writing CTE, so copy and delete are two statements of one transaction.
insert into holdfast_finished
    (id, fence, available_at, created_at, leased_at, finished_at, attempts, max_attempts, lease_ms, replays, priority, bucket,
     outcome, queue, kind, key, unique_key, leased_by, payload, headers, progress, errors)
select id, fence, available_at, created_at, leased_at, :now, attempts, max_attempts,
       lease_ms, replays, priority, bucket, 'cancelled', queue, kind, key, unique_key, leased_by, payload, headers, progress, errors
  from holdfast_jobs
 where id = :id and state = 'pending';
delete from holdfast_jobs where id = :id and state = 'pending'
returning queue, kind;

-- cancel_leased: ask the holder of a job to stop.
-- Differs: no booleans, and nothing to notify.
update holdfast_jobs set cancel_requested = 1
 where id = :id and state = 'leased'
returning queue, kind, leased_by, fence;

-- finished_pick: read finished jobs for an action by hand, the oldest first; `when` as in jobs_list.
-- Differs: instr for strpos, || for concat; see jobs_list.
select id, outcome, queue, kind, unique_key, attempts, replays,
       iif(json_valid(errors), json_extract(errors, '$[#-1].type'), null),
       iif(json_valid(errors), json_extract(errors, '$[#-1].message'), null)
  from holdfast_finished
 where true
   and outcome in (select value from json_each(:states))  -- when states
   and outcome = 'dead'  -- when only_dead
   and queue = :queue  -- when queue
   and kind = :kind  -- when kind
   and key = :key  -- when key
   and fingerprint = :group  -- when group
   and leased_by = :worker  -- when worker
   and id in (select value from json_each(:ids))  -- when ids
   and created_at >= :created_after  -- when created_after
   and created_at < :created_before  -- when created_before
   and finished_at >= :finished_after  -- when finished_after
   and finished_at < :finished_before  -- when finished_before
   and json_valid(errors) and instr(lower(json_extract(errors, '$[#-1].type') || ': ' || json_extract(errors, '$[#-1].message')), lower(:error)) > 0  -- when error
 order by id
 limit :limit;

-- replay: move finished jobs back to their queue as new, but for those whose unique key is live.
-- Differs: no writing CTE; the second statement deletes what the first one has copied.
insert into holdfast_jobs
    (id, fence, available_at, created_at, max_attempts, lease_ms, replays, priority, bucket, queue, kind, key, unique_key,
     payload, headers, progress, errors)
select id, min(cast(fence as integer), 9223372036854775806) + 1, :now, created_at, max_attempts, lease_ms,
       min(cast(replays as integer), 2147483646) + 1, priority, bucket, queue, kind, key, unique_key, payload, headers, progress, errors
  from holdfast_finished
 where id in (select value from json_each(:ids)) and outcome in ('dead', 'cancelled')
 order by kind, unique_key, id
on conflict do nothing;
delete from holdfast_finished
 where id in (select j.id from json_each(:ids) u join holdfast_jobs j on j.id = u.value)
returning id;

-- discard: delete finished jobs for good.
delete from holdfast_finished
 where id in (select value from json_each(:ids)) and outcome in ('dead', 'cancelled')
returning id;

-- audit_add: record what was done to jobs by hand.
insert into holdfast_audit (at, action, job_id, actor, detail)
select :now, json_extract(u.value, '$[0]'), json_extract(u.value, '$[1]'), json_extract(u.value, '$[2]'), json_extract(u.value, '$[3]')
  from json_each(:batch) u;

-- audit_list: read what was done by hand, the latest first.
select at, action, job_id, actor, detail
  from holdfast_audit
 where true
   and job_id = :job_id  -- when job_id
 order by at desc, job_id desc
 limit :limit;

-- long_transactions: find what holds snapshots older than a limit, and so keeps dead rows from being cleaned away.
-- Differs: SQLite does not tell who reads the file; a growing WAL file is the sign.
select null where :older_ms < 0 and :xids < 0;

-- table_health: read the sizes of our tables.
-- Differs: rows are counted; bytes and free pages are known for the file as a whole.
select '(file)', null, (select freelist_count from pragma_freelist_count()), null,
       (select page_count from pragma_page_count()) * (select page_size from pragma_page_size())
 union all
select 'holdfast_audit', count(*), null, null, null from holdfast_audit
 union all
select 'holdfast_dropped', count(*), null, null, null from holdfast_dropped
 union all
select 'holdfast_finished', count(*), null, null, null from holdfast_finished
 union all
select 'holdfast_jobs', count(*), null, null, null from holdfast_jobs
 union all
select 'holdfast_keys', count(*), null, null, null from holdfast_keys
 union all
select 'holdfast_workers', count(*), null, null, null from holdfast_workers
 order by 1;

-- missing_indexes: name the indexes of the migrations that are gone.
-- Differs: SQLite's catalogue is a table, and an index there is never half built.
select w.column1
  from (values
         ('holdfast_jobs_claim_idx'), ('holdfast_jobs_lease_idx'), ('holdfast_jobs_unique_idx'),
         ('holdfast_jobs_key_idx'), ('holdfast_finished_age_idx'), ('holdfast_finished_dead_idx'),
         ('holdfast_dropped_at_idx'), ('holdfast_keys_expiry_idx'), ('holdfast_audit_job_idx')) as w
 where not exists (select 1 from sqlite_master where type = 'index' and name = w.column1)
 order by 1;

-- listeners: read the sessions in which workers listen for wake-ups.
-- Differs: nobody listens; workers watch PRAGMA data_version.
select null where false;

-- database_file: read the path of the file that holds the tables.
-- Differs: PostgreSQL's tables are in no file of ours.
select file from pragma_database_list() where name = 'main';
