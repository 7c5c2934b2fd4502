-- Holdfast's queries for SQLite: the schema's version and the clock.
-- The files beside this one hold the same names in the same order: review them with diff.
-- What differs throughout is said at the head of jobs/sql/sqlite.sql.

-- schema_create: make the configured schema, if one is configured.
-- Differs: SQLite has no schemas.
select 1;

-- schema_lock: let one migrator in at a time; freed when its transaction ends.
-- Differs: BEGIN IMMEDIATE has locked the file already.
select 1;

-- schema_patience: say how long a step of a migration waits for a table that another transaction holds.
-- Differs: BEGIN IMMEDIATE has waited already.
select 1;

-- schema_obstacles: name what would be lost, or would stop a migration, where it makes the table of live jobs anew.
-- Differs: only here a rule of a table cannot be changed in place. To drop a table is to delete its rows, and so those
-- of other tables that refer to them with ON DELETE.
select type || ' ' || name from sqlite_schema
 where type in ('view', 'trigger') and sql like '%holdfast_jobs%'
    or type = 'index' and tbl_name = 'holdfast_jobs' and sql is not null
       and name not like 'holdfast_jobs_%'
 union all
select 'table ' || m.name from sqlite_schema m, pragma_foreign_key_list(m.name) f
 where m.type = 'table' and f."table" = 'holdfast_jobs';

-- schema_unlock: let the next migrator in.
-- Differs: the end of the transaction does it.
select 1;

-- meta_create: make the table that holds the schema version.
-- Differs: "without rowid", as every table of ours.
create table if not exists holdfast_meta (key text primary key, value text not null) without rowid;

-- meta_present: tell whether Holdfast's tables were ever made here.
-- Differs: SQLite's catalogue is a table.
select exists (select 1 from sqlite_master where type = 'table' and name = 'holdfast_meta');

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
-- Differs: there are no rights.
select 1;

-- shard_map_in_use: tell whether there are live jobs of keys.
select exists (select 1 from holdfast_jobs where bucket is not null);

-- shard_map_lock: as shard_map_read, and keep others from changing it until the transaction ends.
-- Differs: the transaction has the file to itself.
select number, map, set_at, :now from holdfast_shard_map where one = 1;

-- shard_map_add: say which shard this is, unless that was said before.
insert into holdfast_shard_map (one, number, version, map, set_at) values (1, :number, :version, :map, :now)
on conflict (one) do nothing;

-- shard_map_set: store a newer map.
update holdfast_shard_map set version = :version, map = :map, set_at = :now where one = 1 and version < :version;
