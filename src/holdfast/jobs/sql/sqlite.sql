-- Holdfast's queries for SQLite: the life of jobs.
-- The files beside this one hold the same names in the same order: review them with diff.
-- Differs throughout: times are whole microseconds since 1970 and :now is always bound (the host's clock, or a test's).
-- Differs throughout: a batch is one JSON text, an array of rows, in :batch; lists are JSON texts too.
-- Differs throughout: a batch of held jobs is a JSON object: the fence by id in :held, all that follows the id in
-- :batch.
-- Held jobs are joined with it: this planner begins there whatever it knows of the tables.
-- Differs throughout: nothing to notify; workers watch PRAGMA data_version.
-- Differs throughout: a column takes whatever it is given. What the worker counts with is cast, so that words in a row
-- that was written by hand stop nobody else; numbers at their ends stay there.
-- Differs throughout: no row locks and no SKIP LOCKED: a writing transaction starts with BEGIN IMMEDIATE and is alone.

-- fragment added_job: the columns and values of one job; the other databases write those of a batch in another way.
    (id, queue, kind, payload, available_at, created_at, max_attempts
    , priority  -- when priority
    , headers  -- when headers
    , lease_ms  -- when lease_ms
    , key  -- when key
    , bucket  -- when bucket
    , unique_key  -- when unique_key
    , followers  -- when followers
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
    , :followers  -- when followers
    )

-- enqueue: add one job.
-- An id that is there adds nothing, so a lost reply to COMMIT may be answered by running it again; `take_back` sees to
-- jobs that were finished meanwhile. What is NULL, or 0 by default, is left out: it takes time to bind, to send
-- and to read.
-- Differs: nothing to notify; workers watch PRAGMA data_version.
insert into holdfast_jobs
    -- insert added_job
on conflict do nothing;

-- enqueue_alike: add a batch of jobs that differ in id and payload only.
-- Differs: run once per row by executemany; reading the fields out of JSON took 1.3 to 3.1 times its CPU (5,000 rows).
-- bind: rows
insert into holdfast_jobs
    -- insert added_job
on conflict do nothing;

-- enqueue_keyed: add a batch of jobs that differ in id, payload and key only.
-- Differs: run once per row, as enqueue_alike.
-- bind: rows
insert into holdfast_jobs
    (id, queue, kind, payload, available_at, created_at, max_attempts, key, bucket
    , priority  -- when priority
    , headers  -- when headers
    , lease_ms  -- when lease_ms
    , followers  -- when followers
    )
values (:id, :queue, :kind, :payload,
    coalesce(:run_at,  -- when run_at
    :now
        + :delay_ms * 1000  -- when delay_ms
    )  -- when run_at
    , :now, :max_attempts, :key, :bucket
    , :priority  -- when priority
    , :headers  -- when headers
    , :lease_ms  -- when lease_ms
    , :followers  -- when followers
    )
on conflict do nothing;

-- enqueue_many: add a batch of jobs of any sort.
-- Differs: run once per row, as enqueue_alike.
-- bind: rows
insert into holdfast_jobs
    (id, queue, kind, payload, headers, priority, available_at, created_at, max_attempts, lease_ms, key, bucket,
     unique_key
    , followers  -- when followers
    )
values (:id, :queue, :kind, :payload, :headers, :priority, coalesce(:run_at, :now + :delay_ms * 1000),
    :now, :max_attempts, :lease_ms, :key, :bucket, :unique_key
    , :followers  -- when followers
    )
on conflict do nothing;

-- take_back: delete live jobs that are finished already: a repeated enqueue added them a second time.
-- What it has added has no followers yet. One that has is from elsewhere, and leaves by the door when it ends.
-- Differs: no planner to lead away from a join.
delete from holdfast_jobs
 where id in (select value from json_each(:ids)) and followers is null
   and exists (select 1 from holdfast_finished f where f.id = holdfast_jobs.id);

-- take_back_dropped: delete live jobs that were dropped already, since a moment before their first enqueue.
-- A job that was dropped had been claimed, so its fence was above 0; with 0 it is what the repeat has added, or its
-- like.
-- Differs: the list is a subquery; there is no array to make of it.
delete from holdfast_jobs
 where fence = 0 and followers is null
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
       :now + :window_ms * 1000
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
  from (select json_extract(value, '$[0]') as scope, json_extract(value, '$[1]') as key,
               json_extract(value, '$[2]') as job_id,
               json_extract(value, '$[3]') as holder
          from json_each(:batch)) u
 where holdfast_keys.scope = u.scope and holdfast_keys.key = u.key and holdfast_keys.job_id = u.job_id;

