-- Holdfast's queries for PostgreSQL: queues with order and limits.
-- The files beside this one hold the same names in the same order: review them with diff.
-- Times: :now is the server's clock (statement_timestamp()), except where a test tells the time.
-- `tat` and what is compared with it are microseconds since 1970.
-- A statement's snapshot is older than the lock it waited for, so rows are locked by one statement and read by the
-- next.
-- Locks are taken in this order: the row of the queue, lines by queue and key, jobs. Jobs are never waited for before
-- that,
-- except by what people do by hand; the one that is chosen as the victim of a deadlock then repeats.

-- queue_settings: read what was said of each queue.
select name, settings::text, version, changed_by, held, date_part('epoch', changed_at) * 1000000 from holdfast_queues
 where name = :name  -- when name
 order by name;

-- queue_declare: store what a deployment says of a queue, unless something is stored already.
insert into holdfast_queues (name, settings, changed_at, changed_by)
values (:name, :settings::text::json, :now, :actor)
on conflict do nothing;

-- queue_lock: lock the row of a queue and read its settings, what is held of it, and the time.
select settings::text, version, held, tat, (date_part('epoch', :now) * 1000000)::bigint
  from holdfast_queues where name = :name
   for update;

-- queue_change: store other settings of a queue whose row is locked, with what is held of it now.
update holdfast_queues
   set settings = :settings::text::json, version = version + 1, changed_at = :now, changed_by = :actor,
       held = :held::integer, tat = :tat::bigint
 where name = :name;

-- queue_take: note what a claim took from a limited queue.
update holdfast_queues set held = held + :count::integer, tat = coalesce(:tat::bigint, tat) where name = :name;

-- queue_release: give back what jobs held of a limited queue.
-- Nobody is notified, here and in line_call: the worker that settles looks again by itself, and others poll.
update holdfast_queues set held = greatest(held - :count::integer, 0) where name = :name;

-- queue_held: count what is held of a queue: its leased jobs that a limit counts.
select count(*) from holdfast_jobs
 where state = 'leased' and lease_expires_at > '-infinity' and queue = :name and followers & :bit::integer <> 0;

-- queue_mark: have what is leased in a queue count for its limit from now on.
update holdfast_jobs set followers = coalesce(followers, 0) | :bit::integer
 where state = 'leased' and lease_expires_at > '-infinity' and queue = :name
returning id;

-- queue_mark_keys: have what is leased in a queue count for the lines of its keys from now on.
-- What is of a stint does already; one bit each, because each gives back what the lease counts for.
update holdfast_jobs set followers = coalesce(followers, 0) & ~ :bits::integer | :bit::integer
 where state = 'leased' and lease_expires_at > '-infinity' and queue = :name and key is not null
   and coalesce(followers, 0) & :bits::integer in (0, :bits::integer)
returning id;

-- queue_recounted: store what is held of a queue whose row is locked.
update holdfast_queues set held = :held::integer where name = :name;

-- tickets: pick the next due jobs of a queue with order or limits, and lock them; as `claim`, which says why it is so.
select due.id::text, due.key, due.queue, due.priority, date_part('epoch', due.available_at) * 1000000
  from (
    -- when queues:
    select q.queue, level.priority, '-infinity'::timestamptz as floor, null::timestamptz as ceiling
      from unnest((select :queues::text[])) as q (queue)
     cross join lateral (
        with recursive level (priority, available_at) as (
            (select priority, available_at from holdfast_jobs where queue = q.queue and state = 'pending'
              order by priority desc, available_at limit 1)
            union all
            select n.priority, n.available_at
              from level cross join lateral (
                select priority, available_at from holdfast_jobs
                 where queue = q.queue and state = 'pending' and priority < level.priority
                 order by priority desc, available_at limit 1) n)
        select priority, available_at from level) level
     order by level.priority desc, level.available_at
    -- end
    -- when lane_queues:
    select l.queue, coalesce(l.priority, (
               select priority from holdfast_jobs
                where queue = l.queue and state = 'pending' and priority < l.below and priority > l.above
                order by priority desc limit 1)) as priority,
           coalesce(l.floor, '-infinity') as floor, l.ceiling
      from unnest(:lane_queues::text[], :lane_priorities::text::smallint[], :lane_belows::text::smallint[],
                  :lane_aboves::text::smallint[], :lane_floors::text::timestamptz[],
                  :lane_ceilings::text::timestamptz[])
           as l (queue, priority, below, above, floor, ceiling)
    -- end
       ) level
 cross join lateral (
    select id, key, queue, priority, available_at
      from holdfast_jobs
     where queue = level.queue and state = 'pending' and priority = level.priority
       and (available_at, id) >= (level.floor, '00000000-0000-0000-0000-000000000000'::uuid)
       and available_at <= least(level.ceiling, :now)
       and ((select :kinds::text[]) is null or kind = any ((select :kinds::text[])::text[]))
       and lapses = 0  -- when unsuspected
       -- when buckets:
       and (bucket is null or bucket = any ((select :buckets::text::smallint[])::smallint[])
            or available_at <= :now - :overdue_ms::bigint * interval '1 millisecond')
       -- end
     order by available_at, id
     limit (select :limit::bigint)
       for update skip locked) due
 limit (select :limit::bigint);

