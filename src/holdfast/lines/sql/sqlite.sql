-- Holdfast's queries for SQLite: queues with order and limits.
-- The files beside this one hold the same names in the same order: review them with diff.
-- Differs throughout: times are whole microseconds since 1970 and :now is always bound (the host's clock, or a test's).
-- Differs throughout: a batch is one JSON text, an array of rows, in :batch; lists are JSON texts too.
-- Differs throughout: a column takes whatever it is given, so what the worker counts with is cast.
-- Differs throughout: no row locks and no SKIP LOCKED: a writing transaction starts with BEGIN IMMEDIATE and is alone.
-- Differs throughout: the place of a job in line is when it was added, then its id.

-- queue_settings: read what was said of each queue.
-- Differs: a time is a number already.
select name, settings, version, changed_by, held, changed_at from holdfast_queues
 where true
   and name = :name  -- when name
 order by name;

-- queue_declare: store what a deployment says of a queue, unless something is stored already.
insert into holdfast_queues (name, settings, changed_at, changed_by)
values (:name, :settings, :now, :actor)
on conflict do nothing;

-- queue_lock: read the settings of a queue, what is held of it, and the time.
-- Differs: no rows to lock, and the time is a number already.
select settings, version, held, tat, :now from holdfast_queues where name = :name;

-- queue_change: store other settings of a queue, with what is held of it now.
update holdfast_queues
   set settings = :settings, version = version + 1, changed_at = :now, changed_by = :actor, held = :held, tat = :tat
 where name = :name;

-- queue_take: note what a claim took from a limited queue.
update holdfast_queues set held = held + :count, tat = coalesce(:tat, tat) where name = :name;

-- queue_release: give back what jobs held of a limited queue.
update holdfast_queues set held = max(held - :count, 0) where name = :name;

-- queue_held: count what is held of a queue: its leased jobs that a limit counts.
-- Differs: the index of leases needs no word to be used.
select count(*) from holdfast_jobs
 where state = 'leased' and queue = :name and cast(followers as integer) & :bit <> 0;

-- queue_mark: have what is leased in a queue count for its limit from now on.
-- Differs: the index of leases needs no word to be used.
update holdfast_jobs set followers = coalesce(cast(followers as integer), 0) | :bit
 where state = 'leased' and queue = :name
returning id;

-- queue_mark_keys: have what is leased in a queue count for the lines of its keys from now on.
-- What is of a stint does already; one bit each, because each gives back what the lease counts for.
-- Differs: the index of leases needs no word to be used.
update holdfast_jobs set followers = coalesce(cast(followers as integer), 0) & ~ :bits | :bit
 where state = 'leased' and queue = :name and key is not null
   and coalesce(cast(followers as integer), 0) & :bits in (0, :bits)
returning id;

-- queue_recounted: store what is held of a queue.
update holdfast_queues set held = :held where name = :name;

-- tickets: pick the next due jobs of a queue with order or limits; as `claim`, which says why it is so.
-- Differs: no LATERAL, no floors and no rows to lock; see claim.
with recursive level (queue, priority) as (
    select q.value, (select priority from holdfast_jobs where queue = q.value and state = 'pending'
                      order by priority desc limit 1)
      from json_each(:queues) q
    union all
    select level.queue, (select n.priority from holdfast_jobs n
                          where n.queue = level.queue and n.state = 'pending' and n.priority < level.priority
                          order by n.priority desc limit 1)
      from level where level.priority is not null)
select d.id, d.key, d.queue, cast(d.priority as integer), d.available_at
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

-- line_commit_lock: wait for other producers of a key to end their transactions, and have later ones wait for this one.
-- Differs: a writing transaction is alone.
select 1;

-- lines_open: make the lines of these keys that are not there.
-- Differs: no rows to lock.
insert into holdfast_lines (queue, key)
select :queue, u.value from json_each(:keys) u where true
on conflict do nothing;