-- keys_forget: free a key that this transaction took for an effect that failed.
delete from holdfast_keys
 where scope = :scope and key = :key and job_id = :job_id;

-- debounce_take: lock the rows of debounce keys, made where they are not there, and read what each names.
-- A repeated call leaves `latest` as it is, to find out whether it was its own; a new one counts at once.
-- Differs: what it names is read by debounce_find. "where true" as in keys_take.
insert into holdfast_debounces (kind, key, job_id, latest, changed_at)
select json_extract(u.value, '$[0]'), json_extract(u.value, '$[1]'), json_extract(u.value, '$[2]'),
       json_extract(u.value, '$[2]'), :now
  from json_each(:batch) u
 where true
on conflict (kind, key) do update set
    latest = excluded.latest,  -- when fresh
    changed_at = case when changed_at < :now - 60000000 then :now else changed_at end;

-- debounce_find: read what debounce keys name whose rows are locked, with the place of each in the batch.
-- Differs: as unique_find.
select u.key + 1, cast(d.job_id as blob), cast(d.latest as blob)
  from json_each(:batch) u
  join holdfast_debounces d on d.kind = json_extract(u.value, '$[0]') and d.key = json_extract(u.value, '$[1]');

-- debounce_update: give pending jobs that nobody has claimed a new payload, and put them off; answers with their ids.
-- One that is due keeps its place, or a stream of calls would send it behind the others again and again.
-- One with a key is left alone once it is due: it may stand in a line, whose claims would wait for the caller.
-- Differs: no planner to lead away from the index of pending jobs.
update holdfast_jobs
   set payload = u.payload, headers = u.headers,
       available_at = case when available_at > :now
           then max(:now, min(:now + u.wait_ms * 1000, created_at + u.max_wait_ms * 1000))
           else available_at end
  from (select json_extract(value, '$[0]') as job_id, json_extract(value, '$[1]') as payload,
               json_extract(value, '$[2]') as headers, json_extract(value, '$[3]') as wait_ms,
               json_extract(value, '$[4]') as max_wait_ms
          from json_each(:batch)) u
 where holdfast_jobs.id = u.job_id
   and fence = 0 and state = 'pending' and (key is null or available_at > :now)
returning null, cast(id as blob);

-- debounce_point: let debounce keys name these jobs, and say which call did that.
-- Differs: the batch is read as in keys_point.
update holdfast_debounces
   set job_id = u.job_id, latest = u.latest
  from (select json_extract(value, '$[0]') as kind, json_extract(value, '$[1]') as key,
               json_extract(value, '$[2]') as job_id, json_extract(value, '$[3]') as latest
          from json_each(:batch)) u
 where holdfast_debounces.kind = u.kind and holdfast_debounces.key = u.key;

-- claim: lease the next due jobs of these queues, raise their fence and count the attempt.
-- It hops from priority to priority: without the hops, 100,000 jobs for later cost each claim 60 ms.
-- Differs: no LATERAL; the correlated IN reads each priority of each queue in index order and stops at the limit.
-- Without floors: a deleted row is gone from the index at once. Read first, then marked: RETURNING keeps its rows in a
-- table of its own, and took 7 µs of 17 a job.
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
           -- when leases:
           (select l.value from json_each(:kinds) k join json_each(:leases) l on l.key = k.key
             where k.value = d.kind),
           -- end
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
       -- when buckets:
       and (bucket is null or bucket in (select value from json_each(:buckets))
            or available_at <= :now - :overdue_ms * 1000)
       -- end
     order by available_at, id
     limit :limit)
 order by d.priority desc, d.available_at, d.id
 limit :limit;
update holdfast_jobs
   set state = 'leased', fence = min(cast(fence as integer), 9223372036854775806) + 1,
       attempts = cast(attempts as integer) + 1, began = false, leased_by = :worker, leased_at = :now,
       lease_expires_at = :now + 1000 * coalesce(nullif(max(cast(lease_ms as integer), 0), 0),
           -- when leases:
           (select l.value from json_each(:kinds) k join json_each(:leases) l on l.key = k.key
             where k.value = kind),
           -- end
           :lease_ms)
 where id in (select value from json_each(:found));

-- renew: put the end of held leases off, note whose handler has begun, and tell who was asked to stop.
-- bind: held
update holdfast_jobs
   set lease_expires_at = :now + coalesce(u.lease_ms, 0) * 1000, began = holdfast_jobs.began or u.began
  from (select key as id, json_extract(value, '$[0]') as fence, json_extract(value, '$[1]') as lease_ms,
               json_extract(value, '$[2]') as began
          from json_each(:batch)) u
 where holdfast_jobs.id = u.id and holdfast_jobs.fence = u.fence
