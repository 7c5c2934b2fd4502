-- Holdfast's queries for MySQL and MariaDB: queues with order and limits.
-- The files beside this one hold the same names in the same order: review them with diff.
-- Times: :now is the server's clock (utc_timestamp(6)), except where a test tells the time.
-- `tat` and what is compared with it are microseconds since 1970.
-- A statement's snapshot is older than the lock it waited for, so rows are locked by one statement and read by the
-- next.
-- Locks are taken in this order: the row of the queue, lines by queue and key, jobs. Jobs are never waited for before
-- that,
-- except by what people do by hand; the one that is chosen as the victim of a deadlock then repeats.
-- Differs throughout: a batch is one JSON text, an array of rows, in :batch; lists are JSON texts too. JSON_TABLE
-- makes a
-- table of it, and STRAIGHT_JOIN from there reads every row by its primary key.
-- Differs throughout: nothing returns what it wrote. A query locks and reads its rows first, then writes them; what it
-- gives are the rows it read, and :found is their first column. A query that finds nothing ends there.
-- Differs throughout: the place of a job in line is when it was added by the server's clock, then its id.
-- Differs throughout: `key` is a reserved word, hence the backquotes.

-- queue_settings: read what was said of each queue.
select name, settings, version, changed_by, held, changed_at from holdfast_queues
 where true
   and name = :name  -- when name
 order by name;

-- queue_declare: store what a deployment says of a queue, unless something is stored already.
insert into holdfast_queues (name, settings, changed_at, changed_by)
values (:name, :settings, :now, :actor)
on duplicate key update name = holdfast_queues.name;

-- queue_lock: lock the row of a queue and read its settings, what is held of it, and the time.
select settings, version, held, tat, timestampdiff(microsecond, '1970-01-01', :now)
  from holdfast_queues where name = :name
   for update;

-- queue_change: store other settings of a queue whose row is locked, with what is held of it now.
update holdfast_queues
   set settings = :settings, version = version + 1, changed_at = :now, changed_by = :actor, held = :held, tat = :tat
 where name = :name;

-- queue_take: note what a claim took from a limited queue.
update holdfast_queues set held = held + :count, tat = coalesce(:tat, tat) where name = :name;

-- queue_release: give back what jobs held of a limited queue.
update holdfast_queues set held = greatest(held - :count, 0) where name = :name;

-- queue_held: count what is held of a queue: its leased jobs that a limit counts.
select count(*) from holdfast_jobs force index (holdfast_jobs_lease_idx)
 where state = 'leased' and queue = :name and followers & :bit <> 0;