-- lines_lock: read lines, with the time.
-- Differs: no rows to lock, and the time is a number already.
select key, cast(held as integer), cast(tat as integer), called, stopped_at is not null, stopped_for, :now
  from holdfast_lines
 where queue = :queue and key in (select value from json_each(:keys))
 order by key;

-- line_heads: read the first jobs in each line, in the order of their places.
-- A job for later that was never tried has not joined its line yet, except one that its line has called for later. One
-- that was tried is there while `hold` is given, and one that waits for something else while `passing` is not.
-- A job that waits for its parents is not there: one of them may stand behind it, in the same line.
-- Differs: no LATERAL; the correlated IN reads each line in index order and stops at the limit.
select j.key, j.id, j.kind,
       case when j.state = 'pending' and j.fence = 0 and j.available_at > :now then 'called' else j.state end,
       j.available_at <= :now, cast(j.attempts as integer), cast(j.lapses as integer), j.waits_for
  from json_each(:keys) h
  join holdfast_jobs j on j.id in (
    select id
      from holdfast_jobs
     where key = h.value and queue = :queue and typeof(id) = 'text'
       and (available_at <= :now or state <> 'pending' or (fence = 0 and cast(followers as integer) & :bits <> 0)
           or fence > 0  -- when hold
       )
       and (waits_for is null or waits_for <> 'parents' or state = 'leased'
           or (state = 'pending' and available_at <= :now))
       and state <> 'leased'  -- when fair
       and (state <> 'waiting' or waits_for = 'line')  -- when passing
     order by created_at, id
     limit :limit)
 order by h.key, j.created_at, j.id;

-- line_lease: lease jobs that were picked, raise their fence, count the attempt, and say what follows their end.
-- Differs: read first, then marked, as in claim.
select d.id, d.queue, d.kind, d.payload, d.headers, d.key, cast(d.priority as integer), cast(d.attempts as integer) + 1,
       cast(d.max_attempts as integer), min(cast(d.fence as integer), 9223372036854775806) + 1,
       coalesce(nullif(max(cast(d.lease_ms as integer), 0), 0),
           -- when leases:
           (select l.value from json_each(:kinds) k join json_each(:leases) l on l.key = k.key
             where k.value = d.kind),
           -- end
           :lease_ms),
       d.available_at, d.created_at, d.cancel_requested, cast(d.lapses as integer)
  from json_each(:ids) u
  join holdfast_jobs d on d.id = u.value
 where d.state <> 'leased';
update holdfast_jobs
   set state = 'leased', fence = min(cast(fence as integer), 9223372036854775806) + 1,
       attempts = cast(attempts as integer) + 1, began = false, leased_by = :worker, leased_at = :now,
       followers = coalesce(cast(followers as integer), 0) & ~ :mask | :bits,
       lease_expires_at = :now + 1000 * coalesce(nullif(max(cast(lease_ms as integer), 0), 0),
           -- when leases:
           (select l.value from json_each(:kinds) k join json_each(:leases) l on l.key = k.key
             where k.value = kind),
           -- end
           :lease_ms)
 where id in (select value from json_each(:found));

-- line_park: let jobs wait for their line.
-- Differs: no planner to lead away from the index of pending jobs.
update holdfast_jobs set state = 'waiting', waits_for = 'line'
 where id in (select value from json_each(:ids)) and state = 'pending';

-- line_call: make the next jobs of lines due, after a while where their key has a rate.
-- Differs: a time is a number of microseconds.
update holdfast_jobs
   set state = 'pending', waits_for = null, available_at = :now + u.delay_us,
       followers = coalesce(cast(followers as integer), 0) | :bit
  from (select json_extract(value, '$[0]') as id, json_extract(value, '$[1]') as delay_us from json_each(:batch)) u
 where holdfast_jobs.id = u.id and state <> 'leased';

-- lines_write: store what lines hold, what they have used of their rates, and whom they have called.
-- Differs: run once per row; joined with the batch, each line of the queue is compared with all of it.
-- bind: rows
update holdfast_lines set held = :held, tat = :tat, called = :called where queue = :queue and key = :key;

