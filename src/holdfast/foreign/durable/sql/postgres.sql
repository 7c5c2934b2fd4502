-- Remote steps over two shared tables, on PostgreSQL. The MySQL file holds the same names in the same order.
-- Times are whole milliseconds since 1970.

-- create_tasks: make the tasks table, as the other programs make it; one creator of ours at a time.
select pg_advisory_xact_lock(hashtextextended('foreign_lock', 0));
create table if not exists foreign_tasks (
    step_id varchar(191) primary key,
    run_id varchar(191) not null,
    seq integer not null,
    name varchar(191) not null,
    grp varchar(191) not null,
    input text,
    attempt integer not null,
    status varchar(32) not null,
    claimed_by varchar(191),
    claimed_at bigint,
    created_at bigint not null
);

-- create_results: make the results table.
select pg_advisory_xact_lock(hashtextextended('foreign_lock', 0));
create table if not exists foreign_results (
    step_id varchar(191) primary key,
    run_id varchar(191) not null,
    seq integer not null,
    status varchar(32) not null,
    output text,
    error text,
    started_at bigint,
    claimed_by varchar(191),
    claimed_at bigint,
    created_at bigint not null
);

-- create_index: make the index that the other programs make; they do without it if they must.
select pg_advisory_xact_lock(hashtextextended('foreign_lock', 0));
create index if not exists foreign_index on foreign_tasks (grp, status, created_at);

-- pick: look for tasks that nobody holds, oldest first, without a lock.
-- Not those whose step has a result: it is of an earlier attempt, and the engine's late delete would take ours with it.
select t.step_id, t.name
  from foreign_tasks t
 where t.grp = any(:queues) and (t.claimed_at is null or t.claimed_at < :stale)
   and not exists (select 1 from foreign_results r where r.step_id = t.step_id)
 order by t.created_at, t.step_id
 limit :limit;

-- lock: lock a task that is still free.
select t.step_id, t.run_id, t.seq, t.name, t.grp, t.input, t.attempt, t.claimed_by, t.claimed_at, t.created_at
  from foreign_tasks t
 where t.step_id = :id and (t.claimed_at is null or t.claimed_at < :stale)
   and not exists (select 1 from foreign_results r where r.step_id = t.step_id)
   for update of t skip locked;

-- stamp: write who holds a task and since when.
update foreign_tasks set claimed_by = :holder, claimed_at = :at where step_id = :id;

-- held: lock a task, for a holder to see whether it is still its own.
select step_id, run_id, seq, name, grp, input, attempt, claimed_by, claimed_at, created_at
  from foreign_tasks
 where step_id = :id
   for update;

-- renew: write the time of a claim again.
update foreign_tasks set claimed_at = :at where step_id = :id;

-- result: write the result of a step, unless another worker was first.
insert into foreign_results (step_id, run_id, seq, status, output, error, started_at, created_at)
values (:id, :run_id, :seq, :status, :output, :error, :started_at, :at)
on conflict (step_id) do nothing;

-- forget: delete a task whose result is written.
delete from foreign_tasks where step_id = :id;

-- release: give a task back; a claimed_at that is not null says when it may be claimed again.
update foreign_tasks set claimed_by = null, claimed_at = :at where step_id = :id;

-- counts: count tasks by group: free, put off, held, abandoned, and when the oldest free one came.
select grp,
       sum(case when claimed_at is null or (claimed_by is null and claimed_at < :stale) then 1 else 0 end)::bigint,
       sum(case when claimed_by is null and claimed_at >= :stale then 1 else 0 end)::bigint,
       sum(case when claimed_by is not null and claimed_at >= :stale then 1 else 0 end)::bigint,
       sum(case when claimed_by is not null and claimed_at < :stale then 1 else 0 end)::bigint,
       min(case when claimed_at is null or (claimed_by is null and claimed_at < :stale) then created_at end)
  from foreign_tasks
 group by grp
 order by grp;

-- rows: read tasks by age; a line marked `when` is there only if its parameter is given.
select step_id, run_id, seq, name, grp, input, attempt, claimed_by, claimed_at, created_at
  from foreign_tasks
 where 1 = 1
   and (claimed_at is null or claimed_by is null)  -- when pending
   and claimed_at is not null and claimed_by is not null  -- when leased
   and grp = :queue  -- when queue
   and name = :kind  -- when kind
   and run_id = :key  -- when key
   and step_id = any(:row_ids)  -- when row_ids
   and created_at >= :created_after  -- when created_after
   and created_at < :created_before  -- when created_before
   and (created_at, step_id) > (:after_at, :newer_than)  -- when newer_than
   and (created_at, step_id) < (:after_at, :older_than)  -- when older_than
 order by
       created_at desc, step_id desc,  -- when newest
       created_at, step_id
 limit :limit;

-- due: make a task free that somebody put off.
update foreign_tasks set claimed_at = null where step_id = :id and claimed_by is null;

-- unread: count results that no engine has taken yet, and when the oldest came.
select count(*), min(created_at) from foreign_results;

-- results: read results that no engine has taken yet, oldest first.
select step_id, output, error from foreign_results order by created_at, step_id limit :limit;

-- put: have workers find a step, in place of what they may find of it: its holder of before has lost it.
insert into foreign_tasks (step_id, run_id, seq, name, grp, input, attempt, status, created_at)
values (:id, :run_id, :seq, :step, :grp, :input, :attempt, 'pending', :at)
on conflict (step_id) do update
   set name = excluded.name, grp = excluded.grp, input = excluded.input, attempt = excluded.attempt,
       status = excluded.status, claimed_by = null, claimed_at = null, created_at = excluded.created_at;

-- tasks_lock: lock tasks; those who write results lock them first, too.
select step_id from foreign_tasks where step_id = any(:ids) order by step_id for update;

-- tasks_drop: delete tasks.
delete from foreign_tasks where step_id = any(:ids);

-- outcomes: lock and read results.
select step_id, status, output, error, started_at, created_at
  from foreign_results
 where step_id = any(:ids)
 order by step_id
   for update;

-- results_drop: delete results.
delete from foreign_results where step_id = any(:ids);

-- results_free: look for results that nobody has seen, or only long ago; without a lock.
select step_id from foreign_results where claimed_at is null or claimed_at < :stale order by created_at limit :limit;

-- results_stamp: note that results were seen.
update foreign_results set claimed_by = :holder, claimed_at = :at where step_id = any(:ids);

-- there: tell of which steps a task or a result is there; in one statement, for one of them may become the other.
select step_id from foreign_tasks where step_id = any(:ids)
union
select step_id from foreign_results where step_id = any(:ids);

-- present: tell whether a table is there.
select 1 where to_regclass(quote_ident(cast(:table as text))) is not null;
