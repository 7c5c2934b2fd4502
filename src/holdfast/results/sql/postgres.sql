-- Holdfast's queries for PostgreSQL: jobs whose end somebody waits for.
-- The files beside this one hold the same names in the same order: review them with diff.
-- What differs throughout is said at the head of jobs/sql/postgres.sql.

-- results_mark: have the ends of live jobs pass the door, for those who wait for them; some queues only, where named.
-- What somebody has locked is left out, so that nobody waits here: a completion may be in a transaction that stays open
-- for long. It is tried again with the next look.
-- A claim leaves out what is locked here, for the time of a commit. So workers look again where a due job was marked.
with marked as (
    update holdfast_jobs j
       set followers = coalesce(j.followers, 0) | :bit::integer
     where j.id = any (array(
        select id from holdfast_jobs
         where id = any ((select :ids::text::uuid[])::uuid[]) and coalesce(followers, 0) & :bit::integer = 0
           and queue = any (:queues::text[])  -- when queues
         order by id
           for update skip locked))
    returning j.id, j.queue, j.state, j.available_at)
select id::text,
       case when :channel::text is not null and state = 'pending' and available_at <= :now
            then pg_notify(:channel, queue)::text end
  from marked;

-- results_look: tell how jobs are, where each is in its life, and what a done one left for those who wait.
-- One statement, and so one moment: a job that ends meanwhile is seen before or after, and not missed between tables.
select id::text, state, queue, kind, coalesce(followers, 0) & :bit::integer, null::text
  from holdfast_jobs where id = any ((select :ids::text::uuid[])::uuid[])
 union all
select job_id::text, 'left', queue, kind, 0, result::text
  from holdfast_results where job_id = any ((select :ids::text::uuid[])::uuid[])
 union all
select id::text, case when coalesce(followers, 0) & :continued::integer <> 0 then 'continued' else outcome end,
       queue, kind, 0, null
  from holdfast_finished where id = any ((select :ids::text::uuid[])::uuid[]);

-- results_end: keep what done jobs gave of which no row is left, and tell those who wait which jobs have ended.
-- Ids come in texts of several, because a notification is at most 8,000 bytes long.
with kept as (
    insert into holdfast_results (job_id, at, queue, kind, result)
    select u.job_id, :now, u.queue, u.kind, u.result::json
      from unnest(:job_id::text::uuid[], :queue::text[], :kind::text[], :result::text[])
           as u (job_id, queue, kind, result)
    on conflict (job_id) do update set at = excluded.at, result = excluded.result)
select pg_notify(:ended, u.ids)::text from unnest(:told::text[]) as u (ids) where :ended::text is not null;

-- results_prune: delete a chunk of what was kept for those who waited.
delete from holdfast_results
 where job_id = any (array(
    select job_id from holdfast_results
     where at < :now - :older_ms::bigint * interval '1 millisecond'
     order by at
     limit :limit
       for update skip locked))
returning 1;
