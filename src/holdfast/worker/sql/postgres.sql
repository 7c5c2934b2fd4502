-- Holdfast's queries for PostgreSQL: the registry of workers.
-- The files beside this one hold the same names in the same order: review them with diff.
-- What differs throughout is said at the head of jobs/sql/postgres.sql.

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
update holdfast_workers
   set status = 'dead', seen_at = :now, stopped_at = :now, counted = coalesce(:counted::text::uuid, counted)
 where id = :id
returning id;

-- workers_drain: ask live workers to stop; they hear of it at their next beat.
update holdfast_workers set status = 'draining'
 where id = any (:ids::text[]) and status = 'alive'
returning id;

-- workers_bury: mark workers dead that have been silent for too long.
-- A draining one stays draining: dead, its next beat would revive it as alive, and a beat never un-drains.
update holdfast_workers set status = 'dead'
 where status = 'alive' and seen_at < :now - :silent_ms::bigint * interval '1 millisecond'
returning id;

-- workers_forget: delete silent workers that nobody asks about any more.
delete from holdfast_workers
 where status <> 'alive' and seen_at < :now - :older_ms::bigint * interval '1 millisecond'
returning id;

-- workers_list: read the registry with the age of each beat in milliseconds.
select id, case when status = 'dead' and stopped_at is not null then 'stopped' else status end, started_at, seen_at,
       (extract(epoch from :now - seen_at) * 1000)::bigint, info::text
  from holdfast_workers
 order by started_at, id;

-- round_take: take what one worker does for all, if it is free or one's own already.
insert into holdfast_rounds (name, worker, until)
values (:name, :worker, :now + :lease_ms::bigint * interval '1 millisecond')
on conflict (name) do update set worker = excluded.worker, until = excluded.until
 where holdfast_rounds.until at time zone interval '0'
       <= excluded.until at time zone interval '0' - :lease_ms::bigint * interval '1 millisecond'
    or holdfast_rounds.worker = excluded.worker
returning name;