-- lines_stop: stop lines until somebody starts them; for a job where one is named.
-- Differs: the columns of a batch are read out of JSON.
update holdfast_lines
   set stopped_at = :now, stopped_for = u.job, called = null
  from (select json_extract(value, '$[0]') as key, json_extract(value, '$[1]') as job from json_each(:batch)) u
 where holdfast_lines.queue = :queue and holdfast_lines.key = u.key and stopped_at is null
returning key;

-- lines_start: let stopped lines go on.
update holdfast_lines set stopped_at = null, stopped_for = null
 where queue = :queue and key in (select value from json_each(:keys)) and stopped_at is not null
returning key;

-- lines_close: delete lines that nothing is leased or waits in.
delete from holdfast_lines where queue = :queue and key in (select value from json_each(:keys));

-- stint_heads: tell which of these leased jobs are the first in their lines that have not ended.
-- Differs: the batch is joined, and the place is a time; see above.
select j.id
  from json_each(:ids) u
  join holdfast_jobs j on j.id = u.value
 where j.id = (select f.id from holdfast_jobs f
                where f.key = j.key and f.queue = j.queue and f.state = 'leased'
                order by f.created_at, f.id limit 1);

-- stint_order: read what is leased in the lines of these jobs, in the order of their places.
-- By the index of leases, which are few: a line may be long.
-- Differs: the place is a time; see above.
select f.queue, f.key, f.id
  from holdfast_jobs f
 where f.state = 'leased' and f.lease_expires_at is not null and cast(f.followers as integer) & :bit <> 0
   and (f.queue, f.key) in (select j.queue, j.key from json_each(:ids) u join holdfast_jobs j on j.id = u.value)
 order by f.created_at, f.id;

-- lines_held: count what is leased in the lines of a queue, beside what they say.
-- Differs: no FULL JOIN in old versions.
select key, max(said), max(count)
  from (select key, held as said, 0 as count from holdfast_lines where queue = :queue and held <> 0
         union all
        select key, 0, count(*) from holdfast_jobs indexed by holdfast_jobs_lease_idx
         where state = 'leased' and queue = :queue and cast(followers as integer) & :bits <> 0 and key is not null
         group by key)
 group by key
having max(said) <> max(count);

-- lines_idle: read the next lines of a queue in which nothing is leased, in the order of keys.
select key from holdfast_lines
 where queue = :queue and held = 0 and stopped_at is null
   and key > :after  -- when after
 order by key
 limit :limit;

-- lines_next: read the next lines of a queue, in the order of keys.
select key from holdfast_lines
 where queue = :queue
   and key > :after  -- when after
 order by key
 limit :limit;

-- lines_queues: name the queues that have lines, hopping from one to the next.
-- Differs: a first row that is missing is NULL.
with recursive hop (queue) as (
    select (select queue from holdfast_lines order by queue limit 1)
    union all
    select (select l.queue from holdfast_lines l where l.queue > hop.queue order by l.queue limit 1)
      from hop where hop.queue is not null)
select queue from hop where queue is not null;

-- line_wake: make everything due that waits for these lines.
-- Differs: nothing to notify, and the list is a subquery.
update holdfast_jobs set state = 'pending', waits_for = null
 where id in (
    select id from holdfast_jobs
     where queue = :queue and key in (select value from json_each(:keys)) and state = 'waiting' and waits_for = 'line'
     limit :limit)
returning id;

-- lines_list: read lines for people.
-- Differs: a time is a number already.
select l.queue, l.key, l.held, l.stopped_at, l.stopped_for, l.called,
       (select count(*) from holdfast_jobs j where j.key = l.key and j.queue = l.queue and j.state = 'waiting')
  from holdfast_lines l
 where true
   and l.queue = :queue  -- when queue
   and l.key = :key  -- when key
   and l.stopped_at is not null  -- when stopped
   and (l.queue, l.key) > (:after_queue, :after_key)  -- when after_queue
 order by l.queue, l.key
 limit :limit;