returning id, cancel_requested;

-- begin: record that the handler of a leased job is about to be called.
update holdfast_jobs set began = true where id = :id and fence = :fence returning id;

-- expiry_look: read the time, and how often each of these jobs was replayed by hand: such a job is to run.
-- Differs: a time is a whole number already.
select id, replays, :now from holdfast_jobs where id in (select value from json_each(:ids));

-- put_back: return leased jobs to their queue.
-- To retry them (delay, error), to snooze (delay, attempt back) or to release them (attempt back).
-- Or to park them (what they wait for, attempt back): with a delay they are due by then at the latest, without one they
-- wait.
-- The fence rises here too, so that the holder of the lease can no longer write.
-- Differs: PostgreSQL's has a form that Citus takes.
-- bind: held
update holdfast_jobs
   set state = case when u.delay_ms is null
           and u.waits_for is not null
           and not cancel_requested
           then 'waiting' else 'pending' end,
       waits_for = u.waits_for,
       fence = min(cast(holdfast_jobs.fence as integer), 9223372036854775806) + 1,
       attempts = max(cast(attempts as integer), 1) - u.attempts_back,
       lapses = coalesce(u.lapses, holdfast_jobs.lapses),
       available_at = coalesce(:now + u.delay_ms * 1000, available_at),
       leased_by = null, leased_at = null, lease_expires_at = null,
       errors = case when u.error is null then errors else json_insert(
           case when errors is null then '[]'
                when json_valid(errors) and json_type(errors) = 'array' then errors
                else json_array(cast(errors as text)) end, '$[#]', json(u.error)) end
  from (select key as id, json_extract(value, '$[0]') as fence, json_extract(value, '$[1]') as delay_ms,
               json_extract(value, '$[2]') as attempts_back, json_extract(value, '$[3]') as error,
               json_extract(value, '$[4]') as lapses, json_extract(value, '$[5]') as waits_for
          from json_each(:batch)) u
 where holdfast_jobs.id = u.id and holdfast_jobs.fence = u.fence
   and holdfast_jobs.followers is null  -- when unfollowed
   and holdfast_jobs.followers = :bits  -- when bits
returning id;

-- wake: make jobs due that wait for something.
-- A leased job may still say what it waited for before: it waits for nothing now.
-- Differs: PostgreSQL's has a form that Citus takes.
update holdfast_jobs
   set available_at = case when state = 'waiting' then :now else min(available_at, :now) end,
       state = 'pending', waits_for = null
 where id in (select value from json_each(:ids)) and state <> 'leased' and waits_for is not null
   and waits_for = :waits_for  -- when waits_for
returning id;

-- finish: move leased jobs to the finished table with their outcome.
-- One NULL answers for all of them.
-- Jobs with followers are left alone where `unfollowed` is given: their end has consequences, see `followed`. Where
-- `bits` are given, so are all whose followers are not just these.
-- Differs: no writing CTE, so copy and delete are two statements of one transaction. What ended alike, with nothing to
-- store but the :outcome, comes without a :batch. As a `whole` they are answered for by changes(), and if one was lost
-- no row answers: the flow looks which were written. Where each must be `named`, or the caller's connection may run
-- more in between, the delete itself answers.
-- bind: held
insert into holdfast_finished
    (id, fence, available_at, created_at, leased_at, finished_at, attempts, max_attempts, lease_ms, replays, priority,
     bucket, outcome, queue, kind, key, unique_key, leased_by, fingerprint, payload, headers, progress, result, errors,
     followers)
select j.id, j.fence, available_at, created_at, leased_at, :now, attempts, max_attempts,
       lease_ms, replays, priority, bucket, u.outcome, queue, kind, key, unique_key, leased_by, u.fingerprint, payload,
       headers, progress, u.result, case when u.error is null then errors else json_insert(
           case when errors is null then '[]'
                when json_valid(errors) and json_type(errors) = 'array' then errors
                else json_array(cast(errors as text)) end, '$[#]', json(u.error)) end, followers
  from (select key as id, value as fence, :outcome as outcome, null as result, null as error, null as fingerprint
          from json_each(:held)
         where :batch is null
         union all
        select key as id, json_extract(value, '$[0]') as fence, json_extract(value, '$[1]') as outcome,
               json_extract(value, '$[2]') as result, json_extract(value, '$[3]') as error,
               json_extract(value, '$[4]') as fingerprint
          from json_each(:batch)) u
  join holdfast_jobs j on j.id = u.id and j.fence = u.fence
   and j.followers is null  -- when unfollowed
   and j.followers = :bits  -- when bits