-- queue_mark: have what is leased in a queue count for its limit from now on.
select id from holdfast_jobs force index (holdfast_jobs_lease_idx) where state = 'leased' and queue = :name for update;
update json_table(:found, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
   set j.followers = coalesce(j.followers, 0) | :bit;

-- queue_mark_keys: have what is leased in a queue count for the lines of its keys from now on.
-- What is of a stint does already; one bit each, because each gives back what the lease counts for.
select id from holdfast_jobs force index (holdfast_jobs_lease_idx)
 where state = 'leased' and queue = :name and `key` is not null and coalesce(followers, 0) & :bits in (0, :bits)
   for update;
update json_table(:found, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
   set j.followers = coalesce(j.followers, 0) & ~ :bits | :bit;

-- queue_recounted: store what is held of a queue whose row is locked.
update holdfast_queues set held = :held where name = :name;

-- tickets: pick the next due jobs of a queue with order or limits, and lock them; as `claim`, which says why it is so.
-- bind: hops
-- bind: lists kinds, queues, lane_queues, lane_priorities, lane_belows, lane_aboves, lane_floors, lane_ceilings
select k.queue, count(*), sum(k.state = 'pending' and k.available_at <= :now)
  from (select queue, state, available_at from holdfast_jobs force index (holdfast_jobs_unique_idx)
         where true
           and kind in (:kinds)  -- when kinds
         limit 1000) k
 group by k.queue;
select e.queue, e.first, e.first_at, e.first_at <= :now, e.last
  from (select q.queue,
               (select n.urgency from holdfast_jobs n force index (holdfast_jobs_claim_idx)
                 where n.state = 'pending' and n.queue = q.queue
                 order by n.state, n.queue, n.urgency, n.available_at, n.id limit 1) as first,
               (select n.available_at from holdfast_jobs n force index (holdfast_jobs_claim_idx)
                 where n.state = 'pending' and n.queue = q.queue
                 order by n.state, n.queue, n.urgency, n.available_at, n.id limit 1) as first_at,
               (select n.urgency from holdfast_jobs n force index (holdfast_jobs_claim_idx)
                 where n.state = 'pending' and n.queue = q.queue
                 order by n.state desc, n.queue desc, n.urgency desc, n.available_at desc, n.id desc limit 1) as last
          from json_table(:many, '$[*]' columns (
                queue varchar(100) character set utf8mb4 collate holdfast_text path '$')) q) e
 where e.first is not null;
select urgency, available_at, available_at <= :now
  from holdfast_jobs force index (holdfast_jobs_claim_idx)
 where state = 'pending' and queue = :queue and urgency > :urgency
   and urgency < :until  -- when lane_queues
 order by urgency, available_at
 limit 1;
select id
  from holdfast_jobs force index (holdfast_jobs_claim_idx)
 where state = 'pending' and queue = :queue and urgency = :urgency
   and available_at <= :now
   and available_at between :floor and :ceiling  -- when lane_queues
   and kind in (:kinds)  -- when kinds
   and lapses = 0  -- when unsuspected
   -- when buckets:
   and (bucket is null or bucket in (:buckets) or available_at <= :now - interval :overdue_ms * 1000 microsecond)
   -- end
 order by available_at, id
 limit :limit
   for update skip locked;
select j.id, j.`key`, j.queue, j.priority, j.available_at
  from json_table(:found, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id;

-- line_commit_lock: wait for other producers of a key to end their transactions, and have later ones wait for this one.
-- Differs: nothing here could be held until the transaction ends; such a queue is refused.
select 1;

-- lines_open: make the lines of these keys that are not there, and lock the others, in the order of keys.
-- Differs: the list is sorted already, and its order is that of the locks.
insert into holdfast_lines (queue, `key`)
select :queue, u.`key`
  from json_table(:keys, '$[*]' columns (`key` longtext character set utf8mb4 path '$')) u
on duplicate key update held = holdfast_lines.held;

-- lines_lock: lock lines in the order of keys and read them, with the time.
-- Differs: the list is sorted already, and its order is that of the locks.
select l.`key`, l.held, l.tat, l.called, l.stopped_at is not null, l.stopped_for,
       timestampdiff(microsecond, '1970-01-01', :now)
  from json_table(:keys, '$[*]' columns (
        `key` varchar(200) character set utf8mb4 collate holdfast_text path '$')) u
 straight_join holdfast_lines l force index (primary) on l.queue = :queue and l.`key` = u.`key`
   for update /*!80001 of l */;

-- line_heads: read the first jobs in each line, in the order of their places.
-- A job for later that was never tried has not joined its line yet, except one that its line has called for later. One
-- that was tried is there while `hold` is given, and one that waits for something else while `passing` is not.
-- A job that waits for its parents is not there: one of them may stand behind it, in the same line.
-- Differs: no LATERAL in MariaDB. Lines with few jobs are read whole, all in one statement, which took a seventh of the
-- time; it leaves the others to one of their own each, because it would read all that is in them. LIMIT keeps the
-- server from looking into a line again for each of its jobs.
-- bind: each keys
select d.`key`, j.id, j.kind,
       case when j.state = 'pending' and j.fence = 0 and j.available_at > :now then 'called' else j.state end,
       j.available_at <= :now, j.attempts, j.lapses, j.waits_for, d.few is null
  from (select u.`key`, if((select 1 from holdfast_jobs f force index (holdfast_jobs_line_idx)
                             where f.`key` = u.`key` and f.queue = :queue
                             limit 1 offset :few) is null, u.`key`, null) as few
          from json_table(:many, '$[*]' columns (
                `key` varchar(200) character set utf8mb4 collate holdfast_text path '$')) u
         limit 1000000) d
  left join holdfast_jobs j force index (holdfast_jobs_line_idx)
    on j.`key` = d.few and j.queue = :queue
   and (j.available_at <= :now or j.state <> 'pending' or (j.fence = 0 and j.followers & :bits <> 0)
       or j.fence > 0  -- when hold
   )
   and (j.waits_for is null or j.waits_for <> 'parents' or j.state = 'leased'
       or (j.state = 'pending' and j.available_at <= :now))
   and j.state <> 'leased'  -- when fair
   and (j.state <> 'waiting' or j.waits_for = 'line')  -- when passing
 order by d.`key`, j.created_at, j.id;
select `key`, id, kind,
       case when state = 'pending' and fence = 0 and available_at > :now then 'called' else state end,
       available_at <= :now, attempts, lapses, waits_for
  from holdfast_jobs force index (holdfast_jobs_line_idx)
 where `key` = :each and queue = :queue
   and (available_at <= :now or state <> 'pending' or (fence = 0 and followers & :bits <> 0)
       or fence > 0  -- when hold
   )
   and (waits_for is null or waits_for <> 'parents' or state = 'leased'
       or (state = 'pending' and available_at <= :now))
   and state <> 'leased'  -- when fair
   and (state <> 'waiting' or waits_for = 'line')  -- when passing
 order by created_at, id
 limit :limit;

-- line_lease: lease jobs that were picked, raise their fence, count the attempt, and say what follows their end.
-- bind: lists kinds, leases
select j.id, j.queue, j.kind, j.payload, j.headers, j.`key`, j.priority, least(j.attempts, 2147483646) + 1,
       j.max_attempts, least(j.fence, 9223372036854775806) + 1,
       coalesce(nullif(greatest(j.lease_ms, 0), 0),
           cast(elt(field(j.kind, :kinds), :leases) as signed),  -- when leases
           :lease_ms),
       j.available_at, j.created_at, j.cancel_requested, j.lapses
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
 where j.state <> 'leased'
   for update /*!80001 of j */;
update json_table(:found, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
   set j.state = 'leased', j.fence = least(j.fence, 9223372036854775806) + 1,
       j.attempts = least(j.attempts, 2147483646) + 1, j.began = false, j.leased_by = :worker,
       j.leased_at = :now, j.followers = coalesce(j.followers, 0) & ~ :mask | :bits,
       j.lease_expires_at = :now + interval 1000 * coalesce(nullif(greatest(j.lease_ms, 0), 0),
           cast(elt(field(j.kind, :kinds), :leases) as signed),  -- when leases
           :lease_ms) microsecond;

-- line_park: let jobs wait for their line.
update json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id and j.state = 'pending'
   set j.state = 'waiting', j.waits_for = 'line';

-- line_call: make the next jobs of lines due, after a while where their key has a rate.
update json_table(:batch, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$[0]', delay_us bigint path '$[1]')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id and j.state <> 'leased'
   set j.state = 'pending', j.waits_for = null, j.available_at = :now + interval u.delay_us microsecond,
       j.followers = coalesce(j.followers, 0) | :bit;

-- lines_write: store what lines hold, what they have used of their rates, and whom they have called.
update json_table(:batch, '$[*]' columns (
        `key` varchar(200) character set utf8mb4 collate holdfast_text path '$[0]', held integer path '$[1]',
        tat bigint path '$[2]', called char(36) character set ascii collate ascii_bin path '$[3]')) u
 straight_join holdfast_lines l force index (primary) on l.queue = :queue and l.`key` = u.`key`
   set l.held = u.held, l.tat = u.tat, l.called = u.called;

-- lines_stop: stop lines until somebody starts them; for a job where one is named.
select l.`key`
  from json_table(:batch, '$[*]' columns (
        `key` varchar(200) character set utf8mb4 collate holdfast_text path '$[0]')) u
 straight_join holdfast_lines l force index (primary) on l.queue = :queue and l.`key` = u.`key`
 where l.stopped_at is null
   for update /*!80001 of l */;
update json_table(:batch, '$[*]' columns (
        `key` varchar(200) character set utf8mb4 collate holdfast_text path '$[0]',
        job char(36) character set ascii collate ascii_bin path '$[1]')) u
 straight_join holdfast_lines l force index (primary)
    on l.queue = :queue and l.`key` = u.`key` and l.stopped_at is null
   set l.stopped_at = :now, l.stopped_for = u.job, l.called = null;

-- lines_start: let stopped lines go on.
select l.`key`
  from json_table(:keys, '$[*]' columns (
        `key` varchar(200) character set utf8mb4 collate holdfast_text path '$')) u
 straight_join holdfast_lines l force index (primary) on l.queue = :queue and l.`key` = u.`key`
 where l.stopped_at is not null
   for update /*!80001 of l */;
update json_table(:found, '$[*]' columns (
        `key` varchar(200) character set utf8mb4 collate holdfast_text path '$')) u
 straight_join holdfast_lines l force index (primary) on l.queue = :queue and l.`key` = u.`key`
   set l.stopped_at = null, l.stopped_for = null;

-- lines_close: delete lines that nothing is leased or waits in.
delete l
  from json_table(:keys, '$[*]' columns (
        `key` varchar(200) character set utf8mb4 collate holdfast_text path '$')) u
 straight_join holdfast_lines l force index (primary) on l.queue = :queue and l.`key` = u.`key`;

-- stint_heads: tell which of these leased jobs are the first in their lines that have not ended.
select j.id
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
 where j.id = (select f.id from holdfast_jobs f force index (holdfast_jobs_line_idx)
                where f.`key` = j.`key` and f.queue = j.queue and f.state = 'leased'
                order by f.created_at, f.id limit 1);

-- stint_order: read what is leased in the lines of these jobs, in the order of their places.
-- By the index of leases, which are few: a line may be long.
select f.queue, f.`key`, f.id
  from holdfast_jobs f force index (holdfast_jobs_lease_idx)
 where f.state = 'leased' and f.lease_expires_at is not null and f.followers & :bit <> 0
   and (f.queue, f.`key`) in (
       select j.queue, j.`key`
         from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
        straight_join holdfast_jobs j force index (primary) on j.id = u.id)
 order by f.created_at, f.id;

-- lines_held: count what is leased in the lines of a queue, beside what they say.
-- Differs: no FULL JOIN.
select b.`key`, max(b.said), max(b.found)
  from (select `key`, held as said, 0 as found from holdfast_lines where queue = :queue and held <> 0
         union all
        select `key`, 0, count(*) from holdfast_jobs force index (holdfast_jobs_lease_idx)
         where state = 'leased' and queue = :queue and followers & :bits <> 0 and `key` is not null
         group by `key`) b
 group by b.`key`
having max(b.said) <> max(b.found);

-- lines_idle: read the next lines of a queue in which nothing is leased, in the order of keys.
select `key` from holdfast_lines
 where queue = :queue and held = 0 and stopped_at is null
   and `key` > :after  -- when after
 order by `key`
 limit :limit;

-- lines_next: read the next lines of a queue, in the order of keys.
select `key` from holdfast_lines
 where queue = :queue
   and `key` > :after  -- when after
 order by `key`
 limit :limit;

-- lines_queues: name the queues that have lines, hopping from one to the next.
-- Differs: the primary key is read from its start, and MySQL hops over it by itself.
select distinct queue from holdfast_lines order by queue;

-- line_wake: make everything due that waits for these lines.
select j.id
  from json_table(:keys, '$[*]' columns (
        `key` varchar(200) character set utf8mb4 collate holdfast_text path '$')) u
 straight_join holdfast_jobs j force index (holdfast_jobs_line_idx) on j.`key` = u.`key` and j.queue = :queue
 where j.state = 'waiting' and j.waits_for = 'line'
 limit :limit;
update json_table(:found, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id and j.state = 'waiting' and j.waits_for = 'line'
   set j.state = 'pending', j.waits_for = null;

-- lines_list: read lines for people.
select l.queue, l.`key`, l.held, l.stopped_at, l.stopped_for, l.called,
       (select count(*) from holdfast_jobs j where j.`key` = l.`key` and j.queue = l.queue and j.state = 'waiting')
  from holdfast_lines l
 where true
   and l.queue = :queue  -- when queue
   and l.`key` = :key  -- when key
   and l.stopped_at is not null  -- when stopped
   and (l.queue > :after_queue or (l.queue = :after_queue and l.`key` > :after_key))  -- when after_queue
 order by l.queue, l.`key`
 limit :limit;
