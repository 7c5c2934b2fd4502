-- Holdfast's queries for PostgreSQL: remote steps that runs wait for.
-- The files beside this one hold the same names in the same order: review them with diff.
-- Times: :now is the server's clock (statement_timestamp()), except where a test tells the time.
-- Locks are taken in this order: the run's row in holdfast_jobs, what belongs to it here, rows of the engine.

-- dispatches_put: note what was sent, or is to be sent; a repeat of a step takes the place of what was noted of it.
insert into holdfast_dispatches (run_id, seq, key, engine, name, grp, input, attempt, lost, again, sent_at, look_at)
select u.run_id, u.seq, u.key, u.engine, u.name, u.grp, u.input, u.attempt, 0, 0, :now,
       :now + :look_ms::bigint * interval '1 millisecond'
  from unnest(:run_id::text::uuid[], :seq::text::integer[], :key::text[], :engine::text[], :name::text[],
              :grp::text[], :input::text[], :attempt::text::integer[])
       as u (run_id, seq, key, engine, name, grp, input, attempt)
on conflict (run_id, seq) do update
   set key = excluded.key, engine = excluded.engine, name = excluded.name, grp = excluded.grp, input = excluded.input,
       attempt = excluded.attempt, again = 0, sent_at = excluded.sent_at, look_at = excluded.look_at;

-- dispatches_of: read what runs wait for.
select run_id::text, seq, key, engine, name, grp, input, attempt, lost, again,
       case when look_at <= :now then 1 else 0 end
  from holdfast_dispatches
 where run_id = any ((select :ids::text::uuid[])::uuid[])
   and key = :key  -- when key
 order by run_id, seq;

-- dispatches_pending: tell which steps runs wait for.
select run_id::text, seq from holdfast_dispatches where run_id = any ((select :ids::text::uuid[])::uuid[]);

-- dispatches_drop: forget what nobody waits for any more.
delete from holdfast_dispatches d
 using unnest(:run_id::text::uuid[], :seq::text::integer[]) as u (run_id, seq)
 where d.run_id = u.run_id and d.seq = u.seq;

-- dispatches_due: read of which dispatches it is time to see whether they are lost.
select run_id::text, seq
  from holdfast_dispatches
 where engine = :engine and look_at <= :now
 order by look_at
 limit :limit;

-- dispatches_looked: note that somebody has looked, and when to look again.
-- That is after as long as it has been waiting by then, between the two bounds.
update holdfast_dispatches d
   set look_at = (:now at time zone interval '0'
           + least(greatest(:now - d.sent_at, :least_ms::bigint * interval '1 millisecond'),
                   :most_ms::bigint * interval '1 millisecond')) at time zone interval '0',
       lost = d.lost + u.lost, again = 0
  from unnest(:run_id::text::uuid[], :seq::text::integer[], :lost::text::integer[]) as u (run_id, seq, lost)
 where d.run_id = u.run_id and d.seq = u.seq;

-- dispatches_again: ask for a run's dispatches to be sent again.
update holdfast_dispatches set again = 1, look_at = :now
 where run_id = :id::text::uuid
   and key = :key  -- when key
returning key;

-- dispatches_sent: note that messages were sent, so that nobody sends them again.
update holdfast_dispatches d
   set look_at = null, again = 0, sent_at = :now
  from unnest(:run_id::text::uuid[], :seq::text::integer[], :attempt::text::integer[]) as u (run_id, seq, attempt)
 where d.run_id = u.run_id and d.seq = u.seq and d.attempt = u.attempt;

-- dispatches_over: forget what was sent by messages for runs that are over.
delete from holdfast_dispatches d
 where d.engine = :engine and d.look_at is null
   and not exists (select 1 from holdfast_jobs j where j.id = d.run_id);

-- dispatches_open: read dispatches that nobody looks after, or that were lost again and again, with their runs.
select r.run_key, d.key, d.engine, d.name, d.lost, d.sent_at,
       d.look_at < :now - :late_ms::bigint * interval '1 millisecond'
  from holdfast_dispatches d
  join holdfast_runs r on r.id = d.run_id
 where d.look_at < :now - :late_ms::bigint * interval '1 millisecond' or d.lost >= :losses
 order by d.sent_at
 limit :limit;
