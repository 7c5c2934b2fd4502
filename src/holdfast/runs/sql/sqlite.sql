-- Holdfast's queries for SQLite: durable runs, their journals, what is sent to them, what they say of themselves.
-- The files beside this one hold the same names in the same order: review them with diff.
-- Times: :now is the host's clock, except where a test tells the time.
-- Flags are numbers in a batch and in an answer: a caller's connection may show booleans in a way of its own.
-- Differs throughout: one writer at a time, so nothing is locked; lists and batches are read out of JSON texts.

-- checkpoint: add rows to journals whose run is still held with its fence, and answer with those that were added.
-- Differs: the batch is read out of a JSON text, nothing is locked, and every row answers for itself.
insert into holdfast_steps (run_id, seq, key, kind, ok, value, digest, attempt, worker, took_ms, ref, at)
select u.value ->> 0, u.value ->> 2, u.value ->> 3, u.value ->> 4, u.value ->> 5, u.value ->> 6, u.value ->> 7,
       u.value ->> 8, :worker, u.value ->> 9, u.value ->> 10, :now
  from json_each(:batch) u
  join holdfast_jobs j on j.id = u.value ->> 0 and j.fence = u.value ->> 1
 where true
on conflict do nothing
returning run_id, seq, at;

-- checkpoint_one: as checkpoint, for one row.
-- Differs: nothing is locked.
insert into holdfast_steps (run_id, seq, key, kind, ok, value, digest, attempt, worker, took_ms, ref, at)
select j.id, :seq, :key, :kind, :ok, :value, :digest, :attempt, :worker, :took_ms, :ref, :now
  from holdfast_jobs j
 where j.id = :id and j.fence = :fence
on conflict do nothing
returning run_id, seq, at;

-- checkpoint_look: tell which of these rows an earlier try has added, of runs that are still held with their fence.
-- Differs: times are microseconds already, and the batch is JSON.
select s.run_id, s.seq, s.at
  from json_each(:batch) u
  join holdfast_steps s on s.run_id = u.value ->> 0 and s.seq = u.value ->> 2
  join holdfast_jobs j on j.id = u.value ->> 0 and j.fence = u.value ->> 1;

-- journal_read: read a run's journal, from a place on, in its order.
-- Differs: times are microseconds already.
select seq, key, kind, ok, value, digest, attempt, worker, took_ms, ref, at
  from holdfast_steps
 where run_id = :id and seq >= :first
   and seq <= :last  -- when last
 order by seq;

-- journal_at: read what stands at a place of a run that is still held with its fence.
-- Differs: times are microseconds already.
select s.seq, s.key, s.kind, s.ok, s.value, s.digest, s.attempt, s.worker, s.took_ms, s.ref, s.at
  from holdfast_steps s
  join holdfast_jobs j on j.id = s.run_id and j.fence = :fence
 where s.run_id = :id and s.seq = :seq;

-- run_read: read what is known of a run beside its journal.
select id, workflow, run_key, parent_id, parent_key, outcome, stuck
  from holdfast_runs where id = :id;

-- run_hold: find a run that is held with this fence.
select id from holdfast_jobs where id = :id and fence = :fence;

-- run_free: find a run; in a caller's transaction.
-- Differs: nobody can write while that is open, so it does not matter whether a worker holds the run.
select id from holdfast_jobs where id = :id;

-- run_calm: note that a request to cancel has reached the run.
-- Differs: a flag is a number.
update holdfast_jobs set cancel_requested = 0 where id = :id and fence = :fence;

-- runs_asked: note that runs are asked to stop: the next to claim one of them looks for the request first.
-- Differs: a flag is a number.
update holdfast_jobs set cancel_requested = 1 where id in (select value from json_each(:ids));

-- run_migrate: let a run that is locked and that nobody holds go on as another version, at once.
update holdfast_jobs set kind = :kind, state = 'pending', waits_for = null, available_at = min(available_at, :now)
 where id = :id;

-- runs_add: note new runs, except where a run of this workflow has the key; the flow reads who has it.
-- Differs: run once per row.
-- bind: rows
insert into holdfast_runs (id, workflow, run_key, digest, parent_id, parent_key, created_at)
values (:id, :workflow, :run_key, :digest, :parent_id, :parent_key, :now)
on conflict do nothing;

