-- Holdfast's queries for SQLite: remote steps that runs wait for.
-- The files beside this one hold the same names in the same order: review them with diff.
-- Times: :now is the host's clock in microseconds, except where a test tells the time.
-- Differs throughout: one writer at a time, so nothing is locked; lists and batches are read out of JSON texts.

-- dispatches_put: note what was sent, or is to be sent; a repeat of a step takes the place of what was noted of it.
-- Differs: the batch is read out of a JSON text.
insert into holdfast_dispatches (run_id, seq, key, engine, name, grp, input, attempt, lost, again, sent_at, look_at)
select u.value ->> 0, u.value ->> 1, u.value ->> 2, u.value ->> 3, u.value ->> 4, u.value ->> 5, u.value ->> 6,
       u.value ->> 7, 0, 0, :now, :now + :look_ms * 1000
  from json_each(:batch) u
 where true
on conflict (run_id, seq) do update
   set key = excluded.key, engine = excluded.engine, name = excluded.name, grp = excluded.grp, input = excluded.input,
       attempt = excluded.attempt, again = 0, sent_at = excluded.sent_at, look_at = excluded.look_at;

-- dispatches_of: read what runs wait for.
select run_id, seq, key, engine, name, grp, input, attempt, lost, again,
       case when look_at <= :now then 1 else 0 end
  from holdfast_dispatches
 where run_id in (select value from json_each(:ids))
   and key = :key  -- when key
 order by run_id, seq;

-- dispatches_pending: tell which steps runs wait for.
select run_id, seq from holdfast_dispatches where run_id in (select value from json_each(:ids));

-- dispatches_drop: forget what nobody waits for any more.
-- Differs: the batch is read out of a JSON text, and there is no join in a delete.
delete from holdfast_dispatches
 where (run_id, seq) in (select u.value ->> 0, u.value ->> 1 from json_each(:batch) u);

-- dispatches_due: read of which dispatches it is time to see whether they are lost.
select run_id, seq
  from holdfast_dispatches
 where engine = :engine and look_at <= :now
 order by look_at
 limit :limit;

-- dispatches_looked: note that somebody has looked, and when to look again.
-- That is after as long as it has been waiting by then, between the two bounds.
-- Differs: the batch is read out of a JSON text.
update holdfast_dispatches as d
   set look_at = :now + min(max(:now - d.sent_at, :least_ms * 1000), :most_ms * 1000),
       lost = d.lost + (u.value ->> 2), again = 0
  from json_each(:batch) u
 where d.run_id = u.value ->> 0 and d.seq = u.value ->> 1;

-- dispatches_again: ask for a run's dispatches to be sent again.
update holdfast_dispatches set again = 1, look_at = :now
 where run_id = :id
   and key = :key  -- when key
returning key;

-- dispatches_sent: note that messages were sent, so that nobody sends them again.
-- Differs: the batch is read out of a JSON text.
update holdfast_dispatches as d
   set look_at = null, again = 0, sent_at = :now
  from json_each(:batch) u
 where d.run_id = u.value ->> 0 and d.seq = u.value ->> 1 and d.attempt = u.value ->> 2;

-- dispatches_over: forget what was sent by messages for runs that are over.
-- Differs: an alias is not taken in a delete.
delete from holdfast_dispatches
 where engine = :engine and look_at is null
   and not exists (select 1 from holdfast_jobs j where j.id = holdfast_dispatches.run_id);

-- dispatches_open: read dispatches that nobody looks after, or that were lost again and again, with their runs.
select r.run_key, d.key, d.engine, d.name, d.lost, d.sent_at, d.look_at < :now - :late_ms * 1000
  from holdfast_dispatches d
  join holdfast_runs r on r.id = d.run_id
 where d.look_at < :now - :late_ms * 1000 or d.lost >= :losses
 order by d.sent_at
 limit :limit;