;
delete from holdfast_jobs where (id, fence) in (select key, value from json_each(:held))
   and followers is null  -- when unfollowed
   and followers = :bits  -- when bits
returning id  -- when named
;
select null where changes() = :size  -- when whole
;

-- drop: delete leased jobs that leave no finished row (retention 0), and note their ids for repeated enqueues.
-- The answer as in finish. The batch is noted as it came: an id in it that was not deleted does no harm, because its
-- job has a fence above 0 wherever it lives.
-- Differs: no writing CTE; noted first, so that changes() tells of the delete, which takes the batch as a list of
-- pairs.
-- bind: held
insert into holdfast_dropped (at, ids) values (:now, :ids);
delete from holdfast_jobs where (id, fence) in (select key, value from json_each(:held))
   and followers is null  -- when unfollowed
   and followers = :bits  -- when bits
returning id  -- when named
;
select null where changes() = :size  -- when whole
;

-- finish_one: move a leased job to the finished table as done, and answer with its id.
-- Differs: no writing CTE, so copy and delete are two statements of one transaction.
insert into holdfast_finished
    (id, fence, available_at, created_at, leased_at, finished_at, attempts, max_attempts, lease_ms, replays, priority,
     bucket, outcome, queue, kind, key, unique_key, leased_by, payload, headers, progress, result, errors)
select id, fence, available_at, created_at, leased_at, :now, attempts, max_attempts, lease_ms, replays, priority,
       bucket, 'done', queue, kind, key, unique_key, leased_by, payload, headers, progress, :result, errors
  from holdfast_jobs
 where id = :id and fence = :fence and followers is null;
delete from holdfast_jobs where id = :id and fence = :fence and followers is null returning id;

-- drop_one: delete a leased job that leaves no finished row (retention 0), note its id, and answer with it.
-- Differs: no writing CTE. Noted first, as in drop: where nothing is deleted, the note does no harm.
insert into holdfast_dropped (at, ids) values (:now, json_array(:id));
delete from holdfast_jobs where id = :id and fence = :fence and followers is null returning id;

-- followed: read live jobs whose end has consequences, in the order of ids, and what those ask for.
select id, cast(fence as integer), queue, kind, key, cast(followers as integer)
  from holdfast_jobs
 where id in (select value from json_each(:ids)) and followers is not null
 order by id;

-- jobs_lock: read live jobs in the order of ids, and what their ends may ask for.
select id, cast(fence as integer), queue, kind, key, coalesce(cast(followers as integer), 0)
  from holdfast_jobs
 where id in (select value from json_each(:ids))
 order by id;

-- follow: say of live jobs that their end has one more consequence.
update holdfast_jobs set followers = coalesce(followers, 0) | :bit
 where id in (select value from json_each(:ids))
returning id;

-- settled: tell which of these jobs are finished, with the fence they ended with, for a settle whose answer was lost.
select f.id, f.fence from holdfast_finished f where f.id in (select value from json_each(:ids));

-- live: tell which of these jobs are still in the live table, with the fence they have now.
select j.id, j.fence from holdfast_jobs j where j.id in (select value from json_each(:ids));

-- progress: store how far a leased job is.
update holdfast_jobs set progress = :progress where id = :id and fence = :fence returning id;

-- reap_pick: read leases that ran out, oldest first; the flow decides what becomes of each.
-- Differs: no rows to lock.
select id, queue, kind, cast(fence as integer), cast(attempts as integer), cast(max_attempts as integer), leased_by,
       leased_at, lease_expires_at, cancel_requested, began, cast(lapses as integer), cast(followers as integer)
  from holdfast_jobs
 where state = 'leased' and lease_expires_at < :now
   and lease_expires_at >= :now - :look_back_ms * 1000  -- when look_back_ms
   and (:kinds is null or kind in (select value from json_each(:kinds)))
   and id not in (select value from json_each(:ids)) and typeof(id) = 'text'
   and (followers is null or cast(followers as integer) | :known = :known)
 order by lease_expires_at
 limit :limit;

-- reap_behind: read leases that stand behind others of their stint; the columns of reap_pick.
-- Differs: no rows to lock.
select id, queue, kind, cast(fence as integer), cast(attempts as integer), cast(max_attempts as integer), leased_by,
       leased_at, lease_expires_at, cancel_requested, began, cast(lapses as integer), cast(followers as integer)
  from holdfast_jobs
 where id in (select value from json_each(:ids)) and cast(followers as integer) | :known = :known;

