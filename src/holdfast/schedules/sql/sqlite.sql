-- Holdfast's queries for SQLite: schedules and their ticks.
-- The files beside this one hold the same names in the same order: review them with diff.
-- What differs throughout is said at the head of jobs/sql/sqlite.sql.
-- Every change names the revision that was seen and raises it: of those who saw the same one, one changes the row.

-- schedules_first: read which schedules tick next, and the time; those that are due stand in front.
-- Nothing more is read of them: this is asked every few seconds, by every worker.
select name, next_at, :now
  from holdfast_schedules
 where paused_at is null
 order by next_at
 limit :limit;

-- schedules_list: read schedules with all that is known of them, and the time.
select name, kind, queue, payload, options, cron, every_ms, timezone, catch_up, next_at, last_at, paused_at,
       revision, fingerprint, replaced, declared_by, created_at, changed_at, :now
  from holdfast_schedules
 where true
   and name = :name  -- when name
 order by name;

-- schedules_declared: read what decides whether a declaration takes effect.
-- Differs: a list is a JSON text.
select name, revision, fingerprint, replaced, declared_by, cron, every_ms, timezone, next_at, last_at
  from holdfast_schedules
 where name in (select value from json_each(:names))
 order by name;

-- schedules_live: read what live workers say about themselves, with the schedules that they declare.
select info
  from holdfast_workers
 where status <> 'dead' and seen_at > :now - :silent_ms * 1000;

-- schedule_add: add a schedule, unless there is one of this name.
insert into holdfast_schedules
    (name, kind, queue, payload, options, cron, every_ms, timezone, catch_up, next_at, fingerprint, replaced,
     declared_by, created_at, changed_at)
values (:name, :kind, :queue, :payload, :options, :cron, :every_ms, :timezone,
    :catch_up, :next_at, :fingerprint, '[]', :declared_by, :now, :now)
on conflict (name) do nothing
returning name;

-- schedule_change: let another definition take the place of the one that was seen.
update holdfast_schedules
   set kind = :kind, queue = :queue, payload = :payload, options = :options, cron = :cron,
       every_ms = :every_ms, timezone = :timezone, catch_up = :catch_up, next_at = :next_at,
       fingerprint = :fingerprint, replaced = :replaced, declared_by = :declared_by, changed_at = :now,
       revision = revision + 1
 where name = :name and revision = :revision
returning name;

-- schedule_tick: move a schedule on to its next tick, if nobody has done so since it was seen.
update holdfast_schedules
   set next_at = :next_at, revision = revision + 1
       , last_at = :last_at  -- when last_at
 where name = :name and revision = :revision and paused_at is null
returning name;

-- schedule_pause: stop a schedule that ticks.
update holdfast_schedules
   set paused_at = :now, revision = revision + 1
 where name = :name and revision = :revision and paused_at is null
returning name;

-- schedule_resume: let a schedule tick from now on. A last tick in the future was of a clock that was wrong.
-- Differs: PostgreSQL's has a form that Citus takes.
update holdfast_schedules
   set paused_at = null, next_at = :next_at, revision = revision + 1,
       last_at = case when last_at > :now then null else last_at end
 where name = :name and revision = :revision
returning name;

-- schedule_remove: delete a schedule.
delete from holdfast_schedules where name = :name
returning name;
