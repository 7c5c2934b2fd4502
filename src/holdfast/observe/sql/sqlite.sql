-- Holdfast's queries for SQLite: statistics, and bounded looks at what waits and what is kept.
-- The files beside this one hold the same names in the same order: review them with diff.
-- What differs throughout is said at the head of jobs/sql/sqlite.sql.
-- Nothing here reads a whole queue or all finished rows: each count stops at :limit rows.

-- stats_add: note what was counted just now.
-- It may be repeated: an id that is there adds nothing, nor does that of the
-- row that the worker's last beat has written, which may be merged since.
-- Differs: a time is a number of microseconds.
insert into holdfast_stats (id, span, slot, worker, data)
select :id, :span, :now / 1000000, :worker, :data
 where not exists (select 1 from holdfast_workers where id = :worker and counted = :id)
on conflict do nothing;

-- stats_keep: note what was merged, at its slot.
insert into holdfast_stats (id, span, slot, worker, data)
values (:id, :span, :slot, '', :data)
on conflict do nothing;

-- stats_read: read the rows of all spans from a slot on, in the order of time.
select span, slot, worker, data
  from holdfast_stats
 where span in (10, 60, 600) and slot >= :since
 order by slot, span;

-- stats_latest: read the newest rows as they were written, the newest first.
select slot, worker, data
  from holdfast_stats
 where span = 10 and slot >= :since
   and worker = :worker  -- when worker
 order by slot desc
 limit :limit;

-- stats_take: take away a chunk of rows that are to be merged, the oldest first.
-- Differs: the list is a subquery; there is no array to make of it.
delete from holdfast_stats
 where id in (
    select id from holdfast_stats
     where span = :span and slot < :until
     order by slot
     limit :limit)
returning id, slot, worker, data;

-- stats_prune: delete a chunk of rows that were kept for long enough.
-- Differs: the list is a subquery; there is no array to make of it.
delete from holdfast_stats
 where id in (
    select id from holdfast_stats
     where span = :span and slot < :until
     order by slot
     limit :limit)
returning 1;

-- depth_levels: list the queues that have pending jobs, with their priorities, hopping over the claim index.
-- Differs: no LATERAL; the next pair is read by correlated lookups.
with recursive hop (queue, priority) as (
    select * from (select queue, priority from holdfast_jobs where state = 'pending'
                    order by queue, priority desc limit 1)
    union all
    select coalesce((select queue from holdfast_jobs j
                      where j.state = 'pending' and j.queue = hop.queue and j.priority < hop.priority
                      order by queue, priority desc limit 1),
                    (select queue from holdfast_jobs j
                      where j.state = 'pending' and j.queue > hop.queue
                      order by queue, priority desc limit 1)),
           coalesce((select priority from holdfast_jobs j
                      where j.state = 'pending' and j.queue = hop.queue and j.priority < hop.priority
                      order by queue, priority desc limit 1),
                    (select priority from holdfast_jobs j
                      where j.state = 'pending' and j.queue > hop.queue
                      order by queue, priority desc limit 1))
      from hop where hop.queue is not null)
select queue, priority from hop where queue is not null;

-- depth_due: count the due jobs of one level by kind, and tell for how many microseconds the first has been due.
-- Differs: times are numbers, so their difference is one too.
select kind, count(*), :now - min(available_at)
  from (select kind, available_at
          from holdfast_jobs
         where state = 'pending' and queue = :queue and priority = :level and available_at <= :now
         order by available_at
         limit :limit) d
 group by kind;

-- depth_of: count the jobs of one level that are due or due later, and tell how long the first has been due, in µs.
-- One statement for all of that: there may be thousands of levels.
-- Differs: times are numbers, so their difference is one too.
select due.jobs, due.age, later.jobs
  from (select count(*) as jobs, :now - min(available_at) as age
          from (select available_at
                  from holdfast_jobs
                 where state = 'pending' and queue = :queue and priority = :level and available_at <= :now
                 order by available_at
                 limit :limit) d) due,
       (select count(*) as jobs
          from (select 1
                  from holdfast_jobs
                 where state = 'pending' and queue = :queue and priority = :level and available_at > :now
                 limit :limit) l) later;

-- depth_leased: count leased jobs by queue.
select queue, count(*)
  from (select queue from holdfast_jobs where state = 'leased' limit :limit) d
 group by queue;

-- depth_kept: count the finished jobs of a queue with one outcome.
select count(*)
  from (select 1 from holdfast_finished where outcome = :outcome and queue = :queue limit :limit) d;