-- runs_find: read the runs that have these keys, with the place of each in the batch.
-- Differs: the batch is JSON, whose places count from 0.
select u.key + 1, r.id, r.digest, r.outcome, r.parent_id
  from json_each(:batch) u
  join holdfast_runs r on r.run_key = u.value ->> 1 and r.workflow = u.value ->> 0;

-- runs_named: read the runs with this key, of one workflow or of any.
select id, workflow, outcome
  from holdfast_runs
 where run_key = :run_key
   and workflow = :workflow  -- when workflow
 order by id
 limit 2;

-- runs_keyed: read the runs that have these keys.
select run_key, id, workflow from holdfast_runs where run_key in (select value from json_each(:keys)) order by id;

-- runs_unbegun: tell which of these runs have nothing behind them; one that continues another has no digest.
select id from holdfast_runs where id in (select value from json_each(:ids)) and digest is not null;

-- runs_rename: let a run that is over give its key away.
-- Differs: substr, where others have left.
update holdfast_runs set run_key = substr(run_key, 1, 250) || '~' || id
 where id in (select value from json_each(:ids))
returning id;

-- runs_follow_on: note the runs that continue others, under the keys of these, which are renamed already.
-- Differs: substr, where others have left, and a batch in JSON.
insert into holdfast_runs (id, workflow, run_key, digest, parent_id, parent_key, created_at)
select u.value ->> 1, r.workflow, substr(r.run_key, 1, length(r.run_key) - 37), null, r.parent_id, r.parent_key, :now
  from json_each(:batch) u
  join holdfast_runs r on r.id = u.value ->> 0
 where true
on conflict do nothing;

-- runs_ended: note how runs ended, or that they go on.
-- Differs: run once per row.
-- bind: rows
update holdfast_runs
   set outcome = :outcome, ended_at = case when :outcome is null then null else :now end,
       stuck = null, stuck_at = null
 where id = :id;

-- runs_parents: read whose children these runs are, and under which key.
select id, parent_id, parent_key
  from holdfast_runs
 where id in (select value from json_each(:ids)) and parent_id is not null
 order by parent_id, id;

-- runs_children: read the children of these runs that are not over.
select id
  from holdfast_runs
 where parent_id in (select value from json_each(:ids)) and outcome is null
 order by id;

-- runs_children_over: read how children of these runs ended, where their parents' journals do not tell of it.
-- One that was continued has not ended: its followers hold 64.
select r.id, r.parent_id, r.parent_key, f.outcome, f.result
  from holdfast_runs r
  join holdfast_finished f on f.id = r.id
 where r.parent_id in (select value from json_each(:ids)) and r.outcome is not null
   and coalesce(f.followers, 0) & 64 = 0
   and not exists (select 1 from holdfast_steps s
                    where s.run_id = r.parent_id and s.kind = 'child' and s.key = r.parent_key)
 order by r.id;

-- runs_adopt: make runs that were started by themselves the children of one that asks for them.
-- Differs: run once per row.
-- bind: rows
update holdfast_runs set parent_id = :parent_id, parent_key = :parent_key where id = :id and parent_id is null;

-- runs_ends: read how these children ended, where it is not in their parents' inboxes.
select r.id, r.parent_id, r.parent_key, f.outcome, f.result
  from holdfast_runs r
  join holdfast_finished f on f.id = r.id
 where r.id in (select value from json_each(:ids)) and r.outcome is not null
   and coalesce(f.followers, 0) & 64 = 0
   and not exists (select 1 from holdfast_signals s where s.id = r.id)
 order by r.id;

-- run_stuck: note why a held run cannot go on, or that it can; since when stays as it was.
-- Differs: PostgreSQL's has a form that Citus takes.
update holdfast_runs
   set stuck = :reason, stuck_at = case when :reason is null then null else coalesce(stuck_at, :now) end
 where id = :id
   and exists (select 1 from holdfast_jobs j where j.id = :id and j.fence = :fence);

-- runs_progressed: tell which of these leases have seen a row in the journal of their run.
select j.id
  from holdfast_jobs j
 where j.id in (select value from json_each(:ids))
   and (select s.at from holdfast_steps s where s.run_id = j.id order by s.seq desc limit 1) >= j.leased_at;

-- signals_add: put something into the inboxes of runs.
-- Differs: run once per row.
-- bind: rows
insert into holdfast_signals (id, run_id, name, payload, told, created_at)
values (:id, :run_id, :name, :payload, :told, :now)
on conflict do nothing;

-- signals_next: read the oldest that a run has got by a name.
select id, name, payload
  from holdfast_signals
 where run_id = :id and name = :name
 order by created_at, id
 limit :limit;

