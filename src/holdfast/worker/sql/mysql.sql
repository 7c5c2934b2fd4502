-- Holdfast's queries for MySQL and MariaDB: the registry of workers.
-- The files beside this one hold the same names in the same order: review them with diff.
-- What differs throughout is said at the head of jobs/sql/mysql.sql.

-- beat: record that a worker is alive, and which row of statistics it has just written. A beat never un-drains.
insert into holdfast_workers (id, status, started_at, seen_at, info, counted)
values (:id, 'alive', :now, :now, :info, :counted)
on duplicate key update seen_at = :now, info = :info, stopped_at = null,
    counted = coalesce(:counted, counted),
    status = case when status = 'dead' then 'alive' else status end;
select status from holdfast_workers where id = :id;

-- worker_mark: set a worker's status.
select id from holdfast_workers where id = :id for update;
update holdfast_workers set status = :status, seen_at = :now
 where id = :id;

-- worker_stopped: note that a worker ended by itself. Its status is dead, which every version takes for gone.
select id from holdfast_workers where id = :id for update;
update holdfast_workers set status = 'dead', seen_at = :now, stopped_at = :now,
    counted = coalesce(:counted, counted)
 where id = :id;

-- workers_drain: ask live workers to stop; they hear of it at their next beat.
select w.id
  from json_table(:ids, '$[*]' columns (id varchar(500) character set utf8mb4 collate holdfast_text path '$')) u
 straight_join holdfast_workers w force index (primary) on w.id = u.id
 where w.status = 'alive'
   for update /*!80001 of w */;
update json_table(:found, '$[*]' columns (id varchar(500) character set utf8mb4 collate holdfast_text path '$')) u
 straight_join holdfast_workers w force index (primary) on w.id = u.id
   set w.status = 'draining';

-- workers_bury: mark workers dead that have been silent for too long.
-- A draining one stays draining: dead, its next beat would revive it as alive, and a beat never un-drains.
select id from holdfast_workers
 where status = 'alive' and seen_at < :now - interval :silent_ms * 1000 microsecond
   for update skip locked;
update json_table(:found, '$[*]' columns (id varchar(500) character set utf8mb4 collate holdfast_text path '$')) u
 straight_join holdfast_workers w force index (primary) on w.id = u.id
   set w.status = 'dead';

-- workers_forget: delete silent workers that nobody asks about any more.
select id from holdfast_workers
 where status <> 'alive' and seen_at < :now - interval :older_ms * 1000 microsecond
   for update skip locked;
delete w
  from json_table(:found, '$[*]' columns (id varchar(500) character set utf8mb4 collate holdfast_text path '$')) u
 straight_join holdfast_workers w force index (primary) on w.id = u.id;

-- workers_list: read the registry with the age of each beat in milliseconds.
select id, case when status = 'dead' and stopped_at is not null then 'stopped' else status end, started_at, seen_at,
       timestampdiff(microsecond, seen_at, :now) div 1000, info
  from holdfast_workers
 order by started_at, id;

-- round_take: take what one worker does for all, if it is free or one's own already.
-- Differs: no condition in an upsert and no rows from an update: the row is made first, and locked if it may be taken.
-- Looked for before: asyncmy logs what an INSERT IGNORE ignores, and this one is run every few seconds.
insert ignore into holdfast_rounds (name, worker, until)
select :name, '', cast('1970-01-02' as datetime) from dual
 where not exists (select 1 from holdfast_rounds where name = :name);
select name from holdfast_rounds where name = :name and (until <= :now or worker = :worker) for update;
update holdfast_rounds set worker = :worker, until = :now + interval :lease_ms * 1000 microsecond where name = :name;