-- line_commit_lock: wait for other producers of a key to end their transactions, and have later ones wait for this one.
select pg_advisory_xact_lock(hashtextextended(:queue::text || ' ' || :key::text, 4711))::text;

-- lines_open: make the lines of these keys that are not there, and lock the others, in the order of keys.
insert into holdfast_lines as l (queue, key)
select :queue::text, u.key from unnest((select :keys::text[])) as u (key) order by u.key collate "C"
on conflict (queue, key) do update set held = l.held where false;

-- lines_lock: lock lines in the order of keys and read them, with the time.
select key, held, tat, called::text, stopped_at is not null, stopped_for::text,
       (date_part('epoch', :now) * 1000000)::bigint
  from holdfast_lines
 where queue = :queue and key = any ((select :keys::text[])::text[])
 order by key collate "C"
   for update;

-- line_heads: read the first jobs in each line, in the order of their places.
-- A job for later that was never tried has not joined its line yet, except one that its line has called for later. One
-- that was tried is there while `hold` is given, and one that waits for something else while `passing` is not.
-- A job that waits for its parents is not there: one of them may stand behind it, in the same line.
select h.key, j.id::text, j.kind,
       case when j.state = 'pending' and j.fence = 0 and j.available_at > :now then 'called' else j.state end,
       j.available_at <= :now, j.attempts, j.lapses, j.waits_for
  from unnest((select :keys::text[])) as h (key)
 cross join lateral (
    select id, kind, state, fence, available_at, attempts, lapses, waits_for, place
      from holdfast_jobs
     where key = h.key and queue = :queue
       and (available_at <= :now or state <> 'pending' or (fence = 0 and followers & :bits::integer <> 0)
           or fence > 0  -- when hold
       )
       and (waits_for is null or waits_for <> 'parents' or state = 'leased'
           or (state = 'pending' and available_at <= :now))
       and state <> 'leased'  -- when fair
       and (state <> 'waiting' or waits_for = 'line')  -- when passing
     order by place nulls first, id
     limit (select :limit::bigint)) j;

-- line_lease: lease jobs that were picked, raise their fence, count the attempt, and say what follows their end.
update holdfast_jobs j
   set state = 'leased', fence = least(j.fence, 9223372036854775806) + 1, attempts = least(j.attempts, 2147483646) + 1,
       began = false, leased_by = :worker, leased_at = :now,
       followers = coalesce(j.followers, 0) & ~ :mask::integer | :bits::integer,
       lease_expires_at = :now
           + coalesce(nullif(greatest(j.lease_ms, 0), 0),
               ((select :leases::text::integer[]))[array_position(:kinds::text[], j.kind)],  -- when leases
               :lease_ms::integer) * interval '1 millisecond'
 where j.id = any ((select :ids::text::uuid[])::uuid[]) and j.state <> 'leased'
returning j.id::text, j.queue, j.kind, j.payload::text, j.headers::text, j.key, j.priority, j.attempts, j.max_attempts,
    j.fence, coalesce(nullif(greatest(j.lease_ms, 0), 0),
        ((select :leases::text::integer[]))[array_position(:kinds::text[], j.kind)],  -- when leases
        :lease_ms::integer),
    date_part('epoch', j.available_at at time zone interval '0') * 1000000,
    date_part('epoch', j.created_at at time zone interval '0') * 1000000, j.cancel_requested, j.lapses;

-- line_park: let jobs wait for their line.
-- The state is asked for without a match of the index of pending jobs: PostgreSQL 17 and before would read all of it.
update holdfast_jobs set state = 'waiting', waits_for = 'line'
 where id = any ((select :ids::text::uuid[])::uuid[]) and state not in ('leased', 'waiting');

