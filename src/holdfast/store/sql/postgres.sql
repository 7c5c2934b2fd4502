-- Holdfast's queries for PostgreSQL: the schema's version and the clock.
-- The files beside this one hold the same names in the same order: review them with diff.
-- What differs throughout is said at the head of jobs/sql/postgres.sql.

-- schema_create: make the configured schema, if one is configured.
-- Looked for first: a role that may not create schemas is refused, even if this one is there.
select 1 where to_regnamespace('holdfast_schema') is null;
create schema if not exists holdfast_schema;

-- schema_lock: let one migrator in at a time; freed when its transaction ends.
select pg_advisory_xact_lock(hashtextextended('holdfast_meta', 0));

-- schema_patience: say how long a step of a migration waits for a table that another transaction holds.
-- Behind a step that waits, everybody else waits too. What was set before is noted: the transaction may be a caller's.
select set_config('holdfast.lock_timeout', current_setting('lock_timeout'), true),
       set_config('lock_timeout', '5s', true);

-- schema_obstacles: name what would be lost, or would stop a migration, where it makes the table of live jobs anew.
-- Differs: no migration does so here.
select null::text where false;

-- schema_unlock: let the next migrator in.
-- The end of the transaction does it. Steps of a caller's own may follow until then.
select set_config('lock_timeout', current_setting('holdfast.lock_timeout', true), true)
 where current_setting('holdfast.lock_timeout', true) <> '';

-- meta_create: make the table that holds the schema version.
create table if not exists holdfast_meta (key text primary key, value text not null);

-- meta_present: tell whether Holdfast's tables were ever made here.
select to_regclass('holdfast_meta') is not null;

-- version_read: read the schema version.
select value from holdfast_meta where key = 'schema_version';

-- version_write: record the schema version.
insert into holdfast_meta (key, value) values ('schema_version', :version)
on conflict (key) do update set value = excluded.value;

-- clock: read the database's time.
select :now;

-- shard_map_read: read which shard this is, and the map of all of them.
select number, map, set_at, :now from holdfast_shard_map where one = 1;

-- shard_map_allowed: tell whether this role may read it, and whether it is there.
select coalesce(has_table_privilege(to_regclass('holdfast_shard_map'), 'select'), false);

-- shard_map_in_use: tell whether there are live jobs of keys.
select exists (select 1 from holdfast_jobs where bucket is not null);

-- shard_map_lock: as shard_map_read, and keep others from changing it until the transaction ends.
select number, map, set_at, :now from holdfast_shard_map where one = 1 for update;

-- shard_map_add: say which shard this is, unless that was said before.
insert into holdfast_shard_map (one, number, version, map, set_at) values (1, :number, :version, :map, :now)
on conflict (one) do nothing;

-- shard_map_set: store a newer map.
update holdfast_shard_map set version = :version, map = :map, set_at = :now where one = 1 and version < :version;
