-- Holdfast's queries for MySQL and MariaDB: chains, jobs that wait for others, batches.
-- The files beside this one hold the same names in the same order: review them with diff.
-- Times: :now is the server's clock (utc_timestamp(6)), except where a test tells the time.
-- Locks are taken in this order: jobs that end (or are followed) by id, joins by child, children.
-- Flags are numbers in a batch and in an answer: a caller's connection may show booleans in a way of its own.
-- Differs throughout: a batch is one JSON text, an array of rows, in :batch; lists are JSON texts too. JSON_TABLE makes
-- a table of it, and STRAIGHT_JOIN from there reads every row by its primary key.
-- Differs throughout: nothing returns what it wrote. A query locks and reads its rows first, then writes them; what it
-- gives are the rows it read, and :found is their first column. A query that finds nothing ends there.
-- Differs throughout: `open` is a reserved word, hence the backquotes.

-- joins_add: note that jobs wait for others.
insert into holdfast_joins (child, `open`, total, sealed, results, on_dead, created_at)
select u.child, u.`open`, u.total, u.sealed, u.results, u.on_dead, :now
  from json_table(:batch, '$[*]' columns (
        child char(36) character set ascii collate ascii_bin path '$[0]', `open` integer path '$[1]',
        total integer path '$[2]', sealed integer path '$[3]', results integer path '$[4]',
        on_dead varchar(10) character set ascii collate ascii_bin path '$[5]')) u
on duplicate key update child = holdfast_joins.child;

-- joins_known: tell which of these jobs are noted as waiting for others.
select j.child
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_joins j force index (primary) on j.child = u.id;

-- waits_add: note which jobs a child waits for, and which of those know it already.
insert into holdfast_waits (parent, child, asked, followed)
select u.parent, u.child, u.parent, u.followed
  from json_table(:batch, '$[*]' columns (
        parent char(36) character set ascii collate ascii_bin path '$[0]',
        child char(36) character set ascii collate ascii_bin path '$[1]', followed integer path '$[2]')) u
on duplicate key update child = holdfast_waits.child;

