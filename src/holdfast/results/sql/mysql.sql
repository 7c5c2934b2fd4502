-- Holdfast's queries for MySQL and MariaDB: jobs whose end somebody waits for.
-- The files beside this one hold the same names in the same order: review them with diff.
-- What differs throughout is said at the head of jobs/sql/mysql.sql.

-- results_mark: have the ends of live jobs pass the door, for those who wait for them; some queues only, where named.
-- What somebody has locked is left out, so that nobody waits here: a completion may be in a transaction that stays open
-- for long. It is tried again with the next look.
-- Differs: a claim leaves out what is locked here, and nothing tells its worker to look again before its next poll.
select j.id
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
 where coalesce(j.followers, 0) & :bit = 0
   and j.queue in (:queues)  -- when queues
   for update /*!80001 of j */ skip locked;
update json_table(:found, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
   set j.followers = coalesce(j.followers, 0) | :bit;

-- results_look: tell how jobs are, where each is in its life, and what a done one left for those who wait.
-- One statement, and so one moment: a job that ends meanwhile is seen before or after, and not missed between tables.
select j.id, j.state, j.queue, j.kind, coalesce(j.followers, 0) & :bit, null
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
 union all
select r.job_id, 'left', r.queue, r.kind, 0, r.result
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_results r force index (primary) on r.job_id = u.id
 union all
select f.id, case when coalesce(f.followers, 0) & :continued <> 0 then 'continued' else f.outcome end,
       f.queue, f.kind, 0, null
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_finished f force index (primary) on f.id = u.id;

-- results_end: keep what done jobs gave of which no row is left.
-- Differs: nothing tells those who wait; they look.
insert into holdfast_results (job_id, at, queue, kind, result)
select u.job_id, :now, u.queue, u.kind, u.result
  from json_table(:batch, '$[*]' columns (
        job_id char(36) character set ascii collate ascii_bin path '$[0]',
        queue longtext character set utf8mb4 path '$[1]', kind longtext character set utf8mb4 path '$[2]',
        result longtext character set utf8mb4 path '$[3]')) u
on duplicate key update at = :now, result = u.result;

-- results_prune: delete a chunk of what was kept for those who waited.
select job_id from holdfast_results force index (holdfast_results_at_idx)
 where at < :now - interval :older_ms * 1000 microsecond
 order by at
 limit :limit
   for update skip locked;
delete r
  from json_table(:found, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_results r force index (primary) on r.job_id = u.id;
