-- Holdfast's queries for SQLite: the registry of workers.
-- The files beside this one hold the same names in the same order: review them with diff.
-- What differs throughout is said at the head of jobs/sql/sqlite.sql.

-- beat: record that a worker is alive, and which row of statistics it has just written. A beat never un-drains.
insert into holdfast_workers (id, status, started_at, seen_at, info, counted)
values (:id, 'alive', :now, :now, :info, :counted)
on conflict (id) do update set seen_at = excluded.seen_at, info = excluded.info, stopped_at = null,
    counted = coalesce(excluded.counted, holdfast_workers.counted),
    status = case when holdfast_workers.status = 'dead' then 'alive' else holdfast_workers.status end
returning status;

-- worker_mark: set a worker's status.
update holdfast_workers set status = :status, seen_at = :now
 where id = :id
returning id;

-- worker_stopped: note that a worker ended by itself. Its status is dead, which every version takes for gone.
update holdfast_workers set status = 'dead', seen_at = :now, stopped_at = :now,
    counted = coalesce(:counted, counted)
 where id = :id
returning id;

-- workers_drain: ask live workers to stop; they hear of it at their next beat.
update holdfast_workers set status = 'draining'
 where id in (select value from json_each(:ids)) and status = 'alive'
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
select id, case when status = 'dead' and stopped_at is not null then 'stopped' else status end, started_at, seen_at,
       (:now - seen_at) / 1000, info
  from holdfast_workers
 order by started_at, id;

-- round_take: take what one worker does for all, if it is free or one's own already.
-- Differs: PostgreSQL's has a form that Citus takes.
insert into holdfast_rounds (name, worker, until)
values (:name, :worker, :now + :lease_ms * 1000)
on conflict (name) do update set worker = excluded.worker, until = excluded.until
 where holdfast_rounds.until <= :now or holdfast_rounds.worker = excluded.worker
returning name;