-- follow_free: say of live jobs that nobody holds that their end has one more consequence; the others are left out.
-- In a caller's transaction: a claim passes over a locked row, and nobody waits for it. What wakes a waiting job, or
-- calls the next of a key, would wait, so those are left out.
-- Differs: a row that is read and not meant stays locked in REPEATABLE READ, so nothing is read there; in READ
-- COMMITTED it is unlocked when the next one is read, so a row of our own is the last; what was
-- said of that row here would have it left out before it is read.
select j.id
  from json_table(json_array_append(:ids, '$', :own), '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
 where j.state = 'pending' and j.`key` is null
   and /*!80001 @@session.transaction_isolation */ /*M! @@session.tx_isolation */ like 'READ%'
   for update /*!80001 of j */ skip locked;
update json_table(:found, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
   set j.followers = coalesce(j.followers, 0) | :bit
 where j.id <> :own;

-- follow_now: say of live jobs that their end has one more consequence; those that somebody has locked are left out.
select j.id
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
   for update /*!80001 of j */ skip locked;
update json_table(:found, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
   set j.followers = coalesce(j.followers, 0) | :bit;

-- waits_unfollowed: read which parents of these children do not know of them yet.
select w.parent, w.child
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_waits w force index (holdfast_waits_child_idx) on w.child = u.id
 where not w.followed and w.outcome is null
 order by w.parent, w.child;

-- waits_followed: note that parents know of their children now.
update json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_waits w force index (holdfast_waits_child_idx) on w.child = u.id
   set w.followed = true
 where w.parent in (select p.id from json_table(:parents, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$')) p);

-- waits_moved: let children wait for the jobs that continue their parents, except those that do so already.
update json_table(:batch, '$[*]' columns (
        parent char(36) character set ascii collate ascii_bin path '$[0]',
        next char(36) character set ascii collate ascii_bin path '$[1]')) u
 straight_join holdfast_waits w force index (primary) on w.parent = u.parent
  left join holdfast_waits x on x.parent = u.next and x.child = w.child
   set w.parent = u.next, w.followed = :followed
 where w.outcome is null and x.parent is null
   -- when children:
   and w.child in (select c.id from json_table(:children, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$')) c)
   -- end
;

-- waits_open: read the children that wait for these jobs, and lock the edges.
-- A locking read of this table alone: in a caller's REPEATABLE READ it sees what was committed since that began, and a
-- table beside it that is not locked (`of w`) would be read as it was, so that an edge without its join was left out.
select w.parent, w.child
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_waits w force index (primary) on w.parent = u.id
 where w.outcome is null
 order by w.parent, w.child
   for update /*!80001 of w */;

-- waits_end: write how parents ended, for all that wait for them, or for these children.
update json_table(:batch, '$[*]' columns (
        parent char(36) character set ascii collate ascii_bin path '$[0]',
        outcome varchar(10) character set ascii collate ascii_bin path '$[1]',
        result longtext character set utf8mb4 path '$[2]')) u
 straight_join holdfast_waits w force index (primary) on w.parent = u.parent
   set w.outcome = u.outcome, w.result = u.result
 where w.outcome is null
   -- when children:
   and w.child in (select c.id from json_table(:children, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$')) c)
   -- end
;

-- waits_drop: forget what batches have waited for: of a member that is done nothing is kept.
delete w
  from json_table(:parents, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_waits w force index (primary) on w.parent = u.id
 where w.outcome is null
   and w.child in (select c.id from json_table(:ids, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$')) c);

-- waits_ended: read the edges of jobs that had ended, for those that come back.
select w.parent, w.child, w.outcome
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_waits w force index (primary) on w.parent = u.id
 where w.outcome is not null;

-- waits_reopen: let children wait again for jobs that came back.
update json_table(:parents, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_waits w force index (primary) on w.parent = u.id
   set w.outcome = null, w.result = null, w.followed = true
 where w.outcome is not null
   and w.child in (select c.id from json_table(:ids, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$')) c);

-- joins_lock: lock joins in the order of children and read their counts.
-- Differs: the list is sorted already, and its order is that of the locks.
select j.child, j.`open`, j.total, j.done, j.dead, j.cancelled, j.sealed, j.doomed_by, j.results, j.on_dead
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_joins j force index (primary) on j.child = u.id
   for update /*!80001 of j */;

-- joins_write: store the counts of joins whose rows are locked.
update json_table(:batch, '$[*]' columns (
        child char(36) character set ascii collate ascii_bin path '$[0]', `open` integer path '$[1]',
        total integer path '$[2]', done integer path '$[3]', dead integer path '$[4]', cancelled integer path '$[5]',
        sealed integer path '$[6]', doomed_by char(36) character set ascii collate ascii_bin path '$[7]')) u
 straight_join holdfast_joins j force index (primary) on j.child = u.child
   set j.`open` = u.`open`, j.total = u.total, j.done = u.done, j.dead = u.dead, j.cancelled = u.cancelled,
       j.sealed = u.sealed, j.doomed_by = u.doomed_by;

-- joins_pardon: let children run after all that were to be cancelled for a parent.
update json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_joins j force index (primary) on j.child = u.id
   set j.doomed_by = null;

-- parents_ended: read how jobs ended, with their results and what followed.
select f.id, f.outcome, f.result, f.followers
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_finished f force index (primary) on f.id = u.id;

-- joins_drop: forget what children have waited for: their edges, then themselves.
-- Differs: two statements.
delete w
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_waits w force index (holdfast_waits_child_idx) on w.child = u.id;
delete j
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_joins j force index (primary) on j.child = u.id;

-- joins_orphans: read joins whose child is neither alive nor kept as finished, in the order of children.
select j.child
  from holdfast_joins j
 where j.created_at < :now - interval :older_ms * 1000 microsecond
   and not exists (select 1 from holdfast_jobs l where l.id = j.child)
   and not exists (select 1 from holdfast_finished f where f.id = j.child)
   and j.child > :after  -- when after
 order by j.child
 limit :limit;

-- joins_unsealed: read batches that wait for nothing but to be sealed, the oldest first.
select child from holdfast_joins
 where not sealed and `open` = 1 and created_at < :now - interval :older_ms * 1000 microsecond
 order by child
 limit :limit;

-- join_show: read what a job waits for, or has waited for, in numbers.
select `open`, total, done, dead, cancelled, sealed, on_dead, doomed_by
  from holdfast_joins where child = :id;

-- waits_of: read the parents of a job that are noted, with how they ended.
select asked, parent, outcome, result from holdfast_waits where child = :id order by asked limit :limit;

-- children_of: read which jobs wait for this one, or have waited.
select child from holdfast_waits where parent = :id order by child limit :limit;
