-- Holdfast's queries for MySQL and MariaDB: the schema's version and the clock.
-- The files beside this one hold the same names in the same order: review them with diff.
-- What differs throughout is said at the head of jobs/sql/mysql.sql.

-- schema_create: make the configured schema, if one is configured.
-- Differs: a schema is a database here; the URL names it.
select 1;

-- schema_lock: let one migrator in at a time; freed by schema_unlock, or when its connection closes.
-- Differs: DDL commits, so a lock of the transaction would not last; 0 means that another migrator held it all the
-- time.
-- MySQL takes names of 64 characters, as many as a database may have in its own.
select get_lock(concat('holdfast ', left(sha2(concat(database(), '.holdfast_meta'), 256), 40)), 30);

-- schema_patience: say how long a step of a migration waits for a table that another transaction holds.
-- Behind a step that waits, everybody else waits too.
-- Differs: it holds for the session, so schema_unlock takes it back.
set session lock_wait_timeout = 5;

-- schema_obstacles: name what would be lost, or would stop a migration, where it makes the table of live jobs anew.
-- Differs: no migration does so here.
select null from holdfast_meta where false;

-- schema_unlock: let the next migrator in.
set session lock_wait_timeout = default;
select release_lock(concat('holdfast ', left(sha2(concat(database(), '.holdfast_meta'), 256), 40)));

-- meta_create: make the table that holds the schema version.
create table if not exists holdfast_meta (
    `key` varchar(40) character set ascii collate ascii_bin not null primary key,
    value varchar(200) character set ascii collate ascii_bin not null
) engine = InnoDB;

-- meta_present: tell whether Holdfast's tables were ever made here.
select exists (
    select 1 from information_schema.tables where table_schema = database() and table_name = 'holdfast_meta');

-- version_read: read the schema version.
select value from holdfast_meta where `key` = 'schema_version';

-- version_write: record the schema version.
insert into holdfast_meta (`key`, value) values ('schema_version', :version)
on duplicate key update value = :version;

-- clock: read the database's time.
select :now;

-- shard_map_read: read which shard this is, and the map of all of them.
select number, map, set_at, :now from holdfast_shard_map where one = 1;

-- shard_map_allowed: tell whether this role may read it, and whether it is there.
-- Differs: a refused statement does not end a transaction.
select 1;

-- shard_map_in_use: tell whether there are live jobs of keys.
select exists (select 1 from holdfast_jobs where bucket is not null);

-- shard_map_lock: as shard_map_read, and keep others from changing it until the transaction ends.
select number, map, set_at, :now from holdfast_shard_map where one = 1 for update;

-- shard_map_add: say which shard this is, unless that was said before.
-- Differs: looked for before: asyncmy logs what an INSERT IGNORE ignores.
insert ignore into holdfast_shard_map (one, number, version, map, set_at)
select 1, :number, :version, :map, :now from dual where not exists (select 1 from holdfast_shard_map where one = 1);

-- shard_map_set: store a newer map.
update holdfast_shard_map set version = :version, map = :map, set_at = :now where one = 1 and version < :version;