-- signals_first: read the oldest that a run has got by each of these names.
-- Differs: SQLite has no lateral joins.
select s.id, s.name, s.payload
  from json_each(:names) u
 cross join holdfast_signals s
    on s.id = (select o.id
                 from holdfast_signals o
                where o.run_id = :id and o.name = u.value
                order by o.created_at, o.id
                limit 1);

-- signals_read: read what is in inboxes under these ids.
select id, payload from holdfast_signals where id in (select value from json_each(:ids));

-- signals_drop: delete what a run has taken.
delete from holdfast_signals where id in (select value from json_each(:ids));

-- signals_known: tell whether a signal was sent before: it is there, or was taken.
select 1 from holdfast_signals where id = :id
union all
select 1 from holdfast_steps where run_id = :run and ref = :id;

-- signals_move: hand over to the next run of a chain what the one before has not taken.
-- Not what is of its own children and steps: the next run has others, by the same keys.
-- Differs: run once per row.
-- bind: rows
update holdfast_signals set run_id = :next where run_id = :id and name not in ('!child', '!remote');

-- signals_there: tell for which of these runs and names there is something.
-- Differs: the batch is JSON; SQLite has no lateral joins.
select u.value ->> 0, u.value ->> 1
  from json_each(:batch) u
 where exists (select 1 from holdfast_signals s where s.run_id = u.value ->> 0 and s.name = u.value ->> 1);

-- runs_waits: read what runs wait for that nobody holds.
select id, waits_for
  from holdfast_jobs
 where id in (select value from json_each(:ids)) and state <> 'leased' and waits_for is not null;

-- signals_untold: read signals of which nobody has told the run.
select id, run_id, name from holdfast_signals where told = 0 order by created_at limit :limit;

-- signals_told: note that runs were told of signals.
update holdfast_signals set told = 1 where id in (select value from json_each(:ids));

-- attributes_set: write what runs say of themselves.
-- Differs: run once per row.
-- bind: rows
insert into holdfast_attributes (run_id, name, value) values (:run_id, :name, :value)
on conflict (run_id, name) do update set value = excluded.value;

-- attributes_read: read what runs say of themselves.
select run_id, name, value
  from holdfast_attributes
 where run_id in (select value from json_each(:ids))
 order by run_id, name;

-- runs_list: read runs with the state of their jobs, the newest first.
-- What runs say of themselves is read of each run as a value, of which no planner makes a join, because very many may
-- say the same. With `few`, no more of them do than a look may read, and it begins with those.
-- Differs: an outcome is one value, as SQLite takes the index for it. That of stuck runs is named; it would walk over
-- all runs by their id.
select r.id, r.workflow, r.run_key, coalesce(j.kind, f.kind), coalesce(j.state, f.outcome, r.outcome),
       j.waits_for, r.stuck, r.parent_id, r.created_at, r.ended_at, coalesce(j.attempts, f.attempts, 0),
       j.available_at, r.stuck_at
  from
       holdfast_attributes a indexed by holdfast_attributes_value_idx cross join  -- when few
       holdfast_runs r
       indexed by holdfast_runs_stuck_idx  -- when stuck
  left join holdfast_jobs j on j.id = r.id
  left join holdfast_finished f on f.id = r.id
 where true
   and a.name = :attribute and a.value = :value and r.id = a.run_id  -- when few
   and r.id = :id  -- when id
   and r.run_key = :run_key  -- when run_key
   and r.workflow = :workflow  -- when workflow
   and r.parent_id = :parent  -- when parent
   and coalesce(j.kind, f.kind) = :kind  -- when kind
   and r.outcome = :outcome  -- when outcome
   and r.stuck_at is not null  -- when stuck
   -- when attribute:
   and (select s.value from holdfast_attributes s where s.run_id = r.id and s.name = :attribute) = :value
   -- end
   and r.id < :older_than  -- when older_than
   and r.id >= :from_id  -- when from_id
 order by r.id desc
 limit :limit;

-- runs_horizon: name the run that is the last of this many, the newest first, and the one behind it, if there is one.
-- With `outcome`, among those that ended so.
-- Differs: an outcome is one value; SQLite takes the index for it.
select r.id
  from holdfast_runs r
 where true
   and r.outcome = :outcome  -- when outcome
   and r.id < :older_than  -- when older_than
 order by r.id desc
 limit 2 offset :skipped;