-- line_call: make the next jobs of lines due, after a while where their key has a rate.
update holdfast_jobs j
   set state = 'pending', waits_for = null,
       available_at = :now + coalesce(u.delay_us, 0) * interval '1 microsecond',
       followers = coalesce(j.followers, 0) | :bit::integer
  from unnest((select :id::text::uuid[]), (select :delay_us::text::bigint[])) as u (id, delay_us)
 where j.id = u.id and j.state <> 'leased';

-- lines_write: store what lines hold, what they have used of their rates, and whom they have called.
-- The lists are selected so that the planner does not count them: for 200 keys it read all lines of the queue.
update holdfast_lines l
   set held = u.held, tat = u.tat, called = u.called
  from unnest((select :key::text[]), (select :held::text::integer[]), (select :tat::text::bigint[]),
              (select :called::text::uuid[])) as u (key, held, tat, called)
 where l.queue = :queue and l.key = u.key;

-- lines_stop: stop lines until somebody starts them; for a job where one is named.
update holdfast_lines l
   set stopped_at = :now, stopped_for = u.job, called = null
  from unnest((select :key::text[]), (select :job::text::uuid[])) as u (key, job)
 where l.queue = :queue and l.key = u.key and l.stopped_at is null
returning l.key;

-- lines_start: let stopped lines go on.
update holdfast_lines set stopped_at = null, stopped_for = null
 where queue = :queue and key = any ((select :keys::text[])::text[]) and stopped_at is not null
returning key;

-- lines_close: delete lines that nothing is leased or waits in.
delete from holdfast_lines where queue = :queue and key = any ((select :keys::text[])::text[]);

-- stint_heads: tell which of these leased jobs are the first in their lines that have not ended.
select j.id::text
  from holdfast_jobs j
 where j.id = any ((select :ids::text::uuid[])::uuid[])
   and j.id = (select f.id from holdfast_jobs f
                where f.key = j.key and f.queue = j.queue and f.state = 'leased'
                order by f.place nulls first, f.id limit 1);

-- stint_order: read what is leased in the lines of these jobs, in the order of their places.
-- By the index of leases, which are few: a line may be long.
select f.queue, f.key, f.id::text
  from holdfast_jobs f
 where f.state = 'leased' and f.lease_expires_at > '-infinity' and f.followers & :bit::integer <> 0
   and (f.queue, f.key) in (select j.queue, j.key from holdfast_jobs j
                             where j.id = any ((select :ids::text::uuid[])::uuid[]))
 order by f.place nulls first, f.id;

-- lines_held: count what is leased in the lines of a queue, beside what they say.
select coalesce(l.key, c.key), coalesce(l.held, 0), coalesce(c.count, 0)
  from (select key, held from holdfast_lines where queue = :queue and held <> 0) l
  full join (
    select key, count(*) as count from holdfast_jobs
     where state = 'leased' and lease_expires_at > '-infinity' and queue = :queue and followers & :bits::integer <> 0
       and key is not null
     group by key) c on c.key = l.key
 where coalesce(l.held, 0) <> coalesce(c.count, 0);

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
with recursive hop as (
    (select queue from holdfast_lines order by queue limit 1)
    union all
    select (select l.queue from holdfast_lines l where l.queue > hop.queue order by l.queue limit 1)
      from hop where hop.queue is not null)
select queue from hop where queue is not null;

-- line_wake: make everything due that waits for these lines, and wake their queue.
with woken as (
    update holdfast_jobs set state = 'pending', waits_for = null
     where id = any (array(
        select id from holdfast_jobs
         where queue = :queue and key = any ((select :keys::text[])::text[]) and state = 'waiting'
           and waits_for = 'line'
         limit :limit))
    returning id, queue)
select id::text, case when :channel::text is not null then pg_notify(:channel, queue)::text end from woken;

-- lines_list: read lines for people.
select l.queue, l.key, l.held, date_part('epoch', l.stopped_at) * 1000000, l.stopped_for::text, l.called::text,
       (select count(*) from holdfast_jobs j where j.key = l.key and j.queue = l.queue and j.state = 'waiting')
  from holdfast_lines l
 where true
   and l.queue = :queue  -- when queue
   and l.key = :key  -- when key
   and l.stopped_at is not null  -- when stopped
   and (l.queue, l.key) > (:after_queue::text, :after_key::text)  -- when after_queue
 order by l.queue, l.key
 limit :limit;