-- reap_mark: raise the fence of leases that were picked.
-- So a late holder's write cannot be taken for the reaper's.
update holdfast_jobs set fence = min(cast(fence as integer), 9223372036854775806) + 1
 where id in (select value from json_each(:ids));

-- strays: read the leases that the table says a worker holds, except those it knows of.
select id, fence from holdfast_jobs
 where state = 'leased' and leased_by = :worker and id not in (select value from json_each(:ids))
   and (followers is null or cast(followers as integer) | :known = :known);

-- stuck: read rows, written by hand, that no claim and no reaper can ever take, and why.
-- Differs: a column takes whatever it is given, and words sort behind all numbers: such a time never comes.
select cast(id as text), why
  from (select id, case when typeof(id) <> 'text' then 'no text: id' else 'no time: available_at' end as why
          from holdfast_jobs
         where state = 'pending' and (typeof(id) <> 'text' or typeof(available_at) not in ('integer', 'real'))
         union all
        select id, case when typeof(id) <> 'text' then 'no text: id' else 'a lease without an end: lease_expires_at' end
          from holdfast_jobs
         where state = 'leased' and (typeof(id) <> 'text' or typeof(lease_expires_at) not in ('integer', 'real'))
         union all
        select id, 'it waits for nothing: waits_for' from holdfast_jobs where state = 'waiting' and waits_for is null)
 limit :limit;

-- prune_queues: list the queues that have finished rows, by outcome, hopping over the index instead of reading it all.
-- Differs: no LATERAL; the next pair is read by two correlated lookups.
with recursive hop (outcome, queue) as (
    select * from (select outcome, queue from holdfast_finished order by outcome, queue limit 1)
    union all
    select coalesce((select outcome from holdfast_finished f where f.outcome = hop.outcome and f.queue > hop.queue
                      order by outcome, queue limit 1),
                    (select outcome from holdfast_finished f where f.outcome > hop.outcome
                      order by outcome, queue limit 1)),
           coalesce((select queue from holdfast_finished f where f.outcome = hop.outcome and f.queue > hop.queue
                      order by outcome, queue limit 1),
                    (select queue from holdfast_finished f where f.outcome > hop.outcome
                      order by outcome, queue limit 1))
      from hop where hop.outcome is not null)
select outcome, queue from hop where outcome is not null;

-- prune: delete a chunk of finished rows older than their retention.
-- Runs are left out: they go with their journals, see `runs_old`.
-- Differs: the list is a subquery; there is no array to make of it.
delete from holdfast_finished
 where id in (
    select id from holdfast_finished
     where outcome = :outcome and queue = :queue
       and finished_at < :now - :older_ms * 1000
       and (followers is null or followers & 128 = 0)
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
-- Differs: no arrays, and none needed: what stands in parentheses is chosen once.
delete from holdfast_keys
 where (scope, key) in (
    select scope, key from holdfast_keys
     where expires_at <= :now
     order by expires_at
     limit :limit)
returning key;

-- debounces_prune: delete a chunk of debounce keys whose job takes no more calls, once no call of theirs is repeated.
-- Differs: as keys_prune.
delete from holdfast_debounces
 where (kind, key) in (
    select d.kind, d.key from holdfast_debounces d
     where d.changed_at < :now - :older_ms * 1000
       and not exists (select 1 from holdfast_jobs j where j.id = d.job_id and j.fence = 0)
     order by d.changed_at
     limit :limit)
returning 1;

-- pauses_list: read which queues and kinds are paused, queues first.
select scope, name, since, paused_by, reason from holdfast_pauses
 order by scope desc, name;

-- said_look: read in one answer what is paused, and what is stored of queues; the columns of `queue_settings`.
-- Differs: a time is a number already, and NULL needs no type.
select scope, name, since, paused_by, reason, null, null, null from holdfast_pauses
 union all
select 'stored', name, changed_at, changed_by, null, settings, version, held from holdfast_queues;

-- position_read: read how far a stream has been received.
select value from holdfast_meta where key = :name;

-- position_write: note how far a stream has been received; what others have noted beyond that stays.
-- Differs: MAX with two arguments is the greatest here.
insert into holdfast_meta (key, value) values (:name, :position)
on conflict (key) do update set value = max(value, excluded.value);

-- live_buckets: tell which of these buckets have live jobs.
select distinct bucket from holdfast_jobs
 where bucket in (select value from json_each(:buckets))
   and not queue in (select value from json_each(:apart));

-- live_queues: tell which of these queues have live jobs.
select distinct queue from holdfast_jobs where queue in (select value from json_each(:queues));