-- attributes_count: count the runs that say this of themselves, no more than :most.
select count(*)
  from (select 1
          from holdfast_attributes
         where name = :attribute and value = :value
         limit :most) c;

-- runs_live: read runs whose jobs are live, as runs_list. By the jobs: runs that are over may be very many.
-- Differs: the order of the tables is said.
select r.id, r.workflow, r.run_key, j.kind, j.state, j.waits_for, r.stuck, r.parent_id, r.created_at,
       r.ended_at, j.attempts, j.available_at, r.stuck_at
  from holdfast_jobs j
 cross join holdfast_runs r on r.id = j.id
 where j.followers is not null and j.followers & 128 <> 0
   and r.workflow = :workflow  -- when workflow
   and r.parent_id = :parent  -- when parent
   -- when attribute:
   and (select s.value from holdfast_attributes s where s.run_id = r.id and s.name = :attribute) = :value
   -- end
   and j.state in (select value from json_each(:states))  -- when states
   and j.kind = :kind  -- when kind
   and j.waits_for like '%' || :waits_for || '%'  -- when waits_for
   and j.id < :older_than  -- when older_than
 order by j.id desc
 limit :limit;

-- runs_long: read runs that are not over and whose journal has become long, with the number of its rows.
-- By their live jobs: those that are over may be very many.
-- Differs: the order of the tables is said.
-- Places may be left out, so that the last one is at least that number: rows are counted where it is high enough only.
select id, run_key, number
  from (select r.id as id, r.run_key, (select count(*) from holdfast_steps s where s.run_id = r.id) as number
          from holdfast_jobs j
    cross join holdfast_runs r on r.id = j.id
         where j.followers is not null and j.followers & 128 <> 0 and r.outcome is null
           and exists (select 1 from holdfast_steps s where s.run_id = r.id and s.seq > :rows)) d
 where number > :rows
 order by id
 limit :limit;

-- runs_kinds: count the runs that are not over, by kind, and those of them that are due.
select j.kind, count(*), sum(case when j.state = 'pending' and j.available_at <= :now then 1 else 0 end)
  from holdfast_jobs j
 where j.followers is not null and j.followers & 128 <> 0
 group by j.kind
 order by j.kind;

-- runs_old: find finished runs that were kept for long enough.
select id
  from holdfast_finished
 where outcome = :outcome and queue = :queue and finished_at < :now - :older_ms * 1000
   and followers is not null and followers & 128 <> 0
 order by finished_at
 limit :limit;

-- runs_forget: delete what is left of runs: journals, inboxes, attributes, the runs themselves.
-- Differs: no writing CTE.
delete from holdfast_steps where run_id in (select value from json_each(:ids));
delete from holdfast_signals where run_id in (select value from json_each(:ids));
delete from holdfast_attributes where run_id in (select value from json_each(:ids));
delete from holdfast_runs where id in (select value from json_each(:ids));

-- runs_over: delete finished rows of runs that are forgotten.
delete from holdfast_finished where id in (select value from json_each(:ids));

-- runs_failures: read which step failed last in these runs, and whether something was undone since it did.
select s.run_id, s.key,
       case when exists (select 1 from holdfast_steps u where u.run_id = s.run_id and u.kind = 'undo') then 1 else 0 end
  from holdfast_steps s
 where s.run_id in (select value from json_each(:ids)) and s.ok = 0 and s.kind <> 'attempt'
   and s.seq = (select max(l.seq) from holdfast_steps l where l.run_id = s.run_id and l.ok = 0 and l.kind <> 'attempt')
 order by s.run_id;

-- steps_pardon: delete the failure that ended a run, so that its step is made again.
delete from holdfast_steps where run_id = :id and key = :key and ok = 0;

-- steps_fork: note in the journal of a new run, before all else, whose it continues and what its chance follows from.
insert into holdfast_steps (run_id, seq, key, kind, ok, value, digest, attempt, worker, took_ms, ref, at)
select :id, 0, 'fork', 'fork', 1, null, null, 1, null, null, :seed, created_at
  from holdfast_runs where id = :source;

-- steps_copy: copy the first rows of a journal to that of a new run; digests are of the other run's arguments.
insert into holdfast_steps (run_id, seq, key, kind, ok, value, digest, attempt, worker, took_ms, ref, at)
select :id, seq, key, kind, ok, value, null, attempt, worker, took_ms, null, at
  from holdfast_steps where run_id = :source and seq between 1 and :last;
