-- Holdfast's queries for SQLite: jobs whose end somebody waits for.
-- The files beside this one hold the same names in the same order: review them with diff.
-- What differs throughout is said at the head of jobs/sql/sqlite.sql.

-- results_mark: have the ends of live jobs pass the door, for those who wait for them; some queues only, where named.
-- Differs: no rows to lock, so nothing is left out, and no claim misses what is marked.
update holdfast_jobs
   set followers = coalesce(cast(followers as integer), 0) | :bit
 where id in (select value from json_each(:ids)) and coalesce(cast(followers as integer), 0) & :bit = 0
   and queue in (select value from json_each(:queues))  -- when queues
returning id;

-- results_look: tell how jobs are, where each is in its life, and what a done one left for those who wait.
-- One statement, and so one moment: a job that ends meanwhile is seen before or after, and not missed between tables.
-- Differs: the bits are cast, as everywhere here.
select id, state, queue, kind, coalesce(cast(followers as integer), 0) & :bit, null
  from holdfast_jobs where id in (select value from json_each(:ids))
 union all
select job_id, 'left', queue, kind, 0, result
  from holdfast_results where job_id in (select value from json_each(:ids))
 union all
select id, case when coalesce(cast(followers as integer), 0) & :continued <> 0 then 'continued' else outcome end,
       queue, kind, 0, null
  from holdfast_finished where id in (select value from json_each(:ids));

-- results_end: keep what done jobs gave of which no row is left.
-- Differs: nothing tells those who wait; they look. "where true" keeps the parser from reading ON CONFLICT as a join
-- condition.
insert into holdfast_results (job_id, at, queue, kind, result)
select json_extract(u.value, '$[0]'), :now, json_extract(u.value, '$[1]'), json_extract(u.value, '$[2]'),
       json_extract(u.value, '$[3]')
  from json_each(:batch) u
 where true
on conflict (job_id) do update set at = excluded.at, result = excluded.result;

-- results_prune: delete a chunk of what was kept for those who waited.
-- Differs: the list is a subquery; there is no array to make of it.
delete from holdfast_results
 where job_id in (
    select job_id from holdfast_results
     where at < :now - :older_ms * 1000
     order by at
     limit :limit)
returning 1;
