-- Holdfast's queries for MySQL and MariaDB: statistics, and bounded looks at what waits and what is kept.
-- The files beside this one hold the same names in the same order: review them with diff.
-- What differs throughout is said at the head of jobs/sql/mysql.sql.
-- Nothing here reads a whole queue or all finished rows: each count stops at :limit rows.

-- stats_add: note what was counted just now.
-- It may be repeated: an id that is there adds nothing, nor does that of the
-- row that the worker's last beat has written, which may be merged since.
insert into holdfast_stats (id, span, slot, worker, data)
select :id, :span, timestampdiff(second, '1970-01-01', :now), :worker, :data
  from dual
 where not exists (select 1 from holdfast_workers where id = :worker and counted = :id)
on duplicate key update span = holdfast_stats.span;

-- stats_keep: note what was merged, at its slot.
insert into holdfast_stats (id, span, slot, worker, data)
values (:id, :span, :slot, '', :data)
on duplicate key update span = holdfast_stats.span;

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
select id, slot, worker, data from holdfast_stats force index (holdfast_stats_slot_idx)
 where span = :span and slot < :until
 order by slot
 limit :limit
   for update skip locked;
delete s
  from json_table(:found, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_stats s force index (primary) on s.id = u.id;

-- stats_prune: delete a chunk of rows that were kept for long enough.
select id from holdfast_stats force index (holdfast_stats_slot_idx)
 where span = :span and slot < :until
 order by slot
 limit :limit
   for update skip locked;
delete s
  from json_table(:found, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_stats s force index (primary) on s.id = u.id;

-- depth_levels: list the queues that have pending jobs, with their priorities, hopping over the claim index.
-- Differs: the optimizer does the hopping (a loose index scan); urgency is the priority the other way round.
select queue, urgency
  from holdfast_jobs force index (holdfast_jobs_claim_idx)
 where state = 'pending'
 group by queue, urgency;

-- depth_due: count the due jobs of one level by kind, and tell for how many microseconds the first has been due.
select kind, count(*), timestampdiff(microsecond, min(available_at), :now)
  from (select kind, available_at
          from holdfast_jobs force index (holdfast_jobs_claim_idx)
         where state = 'pending' and queue = :queue and urgency = :level and available_at <= :now
         order by available_at
         limit :limit) d
 group by kind;

-- depth_of: count the jobs of one level that are due or due later, and tell how long the first has been due, in µs.
-- One statement for all of that: there may be thousands of levels.
select due.jobs, due.age, later.jobs
  from (select count(*) as jobs, timestampdiff(microsecond, min(available_at), :now) as age
          from (select available_at
                  from holdfast_jobs force index (holdfast_jobs_claim_idx)
                 where state = 'pending' and queue = :queue and urgency = :level and available_at <= :now
                 order by available_at
                 limit :limit) d) due,
       (select count(*) as jobs
          from (select 1
                  from holdfast_jobs force index (holdfast_jobs_claim_idx)
                 where state = 'pending' and queue = :queue and urgency = :level and available_at > :now
                 limit :limit) l) later;

-- depth_leased: count leased jobs by queue.
select queue, count(*)
  from (select queue from holdfast_jobs force index (holdfast_jobs_claim_idx) where state = 'leased' limit :limit) d
 group by queue;

-- depth_kept: count the finished jobs of a queue with one outcome.
select count(*)
  from (select 1
          from holdfast_finished force index (holdfast_finished_age_idx)
         where outcome = :outcome and queue = :queue
         limit :limit) d;
